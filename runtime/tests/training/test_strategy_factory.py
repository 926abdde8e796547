"""What can be told of a strategy, the user's or ours, before it does anything."""

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.division import check_family
from rlhf_runtime.training.strategy import SingleProcess, Strategy
from rlhf_runtime.training.strategy_factory import PARTS, strategy_from_factory


def test_the_parts_that_are_looked_for_are_those_of_a_strategy() -> None:
    assert set(PARTS) == {name for name in vars(Strategy) if not name.startswith("_")}
    assert inspect.getattr_static(Strategy, "_is_protocol")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("own_strategies")
    monkeypatch.setitem(sys.modules, "own_strategies", made)
    return made


@pytest.mark.parametrize(
    ("factory", "given", "message"),
    [
        ("nowhere.at:all", None, r"nowhere\.at:all: ModuleNotFoundError: No module named 'nowhere'"),
        ("own_strategies:absent", None, "own_strategies:absent: AttributeError: "),
        ("own_strategies:make", lambda: None, r"make\(\) takes 0|takes 0 positional arguments"),
        ("own_strategies:make", lambda rank, ranks: SimpleNamespace(rank=rank), "a SimpleNamespace without ranks, "),
        (
            "own_strategies:make",
            lambda rank, ranks: SingleProcess(),
            "found data rank 0 of 1, expected 1 of 2: every rank has its own samples",
        ),
    ],
)
def test_a_factory_that_gives_no_strategy(module: Any, factory: str, given: Any, message: str) -> None:
    if given is not None:
        module.make = given
    with pytest.raises(RunFailure, match=message) as raised:
        strategy_from_factory(factory, 1, 2)
    assert (raised.value.reason, raised.value.permanent) == ("StrategyInvalid", True)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("rank", 5, "rank: found 5, expected 0"),
        ("ranks", 2, "ranks: found 2, expected 1"),
        ("device", "cpu", "device: found 'cpu', expected a torch.device"),
        ("loss_scale", "1", "loss_scale: found '1', expected a number above 0"),
        ("prepare", None, "prepare: found None, expected a method"),
    ],
)
def test_a_part_that_is_something_else_is_named(module: Any, part: str, value: Any, message: str) -> None:
    made = SingleProcess()
    setattr(made, part, value)
    module.make = lambda rank, ranks: made
    with pytest.raises(RunFailure, match=f"own_strategies:make: {message}") as raised:
        strategy_from_factory("own_strategies:make", 0, 1)
    assert raised.value.permanent


def test_a_factory_that_gives_a_strategy(module: Any) -> None:
    module.make = lambda rank, ranks: SingleProcess()
    assert isinstance(strategy_from_factory("own_strategies:make", 0, 1), SingleProcess)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2"}, "models.actor: found model_type 'gpt2', expected one of llama, opt, qwen2, qwen3"),
        ({}, "models.actor: found model_type None"),
        ({"model_type": "llama", "num_attention_heads": 6}, "num_attention_heads is 6, expected a multiple of"),
        (
            {"model_type": "qwen2", "num_attention_heads": 8, "num_key_value_heads": 2},
            "num_key_value_heads is 2, expected a multiple of trainers.tensorParallel, 4",
        ),
        ({"model_type": "opt", "num_attention_heads": 8, "ffn_dim": 30}, "ffn_dim is 30"),
    ],
)
def test_a_model_that_tensor_parallel_ranks_cannot_divide(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RunFailure, match=message) as raised:
        check_family(config, 4, "models.actor", "trainers.tensorParallel")
    assert (raised.value.reason, raised.value.permanent) == ("ModelInvalid", True)
