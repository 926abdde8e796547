"""Bad jobs say why: in one message, as early as it can be known, and leave nothing running.

All of them are applied at once, since each spends most of its time waiting for its pods.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kube import ROOT, Kubectl, documents, eventually

Spec = dict[str, Any]

BAD_REWARDS = """
import time

def raises(prompts, completions, **columns):
    raise KeyError("no such column")

def hangs(prompts, completions, **columns):
    time.sleep(3600)

def short(prompts, completions, **columns):
    return [1.0]

def not_a_number(prompts, completions, **columns):
    return [float("nan")] * len(completions)
"""

BAD_PROMPTS = {
    "empty.jsonl": "",
    "keyless.jsonl": '{"prompt": "1 + 1"}\n{"question": "2 + 2"}\n',
    "array.jsonl": '[{"prompt": "1 + 1"}]\n',
}


@dataclass(frozen=True)
class Bad:
    """One thing wrong with the sample, and what must be said of it."""

    name: str
    change: Callable[[Spec], None]
    reason: str
    message: str


#: An init container that the restricted pod security admits, and that fails.
_FAILING = {
    "name": "bad",
    "image": "rlhfjob/runtime:0.1.0",
    "command": ["false"],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


def _reward(function: str, **fields: Any) -> Callable[[Spec], None]:
    return lambda spec: spec.update(rewards=[{"function": function, **fields}])


def _prompts(uri: str) -> Callable[[Spec], None]:
    return lambda spec: spec.update(prompts={"uri": uri})


def _template(role: str, template: Spec) -> Callable[[Spec], None]:
    return lambda spec: spec[role].update(template=template)


def _own_storage(**mount: Any) -> Callable[[Spec], None]:
    """Every pod gets a storage of its own at the same path."""
    template = {
        "spec": {
            "volumes": [{"name": "own", "emptyDir": {}}],
            "containers": [{"name": "ray", "volumeMounts": [{"name": "own", "mountPath": "/data", **mount}]}],
        }
    }

    def change(spec: Spec) -> None:
        spec["checkpoint"]["storage"] = {"path": "/data"}
        for role in ("head", "makers", "trainers"):
            spec[role]["template"] = template

    return change


#: One of each family runs in `make test`; all of them in `make test-full`.
CORE = (
    Bad(
        "image",
        lambda spec: spec["runtime"].update(image="no.such.registry/none:1"),
        "PreRunningDeadlineExceeded",
        "no.such.registry/none:1",
    ),
    Bad(
        "unschedulable",
        lambda spec: spec["head"]["resources"].update(requests={"cpu": "900"}, limits={"cpu": "900"}),
        "PreRunningDeadlineExceeded",
        "Insufficient cpu",
    ),
    Bad(
        "template",
        _template(
            "makers", {"spec": {"containers": [{"name": "x", "image": "busybox", "ports": [{"containerPort": 99999}]}]}}
        ),
        "TemplateInvalid",
        "99999",
    ),
    Bad("reward", _reward("bad_rewards:missing"), "RewardFunctionInvalid", "bad_rewards:missing"),
    Bad("hang", _reward("bad_rewards:hangs", timeoutSeconds=3), "BackoffLimitExceeded", "RewardFunctionTimeout"),
    Bad("data", _prompts("/etc/rlhf/code/keyless.jsonl"), "PromptsInvalid", "keyless.jsonl, line 2"),
)
MORE = (
    Bad("raises", _reward("bad_rewards:raises"), "BackoffLimitExceeded", "no such column"),
    Bad("short", _reward("bad_rewards:short"), "RewardFunctionInvalid", "it returned 1 numbers for"),
    Bad("nan", _reward("bad_rewards:not_a_number"), "RewardFunctionInvalid", "nan"),
    Bad("empty", _prompts("/etc/rlhf/code/empty.jsonl"), "DatasetEmpty", "0 rows"),
    Bad("array", _prompts("/etc/rlhf/code/array.jsonl"), "PromptsInvalid", "one JSON object per line"),
    Bad("nofile", _prompts("/etc/rlhf/code/none.jsonl"), "PromptsInvalid", "none.jsonl"),
    Bad(
        "long",
        lambda spec: spec["prompts"].update(maxPromptTokens=2),
        "PromptsInvalid",
        "at most 2 (prompts.maxPromptTokens)",
    ),
    Bad("shared", _own_storage(), "StorageNotShared", "/data"),
    Bad("readonly", _own_storage(readOnly=True), "StorageReadOnly", "/data"),
    Bad("model", lambda spec: spec["models"]["actor"].update(uri="/nope"), "ModelInvalid", "/nope"),
    Bad(
        "claim",
        lambda spec: spec["checkpoint"].update(storage={"persistentVolumeClaim": {"claimName": "none"}}),
        "PreRunningDeadlineExceeded",
        "none",
    ),
    Bad(
        "crash",
        _template(
            "head",
            {"spec": {"initContainers": [_FAILING]}},
        ),
        "ContainerCrashed",
        "bad",
    ),
)
CASES = [*CORE, *(pytest.param(bad, marks=pytest.mark.full) for bad in MORE)]


def bad_job(bad: Bad) -> Spec:
    [job] = documents(ROOT / "manifests" / "samples" / "addition.yaml")
    job["metadata"]["name"] = f"bad-{bad.name}"
    spec = job["spec"]
    spec.pop("evaluation")
    spec.update(backoffLimit=0, preRunningDeadlineSeconds=900)
    if bad.reason == "PreRunningDeadlineExceeded":
        spec["preRunningDeadlineSeconds"] = 20
    spec["runtime"] = {"code": {"configMap": {"name": "bad-code"}}}
    # At most two heads fit at once: more of them starting together on two cores would time out.
    spec["head"]["resources"]["requests"]["cpu"] = "700m"
    for role in ("makers", "trainers"):
        spec[role]["resources"]["requests"]["cpu"] = "100m"
    bad.change(spec)
    return dict(job)


@pytest.fixture(scope="module")
def applied(kubectl: Kubectl, request: pytest.FixtureRequest) -> Kubectl:
    """The namespace, with every bad job of this session in it."""
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "bad-code"},
        "data": {"bad_rewards.py": BAD_REWARDS, **BAD_PROMPTS},
    }
    selected = [
        bad
        for item in request.session.items
        if isinstance(item, pytest.Function) and "bad" in item.fixturenames
        if isinstance(bad := item.callspec.params["bad"], Bad)
    ]
    kubectl.apply(code, *(bad_job(bad) for bad in selected))
    return kubectl


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_a_bad_job_says_why_and_leaves_nothing_running(bad: Bad, applied: Kubectl) -> None:
    name = f"bad-{bad.name}"
    status = applied.wait_for_job(name, "Stalled", "15m")
    assert status["phase"] == "Failed"
    assert status["failure"]["reason"] == bad.reason
    assert bad.message in status["failure"]["message"]
    assert len(status["failure"]["message"]) <= 1024
    eventually(f"no pod of {name} is left", lambda: not applied.pods(name), 120)
