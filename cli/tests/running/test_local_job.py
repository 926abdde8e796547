"""What only a cluster can give is refused by its path; everything else means here what it means there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.job import RLHFJob
from rlhf_api.run import run_config
from rlhf_cli.exits import BadInput
from rlhf_cli.running.local_job import LocalJob, local_uid, localize
from rlhf_cli.validation.config_map import ConfigMap

STORAGE = Path("/somewhere/runs")
MakeJob = Callable[..., RLHFJob]


def config_map(name: str, namespace: str | None = None, **data: str) -> ConfigMap:
    return ConfigMap(name=name, namespace=namespace, data=data, binary_data={})


SETTINGS = config_map("settings", **{"WHO": "world", "1st.conf": "x", "SHARED": "from settings"})
MORE = config_map("more", SHARED="from more")
CODE = ConfigMap(name="code", data={"my_rewards.py": "def f(): ...\n"}, binary_data={"table.bin": b"\0\1\2"})
ELSEWHERE = config_map("elsewhere", namespace="other", KEY="value")
ALL = [SETTINGS, MORE, CODE, ELSEWHERE]


def local(job: RLHFJob) -> LocalJob:
    return localize(job, ALL, STORAGE, local_uid("default", "tiny", 0))


@pytest.mark.parametrize(
    ("runtime", "path", "found"),
    [
        pytest.param(
            {
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ]
            },
            "spec.runtime.env[1].valueFrom.secretKeyRef",
            "Secret 's'",
            id="a variable from a Secret",
        ),
        pytest.param(
            {"envFrom": [{"secretRef": {"name": "s"}}]},
            "spec.runtime.envFrom[0].secretRef",
            "Secret 's'",
            id="all variables of a Secret",
        ),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "k"}}}]},
            "spec.runtime.env[0].valueFrom.configMapKeyRef",
            "ConfigMap 'absent', which is not among the given files (found there: code, more, settings)",
            id="a variable from a ConfigMap that no file holds",
        ),
        pytest.param(
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "absent"}}}]},
            "spec.runtime.env[0].valueFrom.configMapKeyRef",
            "key 'absent' of ConfigMap 'settings', whose keys are: 1st.conf, SHARED, WHO",
            id="a variable from a key that the ConfigMap lacks",
        ),
        pytest.param(
            {"envFrom": [{"configMapRef": {"name": "elsewhere"}}]},
            "spec.runtime.envFrom[0].configMapRef",
            "ConfigMap 'elsewhere', which is not among the given files",
            id="a ConfigMap of another namespace",
        ),
        pytest.param(
            {"code": {"configMap": {"name": "absent"}}},
            "spec.runtime.code.configMap",
            "ConfigMap 'absent'",
            id="code from a ConfigMap that no file holds",
        ),
    ],
)
def test_a_reference_that_cannot_be_resolved_here_is_named(
    make_job: MakeJob, runtime: dict[str, Any], path: str, found: str
) -> None:
    with pytest.raises(BadInput) as refused:
        local(make_job(runtime=runtime))
    assert len(refused.value.problems) == 1
    assert refused.value.problems[0].startswith(f"{path}: refers to ")
    assert found in refused.value.problems[0]


def test_every_bad_reference_is_told_at_once(make_job: MakeJob) -> None:
    runtime = {"envFrom": [{"secretRef": {"name": "s"}}], "code": {"configMap": {"name": "absent"}}}
    with pytest.raises(BadInput) as refused:
        local(make_job(runtime=runtime))
    assert [p.partition(":")[0] for p in refused.value.problems] == [
        "spec.runtime.envFrom[0].secretRef",
        "spec.runtime.code.configMap",
    ]


def test_code_of_a_config_map_becomes_files(make_job: MakeJob) -> None:
    job = local(make_job(runtime={"code": {"configMap": {"name": "code"}}}))
    assert job.code_files == {"my_rewards.py": b"def f(): ...\n", "table.bin": b"\0\1\2"}


def test_variables_are_as_the_kubelet_sets_them(make_job: MakeJob) -> None:
    job = make_job(
        runtime={
            "envFrom": [{"configMapRef": {"name": "settings"}}, {"configMapRef": {"name": "more"}}],
            "env": [
                {"name": "GREETING", "value": "hello $(WHO)"},
                {"name": "LATER", "value": "$(GREETING), $$(WHO), $(UNKNOWN)"},
                {"name": "WHO", "valueFrom": {"configMapKeyRef": {"name": "more", "key": "SHARED"}}},
            ],
        }
    )
    assert local(job).environment == {
        "SHARED": "from more",
        "GREETING": "hello world",
        "LATER": "hello world, $(WHO), $(UNKNOWN)",
        "WHO": "from more",
    }


def test_paths_on_the_claim_move_to_the_local_folder(make_job: MakeJob) -> None:
    job = make_job(
        evaluation={"uri": "/mnt/rlhf/held-out.jsonl"},
        models={"actor": {"uri": "package://rlhf_samples/addition/policy"}},
        runtime={"code": {"path": "/mnt/rlhf/code"}},
    )
    moved = local(job)
    assert moved.job.spec.prompts.uri == "/somewhere/runs/prompts.jsonl"
    assert moved.job.spec.evaluation is not None
    assert moved.job.spec.evaluation.uri == "/somewhere/runs/held-out.jsonl"
    assert moved.job.spec.models.actor.uri == "package://rlhf_samples/addition/policy"
    assert moved.code_path == "/somewhere/runs/code"


def test_every_model_on_the_claim_moves(make_job: MakeJob) -> None:
    roles = ("actor", "reference", "critic", "reward", "teacher")
    job = make_job(
        models={role: {"uri": f"/mnt/rlhf/{role}"} for role in roles},
        algorithm={
            "type": "PPO",
            "optimizer": {"learningRate": 0.001},
            "kl": {"coefficient": 0.1, "appliesTo": "Reward"},
            "distillation": {"weight": 0.1},
        },
        rewards=[{"model": "reward"}],
    )
    moved = local(job).job.spec.models.to_dict()
    assert {role: moved[role]["uri"] for role in roles} == {role: f"/somewhere/runs/{role}" for role in roles}


def test_a_mounted_path_as_storage_moves_and_its_neighbour_does_not(make_job: MakeJob) -> None:
    job = make_job(
        checkpoint={"storage": {"path": "/data/a"}},
        models={"actor": {"uri": "/data/ab/policy"}},
        prompts={"uri": "/data/a/prompts.jsonl"},
    )
    moved = local(job).job.spec
    assert (moved.models.actor.uri, moved.prompts.uri) == ("/data/ab/policy", "/somewhere/runs/prompts.jsonl")


def test_what_only_pods_have_is_ignored_with_a_note(make_job: MakeJob) -> None:
    job = make_job(
        makers={"resources": {"limits": {"nvidia.com/gpu": 1}}},
        head={"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}},
        runtime={"imagePullSecrets": [{"name": "registry"}]},
    )
    here = local(job)
    assert here.notes == [
        "Only a cluster uses head.template, makers.resources; ignored here.",
        "Only a cluster pulls images; runtime.imagePullSecrets is ignored here.",
    ]
    # No process of a run here is told to insist on a GPU, and the user is told if there is none.
    assert run_config(here.job, "/", attempt=1, incarnation=1).maker_gpus is None
    [gpus] = here.gpus
    assert str(gpus) == "makers.resources asks for 1 nvidia.com/gpu"
    assert (local(make_job()).notes, local(make_job()).gpus) == ([], [])


def test_a_uid_is_of_a_namespace_a_name_and_a_run() -> None:
    uids = {local_uid(*key) for key in [("a", "b", 0), ("a", "b", 1), ("a", "c", 0), ("c", "b", 0)]}
    assert len(uids) == 4
    assert local_uid("a", "b", 0) == local_uid("a", "b", 0)
