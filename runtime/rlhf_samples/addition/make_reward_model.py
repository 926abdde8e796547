"""Make the sample reward model: a small Llama with a score head that tells right answers from wrong ones.

    python -m rlhf_samples.addition.make_reward_model [FOLDER]

writes `reward_model/`, a sequence classifier with one label and the policy's tokenizer, as plain transformers saves
it. It learns from labelled completions, as a reward model learns from people's choices: half of them right, half with
a mistake, for WARM_START_PROBLEMS of the 16,200 problems. Its body begins as the sample policy's, which knows the sums.
The score is the logit of "right". It never sees the problems that the jobs of this folder are evaluated on.
The same machine gives the same bytes (four minutes of one core).
"""

import sys
from pathlib import Path

import torch
from rlhf_samples.addition.make_policy import (
    BATCH,
    FIRST_DIGIT,
    SEED,
    WARM_START_PROBLEMS,
    Problem,
    all_problems,
    make_tokenizer,
)
from torch import Tensor
from transformers import LlamaForSequenceClassification, PreTrainedTokenizerFast

STEPS = 2500
LEARNING_RATE = 1e-3
LONGEST = 4
"""Tokens of the longest completion that a job of this folder samples, its end included."""
UNFINISHED = 0.1
"""Share of the wrong completions that go on without an end."""


#: Token ids of a problem's prompt, and of its right completion with its end.
Solved = tuple[list[int], list[int]]


def solved(tokenizer: PreTrainedTokenizerFast, problems: list[Problem]) -> list[Solved]:
    prompts = tokenizer([problem.prompt for problem in problems])["input_ids"]
    answers = tokenizer([problem.completion for problem in problems])["input_ids"]
    return [(prompt, [*answer, tokenizer.eos_token_id]) for prompt, answer in zip(prompts, answers, strict=True)]


def labelled(problems: list[Solved], right: Tensor, pad_id: int, draw: torch.Generator) -> Tensor:
    """Prompt and completion of each problem as token ids, [problems, longest] int64, right-padded.

    `right` [problems] bool: whether the completion is to be the right one; else it has a mistake.
    """
    rows = [
        [*prompt, *(completion if is_right else _with_mistake(completion, draw))]
        for (prompt, completion), is_right in zip(problems, right.tolist(), strict=True)
    ]
    width = max(map(len, rows))
    return torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])


def _with_mistake(completion: list[int], draw: torch.Generator) -> list[int]:
    """Another completion: a wrong digit, one too many or too few, or no end."""
    if float(torch.rand((), generator=draw)) < UNFINISHED:
        body = completion[:-1]
        return body + [_digit(draw) for _ in range(LONGEST - len(body))]
    place = _integer(len(completion) - 1, draw)
    kind = _integer(8, draw)
    if kind == 0 and len(completion) < LONGEST:
        return [*completion[:place], _digit(draw), *completion[place:]]
    if kind == 1 and len(completion) > 2:
        return completion[:place] + completion[place + 1 :]
    wrong = _digit(draw)
    while wrong == completion[place]:
        wrong = _digit(draw)
    return [*completion[:place], wrong, *completion[place + 1 :]]


def _digit(draw: torch.Generator) -> int:
    return FIRST_DIGIT + _integer(10, draw)


def _integer(below: int, draw: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=draw))


def train(model: LlamaForSequenceClassification, problems: list[Solved]) -> None:
    """Logistic regression on the score, the rate rising over 50 steps and then falling to 0 along a line."""
    draw = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1, betas=(0.9, 0.98))
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / 50, 1 - step / STEPS)
        chosen = torch.randint(len(problems), (BATCH,), generator=draw).tolist()
        right = torch.rand(BATCH, generator=draw) < 0.5
        tokens = labelled([problems[i] for i in chosen], right, model.config.pad_token_id, draw)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores(model, tokens), right.float())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def scores(model: LlamaForSequenceClassification, tokens: Tensor) -> Tensor:
    """Score at each row's last token that is no padding, [rows]."""
    found: Tensor = model(input_ids=tokens, attention_mask=(tokens != model.config.pad_token_id).long()).logits
    return found.squeeze(-1)


@torch.no_grad()
def accuracy(model: LlamaForSequenceClassification, problems: list[Solved]) -> float:
    """Share of completions, half of them right, that the sign of the score tells right."""
    draw = torch.Generator().manual_seed(SEED + 1)
    right = torch.arange(len(problems)) % 2 == 0
    tokens = labelled(problems, right, model.config.pad_token_id, draw)
    found = torch.cat([scores(model, part) for part in torch.split(tokens, 1024)]) > 0
    return float((found == right).float().mean())


def main(folder: Path) -> None:
    torch.manual_seed(SEED)
    # How a sum is cut among threads changes its rounding.
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    problems = solved(tokenizer, all_problems())
    # The head is new, and learned here: the policy has none.
    model = LlamaForSequenceClassification.from_pretrained(folder / "policy", num_labels=1)
    train(model, problems[:WARM_START_PROBLEMS])
    for name, part in (("seen", problems[:2000]), ("unseen", problems[WARM_START_PROBLEMS:][:4000])):
        print(f"accuracy on {name} problems: {accuracy(model, part):.3f}")
    model.save_pretrained(folder / "reward_model")
    tokenizer.save_pretrained(folder / "reward_model")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
