"""``spec.algorithm``: what is optimised, and by which steps.

What belongs to one algorithm only (`group` to GRPO, `gae` and `critic` to PPO) is optional and refused with the other,
so that nothing is set that has no effect. The properties give the values that hold when such a part is left out.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rlhf_api.schema import ApiModel, cel

_FRACTION_OF_A_DECAY = (
    "!has(self.finalLearningRateFraction) || self.schedule != 'Constant'",
    "belongs to a schedule that decays: Linear or Cosine",
    ".finalLearningRateFraction",
)


class Optimizer(ApiModel):
    """AdamW on fp32 master parameters; the learning rate rises linearly over the warm-up, then follows `schedule`."""

    model_config = ConfigDict(json_schema_extra=cel(_FRACTION_OF_A_DECAY))

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
    schedule: Literal["Constant", "Linear", "Cosine"] = "Constant"
    """The learning rate after the warm-up, until the last of episodes x epochs x minibatches steps. Constant: stays.
    Linear, Cosine: falls along a line, or half a cosine, to finalLearningRateFraction. Default Constant."""
    final_learning_rate_fraction: Annotated[float | None, Field(ge=0, le=1)] = None
    """Part of learningRate that the schedule ends at, with Linear and Cosine only. Default none: 0. Range 0 to 1."""


_K1_IS_NO_LOSS = (
    "!has(self.estimator) || self.estimator != 'K1' || self.appliesTo == 'Reward'",
    "K1 as a loss has a gradient of mean zero: use K2 or K3 in the loss, or apply it to the reward",
    ".estimator",
)


class Kl(ApiModel):
    """A penalty for leaving the reference policy."""

    model_config = ConfigDict(json_schema_extra=cel(_K1_IS_NO_LOSS))

    coefficient: Annotated[float, Field(gt=0, le=100)]
    """Factor of the KL, in reward units (Reward) or loss units (Loss) per nat. Required. Range above 0 to 100."""
    applies_to: Literal["Reward", "Loss"]
    """Reward: taken from the reward, by PPO at each token, by GRPO summed over the sample. Loss: a term of the loss.
    Required."""
    estimator: Literal["K1", "K2", "K3"] | None = None
    """Estimate of a token's KL from d = log policy - log reference. K1: d. K2: d^2/2. K3: e^-d - 1 + d. Default none:
    K1 in Reward, K3 in Loss."""
    refresh_every_episodes: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """The reference becomes the policy of that moment after every so many episodes. Default none: it stays the
    initial one. Range 1 to 1,000,000."""

    @property
    def effective_estimator(self) -> Literal["K1", "K2", "K3"]:
        """The estimator that is used."""
        return self.estimator or ("K1" if self.applies_to == "Reward" else "K3")


class OffPolicy(ApiModel):
    """Corrects for samples that an older policy drew than the old one that the ratio is against."""

    correction: Literal["TIS", "Decoupled"]
    """w = old probability / sampling probability of a token. TIS: the token's loss is multiplied by min(w, cap).
    Decoupled: by w, and a token whose w is above cap is left out. Required."""
    cap: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    """Largest weight of a token. Default 2, range above 0 to 1e6."""


class Distillation(ApiModel):
    """A term of the loss that draws the policy to `models.teacher`."""

    weight: Annotated[float, Field(gt=0, le=100)]
    """Factor of the term, loss units per nat. Required. Range above 0 to 100."""
    estimator: Literal["K2", "K3"] = "K2"
    """Estimate of a sampled token's KL to the teacher from d = log policy - log teacher. K2: d^2/2, whose gradient is
    the KL's own. K3: e^-d - 1 + d. Default K2."""


class Group(ApiModel):
    """GRPO: how the rewards of one prompt's samples become advantages."""

    normalization: Literal["Std", "None"] = "Std"
    """Std divides a group's centred rewards by their standard deviation; None only centres. Default Std."""
    baseline: Literal["Mean", "LeaveOneOut"] = "Mean"
    """What is subtracted from a sample's reward. Mean: the group's mean. LeaveOneOut: the mean of the other samples
    (RLOO). Default Mean."""


class Gae(ApiModel):
    """PPO: generalised advantage estimation over the tokens of a completion."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token. Default 1, range 0 to 1."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 0.95
    """Weight of longer returns against the critic's values. Default 0.95, range 0 to 1."""
    whiten: bool = True
    """Advantages are brought to mean 0 and deviation 1 over all tokens of an episode. Default true."""


