"""The least memory of a role: the figures of its models, and of what it may use."""

from pathlib import Path
from typing import Any

import pytest
from preflight_configs import config_of
from rlhf_api.models import Lora, TrainedModel
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.critic import load_critic
from rlhf_runtime.models.model_folder import model_folder
from rlhf_runtime.models.policy import load_policy
from rlhf_runtime.models.role_models import RoleModel, resolved
from rlhf_runtime.preflight import limits
from rlhf_runtime.preflight.limits import _limit, _total, check_own_memory, memory_limit
from rlhf_runtime.preflight.memory import ModelSize, Need, check_limit, in_units, maker_need, trainer_need
from rlhf_runtime.preflight.skeleton import model_size
from tiny_models import FAMILIES, write_model

MIB = 1 << 20
POLICY, HALF = ModelSize(whole=MIB, trained=MIB), TrainedModel(uri="/policy", dtype="bfloat16")


def spec(**algorithm: Any) -> dict[str, Any]:
    return {
        "episodes": 2,
        "algorithm": {"optimizer": {"learningRate": 0.001}, **algorithm},
        "models": {"actor": {"uri": "/policy", "dtype": "bfloat16"}},
        "rewards": [{"function": "a:b"}],
        "prompts": {"uri": "/prompts.jsonl"},
        "rollout": {"promptsPerEpisode": 2, "samplesPerPrompt": 4, "maxNewTokens": 8},
        "checkpoint": {"storage": {"path": "/storage"}},
    }


def test_a_maker_holds_every_model_and_the_version_that_it_receives() -> None:
    found = {
        "actor": RoleModel(role="actor", field="models.actor", model=HALF),
        "critic": RoleModel(role="critic", field="models.critic", model=TrainedModel(uri="/critic")),
    }
    sizes = {"actor": POLICY, "critic": ModelSize(whole=3 * MIB, trained=3 * MIB)}
    need = maker_need(config_of(spec(type="PPO")), found, sizes)  # type: ignore[arg-type]
    assert need.models == {"actor bfloat16": 2 * MIB, "critic float32": 12 * MIB}
    assert need.host == {"a version being received": 14 * MIB}
    assert need.in_pod(gpu=False) == {**need.models, **need.host}
    assert need.in_pod(gpu=True) == need.host
    assert str(need) == (
        "a maker needs at least 28.0 MiB: actor bfloat16 2.0 MiB, critic float32 12.0 MiB, "
        "a version being received 14.0 MiB"
    )


def test_a_reference_that_is_refreshed_is_received_too() -> None:
    found = {
        "actor": RoleModel(role="actor", field="models.actor", model=HALF),
        "reference": RoleModel(role="reference", field="models.actor", model=HALF),
    }
    for kl, received in (({}, 2 * MIB), ({"refreshEveryEpisodes": 2}, 4 * MIB)):
        algorithm = {"type": "GRPO", "kl": {"coefficient": 0.1, "appliesTo": "Loss", **kl}}
        need = maker_need(config_of(spec(**algorithm)), found, {"actor": POLICY, "reference": POLICY})  # type: ignore[arg-type]
        assert need.host == {"a version being received": received}


def test_an_int8_maker_holds_its_linear_layers_in_one_byte() -> None:
    found = {"actor": RoleModel(role="actor", field="models.actor", model=HALF)}
    sizes = {"actor": ModelSize(whole=5 * MIB, trained=5 * MIB, linear=4 * MIB)}
    job = {**spec(type="GRPO"), "makers": {"quantization": "Int8"}}
    need = maker_need(config_of(job), found, sizes)  # type: ignore[arg-type]
    assert need.models == {"actor int8": 6 * MIB}
    assert need.host == {"a version being received": 10 * MIB}


