"""What is over a whole episode rather than one group: whitened advantages, over all ranks, once, in every mode."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlhf_runtime.experience.rollout import Experience
from rlhf_runtime.maths.advantages import global_moments, whiten


def whitened(
    experiences: Sequence[Experience], sum_over_ranks: Callable[[Tensor], Tensor], device: torch.device
) -> list[Experience]:
    """The experiences with advantages of mean 0 and deviation 1 over all tokens of the episode, on all ranks.

    All ranks call it together, each with its own share of the episode, which may be empty. `device` is where
    `sum_over_ranks` wants its tensors.
    """
    arrays = [torch.from_numpy(experience.advantages).to(device) for experience in experiences]
    masks = [torch.ones_like(array, dtype=torch.bool) for array in arrays]
    empty = torch.zeros(0, device=device)
    moments = global_moments([empty, *arrays], [empty.bool(), *masks], sum_over_ranks)
    return [
        replace(experience, advantages=whiten(array, mask, moments).cpu().numpy())
        for experience, array, mask in zip(experiences, arrays, masks, strict=True)
    ]
