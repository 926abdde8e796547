"""Decode steps recorded as CUDA graphs: at small sizes the host's time to launch kernels is what limits a step."""

import logging
from collections.abc import Callable, Hashable

import torch

log = logging.getLogger(__name__)

Step = Callable[[], None]


class RecordedSteps:
    """Runs steps that work in place on memory that stays; a step of a kind seen before is played and not launched.

    A kind's first step runs as it is, which also warms up what it uses; its second is recorded. A model that cannot
    be recorded (its code waits for the GPU, say) is run as it is for good, which is slower and otherwise the same.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.failed = False

    def run(self, kind: Hashable, step: Step) -> None:
        """Take one step; steps of the same `kind` do the same with the same memory."""
        if self.failed:
            step()
        elif kind not in self._graphs:
            self._graphs[kind] = None
            step()
        else:
            graph = self._graphs[kind] or self._record(kind, step)
            if graph is None:
                step()
            else:
                graph.replay()

    def _record(self, kind: Hashable, step: Step) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                step()
        except RuntimeError as error:
            log.warning("the decode step cannot be recorded as a CUDA graph, and is launched instead: %s", error)
            self.failed = True
            self._graphs.clear()
            return None
        self._graphs[kind] = graph
        return graph
