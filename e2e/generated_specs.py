"""RLHFJobs for a test of equal verdicts: each bound of the schema and each rule across fields, met both ways.

Made from the generated schema itself, so that a new field or bound is covered without a line here. Deterministic.
"""

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlhf_api.crd import object_schema

Json = dict[str, Any]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Generated:
    """One object to create, and what it is for."""

    name: str
    """A sentence: what was done to a valid job."""
    document: Json
    allowed: bool | None
    """Whether it is meant to be valid; None for a mixture, where only the two verdicts count."""
    place: Path = ()
    """Where it differs from the valid job."""


_ABSENT = object()
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
_SECRET_KEY = {"secretKeyRef": {"name": "a", "key": "b"}}
_PARAMETER = {"min_terms": 2}

#: Every optional field is set in one of these two, every alternative in either.
_BASE: Json = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "generated", "labels": {"example.com/team": "a"}, "annotations": {"note": "x y"}},
    "spec": {
        "mode": "FullyAsync",
        "maxStaleness": 1,
        "stalenessPolicy": "Wait",
        "episodes": 3,
        "algorithm": {
            "type": "GRPO",
            "clipLow": 0.2,
            "clipHigh": 0.28,
            "groupNormalization": "Std",
            "lossAggregation": "Token",
            "epochs": 1,
            "minibatches": 2,
            "optimizer": {
                "learningRate": 1e-6,
                "beta1": 0.9,
                "beta2": 0.95,
                "epsilon": 1e-8,
                "weightDecay": 0,
                "maxGradientNorm": 1,
                "warmupSteps": 0,
            },
        },
        "models": {"actor": {"uri": "/models/policy", "dtype": "float32"}},
        "rewards": [{"function": "rewards:exact", "weight": 1, "timeoutSeconds": 60}, {"function": "a.b_c.D1:e"}],
        "prompts": {"uri": "package://rlhf_samples/a.jsonl", "promptKey": "prompt", "maxPromptTokens": 64, "seed": 1},
        "evaluation": {
            "reasoningGym": {"task": "chain_sum", "size": 64, "seed": 3, "parameters": _PARAMETER},
            "promptKey": "prompt",
            "everyEpisodes": 2,
        },
        "rollout": {"promptsPerEpisode": 8, "samplesPerPrompt": 4, "maxNewTokens": 16, "temperature": 0.7},
        "head": {
            "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"nvidia.com/gpu": 1}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"disk": "ssd"}}},
        },
        "makers": {
            "replicas": 2,
            "maxBatchSamples": 1_000_000,
            "resources": {"requests": {"cpu": 1}, "limits": {"cpu": "2"}},
            "template": {"metadata": {"annotations": {"a": "b"}}, "spec": {"tolerations": [{"operator": "Exists"}]}},
        },
        "trainers": {
            "replicas": 2,
            "microBatchSize": 16,
            "resources": {"requests": {"cpu": 1}, "limits": {"cpu": "2"}},
            "template": {"metadata": {"labels": {}}, "spec": {"terminationGracePeriodSeconds": 5}},
        },
        "buffer": {"capacity": 100_000_000},
        "weightSync": {"deadlineSeconds": 30},
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "storage"}}, "everyEpisodes": 1, "keep": 2},
        "runtime": {
            "image": "registry.example.com/team/runtime:1",
            "rayVersion": "2.60.0",
            "imagePullSecrets": [{"name": "pull-secret"}],
            "env": [
                {"name": "PLAIN", "value": "x"},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key.txt"}}},
                {"name": "SETTING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "key"}}},
            ],
            "envFrom": [{"secretRef": {"name": "token"}}, {"configMapRef": {"name": "settings"}}],
            "code": {"configMap": {"name": "rewards"}},
        },
        "backoffLimit": 2,
        "preRunningDeadlineSeconds": 600,
        "progressDeadlineSeconds": 600,
    },
}

#: What must change with a field for its extreme value to be allowed by the rules across fields.
_COMPANIONS: dict[tuple[str, ...], Json] = {
    ("trainers", "replicas"): {"rollout": {"promptsPerEpisode": 512_000}},
    ("algorithm", "minibatches"): {"rollout": {"promptsPerEpisode": 512_000}},
    ("buffer", "capacity"): {
        "rollout": {"promptsPerEpisode": 1, "samplesPerPrompt": 2},
        "trainers": {"replicas": 1},
        "algorithm": {"minibatches": 1},
    },
    ("makers", "maxBatchSamples"): {"rollout": {"samplesPerPrompt": 2}},
    ("rollout", "promptsPerEpisode"): {"trainers": {"replicas": 1}, "algorithm": {"minibatches": 1}},
}

