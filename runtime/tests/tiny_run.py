"""A policy of a few thousand parameters, its tokenizer, and the RunConfig of a job that a laptop core can run."""

import os
from pathlib import Path
from typing import Any

from rlhf_api.run import Failure, LiveSettings, RunConfig
from rlhf_api.status import EpisodeReport
from rlhf_runtime.channel.messages import CoordinatorState

EPISODES, PROMPTS, SAMPLES = 4, 4, 4


def python_path() -> str:
    """PYTHONPATH by which child processes find the modules beside this one."""
    return os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def write_policy(folder: Path) -> None:
    """A random two-layer Llama with tied embeddings that knows digits, plus, equals and an end token."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *"0123456789+="])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def write_reward_model(folder: Path, policy: Path) -> None:
    """A random reward model that reads the policy's tokens."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(policy, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def write_prompts(path: Path, count: int, start: int = 0) -> None:
    path.write_text(
        "".join(f'{{"prompt": "{i % 10}+{i // 10}=", "answer": "{i}"}}\n' for i in range(start, start + count))
    )


def run_config(folder: Path, policy: Path, **changes: Any) -> RunConfig:
    """A run in `folder`; `changes` are top-level fields as JSON has them, and "spec.path" keys below them."""
    prompts, held_out = folder / "prompts.jsonl", folder / "held-out.jsonl"
    if not prompts.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_prompts(prompts, 30)
        write_prompts(held_out, 6, start=50)
    values: dict[str, Any] = {
        "name": "tiny",
        "namespace": "default",
        "uid": "00000000-0000-0000-0000-000000000000",
        "generation": 1,
        "attempt": 1,
        "incarnation": 1,
        "runDirectory": str(folder / "run"),
        "mode": "FullyAsync",
        "maxStaleness": 1,
        "stalenessPolicy": "Wait",
        "episodes": EPISODES,
        "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 1e-2}},
        "models": {"actor": {"uri": str(policy)}},
        "rewards": [{"function": "tiny_rewards:ones"}],
        "prompts": {"uri": str(prompts), "maxPromptTokens": 8},
        "rollout": {"promptsPerEpisode": PROMPTS, "samplesPerPrompt": SAMPLES, "maxNewTokens": 4},
        "makers": {},
        "trainers": {"microBatchSize": 8},
        "maxBatchSamples": 2 * SAMPLES,
        "bufferCapacity": 2 * PROMPTS * SAMPLES,
        "weightSyncDeadlineSeconds": 30,
        "checkpointEveryEpisodes": 2,
        "checkpointKeep": 2,
        "preRunningDeadlineSeconds": 280,
        "progressDeadlineSeconds": 280,
    }
    return RunConfig.model_validate({**values, **changes})


class RecordingChannel:
    """A supervisor that keeps what it is told; `on_episode` may act, for instance ask to stop."""

    def __init__(self, config: RunConfig) -> None:
        self.settings = LiveSettings(generation=1, max_staleness=config.max_staleness, episodes=config.episodes)
        self.states: list[CoordinatorState] = []
        self.episodes: list[EpisodeReport] = []
        self.last_word: list[Failure | None] = []
        self.stop = False

    def stop_requested(self) -> bool:
        return self.stop

    async def state(self, state: CoordinatorState) -> None:
        self.states.append(state)

    async def episode(self, report: EpisodeReport) -> None:
        assert self.states[-1].running, "the journal begins with a running state"
        self.episodes.append(report)

    async def finished(self, failure: Failure | None) -> None:
        self.last_word.append(failure)
