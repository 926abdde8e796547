"""Which modules a test module imports when it is loaded, itself and through ours; read from the source, run nothing.

What a function imports in its body is not among them: it is imported when the function is called, if ever.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Imports:
    """Imports of our modules, which are looked for in ``roots`` (pytest's ``pythonpath``)."""

    def __init__(self, roots: list[Path]) -> None:
        self._roots = roots
        self._imported = cache(self._read)
        self._files = cache(self._found)

    def reached(self, path: Path) -> set[str]:
        """Top-level names of all modules outside of ``roots`` that loading the file at ``path`` imports."""
        outside: set[str] = set()
        seen, waiting = {path}, [path]
        while waiting:
            for name in self._imported(waiting.pop()):
                files = self._files(name)
                outside.update([] if files else [name.partition(".")[0]])
                waiting.extend(set(files) - seen)
                seen.update(files)
        return outside

    def direct(self, path: Path) -> frozenset[str]:
        """Dotted names that the file itself imports; of ``from a import b`` both ``a`` and ``a.b``."""
        return self._imported(path)

    def _read(self, path: Path) -> frozenset[str]:
        return frozenset(name for node in _at_load(ast.parse(path.read_bytes())) for name in _names(node))

    def _found(self, name: str) -> tuple[Path, ...]:
        """The files that ``import name`` loads, packages first; none if the module is not ours."""
        parts = name.split(".")
        stems = [root.joinpath(*parts[:end]) for end in range(1, len(parts) + 1) for root in self._roots]
        candidates = [file for stem in stems for file in (stem / "__init__.py", stem.with_suffix(".py"))]
        return tuple(file for file in candidates if file.exists())


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _at_load(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is loaded: no bodies of functions, nothing for type checkers only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _at_load(child)
