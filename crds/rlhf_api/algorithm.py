"""``spec.algorithm``: what is optimised, and by which steps.

A part that belongs to one algorithm (`group` to GRPO, `gae` and `critic` to PPO) is optional and refused with the
other, so that every field that is set has an effect. The properties give the values that apply when such a part is left
out.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rlhf_api.schema import ApiModel, cel

_FRACTION_OF_A_DECAY = (
    "!has(self.finalLearningRateFraction) || self.schedule != 'Constant'",
    "must not be set where schedule is Constant: only Linear and Cosine decay",
    ".finalLearningRateFraction",
)


class Optimizer(ApiModel):
    """AdamW on fp32 master parameters; the learning rate rises linearly over the warm-up, then follows `schedule`."""

    model_config = ConfigDict(json_schema_extra=cel(_FRACTION_OF_A_DECAY))

    learning_rate: Annotated[float, Field(ge=0, le=1)]
    """Learning rate after the warm-up. 0 trains nothing, which is useful for a control run. Required. Range 0 to 1."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay rate of AdamW's first moment. Default 0.9, range 0 to below 1."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay rate of AdamW's second moment. Default 0.999, range 0 to below 1."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Value added to the root of the second moment. Default 1e-8, range above 0 to 1."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Coefficient of AdamW's decoupled weight decay. Default 0, range 0 to 1."""
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Largest global gradient norm of a step; larger gradients are scaled down to it. Default 1, range above 0 to
    1e6."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of optimiser steps over which the learning rate rises linearly from 0. Default 0, range 0 to
    1,000,000."""
    schedule: Literal["Constant", "Linear", "Cosine"] = "Constant"
    """How the learning rate changes from the end of the warm-up to the last of the job's
    episodes x epochs x minibatches steps. Constant: not at all. Linear: along a line to finalLearningRateFraction.
    Cosine: along half a cosine to finalLearningRateFraction. Default Constant."""
    final_learning_rate_fraction: Annotated[float | None, Field(ge=0, le=1)] = None
    """Learning rate at the end of the schedule, as a fraction of learningRate. Only for Linear and Cosine. Default
    none, which means 0; range 0 to 1."""


_K1_IS_NO_LOSS = (
    "!has(self.estimator) || self.estimator != 'K1' || self.appliesTo == 'Reward'",
    "must be K2 or K3 where appliesTo is Loss: the gradient of K1 has mean zero",
    ".estimator",
)


class Kl(ApiModel):
    """A penalty for moving away from the reference policy."""

    model_config = ConfigDict(json_schema_extra=cel(_K1_IS_NO_LOSS))

    coefficient: Annotated[float, Field(gt=0, le=100)]
    """Weight of the KL penalty: reward units per nat where appliesTo is Reward, loss units per nat where it is Loss.
    Required. Range above 0 to 100."""
    applies_to: Literal["Reward", "Loss"]
    """Where the penalty is applied. Reward: it is subtracted from the reward, by PPO at each token, by GRPO as the sum
    over the sample. Loss: it is added to the loss. Required."""
    estimator: Literal["K1", "K2", "K3"] | None = None
    """How the KL of a token is estimated from d = log policy - log reference. K1: d. K2: d^2/2. K3: e^-d - 1 + d. K1 is
    only for Reward. Default none, which means K1 where appliesTo is Reward and K3 where it is Loss."""
    refresh_every_episodes: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Number of episodes after which the current policy becomes the reference, again and again. Default none: the
    reference never changes. Range 1 to 1,000,000."""

    @property
    def effective_estimator(self) -> Literal["K1", "K2", "K3"]:
        """The estimator that is used."""
        return self.estimator or ("K1" if self.applies_to == "Reward" else "K3")


class OffPolicy(ApiModel):
    """Corrects for samples drawn by a policy older than the one the ratio is taken against."""

    correction: Literal["TIS", "Decoupled"]
    """How the loss of a token is weighted by w, its probability under the old policy divided by its probability under
    the policy that sampled it. TIS: the weight is min(w, cap). Decoupled: the weight is w, or 0 where w is above cap.
    Required."""
    cap: Annotated[float, Field(gt=0, le=1e6)] = 2.0
    """Largest weight of a token. Default 2, range above 0 to 1e6."""


class Distillation(ApiModel):
    """A term of the loss that moves the policy towards `models.teacher`."""

    weight: Annotated[float, Field(gt=0, le=100)]
    """Weight of the distillation term, loss units per nat. Required. Range above 0 to 100."""
    estimator: Literal["K2", "K3"] = "K2"
    """How the KL from the policy to the teacher is estimated at a sampled token from d = log policy - log teacher. K2:
    d^2/2, whose expected gradient is that of the KL. K3: e^-d - 1 + d. Default K2."""


class Group(ApiModel):
    """GRPO: how the rewards of one prompt's samples become advantages."""

    normalization: Literal["Std", "None"] = "Std"
    """What is done after the baseline is subtracted. Std: the result is divided by the standard deviation of the
    group's rewards. None: nothing. Default Std."""
    baseline: Literal["Mean", "LeaveOneOut"] = "Mean"
    """What is subtracted from the reward of a sample. Mean: the mean reward of its group. LeaveOneOut: the mean reward
    of the other samples of its group (RLOO). Default Mean."""


