"""A model as decoding calls it: token ids, a mask and positions in, the next token's logits out."""

from typing import Any

import torch
from torch import Tensor, nn

from rlhf_runtime.maths.vocabulary import Vocabulary
from rlhf_runtime.models.shared_prompts import cache_parameter


class DecodingModel:
    """`module` with what its forward wants, found once. `vocabulary` None: every id may be drawn.

    Raises ValueError for a model with sliding-window or recurrent layers: rows of different lengths share a batch
    as full attention alone allows.
    """

    def __init__(self, module: nn.Module, vocabulary: Vocabulary | None) -> None:
        _refuse_other_attention(module)
        self.module = module
        self.device = next(module.parameters()).device
        self.vocabulary = None if vocabulary is None else vocabulary.to(self.device)
        config: Any = module.config
        self.layers = int(config.get_text_config().num_hidden_layers)
        # A mask of all four dimensions is taken as it is; other attention code than sdpa's wants it in its own form.
        self._is_sdpa = config._attn_implementation == "sdpa"
        # In the dtype of the embedding, which attention computes in too.
        self._zero = torch.zeros((), dtype=next(module.parameters()).dtype, device=self.device)
        self._cache_parameter = cache_parameter(module)

    def read(self, input_ids: Tensor, positions: Tensor, cache: Any) -> None:
        """Add the keys and values of texts to `cache`; a token sees all before it. Ids and positions are [rows, L]."""
        self._forward(input_ids, None, positions, cache)

    def next_logits(self, tokens: Tensor, seen: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Logits of the ids that may be drawn after `tokens` [rows, 1]: [rows, ids]; extends `cache`.

        `seen` [rows, columns] bool: the columns of the cache that each row attends over.
        """
        # As numbers to add: every layer would make them of it.
        mask = torch.where(seen, self._zero, -torch.inf)[:, None, None, :] if self._is_sdpa else seen
        logits = self._forward(tokens, mask, positions, cache)
        return logits if self.vocabulary is None else self.vocabulary.known(logits)

    def _forward(self, input_ids: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> Tensor:
        """Logits that predict the token after the last one, [rows, vocabulary]; extends the cache."""
        output: Any = self.module(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_parameter: cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def _refuse_other_attention(model: nn.Module) -> None:
    config: Any = model.config
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = None if getattr(text, "layer_types", None) else getattr(text, "sliding_window", None)
    if kinds != {"full_attention"} or window:
        found = f"layers of {sorted(kinds)}" if not window else f"a sliding window of {window} tokens"
        raise ValueError(f"{type(model).__name__}: found {found}, expected full attention in all layers")
