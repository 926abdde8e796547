"""The engine on transformers' models, with a decode loop of its own, on CPU or GPU."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rlhf_runtime.engines.decoding_memory import KeptMemory
from rlhf_runtime.engines.decoding_model import DecodingModel
from rlhf_runtime.engines.engine import Hook, Request, Sampling
from rlhf_runtime.engines.generation import DecodingSettings, Generation
from rlhf_runtime.experience.batch import rows_of
from rlhf_runtime.experience.rollout import Float32Array, Group, Rollout
from rlhf_runtime.maths.logprobs import token_logprobs
from rlhf_runtime.maths.vocabulary import Vocabulary
from rlhf_runtime.models.forwards import completion_logits
from rlhf_runtime.models.policy_weights import load_weights
from rlhf_runtime.models.tokenizer import Decode

AsHeld = Callable[[nn.Module, Mapping[str, Tensor]], Mapping[str, Tensor]]

#: Prompt tokens in one forward pass, padding included: bounds its memory.
PREFILL_TOKENS = 16_384
#: Steps between two looks at who has ended; a look waits for the GPU, and on CPU costs nothing.
_GPU_STEPS = 16


class TransformersEngine:
    """Batched sampling with preallocated keys and values; at most `max_rows` samples at a time.

    `end_ids` are the tokens that end a completion. Draws depend on the sample's own keys alone, so what is sampled
    does not depend on what shares its batch (up to the rounding of the logits). Weights loaded between steps are
    used from the next token on, with the cached keys and values of earlier tokens kept; every token records the
    version that drew it. `as_held` turns weights that come into the form that the model holds them in (int8).
    `decode` gives the text of tokens, where stop strings are wanted. Ids that the `vocabulary` does not have are never
    drawn; without one, every row of the embedding may be. `look_every`: steps between two looks at who has
    ended, by default 1 on CPU and more on GPU; it changes no sample, unless weights are loaded between steps: a sample
    that waits for a row begins later.

    Raises ValueError for a model with sliding-window or recurrent layers: rows of different lengths share a batch
    as full attention alone allows.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        end_ids: Sequence[int],
        version: int = 0,
        max_rows: int = 512,
        prefill_tokens: int = PREFILL_TOKENS,
        as_held: AsHeld = lambda model, state: state,
        decode: Decode | None = None,
        vocabulary: Vocabulary | None = None,
        look_every: int | None = None,
    ) -> None:
        self._model = DecodingModel(model, vocabulary)
        self._memory = KeptMemory(self._model.layers, self._model.device)
        self._settings = DecodingSettings(
            end_ids=frozenset(end_ids),
            end_tokens=torch.tensor(list(end_ids), device=self._model.device),
            max_rows=max_rows,
            prefill_tokens=prefill_tokens,
            decode=decode,
            look_every=look_every or (_GPU_STEPS if self._model.device.type == "cuda" else 1),
        )
        self.end_ids = self._settings.end_ids
        self._version = version
        self._as_held = as_held

    @property
    def version(self) -> int:
        return self._version

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        load_weights(self._model.module, self._as_held(self._model.module, state))
        self._version = version

    @torch.no_grad()
    def logprobs(self, rollouts: Sequence[Rollout], sampling: Sampling) -> list[Float32Array]:
        model = self._model
        model.module.eval()
        found = []
        # One at a time: they are few, and need no memory beside a batch's.
        for rollout in rollouts:
            rows = rows_of([rollout], pad_id=0).to(model.device)
            logits = completion_logits(model.module, rows)
            of_row = token_logprobs(
                logits, rows.completion_ids, sampling.temperature, sampling.truncation, model.vocabulary
            )
            found.append(of_row[0])
        return [logprobs.cpu().numpy() for logprobs in found]

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], sampling: Sampling, between_steps: Hook | None = None
    ) -> list[Group]:
        self._model.module.eval()
        generation = Generation(self._model, self._memory, self._settings, lambda: self._version, requests, sampling)
        return generation.run(between_steps)

    def check(self) -> None:
        """It is this process."""

    def close(self) -> None:
        """It has started nothing; recorded steps and what they work on are freed."""
        self._memory.free()
