"""YAML is read to the values that kubectl reads. The expected values are what kubectl 1.34 printed."""

import math
from pathlib import Path
from typing import Any

import pytest
from rlhf_cli.validation.manifest import Document, ManifestError, parse_manifest, read_manifest


def value(text: str) -> Any:
    """The value of one scalar, as kubectl would send it."""
    [document] = parse_manifest(f"kind: A\nspec:\n  v: {text}\n".encode(), "a.yaml")
    return document.value["spec"]["v"]


def one(text: str) -> Document:
    [document] = parse_manifest(text.encode(), "a.yaml")
    return document


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Numbers: go-yaml's, then JSON's: what is whole becomes an integer.
        ("1e-6", 1e-6),
        ("1e6", 1_000_000),
        ("1.e+3", 1000),
        ("1.0", 1),
        ("-0.0", 0),
        ("1.50", 1.5),
        (".5", 0.5),
        ("-.5", -0.5),
        ("+1", 1),
        ("1_000", 1000),
        ("1__0", 10),
        ("1_000.5", 1000.5),
        ("1_e3", 1000),
        ("0x1F", 31),
        ("0X1F", 31),
        ("-0x1f", -31),
        ("0x_1F", 31),
        ("0o17", 15),
        ("0O17", 15),
        ("017", 15),
        ("-017", -15),
        ("0_7", 7),
        ("08", 8),
        ("09.5", 9.5),
        ("0b101", 5),
        ("-0b11", -3),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", 9.223372036854775807e18),
        ("123456789012345678901234567890", 1.2345678901234568e29),
        ("1e20", 1e20),
        ("1" + "0" * 400, "1" + "0" * 400),
        ("0xFFFFFFFFFFFFFFFFFF", "0xFFFFFFFFFFFFFFFFFF"),
        ("07777777777777777777777777", 7777777777777777777777777.0),
        ("1e-400", 0),
        ("!!float 3", 3),
        ('!!int "3"', 3),
        # Booleans: YAML 1.1's.
        ("on", True),
        ("On", True),
        ("y", True),
        ("Y", True),
        ("yes", True),
        ("off", False),
        ("n", False),
        ("NO", False),
        ("TRUE", True),
        ('!!bool "yes"', True),
        # Nothing.
        ("~", None),
        ("", None),
        ("Null", None),
        # Text that looks like something else.
        ("oN", "oN"),
        ("tRue", "tRue"),
        ("nUll", "nUll"),
        ("None", "None"),
        ("_1", "_1"),
        ("1:30", "1:30"),
        ("12:30:45.5", "12:30:45.5"),
        ("2001-01-01", "2001-01-01"),
        ("2001-01-01T00:00:00Z", "2001-01-01T00:00:00Z"),
        ("1.2.3", "1.2.3"),
        ("1e", "1e"),
        (".e5", ".e5"),
        ("+", "+"),
        (".", "."),
        ("0x", "0x"),
        ("0b2", "0b2"),
        ("1,000", "1,000"),
        ("1e400", "1e400"),
        ("inf", "inf"),
        ("=", "="),
        ("<<", "<<"),
        ('"1"', "1"),
        ("'on'", "on"),
        ("|\n    1e-6", "1e-6\n"),
        ("!!str 1", "1"),
        ("!custom x", "x"),
        ("!!timestamp 2001-01-01", "2001-01-01"),
        ("!!binary aGVsbG8=", "hello"),
        (r'"\u00e9\x41"', "éA"),
        (r'"\ud83d\ude00"', "😀"),
    ],
)
def test_a_scalar_has_the_value_that_kubectl_sends(text: str, expected: Any) -> None:
    found = value(text)
    assert (type(found), found) == (type(expected), expected)
    assert not isinstance(found, float) or math.isfinite(found)


@pytest.mark.parametrize("text", [".inf", "-.inf", ".NaN", "!!int x", "!!float on", "!!binary '@@'", r'"\ud83d"'])
def test_what_kubectl_cannot_send_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(ManifestError, match=r"^a\.yaml:3: "):
        value(text)


