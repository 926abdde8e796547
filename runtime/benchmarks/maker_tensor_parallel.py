"""A maker over several GPUs beside one: ``python runtime/benchmarks/maker_tensor_parallel.py --out FILE``

A random Qwen2-shaped model of 0.5 B parameters (``--size tiny`` is for machines without a GPU, and their default) is
written to a temporary folder, and sampled from by an engine on one GPU and by one over ``--ranks`` GPUs (processes on
a machine without any). For each dtype and number of ranks:

tokens_per_second   of the third batch of the same prompts; on a GPU, decode steps have been recorded before
load_seconds        putting a whole new version, from the host's memory, into use on all ranks
memory              GiB in use on each rank's GPU after that, all that is on it; without GPUs, resident in each process
equal_tokens        share of the samples that are the same, token by token, as those of one GPU
logprob_off         what a forward says of 16 of these against what they were sampled with, nats: largest, and mean

It needs torch, transformers, peft and pydantic, no Ray and no network.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
PATHS = [str(ROOT / "runtime"), str(ROOT / "crds")]
sys.path[:0] = PATHS
from strategies import SHAPES as SMALL  # noqa: E402  beside this file

GIB = 2**30


@dataclass(frozen=True)
class Work:
    """Samples of a batch, prompts times samples of each; tokens of a prompt, and of a completion at most."""

    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int


SHAPES = SMALL | {
    "7B": {
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18_944,
    },
}
WORK = {
    "0.5B": Work(prompts=32, samples=8, prompt_tokens=128, new_tokens=256),
    "7B": Work(prompts=32, samples=8, prompt_tokens=128, new_tokens=256),
    "tiny": Work(prompts=4, samples=4, prompt_tokens=8, new_tokens=16),
}


def write_model(folder: Path, size: str, dtype: str) -> None:
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    torch.manual_seed(0)
    tied = size != "7B"
    config = Qwen2Config(
        **SHAPES[size], max_position_embeddings=4096, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=0
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    # Nothing is read or written as text.
    vocabulary = {f"<{number}>": number for number in range(16)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<1>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<0>").save_pretrained(folder)


def run_config(folder: Path, dtype: str, ranks: int, work: Work) -> Any:
    from rlhf_api.run import RunConfig

    return RunConfig.model_validate(
        {
            "name": "benchmark",
            "namespace": "default",
            "uid": "00000000-0000-0000-0000-000000000000",
            "generation": 1,
            "attempt": 1,
            "incarnation": 1,
            "runDirectory": str(folder),
            "mode": "FullyAsync",
            "maxStaleness": 1,
            "stalenessPolicy": "Wait",
            "episodes": 1,
            "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 1e-6}},
            "models": {"actor": {"uri": str(folder), "dtype": dtype}},
            "rewards": [{"function": "not:called"}],
            "prompts": {"uri": "/not/read.jsonl"},
            "rollout": {
                "promptsPerEpisode": work.prompts,
                "samplesPerPrompt": work.samples,
                "maxNewTokens": work.new_tokens,
            },
            "makers": {"tensorParallel": ranks},
            "trainers": {},
            "maxBatchSamples": work.prompts * work.samples,
            "bufferCapacity": work.prompts * work.samples,
            "weightSyncDeadlineSeconds": 300,
            "checkpointEveryEpisodes": 1,
            "checkpointKeep": 1,
            "preRunningDeadlineSeconds": 600,
            "progressDeadlineSeconds": 600,
        }
    )


def engine_of(config: Any) -> tuple[Any, list[int]]:
    """The engine as a maker loads it, and the pids of its processes."""
    from rlhf_runtime.engines.loading import load_engine
    from rlhf_runtime.engines.tensor_parallel.loading import start_engine
    from rlhf_runtime.engines.transformers_engine import TransformersEngine
    from rlhf_runtime.models.policy import load_policy
    from rlhf_runtime.models.tokenizer import load_tokenizer

    if config.makers.tensor_parallel > 1:
        divided = start_engine(config)
        return divided, [os.getpid(), *divided._followers._pids]
    actor, folder = config.models.actor, model_folder_of(config)
    model = load_policy(actor, folder.path, actor.dtype)
    tokenizer = load_tokenizer(actor.uri, folder)
    return load_engine(config, model, tokenizer, folder.path, partial(TransformersEngine, model)), [os.getpid()]


def model_folder_of(config: Any) -> Any:
    from rlhf_runtime.models.model_folder import model_folder

    return model_folder(config.models.actor.uri, "models.actor")


def requests_of(size: str, work: Work) -> list[Any]:
    from rlhf_runtime.engines.engine import Request

    random = np.random.default_rng(1)
    drawn = random.integers(2, SHAPES[size]["vocab_size"], (work.prompts, work.prompt_tokens), np.int32)
    return [Request(prompt_index=index, prompt_ids=ids, samples=work.samples) for index, ids in enumerate(drawn)]


def measure(config: Any, size: str, work: Work, of_one: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """The figures of one engine, and its samples; `of_one`: those to compare with, none for one GPU's own."""
    from rlhf_runtime.engines.loading import sampling_of
    from safetensors.torch import load_file

    began = time.monotonic()
    engine, pids = engine_of(config)
    found: dict[str, Any] = {"start_seconds": time.monotonic() - began}
    print(f"started in {found['start_seconds']:.1f} s", flush=True)
    sampling, asked = sampling_of(config), requests_of(size, work)
    try:
        # A step is recorded when it is taken for the second time.
        for batch in range(3):
            began = time.monotonic()
            made = [rollout for group in engine.generate(asked, sampling) for rollout in group.rollouts]
            found[f"batch_{batch}_seconds"] = time.monotonic() - began
            print(f"batch {batch} in {found[f'batch_{batch}_seconds']:.1f} s", flush=True)
        found["tokens"] = sum(len(rollout.completion_ids) for rollout in made)
        found["tokens_per_second"] = found["tokens"] / found["batch_2_seconds"]
        files = sorted(model_folder_of(config).path.glob("*.safetensors"))
        state = {name: tensor for path in files for name, tensor in load_file(str(path)).items()}
        began = time.monotonic()
        engine.load(state, 1)
        synchronize()
        found["load_seconds"] = time.monotonic() - began
        found["memory"] = memory(pids)
        judged = (of_one or made)[:16]
        off = [
            abs(said - rollout.logprobs)
            for said, rollout in zip(engine.logprobs(judged, sampling), judged, strict=True)
        ]
        found["logprob_off"], found["logprob_off_mean"] = (float(f(np.concatenate(off))) for f in (np.max, np.mean))
        same = [np.array_equal(a.completion_ids, b.completion_ids) for a, b in zip(made, of_one or made, strict=True)]
        found["equal_tokens"] = float(np.mean(same))
    finally:
        engine.close()
    return found, made


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def memory(pids: list[int]) -> list[float]:
    if torch.cuda.is_available():
        free_and_total = [torch.cuda.mem_get_info(device) for device in range(len(pids))]
        return [(total - free) / GIB for free, total in free_and_total]
    return [_resident(pid) for pid in pids]


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmRSS:"))


