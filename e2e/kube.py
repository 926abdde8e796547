"""kubectl, as a person would use it, with the waits and reads that the tests share."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")
JsonObject = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
#: A folder of the node that serves as the cluster's shared storage.
STORAGE = Path(os.environ.get("RLHF_E2E_STORAGE", "/var/tmp/rlhfjob-e2e-storage"))


class Kubectl:
    """kubectl bound to one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def run(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        """stdout of ``kubectl ARGS``; an error carries what kubectl said."""
        done = subprocess.run(
            ["kubectl", "--namespace", self.namespace, *args],
            input=stdin,
            text=True,
            capture_output=True,
            timeout=1200,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(args)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *documents: JsonObject) -> None:
        self.run("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def get(self, kind: str, name: str) -> JsonObject:
        """One object, or an empty dict when there is none."""
        text = self.run("get", kind, name, "-o", "json", "--ignore-not-found")
        found: JsonObject = json.loads(text) if text.strip() else {}
        return found

    def items(self, kind: str, selector: str = "") -> list[JsonObject]:
        listed: list[JsonObject] = json.loads(self.run("get", kind, "-l", selector, "-o", "json"))["items"]
        return listed

    def status(self, job: str) -> JsonObject:
        """Status of an RLHFJob, empty before the operator has seen it."""
        status: JsonObject = self.get("rlhfjob", job).get("status", {})
        return status

    def wait_for_job(self, job: str, condition: str, timeout: str) -> JsonObject:
        """``kubectl wait`` for a condition of an RLHFJob; its status then."""
        self.run("wait", f"rlhfjob/{job}", f"--for=condition={condition}", f"--timeout={timeout}")
        return self.status(job)

    def pods(self, job: str, role: str = "") -> list[JsonObject]:
        selector = f"rlhf.dev/job={job}" + (f",rlhf.dev/role={role}" if role else "")
        return self.items("pods", selector)

    def kill_pod(self, pod: JsonObject) -> None:
        """Delete a pod by force, as a node failure would."""
        self.run("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")


def eventually(what: str, probe: Callable[[], T | None], seconds: float, every: float = 1.0) -> T:
    """The first truthy answer of ``probe``; fails, saying what was awaited and last seen, after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}; last seen: {answer!r}")
        time.sleep(every)


def documents(path: Path) -> list[JsonObject]:
    """All documents of a manifest."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]
