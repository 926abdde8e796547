"""Prompts become text, and text becomes tokens: here and nowhere else.

Text is read with the tokenizer's default special tokens, except an end of sequence that it would append, because the
policy is to go on from the prompt, and a beginning that the text itself spells out already.
Messages are made one text by a chat template, which writes all special tokens itself: none is added. After a last
message of the assistant the policy goes on in it; after any other it begins an answer.
Special tokens that a prompt spells out ("<|im_start|>") are read as such in both forms, as transformers does, so that
text can be given ready formatted. Whose prompts come from strangers takes them out before.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from rlhf_api.conditions import Reason

from rlhf_runtime.data.prompt_rows import PromptValue
from rlhf_runtime.failures import RunFailure


class TemplateError(ValueError):
    """A chat template does not take these messages; the message says why."""


class UnreadableText(ValueError):
    """A tokenizer does not take a text; `index` is the text's among those given."""

    def __init__(self, index: int, error: Exception) -> None:
        first = next(iter(str(error).splitlines()), "")
        super().__init__(f"the tokenizer cannot read the text: {type(error).__name__}: {first}")
        self.index = index


class Encoder(Protocol):
    """What makes tokens of prompts."""

    @property
    def bos_id(self) -> int | None:
        """The token that begins a sequence."""
        ...

    def text(self, prompt: PromptValue) -> str:
        """The text that the policy reads. Raises TemplateError."""
        ...

    def ids(self, texts: Sequence[str], *, conversational: bool) -> list[list[int]]:
        """Token ids of each text; ``conversational``: it came from messages. Raises UnreadableText."""
        ...


class TokenizerEncoder:
    """A transformers tokenizer, with the spec's chat template in place of its own if there is one."""

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self.bos_id: int | None = tokenizer.bos_token_id
        example = _example(tokenizer)
        self._begins = self.bos_id is not None and example[:1] == [self.bos_id]
        self._appended = 0
        for token in reversed(example):
            if token != tokenizer.eos_token_id:
                break
            self._appended += 1

    def check_template(self, *, conversational: bool, field: str) -> None:
        """Check that messages have a template. Raises RunFailure ChatTemplateMissing (permanent)."""
        if conversational and self._template is None and not self._tokenizer.chat_template:
            raise RunFailure(
                Reason.CHAT_TEMPLATE_MISSING,
                f"{field}: the rows have messages, but the tokenizer of {self._tokenizer.name_or_path} has no chat "
                "template; expected one there, or in prompts.chatTemplate",
                permanent=True,
            )

    def text(self, prompt: PromptValue) -> str:
        if isinstance(prompt, str):
            return prompt
        from jinja2 import TemplateSyntaxError

        goes_on = prompt[-1]["role"] == "assistant"
        try:
            text: str = self._tokenizer.apply_chat_template(
                prompt,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
            )
        except TemplateSyntaxError as error:
            whose = "prompts.chatTemplate" if self._template is not None else "the tokenizer's chat template"
            message = f"{whose}, line {error.lineno}: {error.message}, expected a Jinja template"
            raise RunFailure(Reason.PROMPTS_INVALID, message, permanent=True) from error
        except Exception as error:
            # A template raises what it likes: its own refusal, or what any expression in it may.
            first = next(iter(str(error).splitlines()), "")
            raise TemplateError(f"the chat template refuses the messages: {type(error).__name__}: {first}") from error
        return text

    def ids(self, texts: Sequence[str], *, conversational: bool) -> list[list[int]]:
        if not texts:
            # transformers fails on none; all rows of a batch may be held out.
            return []
        if conversational:
            return self._read(texts, add_special_tokens=False)
        return [self._opened(ids[: len(ids) - self._appended]) for ids in self._read(texts)]

    def _read(self, texts: Sequence[str], **options: bool) -> list[list[int]]:
        try:
            ids: list[list[int]] = self._tokenizer(list(texts), **options)["input_ids"]
            return ids
        except Exception as error:
            # A vocabulary without a token for what is unknown says so by an exception of no kind of its own.
            if len(texts) == 1:
                raise UnreadableText(0, error) from error
        for index, text in enumerate(texts):
            try:
                self._read([text], **options)
            except UnreadableText as error:
                error.index = index
                raise
        raise AssertionError("each text could be read alone, and all together not")

    def _opened(self, ids: list[int]) -> list[int]:
        twice = self._begins and ids[:2] == [self.bos_id, self.bos_id]
        return ids[1:] if twice else ids


def _example(tokenizer: Any) -> list[int]:
    """Ids of a short text that the tokenizer can read, with the special tokens that it puts around."""
    special = set(tokenizer.all_special_tokens)
    for text in ("a", *(token for token in tokenizer.get_vocab() if token not in special)):
        try:
            ids: list[int] = tokenizer(text)["input_ids"]
        except Exception:
            # Not in its vocabulary, which has nothing for what is unknown.
            continue
        return ids
    return []
