"""One whole GRPO step (generate, score, train) beside TRL's, on CPU:

    PYTHONPATH=crds:runtime python runtime/benchmarks/grpo_step.py

A Llama of 0.9 M parameters, 8 prompts of 16 tokens x 8 samples x 32 new tokens, fp32, 2 threads.
"""

import argparse
import statistics

import torch
from beside_trl import Ours, Setup, Theirs, same_loss, say, scratch
from transformers import LlamaConfig

LLAMA = LlamaConfig(
    vocab_size=1024,
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=4,
    num_attention_heads=4,
    max_position_embeddings=128,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--turns", type=int, default=12)
    arguments.add_argument("--threads", type=int, default=2)
    found = arguments.parse_args()
    torch.set_num_threads(found.threads)
    setup = Setup(config=LLAMA, prompts=8, group=8, prompt_tokens=16, new_tokens=32, micro_batch=64, turns=found.turns)
    with scratch(setup) as (folder, tokenizer):
        ours, theirs = Ours(setup, folder), Theirs(setup, folder, tokenizer, setup.turns + 2)
        say("TRL's settings", **theirs.settings)
        say("parameters", count=sum(p.numel() for p in ours.actor.module.parameters()))
        same_loss(ours, theirs)
        theirs.run(lambda: ours.step() and None)
    # The first two turns warm up.
    for side in (ours, theirs):
        side.seconds.whole = side.seconds.whole[2:]
        side.seconds.parts = {name: values[2:] for name, values in side.seconds.parts.items()}
    print("ours  min/median/max ", ours.seconds.line())
    print("TRL   min/median/max ", theirs.seconds.line())
    medians = [statistics.median(side.seconds.whole) for side in (ours, theirs)]
    say("ours / TRL", median=round(medians[0] / medians[1], 3), turns=setup.turns)


if __name__ == "__main__":
    main()