class Critic(ApiModel):
    """PPO: how the critic is trained."""

    optimizer: Optimizer | None = None
    """The critic's own optimiser. Default none: the same settings as the policy's."""
    value_clip: Annotated[float | None, Field(gt=0, le=1e6)] = None
    """A value may move so far from the one at sampling before its loss stops improving, in reward units. Default none:
    no clipping. Range above 0 to 1e6."""


_GROUP_IS_GRPO = ("!has(self.group) || self.type == 'GRPO'", "belongs to GRPO", ".group")
_GAE_IS_PPO = ("!has(self.gae) || self.type == 'PPO'", "belongs to PPO", ".gae")
_CRITIC_IS_PPO = ("!has(self.critic) || self.type == 'PPO'", "belongs to PPO: GRPO has no critic", ".critic")
_CORRECTED_ONCE = (
    "!has(self.offPolicy) || self.oldLogProbs != 'Sampled'",
    "with oldLogProbs Sampled the ratio is against the sampling policy already: use Recomputed or Interpolated",
    ".offPolicy",
)


class Algorithm(ApiModel):
    """A clipped policy-gradient loss. PPO: advantages from a critic, token by token. GRPO: from the rewards of one
    prompt's samples."""

    model_config = ConfigDict(json_schema_extra=cel(_GROUP_IS_GRPO, _GAE_IS_PPO, _CRITIC_IS_PPO, _CORRECTED_ONCE))

    type: Literal["PPO", "GRPO"]
    """The algorithm. Required. One of: PPO, GRPO."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is clipped below at 1 - clipLow. Default 0.2, range above 0 to below 1."""
    clip_high: Annotated[float, Field(gt=0, le=10)] = 0.2
    """The probability ratio is clipped above at 1 + clipHigh. Default 0.2, range above 0 to 10."""
    dual_clip: Annotated[float | None, Field(gt=1, le=1e6)] = None
    """Where the advantage is negative, the loss is at most dualClip x its size. Default none: no second bound. Range
    above 1 to 1e6."""
    ratio_level: Literal["Token", "Sequence", "GeometricMean"] = "Token"
    """What the probability ratio is of. Token: each token. Sequence: the whole completion. GeometricMean: the geometric
    mean over its tokens (GSPO). Default Token."""
    loss_aggregation: Literal["Token", "Sequence", "Fixed"] = "Token"
    """What the loss is divided by. Token: mean over all tokens. Sequence: mean over sequences of token means. Fixed:
    sum over samples x maxNewTokens. Default Token."""
    old_log_probs: Literal["Sampled", "Recomputed", "Interpolated"] = "Sampled"
    """The old policy that the ratio is against. Sampled: the one that drew the token. Recomputed: the one that an
    episode's training begins with, by a forward pass. Interpolated: an estimate of that one, without the pass, between
    sampled and current log-prob by policy version. Default Sampled."""
    off_policy: OffPolicy | None = None
    """Correction for stale samples, with Recomputed and Interpolated only. Default none."""
    kl: Kl | None = None
    """Penalty for leaving the reference policy. Default none."""
    distillation: Distillation | None = None
    """Pull towards `models.teacher`. Default none."""
    entropy_coefficient: Annotated[float, Field(ge=0, le=10)] = 0.0
    """So much of the policy's mean token entropy is taken from the loss, loss units per nat. Default 0, range 0 to
    10."""
    group: Group | None = None
    """GRPO's advantages. Default none: every field's own default. Refused with PPO."""
    gae: Gae | None = None
    """PPO's advantages. Default none: every field's own default. Refused with GRPO."""
    critic: Critic | None = None
    """PPO's critic. Default none: every field's own default. Refused with GRPO."""
    epochs: Annotated[int, Field(ge=1, le=64)] = 1
    """Passes over an episode's samples. Default 1, range 1 to 64."""
    minibatches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Optimiser steps per pass; each takes promptsPerEpisode / minibatches groups. Default 1, range 1 to 1024."""
    optimizer: Optimizer
    """The optimiser. Required."""

    @property
    def critic_optimizer(self) -> Optimizer:
        """PPO's settings of the critic's optimiser."""
        return (self.critic and self.critic.optimizer) or self.optimizer

    @property
    def compares_with_reference(self) -> bool:
        """Whether samples need the reference policy's log-probs."""
        return self.kl is not None
