"""Where a rollout becomes an experience: rewards, and what frozen models say of it, become raw advantages.

Pure, and the same wherever it is called. Nothing here looks beyond one group, so that groups can be completed one
by one as they are sampled; what is over a whole episode, whitening, is in `training/merge.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rlhf_api.algorithm import Algorithm, Gae
from rlhf_api.algorithm import Group as GroupSettings

from rlhf_runtime.experience.batch import right_padded
from rlhf_runtime.experience.rollout import Experience, Float32Array, Rollout
from rlhf_runtime.maths.advantages import bootstrap_values, gae, group_advantages
from rlhf_runtime.maths.kl import kl_estimates, token_log_ratio, token_rewards


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelViews:
    """What the frozen models say of some rollouts, one array each; None: the model is not there.

    reference_logprobs, teacher_logprobs  [T] float32, nats, of the completion's tokens
    values                                [T + 1] float32, reward units: of the state before each token, and after all
    """

    reference_logprobs: Sequence[Float32Array] | None = None
    teacher_logprobs: Sequence[Float32Array] | None = None
    values: Sequence[Float32Array] | None = None

    def of(self, part: slice) -> "ModelViews":
        """Those of some of the rollouts."""
        return ModelViews(
            reference_logprobs=None if self.reference_logprobs is None else self.reference_logprobs[part],
            teacher_logprobs=None if self.teacher_logprobs is None else self.teacher_logprobs[part],
            values=None if self.values is None else self.values[part],
        )


def completed(
    rollouts: Sequence[Rollout], rewards: Sequence[float], views: ModelViews, algorithm: Algorithm
) -> tuple[Experience, ...]:
    """The experiences of one whole group, in its order.

    With the KL in the reward, PPO takes it at each token and GRPO the sum over the sample, as its reward is of whole
    samples. Raises ValueError if a model's view that the algorithm needs is not there.
    """
    if algorithm.kl is not None and views.reference_logprobs is None:
        raise ValueError("algorithm.kl needs the reference's log-probs, found none")
    match algorithm.type:
        case "PPO":
            if views.values is None:
                raise ValueError("PPO needs the critic's values, found none")
            for array in views.values:
                # Here, for what is computed from them would be blamed.
                if not np.isfinite(array).all():
                    raise ValueError(f"the critic's values: found {array}, expected finite numbers")
            values: list[Float32Array] | None
            returns: list[Float32Array] | None
            values = [array[:-1].copy() for array in views.values]
            advantages, returns = _token_advantages(rollouts, rewards, views, views.values, algorithm)
        case "GRPO":
            advantages = _group_advantages(rollouts, rewards, views, algorithm)
            returns = values = None
    return tuple(
        Experience(
            rollout=rollout,
            reward=rewards[i],
            advantages=advantages[i],
            returns=None if returns is None else returns[i],
            values=None if values is None else values[i],
            reference_logprobs=None if views.reference_logprobs is None else views.reference_logprobs[i],
            teacher_logprobs=None if views.teacher_logprobs is None else views.teacher_logprobs[i],
        )
        for i, rollout in enumerate(rollouts)
    )


def _token_advantages(
    rollouts: Sequence[Rollout],
    rewards: Sequence[float],
    views: ModelViews,
    values: Sequence[Float32Array],
    algorithm: Algorithm,
) -> tuple[list[Float32Array], list[Float32Array]]:
    """Advantages and returns, each [T] float32."""
    settings = algorithm.gae or Gae()
    in_reward = algorithm.kl if algorithm.kl is not None and algorithm.kl.applies_to == "Reward" else None
    mask_bt = _mask(rollouts)
    rewards_bt = token_rewards(
        torch.tensor(rewards, dtype=torch.float32),
        _tensor([rollout.logprobs for rollout in rollouts]),
        _tensor(views.reference_logprobs) if in_reward and views.reference_logprobs else None,
        mask_bt,
        estimator=in_reward.effective_estimator if in_reward else "K1",
        coefficient=in_reward.coefficient if in_reward else 0.0,
    )
    after_b = torch.tensor([float(array[-1]) for array in values])
    truncated_b = torch.tensor([rollout.truncated for rollout in rollouts])
    advantages_bt, returns_bt = gae(
        rewards_bt,
        _tensor([array[:-1] for array in values]),
        mask_bt,
        bootstrap_values(after_b, truncated_b),
        gamma=settings.gamma,
        lambda_=settings.lambda_,
    )
    return _unpadded(advantages_bt, rollouts), _unpadded(returns_bt, rollouts)


def _group_advantages(
    rollouts: Sequence[Rollout], rewards: Sequence[float], views: ModelViews, algorithm: Algorithm
) -> list[Float32Array]:
    """One value for all tokens of a sample, [T] float32."""
    settings = algorithm.group or GroupSettings()
    rewards_b = torch.tensor(rewards, dtype=torch.float64)
    if algorithm.kl is not None and algorithm.kl.applies_to == "Reward":
        assert views.reference_logprobs is not None
        mask_bt = _mask(rollouts)
        sampled_bt = _tensor([rollout.logprobs for rollout in rollouts])
        log_ratio_bt = token_log_ratio(sampled_bt, _tensor(views.reference_logprobs), mask_bt)
        # The padding's ratio is 0, and so is every estimate of it.
        kl_b = kl_estimates(log_ratio_bt, algorithm.kl.effective_estimator).double().sum(-1)
        rewards_b = rewards_b - algorithm.kl.coefficient * kl_b
    advantages = group_advantages(rewards_b, len(rewards), settings.normalization, settings.baseline).tolist()
    return [
        np.full(len(rollout.completion_ids), advantage, np.float32)
        for rollout, advantage in zip(rollouts, advantages, strict=True)
    ]


def _mask(rollouts: Sequence[Rollout]) -> torch.Tensor:
    """[b, t] bool."""
    return torch.from_numpy(right_padded([np.ones(len(rollout.completion_ids), bool) for rollout in rollouts]))


def _tensor(arrays: Sequence[Float32Array]) -> torch.Tensor:
    """[b, t] float32, 0 at padding."""
    return torch.from_numpy(right_padded(arrays))


def _unpadded(values_bt: torch.Tensor, rollouts: Sequence[Rollout]) -> list[Float32Array]:
    arrays = values_bt.numpy()
    return [arrays[row, : len(rollout.completion_ids)].copy() for row, rollout in enumerate(rollouts)]