_QUANTITIES = {True: ["1", "0.5", "250m", "2Gi", "1e3", 3, 0], False: ["x", "1 Gi", "1xB", "", 0.5, True, [], "1" * 65]}
_WRONG_TYPES: dict[str, list[Any]] = {
    "string": [3, True],
    "integer": ["3", 2.5],
    "number": ["0.5", False],
    "array": [{}, "a"],
    "object": [[], "a"],
}


def bases() -> tuple[Json, Json]:
    """Two valid jobs that differ in every pair of alternatives."""
    other = copy.deepcopy(_BASE)
    spec = other["spec"]
    spec["evaluation"] |= {"uri": "/data/held out.jsonl"}
    spec["prompts"] |= {"reasoningGym": spec["evaluation"].pop("reasoningGym")}
    del spec["prompts"]["uri"]
    spec["checkpoint"]["storage"] = {"path": "/mnt/storage"}
    spec["runtime"]["code"] = {"path": "/opt/code"}
    return copy.deepcopy(_BASE), other


def generated() -> list[Generated]:
    """All of them, in a fixed order; names are unique."""
    everything: dict[str, Generated] = {}
    for item in (*_bases(), *_bounds(), *_rules(), *_names(), *_wholes()):
        everything.setdefault(item.name, item)
    return [*everything.values(), *_mixtures(list(everything.values()))]


def _changed(base: Json, place: Path, value: Any) -> Json:
    """A copy of ``base`` with the value at ``place`` replaced, made, or taken away."""
    document = copy.deepcopy(base)
    container: Any = document
    for part in place[:-1]:
        container = container[part]
    if value is _ABSENT:
        del container[place[-1]]
    else:
        container[place[-1]] = value
    return document


def _merged(base: Json, change: Json) -> Json:
    both = copy.deepcopy(base)
    for key, value in change.items():
        both[key] = _merged(both.get(key, {}), value) if isinstance(value, dict) else value
    return both


def _bases() -> Iterator[Generated]:
    for number, base in enumerate(bases()):
        yield Generated(f"valid job {number}", base, True)


def _bounds() -> Iterator[Generated]:
    """Each field of the spec at its limits, beyond them, of a wrong type, null, absent."""
    seen: set[tuple[str, ...]] = set()
    for base in bases():
        for place, schema, required in _fields(base["spec"], object_schema()["properties"]["spec"], ("spec",)):
            general = tuple(part if isinstance(part, str) else "[]" for part in place)
            if general in seen:
                continue
            seen.add(general)
            name = ".".join(map(str, place))
            companion = {"spec": _COMPANIONS.get(tuple(map(str, place[1:])), {})}
            value = _value(base, place)
            for text, new, allowed in _variants(value, schema):
                fitting = _merged(base, companion) if allowed else base
                yield Generated(f"{name} {text}", _changed(fitting, place, new), allowed, place)
            for text, new in (("null", None), ("absent", _ABSENT)):
                document = _changed(base, place, new)
                yield Generated(f"{name} {text}", document, False if required else None, place)


def _value(document: Json, place: Path) -> Any:
    value: Any = document
    for part in place:
        value = value[part]
    return value


