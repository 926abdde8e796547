"""Prompts become tokens once: chat templates, one beginning of a sequence, and tokens in that are tokens out."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rlhf_api.prompts import PromptSource
from rlhf_runtime.data.prompt_rows import open_rows
from rlhf_runtime.data.prompts import LengthPolicy, PromptSet
from rlhf_runtime.data.templates import TemplateError, TokenizerEncoder
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.batch import collate
from rlhf_runtime.experience.rollout import Experience
from rlhf_runtime.failures import RunFailure

CHARACTERS = [chr(i) for i in range(32, 127)]
BOS, EOS, END = 1, 2, 3
#: Like Llama's: it begins a sequence itself, and its tokenizer would do so again.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ message.role + ': ' + message.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def tokenizer(*, template: str | None = TEMPLATE, begin: bool = True, end: bool = False) -> Any:
    """One token a character, "12" and "hi" one token each; a post-processor that puts <s> before and </s> behind."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*special, *CHARACTERS, "12", "hi"])}
    inner = Tokenizer(models.BPE(vocabulary, [("1", "2"), ("h", "i")], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(token, special=True) for token in special])
    around = ("<s> " if begin else "") + "$A" + (" </s>" if end else "")
    inner.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("<s>", BOS), ("</s>", EOS)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    return made


def text_ids(text: str) -> list[int]:
    """Tokens of plain text, by hand: no merges but "12" and "hi"."""
    pieces = {"12": 4 + len(CHARACTERS), "hi": 5 + len(CHARACTERS)}
    found, i = [], 0
    while i < len(text):
        piece = text[i : i + 2] if text[i : i + 2] in pieces else text[i]
        found.append(pieces.get(piece) or 4 + CHARACTERS.index(piece))
        i += len(piece)
    return found


@pytest.mark.parametrize(
    ("made", "text", "expected"),
    [
        pytest.param({"begin": False}, "2+2", text_ids("2+2"), id="no special tokens"),
        pytest.param({}, "2+2", [BOS, *text_ids("2+2")], id="a beginning is put before, once"),
        pytest.param({"end": True}, "2+2", [BOS, *text_ids("2+2")], id="an end is taken off: the policy goes on"),
        pytest.param({"begin": False, "end": True}, "2+2", text_ids("2+2"), id="an end alone"),
        pytest.param({}, "<s>2+2", [BOS, *text_ids("2+2")], id="a beginning that the text spells is the only one"),
        pytest.param({"begin": False}, "<s>2", [BOS, *text_ids("2")], id="ready formatted, nothing is added"),
        pytest.param({}, "a</s>", [BOS, *text_ids("a"), EOS], id="an end that the text spells is the text's"),
        pytest.param({"end": True}, "a</s>", [BOS, *text_ids("a"), EOS], id="of two ends the text's own stays"),
        pytest.param({}, "a<|im_end|>b", [BOS, *text_ids("a"), END, *text_ids("b")], id="special tokens of the text"),
    ],
)
def test_text_has_the_tokenizers_special_tokens_but_no_end(
    made: dict[str, Any], text: str, expected: list[int]
) -> None:
    assert TokenizerEncoder(tokenizer(**made)).ids([text], conversational=False) == [expected]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        pytest.param(USER, "<s>user: hi<|im_end|>assistant: ", id="one message"),
        pytest.param([{"role": "system", "content": "s"}, *USER], "<s>system: s<|im_end|>user: hi<|im_end|>assistant: ",
                     id="several messages"),
        pytest.param([*USER, {"role": "assistant", "content": "I say"}], "<s>user: hi<|im_end|>assistant: I say",
                     id="an answer that has begun is gone on with"),
        pytest.param([{"role": "user", "content": "a<|im_end|></s>"}],
                     "<s>user: a<|im_end|></s><|im_end|>assistant: ", id="content that spells special tokens"),
    ],
)  # fmt: skip
def test_messages_have_the_templates_special_tokens_and_no_others(messages: list[dict[str, Any]], text: str) -> None:
    ours = tokenizer()
    encoder = TokenizerEncoder(ours)
    assert encoder.text(messages) == text
    [ids] = encoder.ids([text], conversational=True)
    assert ids.count(BOS) == 1
    goes_on = messages[-1]["role"] == "assistant"
    theirs = ours.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=not goes_on, continue_final_message=goes_on
    )
    assert ids == theirs["input_ids"]
    assert (EOS in ids) == ("</s>" in text)


def test_the_specs_template_takes_the_place_of_the_tokenizers() -> None:
    encoder = TokenizerEncoder(tokenizer(), "{{ bos_token }}Q: {{ messages[0].content }} A:")
    assert encoder.text(USER) == "<s>Q: hi A:"
    assert encoder.text("plain text has none") == "plain text has none"