@pytest.mark.parametrize(
    ("situation", "text", "expected"),
    [
        ("the last duplicate counts", "{v: {a: 1}, v: {b: 2}}", {"v": {"b": 2}}),
        ("a merge under its mapping's own keys", "{x: &x {p: 1, q: 2}, b: {<<: *x, p: 3}}", {"p": 3, "q": 2}),
        ("a merge overrides the keys before it", "{x: &x {p: 1, q: 2}, b: {p: 3, <<: *x}}", {"p": 1, "q": 2}),
        ("of merged ones the first wins", "{x: &x {p: 1}, y: &y {p: 5, r: 6}, b: {<<: [*x, *y]}}", {"p": 1, "r": 6}),
        ("a quoted << is a key", "{b: {'<<': 1}}", {"<<": 1}),
        ("whole numbers as keys", "{b: {1: a, 1e3: b, 0x10: c}}", {"1": "a", "1000": "b", "16": "c"}),
        ("other values as keys", "{b: {1.5: a, on: b, 1e-7: c}}", {"1.5": "a", "true": "b", "1e-07": "c"}),
        ("an alias is a copy", "{x: &x [1, 2], b: *x}", [1, 2]),
        ("a set", "{b: !!set {p, q}}", {"p": None, "q": None}),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value and "{" not in value else "",
)
def test_a_collection_has_the_value_that_kubectl_sends(situation: str, text: str, expected: Any) -> None:
    spec = one(f"kind: A\nspec: {text}\n").value["spec"]
    assert spec == expected or spec["b"] == expected, situation


@pytest.mark.parametrize(
    ("situation", "text", "message"),
    [
        ("a tab", "kind: A\nspec:\n\ta: 1\n", "a.yaml:3: not YAML: found character '\\t' that cannot start any token"),
        ("an unknown alias", "kind: A\nspec: *x\n", "a.yaml:2: not YAML: found undefined alias 'x'"),
        ("an anchor in itself", "kind: A\nspec: &x [*x]\n", "a.yaml:2: an anchor's value contains itself"),
        ("a merge of no mapping", "a: 1\nb: {<<: 3}\n", "a.yaml:2: << expects a mapping or a list of mappings"),
        ("a null key", "kind: A\n~: 1\n", "a.yaml:2: a key must be text, a number or a boolean"),
        ("a mapping as key", "kind: A\n? {a: b}\n: 1\n", "a.yaml:2: a key must be text, a number or a boolean"),
        ("plain text", "hello\n", "a.yaml:1: expected an object with apiVersion and kind"),
        ("a list", "---\n- a\n", "a.yaml:2: expected an object with apiVersion and kind"),
        ("a List that is none", "kind: List\nitems: a\n", "a.yaml:2: items: expected a list of objects"),
        ("a List of text", "kind: List\nitems:\n- a\n", "a.yaml:3: expected an object with apiVersion and kind"),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value and "a.yaml" not in value else "",
)
def test_a_file_that_is_no_manifest_says_where(situation: str, text: str, message: str) -> None:
    with pytest.raises(ManifestError) as refused:
        one(text)
    assert str(refused.value) == message, situation


def test_a_badly_encoded_file_is_an_error() -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(b"kind: A\nspec: \xff\n", "a.yaml")
    assert str(refused.value) == "a.yaml:2: not YAML: invalid start byte (#xff)"


def test_a_control_character_is_an_error() -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(b"kind: A\nspec: a\x01b\n", "a.yaml")
    assert str(refused.value) == "a.yaml:2: not YAML: special characters are not allowed (#x01)"


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as refused:
        read_manifest(tmp_path / "job.yaml")
    assert str(refused.value) == f"{tmp_path}/job.yaml: No such file or directory"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: " + "[" * 400 + "]" * 400, "a.yaml:1: nested more than 64 levels deep", id="400 lists"),
        pytest.param("a: " + "[" * 100_000, "a.yaml:1: nested more than 64 levels deep", id="100,000 lists"),
        pytest.param("".join(f"{' ' * n}k:\n" for n in range(400)), "a.yaml:65: nested more", id="400 objects"),
        pytest.param(
            "l0: &l0 [1]\n" + "".join(f"l{n}: &l{n} [*l{n - 1}]\n" for n in range(1, 400)),
            "a.yaml:1: nested more",
            id="400 aliases in each other",
        ),
        pytest.param(
            "l0: &l0 [1]\n" + "".join(f"l{n}: &l{n} [{f'*l{n - 1},' * 10}]\n" for n in range(1, 9)),
            "a.yaml:1: more than 20000 values up to here, each use of an alias or merge counted",
            id="aliases that multiply",
        ),
        pytest.param(
            "l0: &l0 {a: 1}\n" + "".join(f"l{n}: &l{n} {{<<: [{f'*l{n - 1},' * 10}]}}\n" for n in range(1, 20)),
            "a.yaml:1: more than 20000 values",
            id="merges that multiply",
        ),
        pytest.param("a:\n" + "- 1\n" * 25_000, "a.yaml:20000: more than 20000", id="a list without end"),
        pytest.param("a: 1\n" * 25_000, "a.yaml:20000: more than 20000", id="a key written without end"),
        pytest.param("# comment\n" * 500_000, "a.yaml: found more than 4194304 bytes", id="a large file"),
    ],
)
def test_a_file_of_no_measure_is_refused_before_it_is_read(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(text.encode(), "a.yaml")
    assert str(refused.value).startswith(message)


@pytest.mark.timeout(120)
def test_many_doubled_keys_in_many_items_are_read_with_their_lines() -> None:
    items = "".join(f"- kind: A\n  v: {n}\n  v: 1\n" for n in range(2_000))
    documents = parse_manifest(f"kind: List\nitems:\n{items}".encode(), "a.yaml")
    assert (len(documents), documents[-1].duplicates) == (2_000, ((("v",), 6_002),))


MANY = """\
# A comment.
---
kind: ConfigMap
data:
  a.py: |
    ---
    x = 1
---
---
kind: List
items:
- kind: RLHFJob
  spec:
    rewards:
    - function: a:b
      weight: 1
      weight: 2
- {kind: Secret}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: RLHFJobList\nitems: [{kind: RLHFJob, v: 1}]", [{"kind": "RLHFJob", "v": 1}]),
        (
            "kind: RLHFJobList\napiVersion: rlhf.dev/v1alpha1\nitems: [{v: 1}]",
            [{"kind": "RLHFJob", "apiVersion": "rlhf.dev/v1alpha1", "v": 1}],
        ),
        ("kind: List\nitems: [{v: 1}]", [{"v": 1}]),
        ("kind: List\nitems: [{kind: List, items: [{kind: A}, {kind: B}]}]", [{"kind": "A"}, {"kind": "B"}]),
        ("kind: List\nitems: []", []),
        ("kind: A\nitems: [1]", [{"kind": "A", "items": [1]}]),
    ],
)
def test_a_list_holds_what_kubectl_finds_in_it(text: str, expected: list[Any]) -> None:
    assert [document.value for document in parse_manifest(text.encode(), "a.yaml")] == expected


def test_documents_come_in_order_with_the_items_of_lists() -> None:
    documents = parse_manifest(MANY.encode(), "a.yaml")
    assert [document.value["kind"] for document in documents] == ["ConfigMap", "RLHFJob", "Secret"]
    assert documents[0].value["data"]["a.py"] == "---\nx = 1\n"


def test_every_value_knows_its_line() -> None:
    config_map, job, secret = parse_manifest(MANY.encode(), "a.yaml")
    assert config_map.line(()) == 3
    assert config_map.line(("data", "a.py")) == 5
    assert job.line(("spec", "rewards")) == 14
    assert job.line(("spec", "rewards", 0, "function")) == 15
    assert job.line(("spec", "rewards", 0, "weight")) == 17
    assert job.duplicates == ((("spec", "rewards", 0, "weight"), 17),)
    assert secret.line(()) == 18


def test_what_is_not_in_the_file_has_the_line_of_what_is_around_it() -> None:
    _, job, _ = parse_manifest(MANY.encode(), "a.yaml")
    assert job.line(("spec", "rewards", 0, "timeoutSeconds")) == 15
    assert job.line(("spec", "rollout", "temperature")) == 13
    assert job.line(("metadata", "name")) == 12


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n---\n", "~\n"])
def test_a_file_without_objects_holds_none(text: str) -> None:
    assert parse_manifest(text.encode(), "a.yaml") == []


@pytest.mark.parametrize(
    "content",
    [b'{"kind":"A","spec":{"v":1.0,\n"w":"\\ud83d\\ude00"}}', "\ufeffkind: A\r\nspec: {v: 1, w: 😀}\r\n".encode()],
    ids=["JSON", "a byte order mark and Windows line ends"],
)
def test_other_ways_to_write_it(content: bytes) -> None:
    [document] = parse_manifest(content, "a.json")
    assert document.value == {"kind": "A", "spec": {"v": 1, "w": "😀"}}
