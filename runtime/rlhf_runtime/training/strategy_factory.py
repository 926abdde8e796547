"""Strategies that the user's own code makes: `trainers.strategyFactory`, called as ``f(rank, ranks) -> Strategy``."""

import importlib
from typing import Any

import torch
from rlhf_api.conditions import Reason

from rlhf_runtime.failures import RunFailure, first_words
from rlhf_runtime.user_code import user_traceback

#: All that a `strategy.Strategy` has.
PARTS = (
    "rank",
    "ranks",
    "data_rank",
    "data_ranks",
    "device",
    "loss_scale",
    "prepare",
    "accumulate",
    "clip_gradients",
    "sum_over_ranks",
    "gather_objects",
    "full_weights",
    "optimizer_state",
    "load_optimizer_state",
)


def strategy_from_factory(factory: str, rank: int, ranks: int) -> Any:
    """What the user's function gives for this rank, after the ranks have joined their process group.

    Raises RunFailure StrategyInvalid (permanent) with the traceback if it can't be imported or raises, or
    if what it returns lacks a part of a Strategy, has something else in its place, or does not give every rank samples
    of its own.
    """
    module, _, name = factory.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(rank, ranks)
    except (Exception, SystemExit) as error:
        message = f"{factory}: {type(error).__name__}: {first_words(error)}"
        raise _invalid(message, tail=user_traceback(error)) from error
    missing = [part for part in PARTS if not hasattr(made, part)]
    if missing:
        raise _invalid(f"{factory} returned a {type(made).__name__} without {', '.join(missing)}")
    if (made.data_rank, made.data_ranks) != (rank, ranks):
        found = f"data rank {made.data_rank} of {made.data_ranks}"
        raise _invalid(f"{factory}: found {found}, expected {rank} of {ranks}: every rank has its own samples")
    for name, wanted, right in (
        ("rank", str(rank), made.rank == rank),
        ("ranks", str(ranks), made.ranks == ranks),
        ("device", "a torch.device", isinstance(made.device, torch.device)),
        ("loss_scale", "a number above 0", isinstance(made.loss_scale, int | float) and made.loss_scale > 0),
        *((name, "a method", callable(getattr(made, name))) for name in PARTS[PARTS.index("prepare") :]),
    ):
        if not right:
            raise _invalid(f"{factory}: {name}: found {getattr(made, name)!r}, expected {wanted}")
    return made


def _invalid(message: str, tail: str = "") -> RunFailure:
    return RunFailure(Reason.STRATEGY_INVALID, f"trainers.strategyFactory: {message}", permanent=True, tail=tail)
