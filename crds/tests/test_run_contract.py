"""What goes between operator and runtime: derived from the job once, and the same after a trip through JSON."""

import copy
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from generated_specs import generated
from pydantic import ValidationError
from rlhf_api.gpus import PodGpus
from rlhf_api.job import RLHFJob
from rlhf_api.roles import MakerSettings, TrainerSettings
from rlhf_api.run import Failure, LiveSettings, Report, RoleReport, RunConfig, Wait, run_config, run_directory
from rlhf_api.schema import ApiModel, first_error
from rlhf_api.status import EpisodeReport, LedgerStatus, RepairsStatus
from valid_jobs import bases

Json = dict[str, Any]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

MINIMAL: Json = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "sums", "namespace": "team", "uid": "0b56c4a2-0000-4000-8000-000000000001", "generation": 3},
    "spec": {
        "episodes": 5,
        "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 1e-3}},
        "models": {"actor": {"uri": "/models/policy"}},
        "rewards": [{"function": "rewards:exact"}],
        "prompts": {"reasoningGym": {"task": "chain_sum", "size": 64}},
        "rollout": {"promptsPerEpisode": 10, "samplesPerPrompt": 4, "maxNewTokens": 16},
        "checkpoint": {"storage": {"path": "/mnt/a"}},
    },
}


def job(**spec: Any) -> RLHFJob:
    """The minimal job with objects of its spec merged, one level deep."""
    document = copy.deepcopy(MINIMAL)
    for name, value in spec.items():
        before = document["spec"].get(name)
        document["spec"][name] = before | value if isinstance(before, dict) else value
    return RLHFJob.model_validate(document)


def derived(**spec: Any) -> RunConfig:
    return run_config(job(**spec), "/mnt/a", attempt=2, incarnation=1)


EPISODE = EpisodeReport(
    attempt=1,
    seq=2,
    episode=2,
    policy_version=2,
    reward=0.1 + 0.2,
    reward_std=0.25,
    kl=1e-9,
    loss=-0.5,
    entropy=1.5,
    clip_fraction=0.0,
    gradient_norm=1e20,
    staleness_mean=0.5,
    staleness_max=1,
    samples=40,
    tokens=12_345_678_901,
    tokens_per_second=1234.5,
    truncated_fraction=1 / 3,
    dropped=0,
    seconds=1.0,
    train_seconds=0.5,
    wait_seconds=0.25,
    sync_seconds=0.125,
    time=NOW,
)
REPORT = Report(
    attempt=1,
    incarnation=1,
    revision=9,
    applied_generation=3,
    state="Failed",
    failure=Failure(reason="NotFinite", message="loss is NaN", permanent=False, tail="Traceback\n  …"),
    waits=[Wait(reason="PlacementPending", owner="coordinator", message="1 of 2", since=NOW, deadline=NOW)],
    makers=RoleReport(desired=2, ready=1, pods=["a"]),
    trainers=RoleReport(desired=1, ready=1),
    ledger=LedgerStatus(dispatched=5, trained=3, in_flight=2),
    policy_version=2,
    repairs=RepairsStatus(makers=1),
    resumed_from=0,
    last_progress=NOW,
    episodes=[EPISODE],
)


@pytest.mark.parametrize(
    "value",
    [derived(), derived(evaluation={"uri": "/a"}), LiveSettings(generation=3, max_staleness=0, episodes=9), REPORT],
    ids=["run config", "run config with evaluation", "live settings", "report"],
)
def test_a_message_is_the_same_after_a_trip_through_json(value: ApiModel) -> None:
    assert type(value).model_validate_json(value.to_json()) == value
    assert type(value).model_validate(value.to_dict()) == value
    of_a_newer_version = newer(value.to_dict())
    assert type(value).read(of_a_newer_version) == value
    assert type(value).read_json(json.dumps(of_a_newer_version)) == value
    with pytest.raises(ValidationError, match="newField"):
        type(value).model_validate(of_a_newer_version)


def newer(value: Any, *, below: str = "") -> Any:
    """A message as a newer version would write it: one more field in every object that has fields of ours."""
    if isinstance(value, list):
        return [newer(item) for item in value]
    if not isinstance(value, dict):
        return value
    own = {} if below in ("rewards", "parameters") else {"newField": {"on": True}}
    return {key: newer(item, below=key) for key, item in value.items()} | own


@pytest.mark.parametrize("document", [MINIMAL, *bases()], ids=["minimal", "full", "full, other alternatives"])
def test_a_job_is_the_same_after_a_trip_through_its_document(document: Json) -> None:
    once = RLHFJob.model_validate(document)
    assert RLHFJob.model_validate(once.to_dict()) == once


def test_what_the_user_wrote_stays_as_it_was() -> None:
    document = bases()[0]
    written = RLHFJob.model_validate(document).to_dict()
    assert {key: written["spec"][key] for key in ("head", "buffer", "prompts")} == {
        key: document["spec"][key] for key in ("head", "buffer", "prompts")
    }


