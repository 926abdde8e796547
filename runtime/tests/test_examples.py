"""Examples in docstrings say what the code does."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("crds/rlhf_api", "runtime/rlhf_runtime", "operator/rlhf_operator", "cli/rlhf_cli")
MODULES = sorted(
    ".".join(path.relative_to((ROOT / folder).parent).with_suffix("").parts)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed
