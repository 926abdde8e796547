"""`rlhfjob validate`: every bound and every rule, met both ways, with the words that a user reads."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generated_specs import generated
from pydantic import ValidationError
from rich.console import Console
from rlhf_api.crd import object_schema
from rlhf_api.job import RLHFJob
from rlhf_cli.validation.command import validate as validate_files
from rlhf_cli.validation.config_map import ConfigMap, load_config_map
from rlhf_cli.validation.manifest import Document, FieldPath, parse_manifest, read_manifest
from rlhf_cli.validation.patterns import WORDS
from rlhf_cli.validation.rules import broken_rules
from rlhf_cli.validation.structural import defaulted, field_schema, unknown_fields, violations
from rlhf_cli.validation.verdict import InvalidObject, is_job, load_job, validate
from rule_cases import Generated
from valid_jobs import bases

SCHEMA = object_schema()
SAMPLES = sorted((Path(__file__).resolve().parents[3] / "manifests" / "samples").glob("*.yaml"))
GENERATED = generated()

VALID = """\
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata: {name: sums}
spec:
  episodes: 5
  algorithm:
    type: GRPO
    optimizer: {learningRate: 1e-3}
  models:
    actor: {uri: /models/policy}
  rewards:
  - function: rewards:exact
  prompts:
    reasoningGym: {task: chain_sum, size: 64}
  rollout:
    promptsPerEpisode: 8
    samplesPerPrompt: 4
    maxNewTokens: 16
  checkpoint:
    storage: {path: /mnt/a}
