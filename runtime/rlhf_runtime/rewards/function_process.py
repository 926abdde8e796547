"""A reward function's own process: ``python -m rlhf_runtime.rewards.function_process FD package.module:function``

It imports the function and says ``ready`` with its parameters, then answers batches until the socket closes.
User code prints to standard error: standard output is not the protocol. Every answer has a ``kind``: ``ready``,
``rewards``, ``invalid`` (the function cannot be used) or ``raised``; the last two have a message and a traceback.
"""

import asyncio
import importlib
import inspect
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from rlhf_runtime.rewards.answers import NotRewards, rewards_of, shortened
from rlhf_runtime.rewards.wire import receive, send
from rlhf_runtime.user_code import user_traceback


class InvalidFunction(Exception):
    """The function is not what the interface wants; ``trace`` shows why, if code raised."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    path = sys.argv[2]
    try:
        function = find(path)
        send(connection, {"kind": "ready", **parameters(function)})
    except InvalidFunction as error:
        send(connection, {"kind": "invalid", "message": str(error), "traceback": error.trace})
        return
    owner = os.getpid()
    # One loop for all batches: an HTTP client that a function keeps belongs to the loop that it was made in.
    with asyncio.Runner() as runner:
        while True:
            try:
                request = receive(connection)
            except EOFError:
                return
            said = answer(function, request, runner)
            if os.getpid() != owner:
                # The function forked, and returned from both: the other one answers.
                os._exit(0)
            send(connection, said)


def find(path: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` names. Raises InvalidFunction saying what was found."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise InvalidFunction(f"there is no module {missing!r} on PYTHONPATH") from error
        raise InvalidFunction(f"{module_name} imports {missing!r}, which is not installed") from error
    except BaseException as error:
        # Whatever the module's top level does, a sys.exit() too, is its answer.
        raise InvalidFunction(f"importing {module_name} raised {_summary(error)}", user_traceback(error)) from error
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        there = f"; it has {', '.join(functions[:8])}" if functions else ""
        raise InvalidFunction(f"{module_name} has no {name!r}{there}")
    function = getattr(module, name)
    if not callable(function):
        raise InvalidFunction(f"{name} in {module_name} is of type {type(function).__name__}, expected a function")
    found: Callable[..., Any] = function
    return found


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Names that the function must get and may get, and whether it takes any name. Raises InvalidFunction."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some callables written in C do not tell.
        return {"required": [], "accepted": [], "any": True}
    named = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if positional:
        raise InvalidFunction(f"parameter {positional[0].name!r} is positional-only; all are passed by name")
    return {
        "required": [p.name for p in named if p.default is p.empty],
        "accepted": [p.name for p in named],
        "any": any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()),
    }


def answer(function: Callable[..., Any], request: dict[str, Any], runner: asyncio.Runner) -> dict[str, Any]:
    """Call the function with one batch, and say what came of it. One that is `async` is awaited in the runner."""
    columns, given = request["columns"], {name: value for name, value in request.items() if name != "columns"}
    # Before the function has them, and may change them.
    expected = len(request["completions"])
    try:
        result = function(**given, **columns)
        if inspect.isawaitable(result):
            result = runner.run(_awaited(result))
        return {"kind": "rewards", "rewards": rewards_of(result, expected)}
    except NotRewards as error:
        return {"kind": "invalid", "message": str(error), "traceback": ""}
    except BaseException as error:
        # User code may raise anything, SystemExit and KeyboardInterrupt among it.
        return {"kind": "raised", "message": _summary(error), "traceback": user_traceback(error)}


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _summary(error: BaseException) -> str:
    text = " ".join(shortened(error, str).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    main()