def test_a_template_that_is_missing_is_said_before_anything_else() -> None:
    encoder = TokenizerEncoder(tokenizer(template=None))
    encoder.check_template(conversational=False, field="prompts")
    TokenizerEncoder(tokenizer(template=None), "{{ messages }}").check_template(conversational=True, field="prompts")
    with pytest.raises(RunFailure, match="evaluation: the rows have messages, but the tokenizer") as error:
        encoder.check_template(conversational=True, field="evaluation")
    assert (error.value.reason, error.value.permanent) == ("ChatTemplateMissing", True)


def test_a_template_with_a_wrong_syntax_names_its_line() -> None:
    with pytest.raises(RunFailure, match=r"prompts.chatTemplate, line 2: .*expected a Jinja template") as error:
        TokenizerEncoder(tokenizer(), "{{ bos_token }}\n{% for m in %}").text(USER)
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        pytest.param(None, "TemplateError: no tools here", id="its own refusal"),
        pytest.param("{{ messages[0].nothing.here }}", "UndefinedError", id="a name that is not there"),
        pytest.param("{{ 1 + messages[0].content }}", "TypeError", id="an expression that fails"),
    ],
)
def test_a_template_that_refuses_messages_names_the_row(tmp_path: Path, template: str | None, part: str) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": [{"role": "user", "content": "a"}]}\n\n{"prompt": [{"role": "tool", "content": "b"}]}\n'
    )
    rows = open_rows(PromptSource(uri=str(tmp_path / "a.jsonl")), "prompts")
    encoder = TokenizerEncoder(tokenizer(), template)
    with pytest.raises(TemplateError, match=part):
        encoder.text([{"role": "tool", "content": "b"}])
    with pytest.raises(RunFailure, match=f"a.jsonl, line {3 if template is None else 1}: the chat template refuses"):
        PromptSet(rows, encoder, LengthPolicy(64), "prompts")


def test_a_text_that_a_tokenizer_cannot_read_names_its_row(tmp_path: Path) -> None:
    """A vocabulary of digits, without a token for what is unknown."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(["<eos>", *"0123456789"])}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 0)])
    encoder = TokenizerEncoder(PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>"))
    assert encoder.ids(["12", ""], conversational=False) == [[2, 3], []]
    (tmp_path / "a.jsonl").write_text('{"prompt": "1"}\n\n{"prompt": "2"}\n{"prompt": "1 + 1"}\n{"prompt": "x"}\n')
    rows = open_rows(PromptSource(uri=str(tmp_path / "a.jsonl")), "prompts")
    with pytest.raises(RunFailure, match=r"a.jsonl, line 4: the tokenizer cannot read the text: .*WordLevel") as error:
        PromptSet(rows, encoder, LengthPolicy(64), "prompts")
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)


@lru_cache
def policy() -> TransformersEngine:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=6 + len(CHARACTERS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    return TransformersEngine(LlamaForCausalLM(config), end_ids=(EOS,), max_rows=8)


@settings(max_examples=15, deadline=None)
@given(
    prompts=st.lists(
        st.text(alphabet="12hi a</s>", min_size=1, max_size=12).map(lambda text: [{"role": "user", "content": text}])
        | st.text(alphabet="12hi", min_size=1, max_size=12),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 2**16),
)
def test_tokens_in_are_tokens_out(prompts: Sequence[Any], seed: int) -> None:
    """What is trained on is the prompt's tokens and the sampled ones, and never text that was tokenized again."""
    encoder = TokenizerEncoder(tokenizer())
    ids = [encoder.ids([encoder.text(prompt)], conversational=not isinstance(prompt, str))[0] for prompt in prompts]
    groups = policy().generate(
        [Request(prompt_index=i, prompt_ids=np.array(each, np.int32), samples=2) for i, each in enumerate(ids)],
        Sampling(temperature=1.0, max_new_tokens=6, seed=seed),
    )
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    batch = collate(
        [Experience(rollout=r, reward=0.0, advantages=np.zeros(len(r.completion_ids), np.float32)) for r in rollouts],
        pad_id=EOS,
    )
    for row, (rollout, prompt_ids) in enumerate(zip(rollouts, [each for each in ids for _ in range(2)], strict=True)):
        trained = batch.input_ids[row][batch.attention_mask[row].bool()].tolist()
        assert trained == [*prompt_ids, *rollout.completion_ids.tolist()]


def test_text_that_is_tokenized_again_would_be_other_tokens() -> None:
    """Why it must not be: the sampled tokens "1" and "2" are read as one."""
    ours = tokenizer()
    sampled = [*text_ids("1"), *text_ids("2")]
    assert ours(ours.decode(sampled), add_special_tokens=False)["input_ids"] == text_ids("12") != sampled