def test_a_maker_over_four_gpus_divides_the_policy_and_nothing_else() -> None:
    found = {
        "actor": RoleModel(role="actor", field="models.actor", model=HALF),
        "reference": RoleModel(role="reference", field="models.actor", model=HALF),
    }
    kl = {"coefficient": 0.1, "appliesTo": "Loss"}
    job = {**spec(type="GRPO", kl=kl), "makers": {"tensorParallel": 4}}
    need = maker_need(config_of(job), found, {"actor": POLICY, "reference": POLICY})  # type: ignore[arg-type]
    assert need.models == {"actor bfloat16, 1/4 of it": MIB // 2, "reference bfloat16": 2 * MIB}
    assert need.peers == {"actor bfloat16, the other 3/4 of it": 3 * MIB // 2}
    assert need.in_pod(gpu=True) == {"a version being received": 2 * MIB}
    assert sum(need.in_pod(gpu=False).values()) == 6 * MIB
    assert str(need).startswith("a maker needs at least 6.0 MiB: actor bfloat16, 1/4 of it 512.0 KiB, ")


def trainer(sizes: dict[str, ModelSize], **trainers: Any) -> Need:
    job = {**spec(type="GRPO"), "trainers": trainers}
    job["rollout"]["promptsPerEpisode"] = 8
    need = trainer_need(config_of(job), sizes)  # type: ignore[arg-type]
    assert need is not None
    return need


def test_a_trainer_holds_16_bytes_a_trained_parameter() -> None:
    assert sum(trainer({"actor": POLICY, "reward": POLICY}, replicas=4).models.values()) == 16 * MIB
    adapted = ModelSize(whole=MIB, trained=1024, adapters=1024)
    assert sum(trainer({"actor": adapted}).models.values()) == 4 * MIB + 16 * 1024


def test_ranks_that_divide_a_model_hold_their_part_of_it() -> None:
    need = trainer({"actor": POLICY}, replicas=2, perPod=2, strategy="ZeRO3")
    assert need.models == {
        "actor fp32 masters, 1/2 of them": 2 * MIB,
        "actor gradients and moments, 1/2 of them": 6 * MIB,
    }
    assert sum(need.in_pod(gpu=False).values()) == 16 * MIB
    assert str(need).endswith("6.0 MiB, 2 of them in a pod")
    assert sum(trainer({"actor": POLICY}, replicas=2, tensorParallel=2).models.values()) == 8 * MIB


def test_nobody_knows_what_a_strategy_of_the_users_own_holds() -> None:
    job = {**spec(type="GRPO"), "trainers": {"strategyFactory": "mine:strategy"}}
    assert trainer_need(config_of(job), {"actor": POLICY}) is None


def test_what_is_offloaded_rests_in_the_pods_memory() -> None:
    need = trainer({"actor": POLICY}, replicas=2, strategy="ZeRO3", offload="All")
    assert sum(need.in_pod(gpu=True).values()) == 8 * MIB
    assert need.models == {}


def test_a_limit_below_the_least_is_refused_and_one_above_is_not() -> None:
    parts = {"actor fp32 masters": 3 * MIB}
    check_limit("trainer", parts, 3 * MIB, "spec.trainers.resources.limits.memory")
    with pytest.raises(RunFailure) as error:
        check_limit("trainer", parts, 3 * MIB - 1, "spec.trainers.resources.limits.memory")
    assert (error.value.reason, error.value.permanent) == ("MemoryTooSmall", True)
    assert error.value.message == (
        "spec.trainers.resources.limits.memory is 3.0 MiB, but a trainer needs at least 3.0 MiB: actor fp32 masters "
        "3.0 MiB; activations, logits and libraries come on top"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parameters_counted_are_those_of_the_loaded_model(family: str, tmp_path: Path) -> None:
    model, lora = TrainedModel(uri=str(write_model(tmp_path, family))), Lora(rank=3, alpha=6)
    folder = model_folder(model.uri, "models.actor")
    for adapters in (None, lora):
        found = RoleModel(role="actor", field="models.actor", model=model, lora=adapters)
        loaded = list(load_policy(model, tmp_path, "float32", lora=adapters).parameters())
        size = model_size(found, folder)
        assert size is not None
        assert size.whole + size.adapters == sum(p.numel() for p in loaded)
        assert size.trained == sum(p.numel() for p in loaded if p.requires_grad)
    critic = model_size(RoleModel(role="critic", field="models.critic", model=model), folder)
    assert critic is not None
    assert critic.whole == sum(p.numel() for p in load_critic(model, tmp_path, "float32").parameters())


def test_what_a_control_group_says_is_the_limit() -> None:
    assert _limit("268435456\n") == 256 * MIB
    assert _limit("max\n") is None
    assert _limit("9223372036854771712\n") is None
    assert _total("MemTotal:       16384 kB\nMemFree:        1 kB\n") == 16 * MIB
    limit, what = memory_limit()
    assert limit > 64 * MIB
    assert what.startswith("this ")


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0.0 B"), (1023, "1023.0 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 50, "5120.0 TiB")],
)
def test_bytes_as_people_read_them(size: int, expected: str) -> None:
    assert in_units(size) == expected


def test_a_process_that_cannot_hold_its_models_says_so_before_it_loads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = spec(type="GRPO")
    job["models"]["actor"]["uri"] = str(write_model(tmp_path))
    config = config_of(job)
    roles = resolved(config)
    check_own_memory(config, "maker", roles)
    monkeypatch.setattr(limits, "memory_limit", lambda: (80_000, "this pod's memory limit"))
    check_own_memory(config, "maker", roles)
    with pytest.raises(
        RunFailure, match=r"this pod's memory limit is 78.1 KiB, but a trainer needs at least 304.5 KiB"
    ):
        check_own_memory(config, "trainer", roles)