def main() -> None:
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON, written anew after every engine")
    parser.add_argument("--ranks", type=int, default=gpus if gpus > 1 else 2)
    parser.add_argument("--size", choices=sorted(SHAPES), default="0.5B" if gpus else "tiny")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    given = parser.parse_args()
    # Followers import what this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    machine = {
        "torch": torch.__version__,
        "size": given.size,
        "device": torch.cuda.get_device_name(0) if gpus else "cpu",
    }
    report: dict[str, Any] = {"machine": machine, "work": asdict(WORK[given.size]), "engines": []}
    for dtype in given.dtypes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), given.size, dtype)
            of_one: list[Any] = []
            for ranks in (1, given.ranks):
                config = run_config(Path(folder), dtype, ranks, WORK[given.size])
                gc.collect()
                if gpus:
                    torch.cuda.empty_cache()
                figures, made = measure(config, given.size, WORK[given.size], of_one)
                of_one = of_one or made
                found = {"dtype": dtype, "ranks": ranks, **figures}
                report["engines"].append(found)
                given.out.write_text(json.dumps(report, indent=1))
                print(line(found), flush=True)


def line(found: dict[str, Any]) -> str:
    """One engine as people read it."""
    used = ", ".join(f"{size:.2f}" for size in found["memory"])
    return (
        f"{found['dtype']:8} over {found['ranks']}: {found['tokens_per_second']:.0f} tok/s, load "
        f"{found['load_seconds']:.2f} s, GiB by rank [{used}], same samples {found['equal_tokens']:.1%}, log-probs off "
        f"{found['logprob_off']:.1e} (mean {found['logprob_off_mean']:.1e})"
    )


if __name__ == "__main__":
    main()
