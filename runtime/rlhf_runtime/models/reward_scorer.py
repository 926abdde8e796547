"""Scores of whole prompts and completions by `models.reward`, in the tokens that it was trained on."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from rlhf_api.models import Model
from torch import Tensor, nn

from rlhf_runtime.data.prompt_rows import PromptValue
from rlhf_runtime.data.templates import TokenizerEncoder, UnreadableText
from rlhf_runtime.models.forwards import TOKENS_AT_ONCE, passes
from rlhf_runtime.models.model_folder import ModelFolder
from rlhf_runtime.models.pretrained import invalid
from rlhf_runtime.models.reward_model import load_reward_model
from rlhf_runtime.models.same_tokens import difference
from rlhf_runtime.models.tokenizer import has_tokenizer, read_tokenizer

_FIELD = "models.reward"


class RewardScorer:
    """A reward model and how it reads. `own_tokenizer` None: it reads the actor's token ids as they are.

    end_ids  the tokens by which the actor ends a completion: one that has such an end is whole
    context  positions that the reward model has, None if it does not say
    """

    def __init__(
        self, model: nn.Module, *, end_ids: Collection[int], own_tokenizer: Any | None, context: int | None
    ) -> None:
        self._model = model
        self._end_ids = end_ids
        self._tokenizer = own_tokenizer
        self._encoder = None if own_tokenizer is None else TokenizerEncoder(own_tokenizer)
        self._context = context

    def score(
        self,
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        texts: Sequence[PromptValue],
    ) -> list[float]:
        """The score of each of B samples, in the order given.

        `texts` is what each sample says, prompt and completion together without the actor's end token: a text, or
        messages of which the last is the completion. They are read when the reward model has other tokens than the
        actor: text as prompts are, with its end token after it if the completion has ended; messages by its own chat
        template. Raises RunFailure ModelInvalid (permanent): a sample longer than the model's context, messages
        without a template, a score that is not finite.
        """
        whole = [[*prompt, *completion] for prompt, completion in zip(prompt_ids, completion_ids, strict=True)]
        ended = [len(ids) > 0 and ids[-1] in self._end_ids for ids in completion_ids]
        if self._encoder is not None:
            try:
                whole = [self._read(text, is_whole) for text, is_whole in zip(texts, ended, strict=True)]
            except UnreadableText as error:
                raise invalid(f"{_FIELD}.uri: of a prompt and its completion, {error}") from error
        self._check_lengths(whole, texts)
        scores: dict[int, float] = {}
        for part in passes([len(ids) for ids in whole], TOKENS_AT_ONCE):
            scores.update(zip(part, self._forward([whole[i] for i in part]), strict=True))
        bad = next((i for i in range(len(whole)) if not math.isfinite(scores[i])), None)
        if bad is not None:
            raise invalid(
                f"{_FIELD}: the score of {str(texts[bad])[-200:]!r} is {scores[bad]}, expected a finite number"
            )
        return [scores[i] for i in range(len(whole))]

    @torch.no_grad()
    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        width = max(map(len, rows))
        ids = np.zeros((len(rows), width), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        device = next(self._model.parameters()).device
        attention_mask = torch.from_numpy(mask).to(device)
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        scores: Tensor = self._model(torch.from_numpy(ids).to(device), attention_mask, positions)
        if scores.shape != (len(rows),):
            raise invalid(f"{_FIELD}: found scores {list(scores.shape)} of {len(rows)} samples, expected one each")
        return [float(score) for score in scores]

    def _read(self, text: PromptValue, ended: bool) -> list[int]:
        """A sample in the reward model's own tokens."""
        assert self._encoder is not None
        tokenizer: Any = self._tokenizer
        if not isinstance(text, str):
            if not tokenizer.chat_template:
                raise invalid(
                    f"{_FIELD}.uri: the prompts are messages, but the reward model has another tokenizer than the "
                    "actor, and no chat template to read them by; give its tokenizer one (chat_template.jinja)"
                )
            rendered: str = tokenizer.apply_chat_template(text, tokenize=False)
            return self._encoder.ids([rendered], conversational=True)[0]
        ids = self._encoder.ids([text], conversational=False)[0]
        return [*ids, tokenizer.eos_token_id] if ended and tokenizer.eos_token_id is not None else ids

    def _check_lengths(self, rows: Sequence[Sequence[int]], texts: Sequence[PromptValue]) -> None:
        longest = max((len(ids) for ids in rows), default=0)
        empty = next((text for ids, text in zip(rows, texts, strict=True) if not ids), None)
        if empty is not None:
            raise invalid(
                f"{_FIELD}.uri: its tokenizer makes no tokens of {str(empty)[-200:]!r}, expected at least one"
            )
        if self._context is not None and longest > self._context:
            raise invalid(
                f"{_FIELD}: a prompt and its completion have {longest} of the reward model's tokens, but it has "
                f"{self._context} positions; lower prompts.maxPromptTokens or rollout.maxNewTokens"
            )


def load_reward_scorer(
    model: Model, folder: ModelFolder, actor_tokenizer: Any, end_ids: Collection[int]
) -> RewardScorer:
    """The scorer of `models.reward`, which lies in `folder`, on a GPU where there is one. Raises RunFailure.

    `end_ids` are the tokens by which the actor ends a completion. A folder without a tokenizer is taken to have the
    actor's.
    """
    own = read_tokenizer(model.uri, folder, _FIELD) if has_tokenizer(folder.path) else None
    if own is not None and difference(actor_tokenizer, own) is None:
        own = None
    return RewardScorer(
        load_reward_model(model, folder.path, model.dtype),
        end_ids=end_ids,
        own_tokenizer=own,
        context=folder.context,
    )
