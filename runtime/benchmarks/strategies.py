"""Memory, time and equality of every trainer strategy: ``python runtime/benchmarks/strategies.py --out FILE``.

Each case runs in fresh processes, one a GPU (two processes on a machine without one), with a random Qwen2-shaped model
of 0.5 B parameters (``--size tiny`` is for machines without a GPU, and their default). For each case and rank:

rest    GiB allocated after a step: weights, optimiser state, and what a strategy keeps
peak    GiB allocated at most within the second and third step
host    GiB resident in the process's own memory at the end
step    seconds of the third optimiser step, bf16 forward over fp32 masters

and before that, in fp32 and with plain SGD: how far loss, gradient norm and every gradient of one step are from those
of one process with all samples. Gradients are compared by the weights that one step of rate 1 leaves. It needs torch,
transformers, peft and pydantic, no Ray and no network.
"""

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT / "crds")]

GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A strategy as `trainers` of a job would name it; `kind` Single is one process with all samples."""

    kind: str
    offload: bool = False
    tensor: int = 1
    checkpoint: bool = False

    @property
    def name(self) -> str:
        parts = [self.kind, "offload" * self.offload, f"TP{self.tensor}" * (self.tensor > 1)]
        return " + ".join(part for part in [*parts, "checkpointing" * self.checkpoint] if part)


@dataclass(frozen=True)
class Work:
    """Samples of one step over all ranks, tokens of each, and rows of a micro-batch."""

    samples: int
    tokens: int
    rows: int


CASES = [
    Case("Single"),
    Case("DDP"),
    Case("ZeRO2"),
    Case("ZeRO3"),
    Case("ZeRO2", offload=True),
    Case("ZeRO3", offload=True),
    Case("DDP", checkpoint=True),
    Case("ZeRO3", checkpoint=True),
    Case("ZeRO3", offload=True, checkpoint=True),
    Case("DDP", tensor=2),
    Case("ZeRO3", tensor=2),
]
SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
    },
}
SPEED = {"0.5B": Work(samples=64, tokens=512, rows=8), "tiny": Work(samples=8, tokens=32, rows=2)}
EQUALITY = {"0.5B": Work(samples=8, tokens=64, rows=2), "tiny": Work(samples=8, tokens=16, rows=2)}


def model(size: str) -> nn.Module:
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[size], max_position_embeddings=4096, tie_word_embeddings=True)
    made: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return made


def strategy_of(case: Case) -> Any:
    from rlhf_runtime.training.sharded import Sharded
    from rlhf_runtime.training.strategy import DataParallel, SingleProcess

    if case.kind == "Single":
        return SingleProcess(checkpoint=case.checkpoint)
    if case.kind == "DDP" and case.tensor == 1:
        return DataParallel(checkpoint=case.checkpoint)
    return Sharded(case.kind, offload=case.offload, tensor=case.tensor, checkpoint=case.checkpoint)  # type: ignore[arg-type]


def micro_batches(strategy: Any, size: str, work: Work) -> list[Tensor]:
    """This rank's rows of the step, [rows, tokens] each."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, SHAPES[size]["vocab_size"], (work.samples, work.tokens), generator=random)
    return list(ids[strategy.data_rank :: strategy.data_ranks].to(strategy.device).split(work.rows))


