"""Make the sample policy: a small Llama that does two-digit sums right about half of the time.

    python -m rlhf_samples.addition.make_policy [FOLDER]

writes `policy/` (model and tokenizer, loadable offline with transformers' Auto classes) and `prompts.jsonl`.
The problems are those of reasoning-gym's `chain_sum` with two terms of two digits, `a + b` and `a - b`.
The answer is written from its last character to its first ("115" as "511", "-30" as "03-"), so a carry is
known before the digit that needs it.

The warm start is supervised and has two parts. Lessons with right answers, for WARM_START_PROBLEMS of the 16,200
problems, until the policy has learned to add; then a few steps on careless demonstrations, half of which have a
wrong digit. The policy then knows the sums but is as careless as its examples, which is what reinforcement
learning can cure: the reward tells right from wrong where the demonstrations did not. The same machine gives
the same bytes (two minutes of one core); another machine gives a policy of nearly the same accuracy.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PHRASE = "State the final answer to the following arithmetic problem:"
"""reasoning-gym's fixed words; one token, so a prompt is 7 tokens long."""

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
FIRST_DIGIT = 3
"""Token id of "0"; the digits follow one another."""

SEED = 2
WARM_START_PROBLEMS = 6000
BATCH = 256
LEARNED = 0.85
"""Share of right answers, sampled at temperature 1, at which the lessons end."""
LESSON_STEPS = 2000
CARELESS_STEPS = 120
MISTAKES = 0.5
"""Share of the careless demonstrations in which one digit is a random one."""
PROMPT_ROWS = 1500
IGNORED = -100
"""torch's cross-entropy skips this label; prompt and padding carry it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One line of the task: `prompt` as reasoning-gym words it, `answer` as a plain integer."""

    prompt: str
    answer: str

    @property
    def completion(self) -> str:
        """What the policy should write: the answer from its last character to its first."""
        return self.answer[::-1]


def all_problems() -> list[Problem]:
    """Every problem of `chain_sum` with two terms of two digits, shuffled once by SEED."""
    problems = [
        Problem(prompt=f"{PHRASE} {a} {sign} {b} =", answer=str(a + b if sign == "+" else a - b))
        for sign in "+-"
        for a in range(10, 100)
        for b in range(10, 100)
    ]
    random.Random(SEED).shuffle(problems)
    return problems


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, one for the phrase; blanks between tokens are dropped."""
    vocabulary = [PAD, EOS, UNKNOWN, *"0123456789+-="]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, UNKNOWN))
    # The phrase is looked for in the raw text, before the rest is cut into characters.
    tokenizer.add_tokens([AddedToken(PHRASE, normalized=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), "isolated")]
    )
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of half a million fp32 parameters with its head tied to its embedding."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        max_new_tokens=5,
    )
    return model


def encode(tokenizer: PreTrainedTokenizerFast, problems: list[Problem]) -> tuple[Tensor, Tensor]:
    """Tokens and labels [problems, longest], int64, right-padded; only the completion and its EOS are labels."""
    prompts = tokenizer([p.prompt for p in problems])["input_ids"]
    completions = tokenizer([p.completion for p in problems])["input_ids"]
    width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True)) + 1
    tokens = torch.full((len(problems), width), tokenizer.pad_token_id)
    labels = torch.full((len(problems), width), IGNORED)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        end = len(prompt) + len(completion) + 1
        tokens[row, :end] = torch.tensor([*prompt, *completion, tokenizer.eos_token_id])
        labels[row, len(prompt) : end] = tokens[row, len(prompt) : end]
    return tokens, labels


@torch.no_grad()
def sampled_accuracy(model: LlamaForCausalLM, tokens: Tensor, labels: Tensor) -> float:
    """Expected share of right answers when sampling at temperature 1: the mean probability of the completion.

    Exact, where drawing samples would only estimate it.
    """
    chunks = zip(torch.split(tokens, 1024), torch.split(labels, 1024), strict=True)
    return float(torch.cat([_completion_logprobs(model, t, y).exp() for t, y in chunks]).mean())


def _completion_logprobs(model: LlamaForCausalLM, tokens: Tensor, labels: Tensor) -> Tensor:
    """Log-probability in nats of each row's labelled tokens, [rows]."""
    logprobs = model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
    targets = labels[:, 1:]
    chosen = logprobs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(targets == IGNORED, torch.zeros_like(chosen), chosen).sum(-1)


