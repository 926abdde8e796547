"""Make the sample teacher: the sample policy after more lessons, right nearly every time.

    python -m rlhf_samples.addition.make_teacher [FOLDER]

writes `teacher/`, model and tokenizer, as plain transformers saves them; the weights are stored in bfloat16, which
halves them. It begins as the sample policy and unlearns its carelessness: supervised steps on right answers alone, for
the WARM_START_PROBLEMS problems that the policy has seen too. It never sees the others, of which jobs of this folder
hold some out. The same machine gives the same bytes (four minutes of one core).
"""

import sys
from pathlib import Path

import torch
from rlhf_samples.addition.make_policy import (
    SEED,
    WARM_START_PROBLEMS,
    all_problems,
    encode,
    lessons_for,
    make_tokenizer,
    sampled_accuracy,
)
from transformers import LlamaForCausalLM

STEPS = 1000


def main(folder: Path) -> None:
    torch.manual_seed(SEED)
    # How a sum is cut among threads changes its rounding.
    torch.set_num_threads(1)
    problems = all_problems()
    seen, unseen = problems[:WARM_START_PROBLEMS], problems[WARM_START_PROBLEMS:]
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM.from_pretrained(folder / "policy")
    lessons_for(STEPS, model, *encode(tokenizer, seen))
    model.to(torch.bfloat16).save_pretrained(folder / "teacher")
    tokenizer.save_pretrained(folder / "teacher")
    stored = LlamaForCausalLM.from_pretrained(folder / "teacher", dtype=torch.float32)
    print(f"accuracy sampled at temperature 1: seen {sampled_accuracy(stored, *encode(tokenizer, seen)):.3f}")
    print(f"accuracy sampled at temperature 1: unseen {sampled_accuracy(stored, *encode(tokenizer, unseen)):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
