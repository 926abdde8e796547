"""How long until a job runs: an RLHFJob, and a KubeRay RayJob with the very same pods, in turn, in one run.

    python3 e2e/cluster/cluster.py exec -- .venv/bin/python e2e/bench_start.py --runs 3

Prints seconds from apply until Ray says that the driver runs (asked ten times a second, on both sides), and for the
RLHFJob until the first episode is in status. Needs `make cluster-up`.
"""

import argparse
import base64
import copy
import json
import statistics
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from kube import ROOT, JsonObject, Kubectl, documents
from namespaces import delete_namespace, make_namespace

ENTRYPOINT = "python -c 'import time; time.sleep(3)'"


def _seconds_until(what: str, started: float, reached: Callable[[], Any]) -> float:
    while not reached():
        if time.monotonic() - started > 180:
            raise SystemExit(f"not within 180 s: {what}")
        time.sleep(0.1)
    return time.monotonic() - started


def _driver_runs(kubectl: Kubectl) -> bool:
    """Whether Ray, on the head of the namespace's one RayCluster, has a job that runs or ran."""
    clusters = kubectl.items("rayclusters")
    address = clusters[0].get("status", {}).get("head", {}).get("podIP") if clusters else None
    if not address:
        return False
    name = clusters[0]["spec"]["authOptions"].get("secretName", clusters[0]["metadata"]["name"])
    token = base64.b64decode(kubectl.get("secret", name)["data"]["auth_token"]).decode()
    request = urllib.request.Request(f"http://{address}:8265/api/jobs/", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            jobs = json.load(answer)
    except OSError:
        return False
    return any(job["status"] in ("RUNNING", "SUCCEEDED") for job in jobs)


def measure_rlhfjob(kubectl: Kubectl, name: str) -> tuple[float, float, JsonObject]:
    """(seconds to driver, seconds to first episode, the RayCluster's spec)."""
    [job] = documents(ROOT / "manifests" / "samples" / "addition.yaml")
    job["metadata"]["name"] = name
    job["spec"]["episodes"] = 1
    job["spec"].pop("evaluation")
    started = time.monotonic()
    kubectl.apply(job)
    driver = _seconds_until("driver", started, lambda: _driver_runs(kubectl))
    [cluster] = kubectl.items("rayclusters", f"rlhf.dev/job={name}")
    episode = _seconds_until("episode", started, lambda: kubectl.status(name).get("episode", 0) >= 1)
    _gone(kubectl, "rlhfjob", name)
    return driver, episode, cluster["spec"]


def measure_rayjob(kubectl: Kubectl, name: str, cluster: JsonObject) -> float:
    """Seconds to driver."""
    spec = copy.deepcopy(cluster)
    # What a RayJob's cluster may not have, and the token of ours: KubeRay makes a Secret for it.
    del spec["upgradeStrategy"]
    spec["authOptions"].pop("secretName", None)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        container["env"] = [variable for variable in container["env"] if not variable["name"].startswith("RAY_AUTH")]
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {"submissionMode": "HTTPMode", "entrypoint": ENTRYPOINT, "rayClusterSpec": spec},
    }
    started = time.monotonic()
    kubectl.apply(job)
    seconds = _seconds_until("driver", started, lambda: _driver_runs(kubectl))
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