def lessons(model: LlamaForCausalLM, tokens: Tensor, labels: Tensor) -> int:
    """Supervised steps on right answers until a share LEARNED comes out right; returns how many.

    A fixed number would not do: when the sums "click" differs by hundreds of steps with the rounding.
    """
    train = _supervised(model, 2e-3)
    for step, rows in enumerate(_batches(len(tokens), LESSON_STEPS)):
        if step % 10 == 0 and sampled_accuracy(model, tokens[:1024], labels[:1024]) >= LEARNED:
            return step
        train(tokens[rows], labels[rows], min((step + 1) / 50, 1.0))
    raise RuntimeError(f"lessons: fewer than {LEARNED} right after {LESSON_STEPS} steps")


def lessons_for(steps: int, model: LlamaForCausalLM, tokens: Tensor, labels: Tensor) -> None:
    """Supervised steps on right answers, the learning rate falling to 0."""
    train = _supervised(model, 1e-3)
    for step, rows in enumerate(_batches(len(tokens), steps)):
        train(tokens[rows], labels[rows], min((step + 1) / 50, 1 - step / steps))


def careless_demonstrations(model: LlamaForCausalLM, tokens: Tensor, labels: Tensor) -> None:
    """Supervised steps on answers with mistakes, the learning rate falling to a tenth."""
    train = _supervised(model, 1e-3)
    for step, rows in enumerate(_batches(len(tokens), CARELESS_STEPS)):
        train(*with_mistakes(tokens[rows], labels[rows]), 1 - 0.9 * step / CARELESS_STEPS)


def _supervised(model: LlamaForCausalLM, learning_rate: float) -> Callable[[Tensor, Tensor, float], None]:
    """One AdamW step on tokens and labels, at a multiple of the learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.1, betas=(0.9, 0.98))

    def train(tokens: Tensor, labels: Tensor, rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rate
        loss = -_completion_logprobs(model, tokens, labels).sum() / (labels != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return train


def with_mistakes(tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """In a share MISTAKES of the rows, one character of the completion (not its EOS) becomes a random digit."""
    ends = (labels != IGNORED).long().cumsum(-1).argmax(-1, keepdim=True)
    answer = (labels != IGNORED) & (torch.arange(labels.shape[1]) < ends)
    chosen = torch.where(answer, torch.rand(labels.shape), torch.zeros(())).argmax(-1, keepdim=True)
    wrong = torch.randint(FIRST_DIGIT, FIRST_DIGIT + 10, chosen.shape)
    wrong = torch.where(torch.rand(chosen.shape) < MISTAKES, wrong, labels.gather(-1, chosen))
    return tokens.scatter(-1, chosen, wrong), labels.scatter(-1, chosen, wrong)


def _batches(problems: int, steps: int) -> Iterator[Tensor]:
    """Rows of `steps` batches, every problem about once per pass."""
    passes = (torch.split(torch.randperm(problems), BATCH) for _ in count())
    return islice((rows for batches in passes for rows in batches if len(rows) == BATCH), steps)


def main(folder: Path) -> None:
    torch.manual_seed(SEED)
    # How a sum is cut among threads changes its rounding.
    torch.set_num_threads(1)
    problems = all_problems()
    seen, unseen = problems[:WARM_START_PROBLEMS], problems[WARM_START_PROBLEMS:]
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    steps = lessons(model, *encode(tokenizer, seen))
    careless_demonstrations(model, *encode(tokenizer, seen))
    print(f"parameters {sum(p.numel() for p in model.parameters())}, lessons {steps} steps")
    print(f"accuracy sampled at temperature 1: seen {sampled_accuracy(model, *encode(tokenizer, seen)):.3f}")
    print(f"accuracy sampled at temperature 1: unseen {sampled_accuracy(model, *encode(tokenizer, unseen)):.3f}")
    model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    rows = [json.dumps({"prompt": p.prompt, "answer": p.answer}) for p in unseen[:PROMPT_ROWS]]
    (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
