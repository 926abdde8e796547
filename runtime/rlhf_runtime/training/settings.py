"""The objective's and the optimiser's numbers, as a RunConfig gives them."""

from rlhf_api.algorithm import Optimizer
from rlhf_api.run import RunConfig

from rlhf_runtime.engines.loading import truncation_of
from rlhf_runtime.maths.policy_loss import Clip
from rlhf_runtime.maths.vocabulary import Vocabulary
from rlhf_runtime.training.learning_rate import Schedule
from rlhf_runtime.training.objective import Mean, PolicyObjective, Pull, ValueObjective
from rlhf_runtime.training.optimized import AdamWParameters


def adamw_parameters(optimizer: Optimizer, config: RunConfig) -> AdamWParameters:
    return AdamWParameters(
        schedule=Schedule(
            peak=optimizer.learning_rate,
            kind=optimizer.schedule,
            warmup_steps=optimizer.warmup_steps,
            total_steps=config.episodes * config.algorithm.epochs * config.algorithm.minibatches,
            final_fraction=optimizer.final_learning_rate_fraction or 0.0,
        ),
        betas=(optimizer.beta1, optimizer.beta2),
        epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_gradient_norm,
    )


def _mean(config: RunConfig) -> Mean:
    return Mean(aggregation=config.algorithm.loss_aggregation, max_tokens=config.rollout.max_new_tokens)


def policy_objective(config: RunConfig, vocabulary: Vocabulary | None = None) -> PolicyObjective:
    """`vocabulary` is the actor's; without one, every row of its embedding counts."""
    algorithm = config.algorithm
    kl, distillation, off_policy = algorithm.kl, algorithm.distillation, algorithm.off_policy
    in_loss = kl is not None and kl.applies_to == "Loss"
    return PolicyObjective(
        clip=Clip(low=algorithm.clip_low, high=algorithm.clip_high, dual=algorithm.dual_clip),
        mean=_mean(config),
        temperature=config.rollout.temperature,
        truncation=truncation_of(config),
        vocabulary=vocabulary,
        ratio_level=algorithm.ratio_level,
        old=algorithm.old_log_probs,
        correction=None if off_policy is None else off_policy.correction,
        correction_cap=2.0 if off_policy is None else off_policy.cap,
        reference=Pull(weight=kl.coefficient, estimator=kl.effective_estimator) if kl is not None and in_loss else None,
        teacher=None if distillation is None else Pull(weight=distillation.weight, estimator=distillation.estimator),
        entropy_coefficient=algorithm.entropy_coefficient,
    )


def value_objective(config: RunConfig) -> ValueObjective:
    critic = config.algorithm.critic
    return ValueObjective(clip=None if critic is None else critic.value_clip, mean=_mean(config))
