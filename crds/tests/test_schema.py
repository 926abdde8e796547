"""The generated CRD: structural, bounded, documented, and equal to what is committed."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import generate
import pytest
from pydantic import Field
from reference_page import reference_page
from rlhf_api.conditions import ConditionType, Reason
from rlhf_api.crd import COLUMNS, WIDE_COLUMNS, custom_resource_definition, object_schema, structural_schema
from rlhf_api.schema import ApiModel, Quantity

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
#: Everything that `rlhf_cli.validation.structural` and `rlhf_cli.validation.rules` evaluate, or that only describes.
UNDERSTOOD = {
    *("description", "type", "format", "enum", "pattern", "default", "required", "properties", "items"),
    *("minLength", "maxLength", "minItems", "maxItems", "maxProperties", "additionalProperties"),
    *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    *("x-kubernetes-int-or-string", PRESERVE, "x-kubernetes-validations"),
}
LIST_KEYWORDS = {"x-kubernetes-list-type", "x-kubernetes-list-map-keys"}


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema inside a schema, with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def fields(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Every field: path, schema, whether it is required."""
    for path, node in nodes(schema):
        for name, field in node.get("properties", {}).items():
            yield f"{path}.{name}".removeprefix("."), field, name in node.get("required", ())


SPEC = object_schema()["properties"]["spec"]
STATUS = object_schema()["properties"]["status"]
SPEC_FIELDS = list(fields(SPEC))


def ids(cases: list[tuple[str, Schema, bool]]) -> list[str]:
    return [path for path, *_ in cases]


