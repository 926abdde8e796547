"""``spec.algorithm``: what is optimised, and by which steps."""

from typing import Annotated, Literal

from pydantic import Field

from rlhf_api.schema import ApiModel


class Optimizer(ApiModel):
    """AdamW on fp32 master parameters, with a linear warm-up and then a constant learning rate."""

    learning_rate: Annotated[float, Field(ge=0, le=1)]
    """Step size after warm-up. Required. Range 0 to 1; 0 trains nothing, which makes a control run."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment, no unit. Default 0.9, range 0 to below 1."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment, no unit. Default 0.999, range 0 to below 1."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment. Default 1e-8, range above 0 to 1."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Decoupled weight decay per step. Default 0, range 0 to 1."""
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """The global gradient norm is clipped to this. Default 1, range above 0 to 1e6."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Optimiser steps over which the learning rate rises from 0. Default 0, range 0 to 1,000,000."""


class Algorithm(ApiModel):
    """GRPO: advantages from the rewards of one prompt's samples, a clipped policy-gradient loss, no critic."""

    type: Literal["GRPO"]
    """The algorithm. Required. One of: GRPO."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is clipped below at 1 - clipLow. Default 0.2, range above 0 to below 1."""
    clip_high: Annotated[float, Field(gt=0, le=10)] = 0.2
    """The probability ratio is clipped above at 1 + clipHigh. Default 0.2, range above 0 to 10."""
    group_normalization: Literal["Std", "None"] = "Std"
    """Std divides a group's centred rewards by their standard deviation; None only centres. Default Std."""
    loss_aggregation: Literal["Token", "Sequence", "Fixed"] = "Token"
    """What the loss is divided by. Token: mean over all tokens. Sequence: mean over sequences of token means. Fixed:
    sum over samples x maxNewTokens. Default Token."""
    epochs: Annotated[int, Field(ge=1, le=64)] = 1
    """Passes over an episode's samples. Default 1, range 1 to 64."""
    minibatches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Optimiser steps per pass; each takes promptsPerEpisode / minibatches groups. Default 1, range 1 to 1024."""
    optimizer: Optimizer
    """The optimiser. Required."""