def _fields(value: Any, schema: Json, place: Path) -> Iterator[tuple[Path, Json, bool]]:
    """Place, schema and whether it is required, of everything that is set below a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            known = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if known and known != _ANYTHING:
                yield (*place, key), known, key in schema.get("required", ())
                yield from _fields(item, known, (*place, key))
    if isinstance(value, list):
        for position, item in enumerate(value):
            yield from _fields(item, schema["items"], (*place, position))


def _variants(value: Any, schema: Json) -> Iterator[tuple[str, Any, bool]]:
    """Other values of one field: what was done, the value, whether the schema allows it."""
    if schema.get("x-kubernetes-int-or-string"):
        for allowed, values in _QUANTITIES.items():
            yield from ((f"quantity {new!r}", new, allowed) for new in values)
        return
    for new in _WRONG_TYPES.get(schema.get("type", ""), ()):
        yield f"of wrong type {new!r}", new, False
    if "enum" in schema:
        yield from ((f"is {new}", new, True) for new in schema["enum"])
        yield from ((f"is {new!r}", new, False) for new in ("", value.swapcase(), value + "x"))
    match value:
        case bool() | None:
            return
        case int() | float():
            yield from _numbers(schema)
        case str() if "enum" not in schema:
            yield from _texts(value, schema)
        case list():
            yield from _lists(value, schema)
        case dict():
            yield from _objects(value, schema)


def _numbers(schema: Json) -> Iterator[tuple[str, Any, bool]]:
    step = 1 if schema["type"] == "integer" else 1e-9
    for bound, excluded, outward in (("minimum", "exclusiveMinimum", -1), ("maximum", "exclusiveMaximum", 1)):
        if bound in schema:
            limit, open_end = schema[bound], schema.get(excluded, False)
            yield f"at its {bound}", limit, not open_end
            if open_end:
                yield f"inside its {bound}", limit - outward * step, True
            yield f"beyond its {bound}", limit + outward * step, False


def _texts(value: str, schema: Json) -> Iterator[tuple[str, Any, bool]]:
    if "maxLength" in schema:
        longest = value + value[-1] * (schema["maxLength"] - len(value))
        yield "as long as it may be", longest, True
        yield "too long", longest + value[-1], False
    if schema.get("minLength", 0) > 0:
        yield "empty", "", False
    if "pattern" in schema:
        for tail in ("\n", "\u0661"):
            yield f"followed by {tail!r}", value + tail, False
        yield "led by a blank", " " + value, False


def _lists(value: list[Any], schema: Json) -> Iterator[tuple[str, Any, bool]]:
    yield "with as many items as it may have", [value[0]] * schema["maxItems"], True
    yield "with too many items", [value[0]] * (schema["maxItems"] + 1), False
    yield "empty", [], not schema.get("minItems")
    yield "with a null in it", [None], False


def _objects(value: Json, schema: Json) -> Iterator[tuple[str, Any, bool]]:
    if "maxProperties" in schema:
        first = next(iter(value.values()))
        entries = {f"key{number}": first for number in range(schema["maxProperties"])}
        yield "with as many entries as it may have", entries, True
        yield "with too many entries", {**entries, "more": first}, False
        yield "with a null in it", {**value, "null": None}, True
        if schema["additionalProperties"] == _ANYTHING:
            yield "with anything in it", {"any": {"thing": [1, "a", None, {"b": 0.5}]}}, True
        return
    yield "with an unknown field", {**value, "unknownField": 1}, False
    name = next(iter(schema["properties"]))
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name) + "_"
    yield "with a field in other letters", {**value, snake: 1}, False


def _rules() -> Iterator[Generated]:
    """Each rule across fields, on its edge and over it."""
    pair: dict[str, tuple[Path, Any, Any]] = {
        "prompts": (("spec", "prompts"), {"uri": "/a"}, {"reasoningGym": {"task": "chain_sum", "size": 1}}),
        "evaluation": (("spec", "evaluation"), {"uri": "/a"}, {"reasoningGym": {"task": "chain_sum", "size": 1}}),
        "storage": (
            ("spec", "checkpoint", "storage"),
            {"path": "/a"},
            {"persistentVolumeClaim": {"claimName": "a"}},
        ),
        "env": (
            ("spec", "runtime", "env", 0),
            {"value": "a"},
            {"valueFrom": _SECRET_KEY},
        ),
        "valueFrom": (
            ("spec", "runtime", "env", 1, "valueFrom"),
            _SECRET_KEY,
            {"configMapKeyRef": {"name": "a", "key": "b"}},
        ),
        "envFrom": (("spec", "runtime", "envFrom", 0), {"secretRef": {"name": "a"}}, {"configMapRef": {"name": "a"}}),
        "code": (("spec", "runtime", "code"), {"path": "/a"}, {"configMap": {"name": "a"}}),
    }
    for name, (place, one, other) in pair.items():
        common = {"name": "A"} if name == "env" else {}
        for text, value, allowed in (
            ("first alternative", one, True),
            ("second alternative", other, True),
            ("both alternatives", one | other, False),
            ("no alternative", {}, False),
            ("one alternative and the other null", one | dict.fromkeys(other), True),
        ):
            yield Generated(f"{name}: {text}", _changed(_BASE, place, common | value), allowed, place)
    for prompts, trainers, minibatches, allowed in (
        (12, 2, 3, True),
        (12, 3, 4, True),
        (12, 5, 1, False),
        (12, 3, 3, False),
        (1, 1, 2, False),
    ):
        change = {
            "rollout": {"promptsPerEpisode": prompts},
            "trainers": {"replicas": trainers},
            "algorithm": {"minibatches": minibatches},
        }
        name = f"{prompts} prompts over {trainers} trainers and {minibatches} minibatches"
        yield Generated(name, _merged(_BASE, {"spec": change}), allowed, ("spec", "rollout", "promptsPerEpisode"))
    for capacity, allowed in ((32, True), (31, False)):
        place = ("spec", "buffer", "capacity")
        yield Generated(f"a buffer of {capacity} for 32 samples", _changed(_BASE, place, capacity), allowed, place)
    for batch, allowed in ((4, True), (3, False)):
        place = ("spec", "makers", "maxBatchSamples")
        yield Generated(f"a batch of {batch} for groups of 4", _changed(_BASE, place, batch), allowed, place)
    for version, allowed in (
        ("2.52.9", False),
        ("2.53.0", True),
        ("2.100.1", True),
        ("3.0.0", True),
        ("10.1.0", True),
        ("1.99.0", False),
        ("2.6.0", False),
    ):
        place = ("spec", "runtime", "rayVersion")
        yield Generated(f"Ray {version}", _changed(_BASE, place, version), allowed, place)
    for uri, allowed in (
        ("/a", True),
        ("/", False),
        ("a/b", False),
        ("package://a.b/c", True),
        ("package://a", False),
        ("hf://a/b", False),
        ("https://example.com/a", False),
        ("/a\nb", True),
    ):
        place = ("spec", "models", "actor", "uri")
        yield Generated(f"model {uri!r}", _changed(_BASE, place, uri), allowed, place)


def _names() -> Iterator[Generated]:
    """Names and other metadata."""
    for name, allowed in (
        ("a", True),
        ("a" * 47, True),
        ("a" * 48, False),
        ("a" * 254, False),
        ("a-1", True),
        ("1a", False),
        ("a.b", False),
        ("A", False),
        ("a-", False),
        ("a_b", False),
        ("é", False),
        ("", False),
        (3, False),
        (None, False),
        (_ABSENT, False),
    ):
        place = ("metadata", "name")
        shown = "absent" if name is _ABSENT else repr(name)
        yield Generated(f"name {shown}", _changed(_BASE, place, name), allowed, place)
    for entries, allowed in (
        ({"a": "b", "example.com/A_b.c": ""}, True),
        ({"a": None}, True),
        ({"a": 3}, False),
        ({"a": True}, False),
        ({"a": "-b"}, False),
        ({"a": "b" * 64}, False),
        ({"a b": "c"}, False),
        ({"a/b/c": "d"}, False),
        ({"Example.com/a": "b"}, False),
        ({"": "b"}, False),
        ({"k" * 64: "b"}, False),
        (["a"], False),
    ):
        place = ("metadata", "labels")
        yield Generated(f"labels {entries!r}", _changed(_BASE, place, entries), allowed, place)
    for entries, allowed in (
        ({"Example.com/A": "b\n"}, True),
        ({"a": 3}, False),
        ({"a b": "c"}, False),
        ({"a": "x" * 262_144}, False),
    ):
        place = ("metadata", "annotations")
        text = repr(entries)[:40]
        yield Generated(f"annotations {text}", _changed(_BASE, place, entries), allowed, place)
    place = ("metadata", "nmae")
    yield Generated("unknown metadata", _changed(_BASE, place, "a"), False, place)


def _wholes() -> Iterator[Generated]:
    """The object around the spec."""
    for place, value, allowed in (
        (("spec",), _ABSENT, False),
        (("spec",), None, False),
        (("spec",), {}, False),
        (("spec",), [], False),
        (("sepc",), {}, False),
        (("status",), {"phase": "Running"}, True),
        (("status",), {"phase": 3, "episodes": "x"}, True),
        (("status",), {"unknownField": 3}, False),
    ):
        text = "absent" if value is _ABSENT else repr(value)
        yield Generated(f"{place[0]} {text}", _changed(_BASE, place, value), allowed, place)


def _mixtures(parts: list[Generated], count: int = 40) -> Iterator[Generated]:
    """Two or three changes of different parts of the spec together."""
    draw = random.Random(20240501)
    usable = [part for part in parts if len(part.place) > 1 and part.place[0] == "spec"]
    for number in range(count):
        chosen = draw.sample(usable, draw.randint(2, 3))
        document = copy.deepcopy(_BASE)
        for part in chosen:
            key = part.place[1]
            if key in part.document["spec"]:
                document["spec"][key] = copy.deepcopy(part.document["spec"][key])
        yield Generated(f"mixture {number}: {' + '.join(part.name for part in chosen)}", document, None)
