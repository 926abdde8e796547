"""What each rank of the engine has: the engine on transformers' models, on its part of one."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rlhf_runtime.engines.tensor_parallel.parts import DividedModel
from rlhf_runtime.engines.tensor_parallel.progress import Progress
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.rollout import Group
from rlhf_runtime.failures import first_words


class RankEngine(TransformersEngine):
    """One rank: all ranks are called together, with the same, and give the same."""

    def __init__(self, divided: DividedModel, progress: Progress, **options: Any) -> None:
        super().__init__(divided.module, **options)
        self.ranks = divided.ranks
        self.whole = divided.whole
        self._divided = divided
        divided.module.register_forward_pre_hook(lambda *_: progress.beat())

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """All weights, on rank 0; {} on the others."""
        self._divided.put(state, self._as_held)
        self._version = version


def summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_words(error)}"


def digest(groups: Sequence[Group]) -> str:
    """Of all tokens, in order: what two ranks that drew the same have in common."""
    found = hashlib.blake2b(digest_size=16)
    for group in groups:
        for rollout in group.rollouts:
            found.update(rollout.completion_ids.tobytes())
    return found.hexdigest()
