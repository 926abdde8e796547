"""The command line: cluster.py up | down | images | kubectl ARGS... | exec -- CMD... | env."""

import argparse
import os
import sys
from collections.abc import Sequence

from . import checks, images, lifecycle, namespaces
from .settings import OPERATOR_IMAGE, RUNTIME_IMAGE, Layout, default_layout
from .shell import ClusterError


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    layout = default_layout()
    try:
        # Not by argparse, which would take the command's own `--` and options for its own.
        if words[:1] == ["kubectl"]:
            _become(layout, [str(layout.binary("kubectl")), *words[1:]])
        if words[:1] == ["exec"]:
            _become(layout, words[2:] if words[1:2] == ["--"] else words[1:])
        _run(layout, _parser().parse_args(words).command)
    except ClusterError as error:
        print(f"cluster.py: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster.py", description="The real cluster of the end-to-end tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="build what is missing and start the cluster; leaves a healthy one alone")
    commands.add_parser("down", help="remove everything but the cache of binaries and images")
    commands.add_parser("images", help="build the project's images and make them usable in the cluster")
    commands.add_parser("env", help="print the variables that a test needs, to be read by a shell")
    commands.add_parser("kubectl", help="kubectl ARGS...: kubectl, inside the cluster's network")
    commands.add_parser("exec", help="exec -- CMD...: any command, inside the cluster's network")
    return parser


def _run(layout: Layout, command: str) -> None:
    match command:
        case "up":
            lifecycle.up(layout)
        case "down":
            lifecycle.down(layout)
        case "images":
            images.update(layout)
        case "env":
            _print_environment(layout)


def _print_environment(layout: Layout) -> None:
    print(f"export KUBECONFIG={layout.kubeconfig}")
    print(f"export RLHF_E2E_NETNS={layout.network_namespace}")
    print(f"export RLHF_E2E_KUBECTL={layout.binary('kubectl')}")
    print(f"export RLHF_E2E_OPERATOR_IMAGE={OPERATOR_IMAGE}")
    print(f"export RLHF_E2E_RUNTIME_IMAGE={RUNTIME_IMAGE}")


def _become(layout: Layout, words: Sequence[str]) -> None:
    """Replaces this program by the command, so that signals and exit codes need no passing on."""
    if not words:
        raise ClusterError("exec: no command given")
    if not layout.network_namespace.exists():
        raise ClusterError("the cluster is not up: run `cluster.py up` first")
    command = [*namespaces.enter_network(layout), *words]
    os.execvpe(command[0], command, checks.environment(layout))
