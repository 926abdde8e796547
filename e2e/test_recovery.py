"""A maker pod and then the head pod are killed in one run; nothing is lost, and nothing is trained twice.

The reward function comes from a ConfigMap, and waits a little in each call so that the kills hit a running episode.
"""

from collections import Counter
from typing import Any

import pytest
from kube import ROOT, STORAGE, JsonObject, Kubectl, documents, eventually
from rlhf_runtime.storage.journal import history
from rlhf_runtime.storage.run_directory import RunDirectory
from rlhf_runtime.storage.trained_groups import trained_groups

EPISODES, PROMPTS, SAMPLES = 12, 16, 4

REWARDS = """
import time

def slow_answer(prompts, completions, answer, **columns):
    time.sleep(1)
    return [float(completion.strip() == str(a)[::-1]) for completion, a in zip(completions, answer)]
"""


def recovery_job() -> JsonObject:
    [job] = documents(ROOT / "manifests" / "samples" / "addition.yaml")
    spec = job["spec"]
    job["metadata"]["name"] = "recovery"
    spec.update(episodes=EPISODES, backoffLimit=1)
    spec.pop("evaluation")
    spec["rewards"] = [{"function": "slow_rewards:slow_answer"}]
    spec["runtime"] = {"code": {"configMap": {"name": "slow-rewards"}}}
    spec["rollout"].update(promptsPerEpisode=PROMPTS, samplesPerPrompt=SAMPLES)
    spec["makers"].update(replicas=2, maxBatchSamples=4 * SAMPLES)
    spec["checkpoint"]["everyEpisodes"] = 2
    return job


@pytest.fixture(scope="module")
def job(kubectl: Kubectl) -> dict[str, Any]:
    """The finished job, after its maker was killed in episode 2 and its head after episode 5."""
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "slow-rewards"},
        "data": {"slow_rewards.py": REWARDS},
    }
    kubectl.apply(code, recovery_job())
    eventually("episode 2", lambda: kubectl.status("recovery").get("episode", 0) >= 2, 300)
    kubectl.kill_pod(kubectl.pods("recovery", "maker")[0])
    eventually("the maker is replaced", lambda: kubectl.status("recovery").get("repairs", {}).get("makers"), 180)
    eventually("episode 5", lambda: kubectl.status("recovery").get("episode", 0) >= 5, 180)
    assert kubectl.status("recovery")["attempt"] == 1, "a maker's death must not spend an attempt"
    kubectl.kill_pod(kubectl.pods("recovery", "head")[0])
    eventually("the second attempt", lambda: kubectl.status("recovery").get("attempt") == 2, 120)
    kubectl.wait_for_job("recovery", "Succeeded", "10m")
    return kubectl.get("rlhfjob", "recovery")


def test_the_head_s_death_costs_one_attempt_in_the_same_ray_cluster(job: dict[str, Any]) -> None:
    assert job["status"]["attempt"] == 2
    assert job["status"]["incarnation"] == 1


def test_the_second_attempt_resumed_from_a_checkpoint(job: dict[str, Any], kubectl: Kubectl) -> None:
    entries = history(_run_directory(job, kubectl))
    assert [entry.episode for entry in entries] == list(range(1, EPISODES + 1))
    first_of_second = min(entry.episode for entry in entries if entry.attempt == 2)
    assert first_of_second >= 5, "episode 4 had a checkpoint"


def test_trained_prompts_equal_the_plan_each_once_in_whole_groups(job: dict[str, Any], kubectl: Kubectl) -> None:
    groups = trained_groups(_run_directory(job, kubectl))
    assert Counter(group.prompt for group in groups) == Counter(range(EPISODES * PROMPTS))
    assert {group.samples for group in groups} == {SAMPLES}


def test_the_reward_function_of_the_config_map_was_used_and_its_hash_is_in_status(job: dict[str, Any]) -> None:
    assert job["status"]["reward"]["best"] > 0
    assert len(job["status"]["codeHash"]) == 64


def _run_directory(job: dict[str, Any], kubectl: Kubectl) -> RunDirectory:
    uid = job["metadata"]["uid"][:8]
    return RunDirectory(STORAGE / kubectl.namespace / kubectl.namespace / f"recovery-{uid}")
