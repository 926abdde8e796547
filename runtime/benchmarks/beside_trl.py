"""GRPO on our engine and learner, and on TRL's GRPOTrainer, in one process and in turns: the same model, prompts,
reward, batch and learning rate, no end of sequence, so that all completions have one length.

The two benchmarks beside this file choose the sizes. TRL comes first in a turn and ours second, so both meet the
same machine.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.experience.batch import Batch, collate
from rlhf_runtime.experience.rollout import Experience, Group
from rlhf_runtime.maths.advantages import group_advantages
from rlhf_runtime.maths.policy_loss import Clip
from rlhf_runtime.models.policy_weights import load_weights, model_weights
from rlhf_runtime.training.learner import Learner, StepFigures
from rlhf_runtime.training.learning_rate import Schedule
from rlhf_runtime.training.objective import Mean, PolicyObjective
from rlhf_runtime.training.optimized import AdamWParameters, OptimizedModel
from rlhf_runtime.training.strategy import SingleProcess
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Sizes of one comparison. `dtype` is what the makers compute in, and TRL throughout."""

    config: Any
    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int
    micro_batch: int
    turns: int
    dtype: str = "float32"
    learning_rate: float = 1e-5

    @property
    def samples(self) -> int:
        return self.prompts * self.group


@dataclass
class Seconds:
    """Of each turn: the whole step, and the parts that one could time from outside."""

    whole: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)

    def line(self) -> str:
        found = {"step": self.whole, **self.parts}
        return "  ".join(f"{name} {spread(values)}" for name, values in found.items())


def spread(values: list[float]) -> str:
    return f"{min(values):.3f}/{statistics.median(values):.3f}/{max(values):.3f} s"


def now() -> float:
    """Host clock, once all that was asked of the GPU is done."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def say(what: str, **found: Any) -> None:
    print("RESULT", what, json.dumps(found), flush=True)


def write_model(setup: Setup, folder: Path) -> PreTrainedTokenizerFast:
    """A random model, and a tokenizer of words w0, w1 ... whose end of sequence the model cannot draw."""
    torch.manual_seed(0)
    vocabulary = setup.config.vocab_size
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(setup.config)
    model.to(getattr(torch, setup.dtype)).save_pretrained(folder)
    words = {f"w{i}": i for i in range(vocabulary - 1)} | {"<pad>": vocabulary - 1, "<eos>": vocabulary}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Not AutoTokenizer: it makes a folder's tokenizer what its model family usually has.
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="w0", padding_side="left"
    )
    fast.save_pretrained(folder)
    return fast


def prompt_ids(setup: Setup) -> np.ndarray[Any, Any]:
    """[prompts, prompt_tokens] int32."""
    random = np.random.default_rng(0)
    return random.integers(0, setup.config.vocab_size - 1, (setup.prompts, setup.prompt_tokens)).astype(np.int32)


def reward_of(ids: list[int]) -> float:
    return float(sum(ids[:32]) % 7) / 7


class Ours:
    """A maker's engine and a trainer's learner, and the weights between them."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self.engine_model = load(folder, setup.dtype)
        self.engine = TransformersEngine(self.engine_model, end_ids=(setup.config.vocab_size,), max_rows=setup.samples)
        strategy = SingleProcess()
        self.actor = OptimizedModel(
            load(folder, "float32"),
            AdamWParameters(schedule=Schedule(peak=setup.learning_rate)),
            strategy,
            getattr(torch, setup.dtype),
        )
        mean = Mean(aggregation="Token", max_tokens=setup.new_tokens)
        objective = PolicyObjective(clip=Clip(low=0.2, high=0.2), mean=mean, temperature=1.0)
        self.learner = Learner(self.actor, objective, strategy=strategy)
        self.requests = [
            Request(prompt_index=i, prompt_ids=ids, samples=setup.group) for i, ids in enumerate(prompt_ids(setup))
        ]
        self.seconds = Seconds()
        self.turn = 0

    def generate(self) -> list[Group]:
        self.turn += 1
        return self.engine.generate(
            self.requests, Sampling(temperature=1.0, max_new_tokens=self.setup.new_tokens, seed=self.turn)
        )

    def experiences(self, groups: list[Group]) -> list[Experience]:
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        rewards = [reward_of(rollout.completion_ids.tolist()) for rollout in rollouts]
        advantages = group_advantages(torch.tensor(rewards), self.setup.group, "Std").tolist()
        return [
            Experience(
                rollout=rollout,
                reward=reward,
                advantages=np.full(len(rollout.completion_ids), advantage, np.float32),
            )
            for rollout, reward, advantage in zip(rollouts, rewards, advantages, strict=True)
        ]

    def batches(self, experiences: list[Experience]) -> list[Batch]:
        size = self.setup.micro_batch
        return [collate(experiences[i : i + size], 0) for i in range(0, len(experiences), size)]

    def step(self) -> StepFigures:
        """Generate, score, train, and give the engine the new weights."""
        marks = [now()]
        groups = self.generate()
        marks.append(now())
        batches = self.batches(self.experiences(groups))
        found = self.learner.step(batches)
        marks.append(now())
        self.publish()
        marks.append(now())
        self.seconds.whole.append(marks[-1] - marks[0])
        for name, start, end in zip(("generate", "train", "publish"), marks, marks[1:], strict=False):
            self.seconds.parts.setdefault(name, []).append(end - start)
        return found

    def publish(self) -> None:
        dtype = getattr(torch, self.setup.dtype)
        weights = {name: weight.to(dtype) for name, weight in model_weights(self.actor.module).items()}
        self.engine.load(weights, self.turn)


