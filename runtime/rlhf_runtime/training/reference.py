"""The reference policy where it is refreshed: the trainers own it, and every publish carries it.

So a maker that comes later, and an attempt that resumes, compare with the same reference as all others.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_runtime.models.pretrained import invalid

_FILE = "model.safetensors"


class RefreshedReference:
    """Plain weights of the policy at the last version that is a multiple of `every`; the initial ones before that.

    `policy` gives the policy's whole weights as they are, {} on ranks that do not publish; all ranks call together.
    `initial` are those of a reference of its own, None where that is the policy's starting weights.
    """

    def __init__(
        self,
        every: int,
        policy: Callable[[], Mapping[str, Tensor]],
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._every = every
        self._policy = policy
        self._begins_as_policy = initial is None
        self._weights: dict[str, Tensor] = dict(initial or {})

    def weights(self, version: int) -> dict[str, Tensor]:
        """The reference's at this version, which is the newest; the same again for the same version."""
        if version % self._every == 0 and (version > 0 or self._begins_as_policy):
            # Copies: the policy goes on learning in place.
            self._weights = {name: tensor.detach().cpu().clone() for name, tensor in self._policy().items()}
        return self._weights

    def save(self, folder: Path) -> None:
        """Into a new folder; nothing where there are no weights."""
        if self._weights:
            folder.mkdir()
            save_file(self._weights, str(folder / _FILE))

    def refuse_misfit(self, policy: Mapping[str, Tensor]) -> None:
        """Said at the start, and not by makers at the first refresh. Raises RunFailure ModelInvalid."""
        if self._begins_as_policy or not policy:
            return
        for name in sorted(policy.keys() | self._weights.keys()):
            found, expected = (
                tuple(weights[name].shape) if name in weights else "nothing" for weights in (self._weights, policy)
            )
            if found != expected:
                raise invalid(
                    "models.reference: algorithm.kl.refreshEveryEpisodes puts the policy in its place, so it must have "
                    f"the actor's architecture: found {found} for {name}, expected {expected}"
                )

    def load(self, folder: Path) -> None:
        """What `save` wrote."""
        self._weights = load_file(str(folder / _FILE))
