"""`making.Maker` as a Ray actor."""

from collections.abc import Sequence
from typing import Any

import ray
from rlhf_api.conditions import Reason

from rlhf_runtime.actors.actor import OPTIONS, Actor, beside
from rlhf_runtime.data.prompts import Prompt
from rlhf_runtime.dataflow.workers import MakerLost
from rlhf_runtime.experience.messages import Task
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.scheduling.topology import rank_of
from rlhf_runtime.weight_sync.manifest import Manifest, Order, SyncRefused
from rlhf_runtime.weight_sync.probe import Probe


class MakerActor(Actor):
    """`maker.Maker` in a process of its own. Every method that uses its engine raises MakerLost."""

    def load(self, columns: tuple[str, ...]) -> None:
        """Load model, tokenizer and reward functions. Raises RunFailure."""
        from rlhf_runtime.making.loading import load_maker

        self._maker = _alive(load_maker, self._config, columns)

    def make(self, tasks: Sequence[Task], ranks: int) -> Any:
        """Summaries of the groups, and then for each rank what it shall get."""
        made = _alive(self._maker.make, tasks)
        summaries = tuple(summary for summary, _ in made)
        if ranks == 0:
            return summaries
        shares: list[list[Any]] = [[] for _ in range(ranks)]
        for _, group in made:
            shares[rank_of(group.dispatch.cursor, ranks)].append(group)
        return (summaries, *shares)

    def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[float]:
        return list(_alive(self._maker.evaluate, prompts, version))

    @beside("sync")
    def prepare(self, manifest: Manifest, lease_seconds: float) -> bool:
        return bool(_sync(self._maker.prepare, manifest, lease_seconds))

    @beside("sync")
    def stage(self, order: Order, index: int, digest: str, content: Any) -> None:
        _sync(self._maker.stage, order, index, digest, content)

    @beside("sync")
    def commit(self, order: Order, digest: str, seconds: float, probe: Probe | None) -> bool:
        return bool(_alive(_sync, self._maker.commit, order, digest, seconds, probe))

    @beside("health")
    def tend(self) -> None:
        _alive(self._maker.tend)


maker_actor: Any = ray.remote(concurrency_groups={"sync": 1, "health": 1}, **OPTIONS)(MakerActor)


def _alive(call: Any, *args: Any) -> Any:
    """A maker that has lost a part of its engine is lost: another takes its place."""
    from rlhf_runtime.engines.engine import EngineLost

    try:
        return call(*args)
    except EngineLost as error:
        raise MakerLost(str(error)) from error


def _sync(call: Any, *args: Any) -> Any:
    """A refused version ends the attempt: what is published is not what can be used."""
    try:
        return call(*args)
    except SyncRefused as error:
        raise RunFailure(Reason.WEIGHT_SYNC_FAILED, str(error), permanent=False) from error
