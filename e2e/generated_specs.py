"""RLHFJobs for a test of equal verdicts: each bound of the schema and each rule across fields, met both ways.

Made from the generated schema itself, so that a new field or bound is covered without a line here. Deterministic.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any

from rlhf_api.crd import object_schema
from rule_cases import Generated, metadata_cases, rule_cases, whole_cases
from valid_jobs import ABSENT, BASE, Json, Path, bases, changed, merged

_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}

#: The only algorithm that one sample of a prompt is enough for.
_PPO: Json = {"type": "PPO", "minibatches": 1, "group": None}

#: What must change with a field for its extreme value to be allowed by the rules across fields.
_COMPANIONS: dict[tuple[str, ...], Json] = {
    ("trainers", "replicas"): {"rollout": {"promptsPerEpisode": 512_000}, "trainers": {"perPod": 1}},
    ("trainers", "perPod"): {"rollout": {"promptsPerEpisode": 512_000}, "trainers": {"replicas": 64}},
    ("trainers", "maxTokensPerMicroBatch"): {
        "prompts": {"maxPromptTokens": 1},
        "rollout": {"maxNewTokens": 1},
    },
    ("algorithm", "minibatches"): {"rollout": {"promptsPerEpisode": 512_000}},
    ("buffer", "capacity"): {
        "rollout": {"promptsPerEpisode": 1, "samplesPerPrompt": 1},
        "trainers": {"replicas": 1, "perPod": 1},
        "algorithm": _PPO,
    },
    ("makers", "maxBatchSamples"): {"rollout": {"samplesPerPrompt": 1}, "algorithm": _PPO},
    ("rollout", "promptsPerEpisode"): {
        "trainers": {"replicas": 1, "perPod": 1},
        "algorithm": {"minibatches": 1},
    },
}

#: Fields whose allowed values depend on others: each value is met both ways by hand, in `rule_cases`.
_TIED = {
    ("rewards",),
    ("evaluation", "rewards"),
    ("algorithm", "type"),
    ("algorithm", "oldLogProbs"),
    ("algorithm", "kl", "estimator"),
    ("algorithm", "kl", "appliesTo"),
    ("algorithm", "optimizer", "schedule"),
    ("algorithm", "critic", "optimizer", "schedule"),
    ("algorithm", "critic", "optimizer", "schedule"),
    ("rollout", "samplesPerPrompt"),
    ("trainers", "strategy"),
    ("trainers", "offload"),
    ("trainers", "gradientCheckpointing"),
    ("trainers", "strategyFactory"),
    ("trainers", "microBatchSize"),
    ("trainers", "tensorParallel"),
}

_QUANTITIES = {True: ["1", "0.5", "250m", "2Gi", "1e3", 3, 0], False: ["x", "1 Gi", "1xB", "", 0.5, True, [], "1" * 65]}
_WRONG_TYPES: dict[str, list[Any]] = {
    "string": [3, True],
    "integer": ["3", 2.5],
    "number": ["0.5", False],
    "boolean": ["true", 1],
    "array": [{}, "a"],
    "object": [[], "a"],
}


def generated() -> list[Generated]:
    """All of them, in a fixed order; names are unique."""
    everything: dict[str, Generated] = {}
    for item in (*_bases(), *_bounds(), *rule_cases(), *metadata_cases(), *whole_cases()):
        everything.setdefault(item.name, item)
    return [*everything.values(), *_mixtures(list(everything.values()))]


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
            within = tuple(map(str, place[1:]))
            companion = {"spec": _COMPANIONS.get(within, {})}
            value = _value(base, place)
            for text, new, allowed in _variants(value, schema):
                fitting = merged(base, companion) if allowed else base
                verdict = None if allowed and within in _TIED else allowed
                yield Generated(f"{name} {text}", changed(fitting, place, new), verdict, place)
            for text, new in (("null", None), ("absent", ABSENT)):
                document = changed(base, place, new)
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
            if not isinstance(item, dict):
                yield (*place, position), schema["items"], False
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
        # A pattern that says what is not allowed allows a digit of another script; one of classes does not.
        for tail in ("\n",) if "[^" in schema["pattern"] else ("\n", "\u0661"):
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


def _mixtures(parts: list[Generated], count: int = 40) -> Iterator[Generated]:
    """Two or three changes of different parts of the spec together."""
    draw = random.Random(20240501)
    usable = [part for part in parts if len(part.place) > 1 and part.place[0] == "spec"]
    for number in range(count):
        chosen = draw.sample(usable, draw.randint(2, 3))
        document = copy.deepcopy(BASE)
        for part in chosen:
            key = part.place[1]
            if key in part.document["spec"]:
                document["spec"][key] = copy.deepcopy(part.document["spec"][key])
        yield Generated(f"mixture {number}: {' + '.join(part.name for part in chosen)}", document, None)
