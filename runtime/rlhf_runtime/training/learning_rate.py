"""The learning rate as a function of the optimiser step: nothing to save, nothing to resume."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Rises linearly to `peak` over `warmup_steps`, then stays or falls until `total_steps` of them are taken.

    Linear and Cosine end at `final_fraction` of the peak: at the last step, and for any step after it.
    """

    peak: float
    kind: Literal["Constant", "Linear", "Cosine"] = "Constant"
    warmup_steps: int = 0
    total_steps: int = 1
    final_fraction: float = 0.0

    def rate(self, step: int) -> float:
        """Of optimiser step `step`, from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.kind == "Constant":
            return self.peak
        falling = max(self.total_steps - 1 - self.warmup_steps, 1)
        done = min((step - self.warmup_steps) / falling, 1.0)
        left = 1 - done if self.kind == "Linear" else (1 + math.cos(math.pi * done)) / 2
        return self.peak * (self.final_fraction + (1 - self.final_fraction) * left)