"""
QUANTITY = "expected an integer or a quantity in quotes, such as '500m' or '2Gi'"
DIVIDE = (
    "must be a multiple of trainers.replicas / trainers.tensorParallel * algorithm.minibatches, "
    "so that every rank has whole groups in every step"
)
NAME = (
    "must start with a lower-case letter, end with a letter or digit, and contain only lower-case letters, digits and "
    "'-': names of Services are derived from it"
)
LONG = "s" * 48
PLACE = (
    "must be an absolute path, package://PACKAGE/PATH, s3://BUCKET/KEY, gs://BUCKET/KEY, abfs://CONTAINER/PATH, "
    "hf://[datasets/]ORG/NAME[@REVISION][/PATH] or http(s)://HOST/PATH"
)
RAY = "must be 2.53.0 or later: earlier versions lack the HTTP health checks that KubeRay uses"


def document(text: str) -> Document:
    [parsed] = parse_manifest(text.encode(), "job")
    return parsed


def problems(text: str) -> list[str]:
    return [str(problem) for problem in validate(document(text))]


def test_the_job_that_the_cases_start_from_is_valid() -> None:
    assert problems(VALID) == []


@pytest.mark.parametrize(
    ("situation", "old", "new", "expected"),
    [
        # Fields that are not there, or should not be.
        (
            "a misspelt field",
            "samplesPerPrompt: 4",
            "samplePerPrompt: 4",
            [
                "job:15: spec.rollout.samplesPerPrompt: found nothing, expected an integer from 1 to 4096",
                "job:17: spec.rollout.samplePerPrompt: unknown field; did you mean samplesPerPrompt?",
            ],
        ),
        (
            "a field in Python's letters",
            "episodes: 5",
            "episodes: 5\n  max_staleness: 0",
            ["job:6: spec.max_staleness: unknown field; did you mean maxStaleness?"],
        ),
        (
            "a field in another place",
            "maxNewTokens: 16",
            "maxNewTokens: 16\n    warmupSteps: 3",
            [
                "job:19: spec.rollout.warmupSteps: unknown field; did you mean "
                "spec.algorithm.critic.optimizer.warmupSteps or spec.algorithm.optimizer.warmupSteps?"
            ],
        ),
        (
            "a field that is like nothing",
            "episodes: 5",
            "episodes: 5\n  colour: red",
            ["job:6: spec.colour: unknown field"],
        ),
        (
            "a container without the spec around it",
            "episodes: 5",
            "episodes: 5\n  makers: {template: {containers: []}}",
            ["job:6: spec.makers.template.containers: unknown field"],
        ),
        (
            "no episodes",
            "  episodes: 5\n",
            "",
            ["job:4: spec.episodes: found nothing, expected an integer from 1 to 1000000"],
        ),
        (
            "nothing where a value is required",
            "episodes: 5",
            "episodes:",
            ["job:5: spec.episodes: found nothing, expected an integer from 1 to 1000000"],
        ),
        (
            "no algorithm type",
            "    type: GRPO\n",
            "",
            ["job:6: spec.algorithm.type: found nothing, expected PPO or GRPO"],
        ),
        (
            "a field twice",
            "episodes: 5",
            "episodes: 5\n  episodes: 6",
            ["job:6: spec.episodes: written more than once; only the last one would count"],
        ),
        # Types.
        (
            "a number in quotes",
            "episodes: 5",
            "episodes: '5'",
            ['job:5: spec.episodes: found "5", expected an integer from 1 to 1000000'],
        ),
        (
            "a fraction for a count",
            "episodes: 5",
            "episodes: 2.5",
            ["job:5: spec.episodes: found 2.5, expected an integer from 1 to 1000000"],
        ),
        (
            "a YAML boolean for text",
            "reasoningGym:",
            "promptKey: yes\n    reasoningGym:",
            ["job:14: spec.prompts.promptKey: found true, expected text"],
        ),
        (
            "a list for an object",
            "storage: {path: /mnt/a}",
            "storage: [/mnt/a]",
            ['job:20: spec.checkpoint.storage: found ["/mnt/a"], expected an object'],
        ),
        (
            "an object for a list",
            "- function: rewards:exact",
            "  function: rewards:exact",
            ['job:11: spec.rewards: found {"function": "rewards:exact"}, expected a list'],
        ),
        (
            "a fraction for a quantity",
            "episodes: 5",
            "episodes: 5\n  head: {resources: {limits: {cpu: 0.5}}}",
            [f"job:6: spec.head.resources.limits.cpu: found 0.5, {QUANTITY}"],
        ),
        # Bounds.
        (
            "a mode that is none",
            "episodes: 5",
            "episodes: 5\n  mode: fully_async",
            ['job:6: spec.mode: found "fully_async", expected FullyAsync; did you mean FullyAsync?'],
        ),
        (
            "a type that does not exist",
            "type: GRPO",
            "type: DPO",
            ['job:7: spec.algorithm.type: found "DPO", expected PPO or GRPO'],
        ),
        ("no episode", "episodes: 5", "episodes: 0", ["job:5: spec.episodes: found 0, expected at least 1"]),
        (
            "too many episodes",
            "episodes: 5",
            "episodes: 1e7",
            ["job:5: spec.episodes: found 10000000, expected at most 1000000"],
        ),
        (
            "negative makers",
            "episodes: 5",
            "episodes: 5\n  makers: {replicas: -1}",
            ["job:6: spec.makers.replicas: found -1, expected at least 1"],
        ),
        (
            "one sample, no group",
            "samplesPerPrompt: 4",
            "samplesPerPrompt: 1",
            [
                "job:17: spec.rollout.samplesPerPrompt: found 1, must be at least 2 where algorithm.type is "
                "GRPO, which compares the samples of a prompt"
            ],
        ),
        (
            "a temperature of 0",
            "maxNewTokens: 16",
            "maxNewTokens: 16\n    temperature: 0",
            ["job:19: spec.rollout.temperature: found 0, expected more than 0"],
        ),
        (
            "a decay of 1",
            "learningRate: 1e-3",
            "learningRate: 1e-3, beta1: 1",
            ["job:8: spec.algorithm.optimizer.beta1: found 1, expected less than 1"],
        ),
        (
            "no reward",
            "\n  - function: rewards:exact",
            " []",
            ["job:11: spec.rewards: found 0 items, expected at least 1"],
        ),
        (
            "a reward that names no function",
            "rewards:exact",
            "rewards.exact",
            ['job:12: spec.rewards[0].function: found "rewards.exact", expected package.module:function'],
        ),
        (
            "an empty key",
            "reasoningGym:",
            "promptKey: ''\n    reasoningGym:",
            ["job:14: spec.prompts.promptKey: found 0 characters, expected at least 1"],
        ),
        # Rules across fields.
        (
            "groups that trainers do not divide",
            "episodes: 5",
            "episodes: 5\n  trainers: {replicas: 3}",
            [f"job:17: spec.rollout.promptsPerEpisode: found 8, {DIVIDE}"],
        ),
        (
            "groups that minibatches do not divide",
            "type: GRPO",
            "type: GRPO\n    minibatches: 5",
            [f"job:17: spec.rollout.promptsPerEpisode: found 8, {DIVIDE}"],
        ),
        (
            "a buffer smaller than an episode",
            "episodes: 5",
            "episodes: 5\n  buffer: {capacity: 31}",
            [
                "job:6: spec.buffer.capacity: found 31, must be at least rollout.promptsPerEpisode "
                "* rollout.samplesPerPrompt, the samples of one episode"
            ],
        ),
        (
            "a batch smaller than a group",
            "episodes: 5",
            "episodes: 5\n  makers: {maxBatchSamples: 3}",
            [
                "job:6: spec.makers.maxBatchSamples: found 3, must be at least rollout.samplesPerPrompt, "
                "the samples of one group"
            ],
        ),
        (
            "two sources of prompts",
            "reasoningGym:",
            "uri: /a\n    reasoningGym:",
            ["job:13: spec.prompts: exactly one of uri and reasoningGym must be set"],
        ),
        (
            "no source of prompts",
            "reasoningGym: {task: chain_sum, size: 64}",
            "seed: 1",
            ["job:13: spec.prompts: exactly one of uri and reasoningGym must be set"],
        ),
        (
            "no storage",
            "storage: {path: /mnt/a}",
            "storage: {}",
            ["job:20: spec.checkpoint.storage: exactly one of persistentVolumeClaim and path must be set"],
        ),
        (
            "a model in a store that is not known",
            "/models/policy",
            "ftp://host/model",
            [f'job:10: spec.models.actor.uri: found "ftp://host/model", {PLACE}'],
        ),
        (
            "an old Ray",
            "episodes: 5",
            "episodes: 5\n  runtime: {rayVersion: 2.52.1}",
            [f'job:6: spec.runtime.rayVersion: found "2.52.1", {RAY}'],
        ),
        # The object around the spec.
        (
            "another version",
            "rlhf.dev/v1alpha1",
            "rlhf.dev/v1",
            ['job:1: apiVersion: found "rlhf.dev/v1", expected rlhf.dev/v1alpha1'],
        ),
        (
            "a name that Services refuse",
            "name: sums",
            "name: 2sums",
            [f'job:3: metadata.name: found "2sums", {NAME}'],
        ),
        (
            "a name too long for the pods' names",
            "name: sums",
            f"name: {LONG}",
            [
                f'job:3: metadata.name: found "{LONG}", '
                "must be at most 47 characters: the names of the job's pods are derived from it"
            ],
        ),
        ("no name", "{name: sums}", "{}", ["job:3: metadata.name: found nothing, expected a name"]),
        (
            "a label that is a number",
            "{name: sums}",
            "{name: sums, labels: {run: 3}}",
            ["job:3: metadata.labels.run: found 3, expected text (quote it)"],
        ),
        (
            "a misspelt part of metadata",
            "{name: sums}",
            "{name: sums, lables: {}}",
            ["job:3: metadata.lables: unknown field; did you mean labels?"],
        ),
        (
            "metadata of wrong types",
            "{name: sums}",
            "{name: [sums], namespace: {}, finalizers: keep, ownerReferences: [a], generation: first, uid: 3}",
            [
                'job:3: metadata.finalizers: found "keep", expected a list',
                'job:3: metadata.generation: found "first", expected an integer',
                "job:3: metadata.name: found [\"sums\"], expected lower-case letters, digits, '-' and '.', beginning "
                "and ending with a letter or digit, at most 253",
                "job:3: metadata.namespace: found {}, expected at most 63 lower-case letters, digits and '-'",
                'job:3: metadata.ownerReferences[0]: found "a", expected an object',
                "job:3: metadata.uid: found 3, expected text",
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_job_is_told_what_was_found_what_is_expected_and_where(
    situation: str, old: str, new: str, expected: list[str]
) -> None:
    assert VALID.count(old) == 1, situation
    assert problems(VALID.replace(old, new)) == expected, situation


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = VALID.replace("name: sums", "name: Sums!").replace("episodes: 5", "episodes: 0").replace("Gym:", "Gim:")
    paths = [problem.path for problem in validate(document(text))]
    assert paths == ["metadata.name", "metadata.name", "spec.episodes", "spec.prompts", "spec.prompts.reasoningGim"]


def test_a_rule_that_cannot_be_evaluated_adds_nothing_to_the_problem_that_explains_it() -> None:
    assert [p.path for p in validate(document(VALID.replace("promptsPerEpisode: 8", "promptsPerEpisode: a")))] == [
        "spec.rollout.promptsPerEpisode"
    ]


def test_a_number_is_a_double_to_a_rule_also_where_it_is_whole() -> None:
    rule = {"rule": "self.weight * 2.0 <= 4.0 && self.counts.all(c, c % 2 == 0)", "message": "too much"}
    schema = {
        "x-kubernetes-validations": [rule],
        "properties": {"weight": {"type": "number"}, "counts": {"items": {"type": "integer"}}},
    }
    assert list(broken_rules({"weight": 2, "counts": [2, 4]}, schema, set())) == []
    assert list(broken_rules({"weight": 3, "counts": [2, 4]}, schema, set())) == [((), "too much")]


def test_a_rule_without_a_value_is_broken_as_it_is_for_the_server() -> None:
    schema = {"x-kubernetes-validations": [{"rule": "8 % self.count == 0", "message": "must divide 8"}]}
    [(path, message)] = broken_rules({"count": 0}, schema, set())
    assert (path, message) == ((), "must divide 8 (the rule has no value: modulo by zero in CEL expression)")


def test_a_long_value_is_cut_in_a_message() -> None:
    [problem] = validate(document(VALID.replace("episodes: 5", f"episodes: {'x' * 5000}")))
    assert len(problem.message) < 200


@pytest.mark.parametrize("item", bases(), ids=["one of each pair of alternatives", "the other"])
def test_a_loaded_job_has_every_default(item: dict[str, Any]) -> None:
    job = load_job(Document("a", item, {(): 1}))
    assert job == RLHFJob.model_validate(item)
    assert job.spec.to_dict() == defaulted(item, SCHEMA)["spec"]


def test_a_status_in_the_file_is_ignored_as_the_server_does() -> None:
    assert load_job(document(VALID + "status: {phase: 3}\n")).status.phase == ""


def test_a_null_in_the_file_is_absent() -> None:
    assert load_job(document(VALID + "  evaluation:\n  backoffLimit:\n")).spec.backoff_limit == 2


def test_an_invalid_job_is_not_loaded() -> None:
    with pytest.raises(InvalidObject) as refused:
        load_job(document(VALID.replace("episodes: 5", "episodes: 0")))
    assert str(refused.value) == "job:5: spec.episodes: found 0, expected at least 1"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_is_valid(path: Path) -> None:
    assert [problem for document in read_manifest(path) if is_job(document) for problem in validate(document)] == []


def test_there_are_samples_with_jobs() -> None:
    assert sum(is_job(document) for path in SAMPLES for document in read_manifest(path)) >= 2


def parsed(item: Generated) -> Document:
    return Document("generated.json", item.document, {(): 1})


def test_every_generated_job_is_valid_or_not_as_it_is_meant() -> None:
    wrong = [
        item.name for item in GENERATED if item.allowed is not None and item.allowed == bool(validate(parsed(item)))
    ]
    assert wrong == []


def test_the_types_and_the_schema_take_the_same_generated_jobs() -> None:
    for item in GENERATED:
        effective = defaulted({key: value for key, value in item.document.items() if key != "status"}, SCHEMA)
        body = {key: value for key, value in item.document.items() if key not in ("metadata", "status")}
        by_schema = not [*unknown_fields(body, SCHEMA, SCHEMA), *violations(effective, SCHEMA)]
        try:
            RLHFJob.model_validate(effective)
            by_types = True
        except ValidationError:
            by_types = False
        if item.document.get("metadata", {}).get("name") and item.place[:1] != ("metadata",):
            assert by_types == by_schema, item.name


def general(path: FieldPath) -> str:
    return "".join("[]" if isinstance(part, int) else f".{part}" for part in path)


def bounds(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Every (place, keyword) of the spec that can refuse a value."""
    refusing = ("type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
    for keyword in (*refusing, "maxProperties"):
        if keyword in schema:
            yield path, keyword
    for name in schema.get("required", ()):
        yield f"{path}.{name}", "required"
    for name, field in schema.get("properties", {}).items():
        yield from bounds(field, f"{path}.{name}")
    if "items" in schema:
        yield from bounds(schema["items"], f"{path}[]")


SAID = {
    "type": r"expected (an integer|a number|true or false|text|a list|an object|[A-Z]|float32|reward)",
    "enum": r"expected [A-Za-z]",
    "pattern": f"expected ({'|'.join(map(re.escape, WORDS.values()))})$",
    "minimum": "expected (at least|more than) ",
    "maximum": "expected (at most|less than) ",
    "minLength": "characters, expected at least",
    "maxLength": "characters, expected at most",
    "minItems": "items, expected at least",
    "maxItems": "items, expected at most",
    "maxProperties": "entries, expected at most",
    "required": "found nothing",
}


def test_the_generated_jobs_break_every_bound_of_the_schema() -> None:
    broken: dict[str, set[str]] = {}
    for item in GENERATED:
        for path, message in violations(defaulted(item.document, SCHEMA), SCHEMA):
            broken.setdefault(general(path), set()).add(message)
    missed = [
        (place, keyword)
        for place, keyword in bounds(SCHEMA["properties"]["spec"], ".spec")
        if not any(re.search(SAID[keyword], message) for message in broken.get(place, ()))
    ]
    assert missed == []


def rules(schema: dict[str, Any], value: Any, path: FieldPath = ()) -> Iterator[tuple[str, str, FieldPath]]:
    """Every rule that has something to say of a value: its place in general, its text, its place."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield general(path), rule["message"], (*path, *rule.get("fieldPath", "").split(".")[1:])
    if isinstance(value, dict):
        for key, item in value.items():
            yield from rules(field_schema(schema, key) or {}, item, (*path, key))
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from rules(schema.get("items", {}), item, (*path, position))


def all_rules(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            yield path, rule["message"]
    for name, field in schema.get("properties", {}).items():
        yield from all_rules(field, f"{path}.{name}")
    if "items" in schema:
        yield from all_rules(schema["items"], f"{path}[]")


def test_the_generated_jobs_meet_every_rule_both_ways() -> None:
    kept: set[tuple[str, str]] = set()
    broken: set[tuple[str, str]] = set()
    for item in GENERATED:
        effective = defaulted(item.document, SCHEMA)
        findings = set(broken_rules(effective, SCHEMA, {()}))
        said = findings | {(place, message.split(", ", 1)[-1]) for place, message in findings}
        for place, message, where in rules(SCHEMA, effective):
            (broken if (where, message) in said else kept).add((place, message))
    expected = set(all_rules(SCHEMA))
    assert len(expected) > 15
    assert expected - broken == set()
    assert expected - kept == set()


def run(*paths: Path) -> tuple[int, str]:
    output = io.StringIO()
    code = validate_files(paths, Console(file=output, soft_wrap=True, highlight=False))
    return code, output.getvalue()


def test_the_command_says_that_a_file_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(VALID + "---\nkind: Secret\n")
    assert run(path) == (0, f"{path}: sums: valid; not checked: Secret\n")


def test_the_command_refuses_a_job_that_is_there_twice(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(VALID + "---\n" + VALID.replace("name: sums", "name: sums, namespace: other"))
    second.write_text(
        VALID.replace("name: sums", "name: sums, namespace: default").replace("episodes: 5", "episodes: 6")
    )
    assert run(first, second) == (
        1,
        f"{first}: sums, sums: valid\n{second}:3: metadata.name: RLHFJob default/sums is also at {first}:3; "
        "expected one: the last would replace the others\n",
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        pytest.param("- function: rewards:exact", "- function: a:b\n" + "  - function: a:b\n" * 5_000, 11, id="a list"),
        pytest.param("episodes: 5", "".join(f"k{n}: 1\n  " for n in range(5_000)), 5, id="unknown fields"),
        pytest.param("episodes: 5", "episodes: 5\n  " * 5_000, 5_004, id="a doubled key"),
        pytest.param("/models/policy", "/" + "a" * 1_000_000, 10, id="a text"),
        pytest.param("{name: sums}", "{name: sums, labels: {" + "a: b, " * 5_000 + "}}", 3, id="doubled labels"),
    ],
)
def test_a_file_of_no_measure_has_a_few_problems_with_lines(tmp_path: Path, old: str, new: str, place: int) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(VALID.replace(old, new))
    code, output = run(path)
    lines = output.splitlines()
    assert code == 1
    assert 1 <= len(lines) <= 101
    assert any(line.startswith(f"{path}:{place}: ") for line in lines)
    assert len(lines) < 100 or "RLHFJob: has more problems than these 100" in output


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("data: [a]", '3: data: found ["a"], expected an object'),
        ("data: text", '3: data: found "text", expected an object'),
        ("data: {a: 3}", "3: data.a: found 3, expected text"),
        ("data: {../../evil.py: x}", '3: data.../../evil.py: found key "../../evil.py", expected a file name'),
        ("data: {..: x}", '3: data...: found key "..", expected a file name'),
        ("binaryData: [a]", '3: binaryData: found ["a"], expected an object'),
        ("binaryData: AAEC", '3: binaryData: found "AAEC", expected an object'),
        ("binaryData: {a: [1]}", "3: binaryData.a: found [1], expected text"),
        ("binaryData: {a: $$$}", '3: binaryData.a: found "$$$", expected base64'),
        ("data: {a: b}\nbinaryData: {a: AAEC}", "4: binaryData.a: found the same key in data"),
        ("data: {a: b, a: c}", "3: data.a: written more than once"),
        ("dta: {a: b}", "3: dta: unknown field; did you mean data?"),
        ("immutable: yes please", '3: immutable: found "yes please", expected true or false'),
        ("metadata: code", '3: metadata: found "code", expected an object with a name'),
        ("data: {a: " + "x" * 1_048_577 + "}", "1: ConfigMap: found 1048577 bytes of data"),
    ],
    ids=lambda value: value[:40],
)
def test_a_config_map_of_another_form_is_refused_with_its_line(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "job.yaml"
    metadata = "" if content.startswith("metadata") else "metadata: {name: code}\n"
    path.write_text(f"apiVersion: v1\nkind: ConfigMap\n{content}\n{metadata}---\n{VALID}")
    code, output = run(path)
    assert (code, output.count("\n")) == (1, 1)
    assert output.startswith(f"{path}:{found}")
    with pytest.raises(InvalidObject):
        load_config_map(read_manifest(path)[0])


def test_a_config_map_is_read_as_the_server_stores_it(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: }\ndata: {a: b}\nbinaryData: {d: AAEC}\n"
    expected = ConfigMap(name="c", data={"a": "b"}, binary_data={"d": b"\0\1\2"})
    assert load_config_map(document(text)) == expected


def test_the_command_prints_every_problem_of_every_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(VALID.replace("episodes: 5", "episodes: 0").replace("sums", "differences"))
    second.write_text(VALID + "---\n" + VALID.replace("sums", "products").replace("/models/policy", "'[red]policy'"))
    assert run(first, second) == (
        1,
        f"{first}:5: spec.episodes: found 0, expected at least 1\n"
        f'{second}:31: spec.models.actor.uri: found "[red]policy", {PLACE}\n',
    )


def test_the_command_fails_for_a_file_without_a_job(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("kind: ConfigMap\n")
    assert run(path) == (1, f"{path}: found no RLHFJob, only ConfigMap\n")


def test_the_command_tells_an_unreadable_file_from_an_invalid_one(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(VALID)
    bad.write_text("a: [\n")
    code, output = run(good, bad, tmp_path / "none.yaml")
    assert code == 2
    assert f"{good}: sums: valid\n" in output
    assert f"{bad}:2: not YAML: " in output
    assert f"{tmp_path}/none.yaml: No such file or directory\n" in output


def patterns(schema: Any) -> Iterator[str]:
    """All below a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for value in schema.values():
            yield from patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from patterns(value)


def test_every_pattern_of_the_spec_has_words() -> None:
    assert set(patterns(SCHEMA["properties"]["spec"])) == WORDS.keys()