@pytest.mark.parametrize(
    ("situation", "spec", "expected"),
    [
        ("one maker generates an episode's samples at once", {}, {"max_batch_samples": 40}),
        (
            "two makers share them",
            {"makers": {"replicas": 2}},
            {"max_batch_samples": 20, "makers": MakerSettings(replicas=2)},
        ),
        ("three makers share them in whole groups, rounded up", {"makers": {"replicas": 3}}, {"max_batch_samples": 16}),
        ("more makers than groups: one group each", {"makers": {"replicas": 99}}, {"max_batch_samples": 4}),
        ("a given batch is cut to whole groups", {"makers": {"maxBatchSamples": 11}}, {"max_batch_samples": 8}),
        ("a given batch of whole groups stays", {"makers": {"maxBatchSamples": 12}}, {"max_batch_samples": 12}),
        ("the buffer holds the episodes that staleness allows", {}, {"buffer_capacity": 80}),
        ("on-policy: one episode", {"maxStaleness": 0}, {"buffer_capacity": 40, "max_staleness": 0}),
        ("staleness 3: four episodes", {"maxStaleness": 3}, {"buffer_capacity": 160}),
        ("a given capacity stays", {"buffer": {"capacity": 41}}, {"buffer_capacity": 41}),
        (
            "roles are counted",
            {"trainers": {"replicas": 2, "microBatchSize": 3}},
            {"trainers": TrainerSettings(replicas=2, micro_batch_size=3)},
        ),
        ("no GPUs", {}, {"maker_gpus": None, "trainer_gpus": None}),
        (
            "a maker's GPU, and those of a pod of ranks",
            {
                "makers": {"resources": {"limits": {"amd.com/gpu": 1}}},
                "trainers": {"replicas": 2, "perPod": 2, "resources": {"limits": {"nvidia.com/gpu": "2"}}},
            },
            {
                "maker_gpus": PodGpus(count=1, resource="amd.com/gpu", field="makers.resources"),
                "trainer_gpus": PodGpus(count=2, resource="nvidia.com/gpu", field="trainers.resources"),
            },
        ),
        ("no evaluation", {}, {"evaluation": None}),
        (
            "checkpoints and deadlines are taken over",
            {
                "checkpoint": {"everyEpisodes": 4, "keep": 7},
                "weightSync": {"deadlineSeconds": 11},
                "preRunningDeadlineSeconds": 12,
                "progressDeadlineSeconds": 13,
            },
            {
                "checkpoint_every_episodes": 4,
                "checkpoint_keep": 7,
                "weight_sync_deadline_seconds": 11,
                "pre_running_deadline_seconds": 12,
                "progress_deadline_seconds": 13,
            },
        ),
        (
            "identity",
            {},
            {
                "name": "sums",
                "namespace": "team",
                "generation": 3,
                "attempt": 2,
                "incarnation": 1,
                "run_directory": "/mnt/a/team/sums-0b56c4a2",
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_run_config_follows_from_the_job(situation: str, spec: Json, expected: Json) -> None:
    config = derived(**spec)
    assert {name: getattr(config, name) for name in expected} == expected, situation


def test_every_valid_job_has_a_run_config_that_holds_an_episode_and_whole_groups() -> None:
    # A null in a map is for the server to take away; the types never see one.
    valid = [item for item in generated() if item.allowed and "a null in it" not in item.name]
    assert len(valid) > 200
    for item in valid:
        job = RLHFJob.model_validate({key: value for key, value in item.document.items() if key != "status"})
        config = run_config(job, "/mnt/a", attempt=1, incarnation=1)
        group = config.rollout.samples_per_prompt
        assert config.buffer_capacity >= job.spec.samples_per_episode, item.name
        assert config.max_batch_samples >= group, item.name
        assert config.max_batch_samples % group == 0, item.name
        assert RunConfig.model_validate_json(config.to_json()) == config, item.name


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"namespace": "other"}, "/mnt/a/other/sums-0b56c4a2"),
        ({"uid": "ffffffff-0000-4000-8000-000000000001"}, "/mnt/a/team/sums-ffffffff"),
        ({"name": "more"}, "/mnt/a/team/more-0b56c4a2"),
    ],
    ids=["another namespace", "the same name again", "another name"],
)
def test_two_jobs_never_share_a_run_directory(change: Json, expected: str) -> None:
    other = RLHFJob.model_validate({**MINIMAL, "metadata": {**MINIMAL["metadata"], **change}})
    assert run_directory("/mnt/a/", other) == expected != run_directory("/mnt/a/", job())


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"episodes": "5"}, "a number in quotes"),
        ({"episodes": True}, "a boolean for a number"),
        ({"episodes": 2.5}, "a fraction for a count"),
        ({"episode": 5}, "an unknown field"),
        ({"mode": "fullyAsync"}, "a mode in other letters"),
        ({"head": {"template": {"containers": []}}}, "a pod spec without the spec around it"),
        ({"head": {"resources": {"limits": {"cpu": 0.5}}}}, "a quantity as a fraction"),
        ({"head": {"resources": {"limits": {"cpu": "lots"}}}}, "a quantity that is none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_types_coerce_nothing_and_drop_nothing(spec: Json, why: str) -> None:
    with pytest.raises(ValidationError):
        job(**spec)


def test_null_is_absent() -> None:
    assert job(evaluation=None, maxStaleness=None).spec == job().spec
    assert "evaluation" not in job().to_dict()["spec"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_where_it_enters_since_json_has_none(value: float) -> None:
    values = {**EPISODE.to_dict(), "kl": value}
    with pytest.raises(ValidationError) as made:
        EpisodeReport.model_validate(values)
    with pytest.raises(ValidationError):
        EpisodeReport.model_validate_json(json.dumps(values))
    assert first_error(made.value) == "kl: Input should be a finite number"
