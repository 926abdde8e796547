"""The reference policy where it is refreshed: the trainers own it, and every publish carries it.

So a maker that comes later, and an attempt that resumes, compare with the same reference as all others.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

_FILE = "model.safetensors"


class RefreshedReference:
    """Plain weights of the policy at the last version that is a multiple of `every`; of version 0 before that.

    `policy` gives the policy's whole weights as they are, {} on ranks that do not publish; all ranks call together.
    """

    def __init__(self, every: int, policy: Callable[[], Mapping[str, Tensor]]) -> None:
        self._every = every
        self._policy = policy
        self._weights: dict[str, Tensor] = {}

    def weights(self, version: int) -> dict[str, Tensor]:
        """The reference's at this version, which is the newest; the same again for the same version."""
        if version % self._every == 0:
            # Copies: the policy goes on learning in place.
            self._weights = {name: tensor.detach().cpu().clone() for name, tensor in self._policy().items()}
        return self._weights

    def save(self, folder: Path) -> None:
        """Into a new folder; nothing where there are no weights."""
        if self._weights:
            folder.mkdir()
            save_file(self._weights, str(folder / _FILE))

    def load(self, folder: Path) -> None:
        """What `save` wrote."""
        self._weights = load_file(str(folder / _FILE))