def backward(strategy: Any, call: nn.Module, batches: list[Tensor], work: Work) -> float:
    """The step's gradients, of the mean negative log-likelihood of all tokens; that mean."""
    total = torch.zeros((), dtype=torch.float64, device=strategy.device)
    for index, ids in enumerate(batches):
        with strategy.accumulate(call, last=index == len(batches) - 1):
            logits = call(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[:, :-1]
            losses = nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
            share = losses / (work.samples * (work.tokens - 1))
            (share * strategy.loss_scale).backward()
            total += share.detach().double()
    return float(strategy.sum_over_ranks(total))


def equality(case: Case, size: str, folder: Path) -> dict[str, float]:
    """Against what the Single case left in `folder`."""
    strategy, work = strategy_of(case), EQUALITY[size]
    call = strategy.prepare(model(size))
    optimizer = torch.optim.SGD(call.parameters(), lr=1.0)
    loss = backward(strategy, call, micro_batches(strategy, size, work), work)
    norm = strategy.clip_gradients(call, 1.0)
    optimizer.step()
    weights = {name: tensor.cpu() for name, tensor in strategy.full_weights(call).items()}
    if case.kind == "Single":
        torch.save({"loss": loss, "norm": norm, "weights": weights}, folder / "single.pt")
    if strategy.rank != 0:
        return {}
    single = torch.load(folder / "single.pt", mmap=True)
    assert set(weights) == set(single["weights"])
    worst = max(float((weights[name] - single["weights"][name]).abs().max()) for name in weights)
    return {
        "loss": loss,
        "gradient_norm": norm,
        "loss_off": abs(loss - single["loss"]),
        "gradient_norm_off": abs(norm - single["norm"]) / single["norm"],
        "largest_gradient_off": worst,
    }


def speed(case: Case, size: str) -> dict[str, Any]:
    strategy, work = strategy_of(case), SPEED[size]
    call = strategy.prepare(model(size), torch.bfloat16)
    optimizer = torch.optim.AdamW(call.parameters(), lr=1e-6)
    batches = micro_batches(strategy, size, work)
    seconds = []
    for step in range(3):
        if step == 1:
            reset_peak()
        began = time.monotonic()
        optimizer.zero_grad()
        backward(strategy, call, batches, work)
        strategy.clip_gradients(call, 1.0)
        optimizer.step()
        synchronize()
        seconds.append(time.monotonic() - began)
    optimizer.zero_grad()
    own = {"rest": allocated(), "peak": peak(), "host": resident()}
    ranks: list[Any] = [None] * strategy.ranks
    if strategy.ranks > 1:
        dist.all_gather_object(ranks, own)
    else:
        ranks = [own]
    return {
        "step": seconds[-1],
        "steps": seconds,
        "tokens_per_second": work.samples * work.tokens / seconds[-1],
        "ranks": ranks,
    }


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def allocated() -> float | None:
    return torch.cuda.memory_allocated() / GIB if torch.cuda.is_available() else None


def peak() -> float | None:
    return torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None


def resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextmanager
def group(rank: int, ranks: int, rendezvous: Path) -> Iterator[None]:
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    if ranks == 1:
        yield
        return
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank) if gpu else None,
    )
    yield
    dist.destroy_process_group()


def measure(rank: int, ranks: int, case: Case, size: str, folder: Path) -> None:
    with group(rank, ranks, folder / f"rendezvous-{CASES.index(case)}"):
        same = equality(case, size, folder)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        fast = speed(case, size)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps({"equality": same, "speed": fast}))


def run(case: Case, ranks: int, size: str, folder: Path) -> dict[str, Any]:
    try:
        mp.spawn(measure, (ranks, case, size, folder), nprocs=ranks)
    except Exception as error:
        # The other cases still say something; the failed one says why.
        return {"error": str(error)[-2000:]}
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def main() -> None:
    gpus = torch.cuda.device_count()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON, written anew after every case")
    parser.add_argument("--ranks", type=int, default=gpus or 2)
    parser.add_argument("--size", choices=sorted(SHAPES), default="0.5B" if gpus else "tiny")
    parser.add_argument("--cases", default="", help="only those whose names contain this; Single always runs")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    machine = {"torch": torch.__version__, "ranks": given.ranks, "size": given.size}
    machine["device"] = torch.cuda.get_device_name(0) if gpus else "cpu"
    report: dict[str, Any] = {"machine": machine, "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            ranks = 1 if case.kind == "Single" else given.ranks
            if ranks % case.tensor or (case.kind != "Single" and (ranks < 2 or given.cases not in case.name)):
                continue
            found = {"name": case.name, **asdict(case), **run(case, ranks, given.size, Path(folder))}
            report["cases"].append(found)
            given.out.write_text(json.dumps(report, indent=1))
            print(line(found), flush=True)


def line(found: dict[str, Any]) -> str:
    """One case as people read it."""
    if "error" in found:
        return f"{found['name']:34} failed: {found['error']}"
    same, fast = found["equality"], found["speed"]
    memory = "  ".join(
        f"[{_gib(rank['rest'])} rest, {_gib(rank['peak'])} peak, {rank['host']:.2f} host]" for rank in fast["ranks"]
    )
    off = f"off: loss {same['loss_off']:.1e}, norm {same['gradient_norm_off']:.1e}"
    return (
        f"{found['name']:34} {fast['step']:.3f} s  {fast['tokens_per_second']:.0f} tok/s  GiB by rank {memory}  "
        f"{off}, gradient {same['largest_gradient_off']:.1e}"
    )


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
