"""The children of a job: a golden RayCluster, and the user's template laid under it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from rlhf_api.job import RLHFJob
from rlhf_operator.manifests import children
from rlhf_operator.manifests.pods import pod_template
from rlhf_operator.manifests.templates import TemplateError
from rlhf_operator.observed.picture import Code

G = Any
GOLDEN = Path(__file__).with_name("golden_raycluster.yaml")


def full(given: G) -> RLHFJob:
    """A job that uses every field that reaches a pod, and carries what must not reach its children."""
    raw = given.manifest(
        makers={
            "replicas": 2,
            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "4Gi"}},
            "template": {
                "metadata": {"labels": {"team": "rl"}, "annotations": {"example.org/note": "kept"}},
                "spec": {
                    "nodeSelector": {"pool": "gpu"},
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "securityContext": {"runAsUser": 2000},
                    "containers": [
                        {"name": "sidecar", "image": "log:1"},
                        {
                            "name": "ray",
                            "image": "never/used:1",
                            "env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "PYTHONPATH", "value": "/opt/x"}],
                            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                            "resources": {"limits": {"cpu": "2"}},
                        },
                    ],
                    "volumes": [{"name": "cache", "emptyDir": {}}],
                },
            },
        },
        trainers={"replicas": 4, "perPod": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}},
        runtime={
            "image": "registry.example/rlhf:2",
            "rayVersion": "2.60.0",
            "imagePullSecrets": [{"name": "pull"}],
            "env": [{"name": "HF_HOME", "value": "/cache"}],
            "envFrom": [{"secretRef": {"name": "tokens"}}],
            "code": {"configMap": {"name": "mine"}},
        },
    )
    raw["metadata"]["labels"] = {"app.kubernetes.io/instance": "demo"}
    raw["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "x"}
    return RLHFJob.model_validate(raw)


def test_the_ray_cluster_is_the_golden_one(given: G) -> None:
    assert given.ray_cluster(full(given)) == yaml.safe_load(GOLDEN.read_text("utf-8"))


def test_nothing_that_a_gitops_tool_tracks_is_copied_to_children(given: G) -> None:
    job = full(given)
    code = Code({"rewards.py": "x = 1"}, {})
    for child in (given.ray_cluster(job), children.secret(job, b"key"), children.config_map(job, code)):
        text = yaml.dump(child)
        assert "argocd" not in text
        assert "demo" not in text
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (given.uid, True, True)


def test_tokens_differ_by_job_and_by_operator_and_can_be_derived_again(given: G) -> None:
    job = given.job()
    other = RLHFJob.model_validate({**given.manifest(), "metadata": {"name": "addition", "uid": "another"}})
    assert children.token(b"key", job) == children.token(b"key", job)
    assert len({children.token(b"key", job), children.token(b"key2", job), children.token(b"key", other)}) == 3
    assert len(children.token(b"key", job)) == 64
    assert children.secret(job, b"key")["stringData"] == {"auth_token": children.token(b"key", job)}


@pytest.mark.parametrize(("ranks", "mounts"), [(1, 1), (2, 2)])
def test_ranks_that_share_a_maker_s_pod_have_shared_memory_to_talk_through(given: G, ranks: int, mounts: int) -> None:
    spec = pod_template(given.job(makers={"tensorParallel": ranks}), "maker")["spec"]
    paths = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    assert len(paths) == mounts
    assert ("/dev/shm" in paths) == (ranks > 1)
    assert ({"medium": "Memory"} in [volume.get("emptyDir") for volume in spec["volumes"]]) == (ranks > 1)


def test_every_pod_is_restricted_whatever_the_template_says(given: G) -> None:
    loose = {
        "spec": {
            "automountServiceAccountToken": True,
            "securityContext": {"runAsNonRoot": False, "seccompProfile": {"type": "Unconfined"}},
            "containers": [
                {"name": "ray", "securityContext": {"allowPrivilegeEscalation": True, "capabilities": {"drop": []}}}
            ],
        }
    }
    job = given.job(head={"template": loose}, makers={"template": loose}, trainers={"template": loose})
    for role in ("head", "maker", "trainer"):
        spec = pod_template(job, role)["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
        }


def test_a_variable_of_ours_replaces_the_template_s_wholly(given: G) -> None:
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    template = {"spec": {"containers": [{"name": "ray", "env": [{"name": "HF_TOKEN", "valueFrom": reference}]}]}}
    job = given.job(makers={"template": template}, runtime={"env": [{"name": "HF_TOKEN", "value": "x"}]})
    env = pod_template(job, "maker")["spec"]["containers"][0]["env"]
    assert [entry for entry in env if entry["name"] == "HF_TOKEN"] == [{"name": "HF_TOKEN", "value": "x"}]


def test_no_variable_of_the_user_switches_off_or_replaces_the_token(given: G) -> None:
    theirs = [{"name": "RAY_AUTH_MODE", "value": "disabled"}, {"name": "RAY_AUTH_TOKEN", "value": "known"}]
    template = {"spec": {"containers": [{"name": "ray", "env": theirs}]}}
    job = given.job(makers={"template": template}, runtime={"env": theirs})
    secret = {"name": children.secret(job, b"key")["metadata"]["name"], "key": "auth_token"}
    for role in ("head", "maker"):
        env = pod_template(job, role)["spec"]["containers"][0]["env"]
        assert [entry for entry in env if entry["name"].startswith("RAY_AUTH")] == [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}},
        ]


def test_the_template_itself_is_not_changed(given: G) -> None:
    job = full(given)
    before = yaml.dump(job.spec.makers.template)
    pod_template(job, "maker")
    assert yaml.dump(job.spec.makers.template) == before


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"spec": {"containers": "x"}}, "spec.makers.template.spec.containers: found str, expected a list"),
        ({"spec": {"containers": ["x"]}}, r"spec.makers.template.spec.containers\[0\]: found str, expected a mapping"),
        (
            {"spec": {"containers": [{"name": "ray", "env": {"A": "1"}}]}},
            r"spec.makers.template.spec.containers\[ray\].env: found dict, expected a list",
        ),
        (
            {"spec": {"containers": [{"name": "ray", "resources": {"limits": {"memory": "lots"}}}]}},
            "spec.makers: memory limits: found 'lots', expected a quantity such as 2Gi",
        ),
        (
            {"spec": {"containers": [{"name": "ray", "resources": {"limits": {"memory": "1e999"}}}]}},
            "spec.makers: memory limits: found '1e999', expected at most 9223372036854775807 bytes",
        ),
        (
            {"spec": {"containers": [{"name": "ray", "env": [{"name": "PYTHONPATH", "value": 5}]}]}},
            "spec.makers: PYTHONPATH: expected a plain text value",
        ),
        (
            {"spec": {"containers": [{"name": "ray", "env": [{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {}}}]}]}},
            "spec.makers: PYTHONPATH: expected a plain text value",
        ),
    ],
)
def test_a_template_of_the_wrong_shape_says_where(given: G, template: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        given.ray_cluster(given.job(makers={"template": template}, runtime={"code": {"path": "/code"}}))


@pytest.mark.parametrize("resources", [None, [], {"limits": None}, {"limits": []}])
def test_resources_that_are_none_are_left_for_the_api_server_to_judge(given: G, resources: Any) -> None:
    template = {"spec": {"containers": [{"name": "ray", "resources": resources}]}}
    cluster = given.ray_cluster(given.job(makers={"template": template}))
    makers = cluster["spec"]["workerGroupSpecs"][0]
    assert makers["template"]["spec"]["containers"][0]["resources"] == resources
    assert makers["rayStartParams"]["object-store-memory"] == str(512 * 1024**2)


def test_what_is_not_merged_is_left_for_the_api_server_to_judge(given: G) -> None:
    template = {"spec": {"nodeSelektor": {"a": 1}, "containers": [{"image": "nameless"}, {"image": "nameless too"}]}}
    spec = pod_template(given.job(makers={"template": template}), "maker")["spec"]
    assert spec["nodeSelektor"] == {"a": 1}
    assert [container.get("image") for container in spec["containers"][1:]] == ["nameless", "nameless too"]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, 512 * 1024**2),
        ({"limits": {"memory": "4Gi"}}, int(4 * 1024**3 * 0.3)),
        ({"requests": {"memory": "2G"}}, 600_000_000),
        ({"limits": {"memory": "100Mi"}}, 80 * 1024**2),
        ({"limits": {"memory": "4Gi"}, "requests": {"memory": "1Gi"}}, int(4 * 1024**3 * 0.3)),
    ],
)
def test_the_object_store_is_sized_by_the_container_s_memory(
    given: G, resources: dict[str, Any], expected: int
) -> None:
    cluster = given.ray_cluster(given.job(head={"resources": resources}))
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["object-store-memory"] == str(expected)


def test_storage_by_path_mounts_nothing(given: G) -> None:
    job = given.job(checkpoint={"storage": {"path": "/shared"}})
    spec = pod_template(job, "trainer")["spec"]
    assert "volumes" not in spec
    assert "volumeMounts" not in spec["containers"][0]


def test_code_in_the_image_is_put_on_the_path_and_mounts_nothing(given: G) -> None:
    spec = pod_template(given.job(runtime={"code": {"path": "/app"}}), "maker")["spec"]
    assert {"name": "PYTHONPATH", "value": "/app"} in spec["containers"][0]["env"]
    assert [volume["name"] for volume in spec["volumes"]] == ["rlhf-storage"]


def test_trial_pods_are_the_templates_as_pods_that_no_cluster_s_pod_collides_with(given: G) -> None:
    job = full(given)
    templates = children.pod_templates(job)
    pods = {role: children.trial_pod(job, role, template) for role, template in templates.items()}
    assert set(pods) == {"head", "maker", "trainer"}
    for role, pod in pods.items():
        assert pod["spec"] == pod_template(job, role)["spec"]
        assert (pod["kind"], pod["metadata"]["namespace"]) == ("Pod", "team")
    assert len({pod["metadata"]["name"] for pod in pods.values()}) == 3
