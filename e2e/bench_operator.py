"""What the operator costs: memory, API calls and status writes a minute, with no job, a running one, a finished one.

    python3 e2e/cluster/cluster.py exec -- .venv/bin/python e2e/bench_operator.py

Counts come from the operator's own metrics, memory from its process. Needs `make cluster-up` and the operator
installed (`make e2e` leaves it there).
"""

import re
import time
from collections import Counter

from kube import ROOT, JsonObject, Kubectl, documents, eventually
from namespaces import delete_namespace, make_namespace

SECONDS = 60
OPERATOR = "deployment/rlhf-operator"
SAMPLE = re.compile(r'^rlhf_operator_(api_calls|status_writes)_total(?:\{.*verb="(\w+)".*\})? ([0-9.e+]+)$', re.M)


def _inside(operator: Kubectl, code: str) -> str:
    return operator.run("exec", OPERATOR, "--", "python", "-c", code)


def _counts(operator: Kubectl) -> Counter[str]:
    url = "http://127.0.0.1:9090/metrics"
    text = _inside(operator, f"import urllib.request as u; print(u.urlopen({url!r}).read().decode())")
    counts: Counter[str] = Counter()
    for metric, verb, value in SAMPLE.findall(text):
        counts[verb or metric] += int(float(value))
    return counts


def _megabytes(operator: Kubectl) -> float:
    status = _inside(operator, "print(open('/proc/1/status').read())")
    [kilobytes] = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.M)
    return int(kilobytes) / 1024


def measure(operator: Kubectl, what: str) -> None:
    before = _counts(operator)
    time.sleep(SECONDS)
    spent = _counts(operator) - before
    writes = spent.pop("status_writes", 0)
    verbs = ", ".join(f"{verb} {count}" for verb, count in sorted(spent.items()))
    memory = _megabytes(operator)
    print(
        f"{what}: {memory:.0f} MiB, {sum(spent.values())} API calls a minute ({verbs}), {writes} status writes",
        flush=True,
    )


def _job(name: str, episodes: int) -> JsonObject:
    [job] = documents(ROOT / "manifests" / "samples" / "addition.yaml")
    job["metadata"]["name"] = name
    job["spec"]["episodes"] = episodes
    job["spec"].pop("evaluation")
    return job


def main() -> None:
    operator = Kubectl("rlhf-system")
    kubectl = make_namespace("bench-operator")
    measure(operator, "no job")
    kubectl.apply(_job("running", 100_000))
    eventually("episode 3", lambda: kubectl.status("running").get("episode", 0) >= 3, 300)
    measure(operator, "a running job")
    kubectl.run("delete", "rlhfjob", "running", "--timeout=60s")
    kubectl.apply(_job("finished", 1))
    kubectl.wait_for_job("finished", "Succeeded", "5m")
    eventually("its pods are gone", lambda: not kubectl.items("pods"), 120)
    measure(operator, "a finished job")
    delete_namespace(kubectl)


if __name__ == "__main__":
    main()