class Theirs:
    """TRL's GRPOTrainer. Settings are the fastest of those that leave the arithmetic alone."""

    def __init__(self, setup: Setup, folder: Path, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
        self.setup = setup
        self.seconds = Seconds()
        self.settings: dict[str, Any] = {
            "per_device_train_batch_size": setup.micro_batch,
            "gradient_accumulation_steps": setup.samples // setup.micro_batch,
            "num_generations": setup.group,
            "max_completion_length": setup.new_tokens,
            "temperature": 1.0,
            "beta": 0.0,
            "loss_type": "dapo",
            "learning_rate": setup.learning_rate,
            "lr_scheduler_type": "constant",
            "optim": "adamw_torch_fused",
            "gradient_checkpointing": False,
            "bf16": setup.dtype == "bfloat16",
            "use_cpu": DEVICE.type == "cpu",
            "max_steps": steps,
            "shuffle_dataset": False,
            "logging_strategy": "no",
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "model_init_kwargs": {"dtype": setup.dtype, "attn_implementation": "sdpa"},
        }
        texts = [" ".join(f"w{i}" for i in ids) for ids in prompt_ids(setup)]
        self.trainer = GRPOTrainer(
            model=str(folder),
            reward_funcs=lambda completion_ids, **_: [reward_of(ids) for ids in completion_ids],
            args=GRPOConfig(output_dir=str(folder / "trl"), **self.settings),
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
            processing_class=tokenizer,
        )
        self._generating = 0.0
        single_turn = self.trainer._generate_single_turn

        def timed(*arguments: Any, **named: Any) -> Any:
            began = now()
            made = single_turn(*arguments, **named)
            self._generating += now() - began
            return made

        self.trainer._generate_single_turn = timed

    def run(self, after_step: Callable[[], None]) -> None:
        """All steps; `after_step` is called between them and not counted."""

        def begin() -> None:
            self._generating, self._began = 0.0, now()

        def end() -> None:
            whole = now() - self._began
            self.seconds.whole.append(whole)
            self.seconds.parts.setdefault("generate", []).append(self._generating)
            self.seconds.parts.setdefault("rest", []).append(whole - self._generating)
            after_step()
            begin()

        class Turns(TrainerCallback):
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                begin()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                end()

        self.trainer.add_callback(Turns())
        self.trainer.train()


def load(folder: Path, dtype: str) -> nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return model.to(DEVICE)


def same_loss(ours: Ours, theirs: Theirs) -> None:
    """One recorded batch through both loss functions, off policy so that ratios are not 1; prints both results.

    The weights afterwards are those before.
    """
    experiences = ours.experiences(ours.generate())
    batch = collate(experiences, 0).to(DEVICE)
    recorded = {name: weight.clone() for name, weight in model_weights(ours.actor.module).items()}
    load_weights(theirs.trainer.model, {name: w.to(getattr(torch, ours.setup.dtype)) for name, w in recorded.items()})
    noise = torch.randn(batch.sampled_logprobs.shape, generator=torch.Generator().manual_seed(0)) * 0.1
    batch.sampled_logprobs.add_(noise.to(DEVICE)).clamp_(max=0)
    found = ours.learner.step([batch])
    load_weights(ours.actor.module, recorded)
    trainer, columns = theirs.trainer, batch.mask.shape[1]
    # It counts the tokens of a whole generation; here they are those of one backward pass.
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    trainer.model.train()
    trainer.model.zero_grad()
    inputs = {
        "prompt_ids": batch.input_ids[:, :-columns],
        "prompt_mask": batch.attention_mask[:, :-columns],
        "completion_ids": batch.completion_ids,
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages[:, 0],
        "old_per_token_logps": batch.sampled_logprobs,
        "num_items_in_batch": batch.mask.sum(),
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    norm = torch.stack([p.grad.float().norm() for p in trainer.model.parameters() if p.grad is not None]).norm()
    trainer.model.zero_grad()
    say(
        "recorded batch",
        tokens=int(batch.mask.sum()),
        ours={"loss": found.loss, "gradient_norm": found.gradient_norm},
        trl={"loss": float(loss), "gradient_norm": float(norm)},
    )


@contextmanager
def scratch(setup: Setup) -> Iterator[tuple[Path, PreTrainedTokenizerFast]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        yield path, write_model(setup, path)
