"""What the API server itself accepts, defaults, refuses and keeps; and that `rlhfjob validate` says the same.

Needs no operator and no node: KUBECONFIG and kubectl, for any API server that may have our CRD.
"""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from generated_specs import generated
from kube import ROOT, JsonObject, Kubectl, eventually
from kubernetes import client, config
from rlhf_api.crd import COLUMNS, WIDE_COLUMNS, object_schema
from rlhf_api.job import GROUP, PLURAL, VERSION
from rlhf_api.status import RLHFJobStatus
from rlhf_cli.validation.manifest import Document, parse_manifest
from rlhf_cli.validation.verdict import load_job, validate
from rule_cases import Generated
from valid_jobs import bases

NAMESPACE = "rlhf-api"
_WHERE = {"group": GROUP, "version": VERSION, "namespace": NAMESPACE, "plural": PLURAL}


@pytest.fixture(scope="module")
def kubectl() -> Kubectl:
    """A namespace of its own on a server that serves the CRD as it is committed."""
    kubectl = Kubectl(NAMESPACE)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    crd = str(ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml")
    kubectl.run("apply", "--server-side", "--force-conflicts", "-f", crd)
    kubectl.run("wait", "--for=condition=Established", f"crd/{PLURAL}.{GROUP}", "--timeout=30s")
    eventually("the server serves the committed schema", lambda: _served(kubectl) == object_schema()["properties"], 60)
    return kubectl


def _served(kubectl: Kubectl) -> JsonObject:
    """The schema that the server publishes, without what it adds itself."""
    answer = kubectl.run("get", "--raw", f"/openapi/v3/apis/{GROUP}/{VERSION}", check=False)
    if not answer.startswith("{"):
        return {}
    schema = json.loads(answer)["components"]["schemas"].get(f"dev.rlhf.{VERSION}.RLHFJob", {})
    own = object_schema()["properties"]
    served: JsonObject = _without_unions(schema.get("properties", {}))
    return {name: served.get(name) if name in ("spec", "status") else own[name] for name in own}


def _without_unions(schema: Any) -> Any:
    """The server adds ``anyOf`` to each integer-or-string."""
    if isinstance(schema, list):
        return [_without_unions(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _without_unions(item) for key, item in schema.items() if key != "anyOf"}
    return schema


@pytest.fixture(scope="module")
def server(kubectl: Kubectl) -> client.CustomObjectsApi:
    config.load_kube_config()
    return client.CustomObjectsApi()


@pytest.fixture
def job(server: client.CustomObjectsApi) -> Iterator[JsonObject]:
    """A job that really exists, as the server stored it."""
    document = copy.deepcopy(bases()[0])
    document["metadata"]["name"] = "existing"
    _delete(server, "existing")
    yield server.create_namespaced_custom_object(**_WHERE, body=document)
    _delete(server, "existing")


def _delete(server: client.CustomObjectsApi, name: str) -> None:
    try:
        server.delete_namespaced_custom_object(**_WHERE, name=name, grace_period_seconds=0)
    except client.ApiException as error:
        if error.status != 404:
            raise


def _refusal(server: client.CustomObjectsApi, document: JsonObject) -> tuple[str, list[str]] | None:
    """What the server says against creating a document, and the fields it names; None when it would create it."""
    try:
        server.create_namespaced_custom_object(**_WHERE, body=document, dry_run="All", field_validation="Strict")
    except client.ApiException as error:
        if error.status not in (400, 422):
            raise
        status = json.loads(error.body)
        fields = [cause.get("field", "<nil>") for cause in status.get("details", {}).get("causes", ())]
        return status["message"], [field for field in fields if field != "<nil>"]
    return None


def _document(document: JsonObject) -> Document:
    return Document("generated.json", document, {(): 1})


def _disagreement(server: client.CustomObjectsApi, item: Generated) -> str | None:
    refusal = _refusal(server, item.document)
    problems = validate(_document(item.document))
    if (refusal is None) != (not problems):
        said = [f"{problem.path}: {problem.message}" for problem in problems]
        return f"{item.name}: the server says {refusal}, validate says {said}"
    named = [problem.path for problem in problems]
    for field in refusal[1] if refusal else ():
        if not any(path.startswith(field) for path in named):
            return f"{item.name}: the server complains of {field}, validate of {named}"
    return None


def test_the_server_and_validate_agree_on_every_generated_spec(server: client.CustomObjectsApi) -> None:
    disagreements = [text for item in generated() if (text := _disagreement(server, item))]
    assert disagreements == []


def test_the_server_fills_in_every_default(server: client.CustomObjectsApi) -> None:
    minimal = copy.deepcopy(bases()[0])
    spec = minimal["spec"]
    required = object_schema()["properties"]["spec"]["required"]
    minimal["spec"] = {key: spec[key] for key in required} | {
        "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 1e-6}},
        "models": {"actor": {"uri": "/a"}},
        "rewards": [{"function": "a:b"}],
        "prompts": {"reasoningGym": {"task": "chain_sum", "size": 1}},
        "rollout": {"promptsPerEpisode": 1, "samplesPerPrompt": 2, "maxNewTokens": 1},
        "checkpoint": {"storage": {"path": "/mnt/a"}},
    }
    stored = server.create_namespaced_custom_object(**_WHERE, body=minimal, dry_run="All", field_validation="Strict")
    assert stored["spec"] == load_job(_document(minimal)).spec.to_dict()


def test_a_new_job_is_not_yet_observed(job: JsonObject) -> None:
    assert job["status"] == {"observedGeneration": -1}


def _rename(container: JsonObject, old: str, new: str) -> None:
    container[new] = container.pop(old)


#: Changes of an existing job's spec, by what they do.
CHANGES: dict[str, Callable[[JsonObject], object]] = {
    "another mode parameter": lambda spec: spec.update(maxStaleness=0),
    "fewer makers": lambda spec: spec["makers"].update(replicas=1),
    "an optional field taken away": lambda spec: spec.pop("evaluation"),
    "an optional field added": lambda spec: spec["prompts"].update(seed=7),
    "a value deep in a template": lambda spec: spec["head"]["template"]["metadata"]["labels"].update(a="c"),
    "a template's spec as metadata": lambda spec: _rename(spec["makers"]["template"], "spec", "metadata"),
    "a key renamed in a template": lambda spec: _rename(spec["head"]["template"]["spec"], "nodeSelector", "selector"),
    "a task parameter": lambda spec: spec["evaluation"]["reasoningGym"]["parameters"].update(min_terms=3),
    "a task parameter renamed": lambda spec: _rename(
        spec["evaluation"]["reasoningGym"]["parameters"], "min_terms", "max_terms"
    ),
    "a resource renamed": lambda spec: _rename(spec["makers"]["resources"]["limits"], "cpu", "memory"),
    "another order of rewards": lambda spec: spec["rewards"].reverse(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_spec_cannot_change_after_creation(server: client.CustomObjectsApi, job: JsonObject, change: str) -> None:
    refused = eventually("an answer to the change", lambda: _answer(server, CHANGES[change]), 30)
    assert refused.status == 422
    assert "spec is immutable after creation" in refused.body


def _answer(server: client.CustomObjectsApi, change: Callable[[JsonObject], object]) -> client.ApiException | None:
    """The server's refusal of a change; None when an operator wrote status in between."""
    current = server.get_namespaced_custom_object(**_WHERE, name="existing")
    change(current["spec"])
    with pytest.raises(client.ApiException) as refused:
        server.replace_namespaced_custom_object(**_WHERE, name="existing", body=current)
    return None if refused.value.status == 409 else refused.value


def test_labels_and_a_repeated_apply_are_no_change_of_the_spec(
    server: client.CustomObjectsApi, kubectl: Kubectl, job: JsonObject
) -> None:
    change = {"metadata": {"labels": {"queue": "a"}}}
    labelled = server.patch_namespaced_custom_object(**_WHERE, name="existing", body=change)
    again = copy.deepcopy(bases()[0])
    again["metadata"]["name"] = "existing"
    kubectl.apply(again)
    stored = server.get_namespaced_custom_object(**_WHERE, name="existing")
    assert labelled["metadata"]["generation"] == stored["metadata"]["generation"] == job["metadata"]["generation"]


def _example(schema: JsonObject) -> Any:
    """A value for a schema with everything in it that it can hold."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"], schema.get("format"):
        case "object", _ if "additionalProperties" in schema:
            return {"some name": _example(schema["additionalProperties"])}
        case "object", _:
            return {name: _example(field) for name, field in schema["properties"].items()}
        case "array", _:
            return [_example(schema["items"])]
        case "string", "date-time":
            return "2026-01-02T03:04:05Z"
        case "string", _:
            return "a" * min(schema["maxLength"], 40)
        case "integer", _:
            return 7
        case kind, _:
            assert kind == "number"
            return 0.123456789


def test_status_keeps_every_key_that_the_operator_can_write(server: client.CustomObjectsApi, job: JsonObject) -> None:
    full = RLHFJobStatus.model_validate(_example(object_schema()["properties"]["status"]))
    assert full.model_fields_set == set(RLHFJobStatus.model_fields)
    written = server.patch_namespaced_custom_object_status(
        **_WHERE, name="existing", body={"status": full.to_dict()}, field_validation="Strict"
    )
    assert written["status"] == full.to_dict()
    assert written["metadata"]["generation"] == job["metadata"]["generation"]


def test_a_condition_cannot_be_written_twice(server: client.CustomObjectsApi, job: JsonObject) -> None:
    condition = _example(object_schema()["properties"]["status"]["properties"]["conditions"])
    with pytest.raises(client.ApiException, match="Duplicate value"):
        server.patch_namespaced_custom_object_status(
            **_WHERE, name="existing", body={"status": {"conditions": condition * 2}}
        )


def test_kubectl_shows_the_columns_under_the_short_name_and_the_category(kubectl: Kubectl, job: JsonObject) -> None:
    columns = ["NAME", *(name.upper() for name, *_ in COLUMNS)]
    assert kubectl.run("get", "rlhf").splitlines()[0].split() == columns
    wide = [*columns, *(name.upper() for name, *_ in WIDE_COLUMNS)]
    assert kubectl.run("get", "rlhfjobs", "-o", "wide").splitlines()[0].split() == wide


def _scalars() -> list[str]:
    """Plain YAML scalars: numbers and near-numbers in every writing, words, and what only looks like something."""
    bodies = """
        0 1 7 08 017 0o17 0O7 0x1F 0X1f 0b101 0b12 1_000 1__0 _1 0_7 0x_F 1.0 1. .5 5.25 1e3 1e-6 1.5E+2 .5e1 1e 1.e2
        9223372036854775807 9223372036854775808 1e20 1e21 1e400 1e-400 .inf1 0x 0o 1.2.3 1:30 1_0.5 1_e3 e5 . .e5
    """
    numbers = [sign + body for sign in ("", "+", "-") for body in bodies.split()]
    words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"]
    cases = [form for word in words for form in (word, word.title(), word.upper(), word[:-1] + word[-1].upper())]
    others = [
        "1" + "0" * 400,
        "0xFFFFFFFFFFFFFFFFFF",
        "07777777777777777777777777",
        "~",
        "2001-01-01",
        "2001-01-01T00:00:00Z",
        "12:30:45.5",
        "=",
        "!!str 1",
        "!!float 3",
        "'on'",
    ]
    return [*numbers, *cases, *others]


def _held(value: Any) -> tuple[type, Any]:
    """As the API server holds a value: what does not fit 64 bits becomes a float."""
    held = float(value) if isinstance(value, int) and abs(value) >= 2**63 else value
    return type(held), held


def test_a_file_has_the_same_values_for_kubectl_and_for_validate(kubectl: Kubectl) -> None:
    texts = _scalars()
    head = "apiVersion: rlhf.dev/v1alpha1\nkind: RLHFJob\nmetadata: {name: a}\n"
    manifest = f"{head}spec:\n" + "".join(f"- {text}\n" for text in texts)
    sent = kubectl.run("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=manifest)
    [document] = parse_manifest(manifest.encode(), "a.yaml")
    pairs = zip(map(_held, json.loads(sent)["spec"]), map(_held, document.value["spec"]), strict=True)
    assert [(text, *pair) for text, pair in zip(texts, pairs, strict=True) if pair[0] != pair[1]] == []


def test_kubectl_explain_knows_what_a_field_is_for(kubectl: Kubectl) -> None:
    explained = " ".join(kubectl.run("explain", "rlhfjob.spec.rollout.samplesPerPrompt").split())
    assert "Number of completions sampled for each prompt" in explained
    assert "Range 1 to 4096" in explained
