"""How far a maker's log-probs are from the trainers' for the same tokens and the same version. Needs no torch.

A few rollouts travel with each publish, with what the trainers' weights say of them; a maker that has put the
version into use says what its own model says. In fp32 the two agree to rounding. With bfloat16 or int8 makers the gap
is what the ratio of an unchanged policy is off by, and it grows with the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_runtime.experience.messages import LogprobGap
from rlhf_runtime.experience.rollout import Float32Array, Rollout

#: Rollouts of a probe: some hundred tokens, and nothing beside the weights.
PROBE_ROLLOUTS = 4


@dataclass(frozen=True, slots=True)
class Probe:
    """Rollouts, and the trainers' log-probs of their completions: [T] float32, nats, each."""

    rollouts: tuple[Rollout, ...]
    logprobs: tuple[Float32Array, ...]

    def gap(self, found: Sequence[Float32Array]) -> "LogprobGap":
        """`found`: a maker's log-probs of the same completions."""
        differences = np.abs(np.concatenate(self.logprobs) - np.concatenate(found))
        return LogprobGap(float(differences.mean()), float(differences.max()))
