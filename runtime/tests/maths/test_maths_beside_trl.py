"""The loss and its gradient beside TRL's GRPOTrainer, whose loss function is called with what it reads of a trainer."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rlhf_runtime.maths.aggregation import Aggregation, loss_denominator, share
from rlhf_runtime.maths.kl import kl_loss
from rlhf_runtime.maths.off_policy import off_policy_weights
from rlhf_runtime.maths.policy_loss import Clip, RatioLevel, policy_loss
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

ROWS, TOKENS = 6, 5
LENGTHS = torch.tensor([5, 1, 3, 2, 5, 4])
BETA, ENTROPY, CAP = 0.3, 0.05, 1.2


class OneProcess:
    """What the loss asks of an accelerator."""

    num_processes = 1
    sync_gradients = True

    def reduce(self, value: Tensor, reduction: str) -> Tensor:
        return value

    gather = staticmethod(lambda value: value)


def batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    noise = torch.randn(4, ROWS, TOKENS)
    return {
        "logprobs": -1 + 0.4 * noise[0],
        "old": -1 + 0.4 * noise[1],
        "sampled": -1 + 0.4 * noise[2],
        "reference": -1 + 0.4 * noise[3],
        "entropy": torch.rand(ROWS, TOKENS),
        "advantages": torch.randn(ROWS),
        "mask": torch.arange(TOKENS) < LENGTHS.unsqueeze(1),
    }


def trl_loss(b: dict[str, Tensor], logprobs: Tensor, entropy: Tensor, loss_type: str, level: str) -> Tensor:
    ratio = (b["old"] - b["sampled"]).exp().clamp(max=CAP)
    trainer: Any = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, entropy, None),
        model=torch.nn.Linear(1, 1),
        args=SimpleNamespace(delta=2.0, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=OneProcess(),
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=0.2,
        epsilon_high=0.3,
        beta=BETA,
        entropy_coef=ENTROPY,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=True,
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=TOKENS,
        _metrics={"train": defaultdict(list)},
    )
    ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids,
        "completion_ids": ids,
        "completion_mask": b["mask"].long(),
        "advantages": b["advantages"],
        "old_per_token_logps": b["old"],
        "ref_per_token_logps": b["reference"],
        "importance_sampling_ratio": ratio,
        "num_items_in_batch": b["mask"].sum(),
    }
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def our_loss(b: dict[str, Tensor], logprobs: Tensor, entropy: Tensor, how: Aggregation, level: RatioLevel) -> Tensor:
    mask = b["mask"]
    counts = {"tokens": int(mask.sum()), "samples": ROWS, "max_tokens": TOKENS}
    denominator = loss_denominator(how, **counts)
    loss = policy_loss(
        logprobs,
        b["old"],
        b["advantages"].unsqueeze(-1).expand_as(mask),
        mask,
        clip=Clip(low=0.2, high=0.3, dual=2.0),
        aggregation=how,
        denominator=denominator,
        ratio_level=level,
        weights_bt=off_policy_weights(b["old"], b["sampled"], mask, correction="TIS", cap=CAP),
    )
    loss = loss + BETA * kl_loss(
        logprobs, b["reference"], mask, estimator="K3", aggregation=how, denominator=denominator
    )
    # TRL's entropy term is the mean over tokens whatever the aggregation of the policy's loss.
    return loss - ENTROPY * share(entropy, mask, "Token", loss_denominator("Token", **counts))


@pytest.mark.parametrize(("level", "trl_level"), [("Token", "token"), ("GeometricMean", "sequence")])
@pytest.mark.parametrize(("how", "loss_type"), [("Token", "dapo"), ("Sequence", "grpo"), ("Fixed", "dr_grpo")])
def test_clip_dual_clip_kl_truncated_weights_and_entropy(
    how: Aggregation, loss_type: str, level: RatioLevel, trl_level: str
) -> None:
    b = batch()
    found = []
    for loss_of in (
        lambda logprobs, entropy: trl_loss(b, logprobs, entropy, loss_type, trl_level),
        lambda logprobs, entropy: our_loss(b, logprobs, entropy, how, level),
    ):
        leaves = [b[name].clone().requires_grad_() for name in ("logprobs", "entropy")]
        loss = loss_of(*leaves)
        found.append((loss.detach(), *torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-6)