def test_the_api_imports_nothing_heavy() -> None:
    heavy = ("torch", "ray", "kopf", "kubernetes", "yaml", "aiohttp", "transformers", "numpy", "typer", "rich")
    modules = tuple(path.stem for path in (generate.ROOT / "crds" / "rlhf_api").glob("[a-z]*.py"))
    program = (
        f"import sys\nfrom rlhf_api import {', '.join(modules)}\n"
        f"print(*(name for name in {heavy!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(generate.ROOT / "crds")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == []


def test_committed_files_are_what_the_types_generate() -> None:
    for path, text in generate.generated().items():
        assert generate.difference(path, text) == ""


def test_a_stale_or_missing_file_is_shown_as_a_difference() -> None:
    path = generate.ROOT / "crds" / "rlhf.dev_rlhfjobs.yaml"
    assert "+one more line" in generate.difference(path, path.read_text() + "one more line\n")
    assert "+all of it" in generate.difference(path.with_name("not-there.yaml"), "all of it\n")


def test_every_condition_and_reason_has_a_meaning_on_the_reference_page() -> None:
    page = reference_page()
    names = [*ConditionType, *Reason]
    assert len(names) > 30
    assert [name for name in names if not re.search(rf"^\| `{name}` \| \S", page, re.MULTILINE)] == []


def test_every_field_and_rule_is_on_the_reference_page() -> None:
    page = reference_page()
    paths = [f"spec.{path}" for path, *_ in SPEC_FIELDS] + [f"status.{path}" for path, *_ in fields(STATUS)]
    assert [path for path in paths if f"| `{path}` |" not in page] == []
    rules = [rule["message"] for _, node in nodes(object_schema()) for rule in node.get("x-kubernetes-validations", ())]
    assert [rule for rule in rules if rule not in page] == []


def test_generate_says_what_it_expects_on_its_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--chekc"]) == 2
    assert capsys.readouterr().err == "found ['--chekc'], expected nothing or --check\n"


def test_the_crd_is_small_enough_for_client_side_apply() -> None:
    assert len(generate.crd_text().encode()) < 262_144 * 0.8


def test_nothing_is_in_the_schema_that_the_validator_does_not_understand() -> None:
    strange = {path: node.keys() - UNDERSTOOD for path, node in nodes(SPEC) if node.keys() - UNDERSTOOD}
    assert strange == {}
    strange = {path: node.keys() - UNDERSTOOD - LIST_KEYWORDS for path, node in nodes(STATUS)}
    assert {path: keys for path, keys in strange.items() if keys} == {}


def test_patterns_mean_the_same_to_the_server_to_python_and_to_pydantic() -> None:
    """They differ in what \\w, \\d and \\s are, and in what $ is before the end."""
    patterns = [node["pattern"] for _, node in nodes(object_schema()) if "pattern" in node]
    assert [
        pattern for pattern in patterns if re.search(r"\\[wdsbWDSB]", pattern) or not re.match(r"\^.*\$$", pattern)
    ] == []
    assert [pattern for pattern in patterns if "$" in pattern[:-1] or "^" in pattern[1:].replace("[^", "")] == []


def test_every_value_is_bounded_so_that_rules_have_a_bounded_cost() -> None:
    unbounded = []
    for path, node in nodes(object_schema()):
        match node.get("type"):
            case "string":
                bounded = "enum" in node or "maxLength" in node or node.get("format") == "date-time"
            case "array":
                bounded = "maxItems" in node
            case "object":
                bounded = "properties" in node or "maxProperties" in node
            case "integer" | "number":
                bounded = path.startswith(".status") or ("minimum" in node and "maximum" in node)
            case "boolean":
                bounded = True
            case _:
                bounded = node.get("x-kubernetes-int-or-string", False) or node == {PRESERVE: True}
        if not bounded and path not in ("", ".apiVersion", ".kind", ".metadata", ".metadata.name"):
            unbounded.append(path)
    assert unbounded == []


def test_unknown_fields_are_kept_in_templates_and_task_parameters_only() -> None:
    free = [path for path, node in nodes(SPEC) if PRESERVE in node]
    roles = [f".{role}.template.{part}{{}}" for role in ("head", "makers", "trainers") for part in ("metadata", "spec")]
    assert sorted(free) == sorted(
        [".prompts.reasoningGym.parameters{}", ".evaluation.reasoningGym.parameters{}", *roles]
    )


@pytest.mark.parametrize(("path", "schema", "required"), SPEC_FIELDS, ids=ids(SPEC_FIELDS))
def test_every_field_says_its_default_truly(path: str, schema: Schema, required: bool) -> None:
    text = schema["description"]
    if required:
        assert "Required." in text
        assert "default" not in schema
        return
    stated = re.search(r"Default:? (\S+?)[,.;:]?(\s|$)", text)
    assert stated, f"{path}: {text}"
    default = schema.get("default")
    if default in (None, []) or isinstance(default, dict):
        # Nothing, or a value that another field decides, which the text describes.
        assert stated[1] in ("none", "every", "an", "(maxStaleness")
    elif isinstance(default, str | bool):
        assert stated[1] == (default if isinstance(default, str) else str(default).lower())
    else:
        assert float(stated[1]) == default


@pytest.mark.parametrize(("path", "schema", "required"), SPEC_FIELDS, ids=ids(SPEC_FIELDS))
def test_every_field_says_its_range_truly(path: str, schema: Schema, required: bool) -> None:
    text = schema["description"].replace(",", "")
    if schema.get("type") in ("integer", "number"):
        low = "above " if schema.get("exclusiveMinimum") else ""
        high = "below " if schema.get("exclusiveMaximum") else ""
        stated = re.search(rf"[Rr]ange {low}(\S+) to {high}(\S+?)[.;]?(\s|$)", text)
        assert stated, f"{path}: {text}"
        assert (float(stated[1]), float(stated[2])) == (schema["minimum"], schema["maximum"])
    elif schema.get("type") == "string" and "enum" not in schema and "rayVersion" not in path:
        low = f"{schema['minLength']} to" if schema.get("minLength") else "at most"
        assert f"{low} {schema['maxLength']} characters" in text
    elif "maxItems" in schema or ("maxProperties" in schema and PRESERVE not in schema.get("additionalProperties", {})):
        assert str(schema.get("maxItems", schema.get("maxProperties"))) in text
    elif "enum" in schema:
        assert [value for value in schema["enum"] if value not in text] == []


def test_every_field_of_status_is_described() -> None:
    assert [path for path, schema, _ in fields(STATUS) if not schema.get("description")] == []


def test_the_server_fills_in_nothing_of_status_but_not_seen_yet() -> None:
    assert {path: node["default"] for path, node in nodes(STATUS) if "default" in node} == {
        "": {"observedGeneration": -1}
    }


def with_defaults_below(fields: Schema) -> Schema:
    return {
        name: (field["default"] or with_defaults_below(field.get("properties", {})))
        if isinstance(field["default"], dict)
        else field["default"]
        for name, field in fields.items()
        if "default" in field
    }


def test_an_object_has_a_default_exactly_when_none_of_its_fields_is_required() -> None:
    for path, schema, required in SPEC_FIELDS:
        if "properties" in schema and not required and "default" in schema:
            fields = with_defaults_below(schema["properties"])
            # A server tries a default against the object's own rules before it fills in those of the fields.
            assert schema["default"] == (fields if "x-kubernetes-validations" in schema else {}), path
            assert not schema.get("required"), path


def test_names_subresources_and_scope() -> None:
    spec = custom_resource_definition()["spec"]
    [version] = spec["versions"]
    assert spec["names"]["shortNames"] == spec["names"]["categories"] == ["rlhf"]
    assert spec["scope"] == "Namespaced"
    assert version["subresources"] == {"status": {}}
    assert version["served"]
    assert version["storage"]


@pytest.mark.parametrize("column", [*COLUMNS, *WIDE_COLUMNS], ids=lambda column: column[0])
def test_a_column_shows_a_field_that_exists_with_its_own_type(column: tuple[str, str, str, str]) -> None:
    _, kind, path, _ = column
    if path == ".metadata.creationTimestamp":
        assert kind == "date"
        return
    assert {f".{found}": schema["type"] for found, schema, _ in fields(object_schema())}[path] == kind


def test_wide_columns_and_no_others_are_of_lower_priority() -> None:
    columns = custom_resource_definition()["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns if column["priority"]] == ["Trainers", "Message"]
    assert [column["name"] for column in columns if not column["priority"]] == [name for name, *_ in COLUMNS]


class Inner(ApiModel):
    """An inner object,
    described over two lines."""

    size: Annotated[int, Field(gt=0, lt=10)] = 3
    """Size."""


class Outer(ApiModel):
    """All that the API's types use."""

    one: Literal["A"]
    many: Literal["A", "B"] = "B"
    inner: Inner = Inner()
    own: Inner = Inner()
    """The field's own words."""
    maybe: Inner | None = None
    large: Annotated[int, Field(ge=0, le=2**40)] = 0
    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    names: Annotated[list[str], Field(max_length=2)] = []
    amounts: Annotated[dict[str, Quantity], Field(max_length=2)] = {}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("one", {"type": "string", "enum": ["A"]}),
        ("many", {"type": "string", "enum": ["A", "B"], "default": "B"}),
        ("large", {"type": "integer", "format": "int64", "minimum": 0, "maximum": 2**40, "default": 0}),
        ("share", {"type": "number", "minimum": 0, "maximum": 1, "exclusiveMaximum": True, "default": 0.5}),
        ("names", {"type": "array", "items": {"type": "string"}, "maxItems": 2, "default": []}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_becomes_structural(field: str, expected: Schema) -> None:
    assert structural_schema(Outer)["properties"][field] == expected


def test_an_object_is_inlined_and_its_default_left_to_its_fields() -> None:
    size = {
        "description": "Size.",
        "type": "integer",
        "format": "int32",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 10,
        "exclusiveMaximum": True,
        "default": 3,
    }
    inner = {
        "description": "An inner object, described over two lines.",
        "type": "object",
        "properties": {"size": size},
    }
    properties = structural_schema(Outer)["properties"]
    assert properties["inner"] == {**inner, "default": {}}
    assert properties["own"] == {**inner, "description": "The field's own words.", "default": {}}
    assert properties["maybe"] == inner
    assert structural_schema(Outer)["required"] == ["one"]


def test_a_quantity_is_an_integer_or_a_string() -> None:
    quantity = structural_schema(Outer)["properties"]["amounts"]["additionalProperties"]
    assert quantity["x-kubernetes-int-or-string"]
    assert {"pattern", "maxLength"} <= quantity.keys()
    assert quantity.keys().isdisjoint({"anyOf", "type"})
