"""The CustomResourceDefinition, generated from the API types: pydantic's JSON schema made structural.

A structural schema, which is what the API server accepts, has no references, unions or titles; exclusive bounds are
flags; a field that may be absent is not nullable. It contains every default, so that the server fills them in and a
rule may read any field that has one.
"""

from typing import Any

from rlhf_api.job import GROUP, KIND, PLURAL, VERSION, RLHFJob, RLHFJobSpec
from rlhf_api.schema import ApiModel
from rlhf_api.status import RLHFJobStatus

Schema = dict[str, Any]

SINGULAR = "rlhfjob"
SHORT_NAME = "rlhf"
CATEGORY = "rlhf"

#: Columns of ``kubectl get rlhf``: name, type, JSON path, meaning. Floats are rounded by who writes status.
COLUMNS = (
    ("Phase", "string", ".status.phase", "Summary of the conditions"),
    ("Mode", "string", ".spec.mode", "How makers and trainers share the devices"),
    ("Algorithm", "string", ".spec.algorithm.type", "PPO or GRPO"),
    ("Episode", "string", ".status.progress", "Episodes trained / episodes to train"),
    ("Reward", "number", ".status.reward.last", "Mean reward over the samples of the last episode"),
    ("Score", "number", ".status.score.last", "Mean reward on the held-out prompts at the last evaluation"),
    ("KL", "number", ".status.kl", "KL(sampling policy || trained policy) of the last episode, nats per token"),
    ("Staleness", "integer", ".status.staleness", "Largest staleness of a sample in the last episode, policy versions"),
    ("Makers", "string", ".status.makers.summary", "Makers ready / makers wanted"),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created"),
)
#: Columns that ``kubectl get rlhf -o wide`` adds.
WIDE_COLUMNS = (
    ("Trainers", "string", ".status.trainers.summary", "Trainer ranks ready / trainer ranks wanted"),
    ("Message", "string", ".status.message", "One sentence that describes the current state"),
)

_INT32_MAX = 2**31 - 1
#: Keys that are taken unchanged from pydantic's JSON schema, in the order in which they are written.
_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "default",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "properties",
    "items",
    "additionalProperties",
)


def structural_schema(model: type[ApiModel]) -> Schema:
    """The structural OpenAPI v3 schema of one type, everything it refers to inlined."""
    document = model.model_json_schema()
    return _structural(document, document.get("$defs", {}))


def custom_resource_definition() -> Schema:
    """The whole CRD document, as plain values ready for YAML or JSON."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": object_schema()},
                }
            ],
        },
    }


def object_schema() -> Schema:
    """The schema of the whole object. The server validates metadata itself: only what rules read of it is here."""
    root = structural_schema(RLHFJob)
    return {
        "description": root["description"],
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": root["x-kubernetes-validations"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural_schema(RLHFJobSpec),
            "status": _status_schema(),
        },
    }


def _status_schema() -> Schema:
    """Status holds only what was observed, so the one default is `observedGeneration: -1`, for a job not yet seen."""
    schema = structural_schema(RLHFJobStatus)
    return {**_without_defaults(schema), "default": schema["default"]}


def _without_defaults(schema: Schema) -> Schema:
    stripped = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in schema:
        stripped["properties"] = {name: _without_defaults(field) for name, field in schema["properties"].items()}
    if "items" in schema:
        stripped["items"] = _without_defaults(schema["items"])
    return stripped


def _columns() -> list[Schema]:
    return [
        {"name": name, "type": kind, "jsonPath": path, "description": meaning, "priority": priority}
        for priority, columns in enumerate((COLUMNS, WIDE_COLUMNS))
        for name, kind, path, meaning in columns
    ]


def _structural(node: Schema, definitions: Schema) -> Schema:
    node = _without_union(_inlined(node, definitions), definitions)
    if "const" in node:
        node["enum"] = [node["const"]]
    for bound, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in node:
            node |= {inclusive: node[bound], bound: True}
    if node.get("type") == "integer":
        node["format"] = "int32" if abs(node.get("maximum", _INT32_MAX + 1)) <= _INT32_MAX else "int64"
    if "description" in node:
        node["description"] = " ".join(node["description"].split())
    if "properties" in node:
        node["properties"] = {name: _structural(field, definitions) for name, field in node["properties"].items()}
        if node.get("default") == {} and "x-kubernetes-validations" in node:
            # The server checks a default against the rules before it fills in the defaults of the fields.
            node["default"] = _written_out(node)
    if "items" in node:
        node["items"] = _structural(node["items"], definitions)
    if "properties" not in node and isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    else:
        node.pop("additionalProperties", None)
    return {key: node[key] for key in _KEPT if key in node}


def _written_out(node: Schema) -> Any:
    """The default of an object with the defaults of all fields below it."""
    if node["default"] != {} or "properties" not in node:
        return node["default"]
    return {name: _written_out(field) for name, field in node["properties"].items() if "default" in field}


def _inlined(node: Schema, definitions: Schema) -> Schema:
    """The type that a reference points to; what the field itself declares takes precedence.

    The default of an object becomes {}: its fields have defaults, which the server fills in afterwards. (Where the
    object has rules of its own, `_structural` writes the defaults out.)
    """
    if "$ref" not in node:
        return dict(node)
    target = definitions[node["$ref"].removeprefix("#/$defs/")]
    field = {key: value for key, value in node.items() if key != "$ref"}
    if field.get("default") is not None:
        field["default"] = {}
    return {**target, **field}


def _without_union(node: Schema, definitions: Schema) -> Schema:
    """``X | None`` as X that may be absent; a quantity as the server's own integer or string."""
    if "anyOf" not in node:
        return node
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if rest.get("x-kubernetes-int-or-string"):
        (text,) = (option for option in node["anyOf"] if option["type"] == "string")
        return {**{key: value for key, value in text.items() if key != "type"}, **rest}
    (present,) = (option for option in node["anyOf"] if option != {"type": "null"})
    if rest.get("default", 0) is None:
        del rest["default"]
    return {**_inlined(present, definitions), **rest}
