"""What the tiers of tests rest on: what a module imports when it is loaded, and that test modules are no libraries."""

import tomllib
from pathlib import Path

import pytest
from module_imports import ROOT, Imports


def imports() -> Imports:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return Imports([ROOT / folder for folder in settings["pythonpath"]])


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("import torch.nn", {"torch"}),
        ("from torch import nn", {"torch"}),
        ("try:\n    import torch\nexcept ImportError:\n    pass", {"torch"}),
        ("class A:\n    import torch", {"torch"}),
        ("from far.near import torch_user", {"torch"}),
        ("import far.near.torch_user", {"torch"}),
        ("import far", {"numpy"}),
        ("def f():\n    import torch", set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", {"typing"}),
    ],
)
def test_imports_at_load_are_followed_through_our_modules(tmp_path: Path, source: str, reached: set[str]) -> None:
    near = tmp_path / "ours" / "far" / "near"
    near.mkdir(parents=True)
    (near.parent / "__init__.py").write_text("import numpy")
    (near / "torch_user.py").write_text("import torch")
    test = tmp_path / "test_it.py"
    test.write_text(source)
    assert Imports([tmp_path / "ours"]).reached(test) - {"numpy"} == reached - {"numpy"}
    assert ("numpy" in Imports([tmp_path / "ours"]).reached(test)) == ("far" in source)


def test_no_test_module_imports_another_one_or_a_conftest() -> None:
    known = imports()
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("crds", "operator", "runtime", "cli", "e2e")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in known.direct(path)
        if any(part == "conftest" or part.startswith("test_") for part in name.split(".")[:1])
    }
    assert not found, "move what is shared to a module without test_ before its name"
