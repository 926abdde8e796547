"""Reward models: sequence-classification models that score a whole prompt and completion."""

from pathlib import Path

import torch
from rlhf_api.models import Model
from torch import Tensor, nn

from rlhf_runtime.models.critic import Critic, load_scores
from rlhf_runtime.models.factory import from_factory
from rlhf_runtime.models.pretrained import on_device


class RewardModel(nn.Module):
    """The score of each row's last real token."""

    def __init__(self, token_scores: nn.Module) -> None:
        super().__init__()
        self.token_scores = token_scores

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Scores [B] fp32 from token ids, mask and positions, all [B, L] int64.

        The mask says which token is the last real one, never a token's id: padding may be on either side, and the end
        token may be what pads.
        """
        scores_bl = self.token_scores(input_ids, attention_mask, position_ids)
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        last_b = torch.where(attention_mask.bool(), places, -1).amax(-1)
        scores: Tensor = scores_bl.gather(1, last_b.unsqueeze(-1)).squeeze(-1)
        return scores


def load_reward_model(model: Model, folder: Path, dtype: str) -> nn.Module:
    """The reward model in `folder`, parameters in `dtype`. On a GPU where there is one.

    Raises RunFailure ModelInvalid: its head must be there, with one label.
    """
    if model.factory is not None:
        return on_device(from_factory(model.factory, folder, dtype, "reward"))
    return on_device(RewardModel(Critic(load_scores(folder, dtype, "models.reward"))).requires_grad_(False))
