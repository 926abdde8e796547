"""How long until a job runs: an RLHFJob, and a KubeRay RayJob with the very same pods, in turn, in one run.

    python3 e2e/cluster/cluster.py exec -- .venv/bin/python e2e/bench_start.py --runs 3

Prints seconds from apply until the driver runs, and for the RLHFJob until the first episode is in status. Both sides
are read off their own objects' status, ten times a second. Needs `make cluster-up`.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

from kube import ROOT, JsonObject, Kubectl, documents
from namespaces import delete_namespace, make_namespace

ENTRYPOINT = "python -c 'import time; time.sleep(3)'"


def _seconds_until(what: str, started: float, reached: Callable[[], Any]) -> float:
    while not reached():
        if time.monotonic() - started > 600:
            raise SystemExit(f"not within 600 s: {what}")
        time.sleep(0.1)
    return time.monotonic() - started


def _condition(job: JsonObject, kind: str) -> str:
    return next((c["status"] for c in job.get("status", {}).get("conditions", []) if c["type"] == kind), "Unknown")


def measure_rlhfjob(kubectl: Kubectl, name: str) -> tuple[float, float, JsonObject]:
    """(seconds to driver, seconds to first episode, the RayCluster's spec)."""
    [job] = documents(ROOT / "manifests" / "samples" / "addition.yaml")
    job["metadata"]["name"] = name
    job["spec"]["episodes"] = 1
    job["spec"].pop("evaluation")
    started = time.monotonic()
    kubectl.apply(job)
    driver = _seconds_until(
        "driver", started, lambda: _condition(kubectl.get("rlhfjob", name), "RuntimeReady") == "True"
    )
    [cluster] = kubectl.items("rayclusters", f"rlhf.dev/job={name}")
    episode = _seconds_until("episode", started, lambda: kubectl.status(name).get("episode", 0) >= 1)
    _gone(kubectl, "rlhfjob", name)
    return driver, episode, cluster["spec"]


def measure_rayjob(kubectl: Kubectl, name: str, cluster: JsonObject) -> float:
    """Seconds to driver."""
    spec = copy.deepcopy(cluster)
    spec["authOptions"].pop("secretName", None)
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {"submissionMode": "HTTPMode", "entrypoint": ENTRYPOINT, "rayClusterSpec": spec},
    }
    started = time.monotonic()
    kubectl.apply(job)
    seconds = _seconds_until(
        "RayJob",
        started,
        lambda: kubectl.get("rayjob", name).get("status", {}).get("jobStatus") in ("RUNNING", "SUCCEEDED"),
    )
    _gone(kubectl, "rayjob", name)
    return seconds


def _gone(kubectl: Kubectl, kind: str, name: str) -> None:
    kubectl.run("delete", kind, name, "--timeout=120s")
    _seconds_until("pods gone", time.monotonic(), lambda: not kubectl.items("pods"))


def _figures(driver: float, episode: float, theirs: float) -> str:
    return f"RLHFJob driver {driver:.1f} s, first episode in status {episode:.1f} s; RayJob driver {theirs:.1f} s"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=3)
    runs = arguments.parse_args().runs
    kubectl = make_namespace("bench-start")
    rows = []
    for index in range(runs):
        driver, episode, cluster = measure_rlhfjob(kubectl, f"ours-{index}")
        rows.append((driver, episode, measure_rayjob(kubectl, f"theirs-{index}", cluster)))
        print(f"run {index + 1}: {_figures(*rows[-1])}", flush=True)
    print(f"medians: {_figures(*(statistics.median(column) for column in zip(*rows, strict=True)))}")
    delete_namespace(kubectl)


if __name__ == "__main__":
    main()
