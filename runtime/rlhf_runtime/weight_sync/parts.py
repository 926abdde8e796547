"""The models that a publish carries to a maker, under one set of names: `actor.`, `critic.`, `reference.`."""

from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn

from rlhf_runtime.engines.engine import Engine
from rlhf_runtime.models.policy_weights import load_weights, model_weights

ACTOR: Final = "actor"
CRITIC: Final = "critic"
REFERENCE: Final = "reference"


def expected_weights(parts: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Every tensor of every part, by the name it is published under."""
    return {
        f"{part}.{name}": tensor for part, module in parts.items() for name, tensor in model_weights(module).items()
    }


class LoadsParts:
    """Puts a version of all parts into use: the actor into the engine, the others into the modules beside it."""

    def __init__(self, engine: Engine, others: Mapping[str, nn.Module]) -> None:
        self._engine = engine
        self._others = others

    def __call__(self, state: Mapping[str, Tensor], version: int) -> None:
        """Names and shapes have been checked against `expected_weights`, so either all are loaded or none."""
        self._engine.load(_part(state, ACTOR), version)
        for part, module in self._others.items():
            load_weights(module, _part(state, part))


def _part(state: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): tensor for name, tensor in state.items() if name.startswith(f"{part}.")}
