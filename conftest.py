"""The tiers of tests: what `--quick` leaves out.

A test module is quick unless loading it imports one of HEAVY, itself or through our own modules. So a new pure test is
quick without a word, and no heavy module is loaded while quick tests are collected. A quick test that imports one
later, in a function, fails.
"""

import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from module_imports import Imports

#: Loading these takes seconds: who needs them computes with models or starts Ray.
HEAVY = frozenset({"torch", "transformers", "trl", "ray", "reasoning_gym", "peft", "torchao"})


class Refusal:
    """Finds no heavy module, on purpose."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in HEAVY:
            raise AssertionError(
                f"a quick test imports {name}: import it at the head of the test module, which is then not quick"
            )
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only test modules that need no torch, no model and no Ray")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        sys.meta_path.insert(0, Refusal())


@cache
def _imports(config: pytest.Config) -> Imports:
    return Imports([config.rootpath / folder for folder in config.getini("pythonpath")])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("quick") and collection_path.match("test_*.py"):
        return bool(_imports(config).reached(collection_path) & HEAVY) or None
    return None