class Gae(ApiModel):
    """PPO: generalised advantage estimation over the tokens of a completion."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token. Default 1, range 0 to 1."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda")] = 0.95
    """The lambda of generalised advantage estimation. 0 relies on the critic's values, 1 on the rewards of the whole
    completion. Default 0.95, range 0 to 1."""
    whiten: bool = True
    """Whether advantages are scaled to mean 0 and standard deviation 1 over all tokens of an episode. Default true."""


class Critic(ApiModel):
    """PPO: how the critic is trained."""

    optimizer: Optimizer | None = None
    """Optimiser settings of the critic. Default none: those of the policy, algorithm.optimizer."""
    value_clip: Annotated[float | None, Field(gt=0, le=1e6)] = None
    """Distance that a token's value may move from the value that the makers computed before its loss stops decreasing,
    in reward units. Default none: no clipping. Range above 0 to 1e6."""


_GROUP_IS_GRPO = ("!has(self.group) || self.type == 'GRPO'", "must not be set where type is PPO", ".group")
_GAE_IS_PPO = ("!has(self.gae) || self.type == 'PPO'", "must not be set where type is GRPO", ".gae")
_CRITIC_IS_PPO = (
    "!has(self.critic) || self.type == 'PPO'",
    "must not be set where type is GRPO, which has no critic",
    ".critic",
)
_CORRECTED_ONCE = (
    "!has(self.offPolicy) || self.oldLogProbs != 'Sampled'",
    "must not be set where oldLogProbs is Sampled: the ratio is then taken against the sampling policy itself",
    ".offPolicy",
)


class Algorithm(ApiModel):
    """A clipped policy-gradient loss. PPO takes the advantages from a critic, token by token. GRPO takes them from the
    rewards of the samples of one prompt."""

    model_config = ConfigDict(json_schema_extra=cel(_GROUP_IS_GRPO, _GAE_IS_PPO, _CRITIC_IS_PPO, _CORRECTED_ONCE))

    type: Literal["PPO", "GRPO"]
    """The algorithm, PPO or GRPO. Required."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip range: the probability ratio is clipped to at least 1 - clipLow. Default 0.2, range above 0 to
    below 1."""
    clip_high: Annotated[float, Field(gt=0, le=10)] = 0.2
    """Upper clip range: the probability ratio is clipped to at most 1 + clipHigh. Default 0.2, range above 0 to
    10."""
    dual_clip: Annotated[float | None, Field(gt=1, le=1e6)] = None
    """Bound of the loss where the advantage is negative: at most dualClip times the advantage's absolute value. Default
    none: no such bound. Range above 1 to 1e6."""
    ratio_level: Literal["Token", "Sequence", "GeometricMean"] = "Token"
    """What the probability ratio is taken over. Token: each token by itself. Sequence: the whole completion.
    GeometricMean: the geometric mean over the tokens of the completion (GSPO). Default Token."""
    loss_aggregation: Literal["Token", "Sequence", "Fixed"] = "Token"
    """How the token losses of a step become one loss. Token: mean over all tokens. Sequence: mean over the samples of
    each sample's mean over its tokens. Fixed: sum over all tokens, divided by samples x maxNewTokens. Default Token."""
    old_log_probs: Literal["Sampled", "Recomputed", "Interpolated"] = "Sampled"
    """The old policy that the ratio is taken against. Sampled: the policy that sampled the token. Recomputed: the
    policy at the start of the episode's updates, whose log-probs take one more forward pass. Interpolated: an estimate
    of the same policy without that pass, between the sampled and the current log-prob, according to the policy version.
    Default Sampled."""
    off_policy: OffPolicy | None = None
    """Correction for stale samples. Only for oldLogProbs Recomputed and Interpolated. Default none: no correction."""
    kl: Kl | None = None
    """Penalty for moving away from the reference policy. Default none: no penalty, and no reference is loaded."""
    distillation: Distillation | None = None
    """Term of the loss that moves the policy towards `models.teacher`. Default none: no such term."""
    entropy_coefficient: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the entropy bonus: this times the mean token entropy of the policy is subtracted from the loss. Loss
    units per nat. Default 0, range 0 to 10."""
    group: Group | None = None
    """How GRPO computes advantages. Refused with PPO. Default none, which means every field's own default."""
    gae: Gae | None = None
    """How PPO computes advantages. Refused with GRPO. Default none, which means every field's own default."""
    critic: Critic | None = None
    """How PPO trains its critic. Refused with GRPO. Default none, which means every field's own default."""
    epochs: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of passes over the samples of an episode. Default 1, range 1 to 64."""
    minibatches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of optimiser steps in a pass. Each step takes promptsPerEpisode / minibatches groups. Default 1, range 1
    to 1024."""
    optimizer: Optimizer
    """Optimiser settings of the policy. Required."""

    @property
    def critic_optimizer(self) -> Optimizer:
        """Optimiser settings of PPO's critic."""
        return (self.critic and self.critic.optimizer) or self.optimizer

    @property
    def compares_with_reference(self) -> bool:
        """Whether samples need the reference policy's log-probs."""
        return self.kl is not None
