"""Where a trainer computes, and how its batches get there."""

import torch


def accelerator() -> torch.device:
    """This process's GPU, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def take_gpu(place: int) -> None:
    """Compute on the GPU of this number, where there are any, in this thread. Raises RuntimeError if it isn't there."""
    if torch.cuda.is_available():
        torch.cuda.set_device(place)
