"""``spec.rewards``: what a completion is worth."""

from typing import Annotated

from pydantic import Field

from rlhf_api.schema import ApiModel, FunctionPath

#: Most rewards of a job.
MAX_REWARDS = 16


class RewardFunction(ApiModel):
    """A Python function `f(prompts, completions, **columns) -> list[float]`, run in a process of its own."""

    function: FunctionPath
    """`package.module:function`, importable in the image or from `runtime.code`. Required. 3 to 512 characters."""
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Factor of this reward in the sum. Default 1, range -1e6 to 1e6."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """Seconds one call (one batch) may take; then its process is ended. Default 60, range 1 to 86,400."""
