"""`rlhfjob run` for real: a tiny policy, real Ray, real signals; and nothing of it is left when it ends."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

#: Ray's start takes two seconds on an idle machine and a minute on one that builds other things meanwhile.
pytestmark = pytest.mark.timeout(1200)

VOCABULARY = ["<pad>", "<eos>", *"0123456789+="]

JOB = """
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data:
  local_rewards.py: |
    import os, time
    def ones(prompts, completions, answer, **columns):
        time.sleep(float(os.environ["PAUSE"]))
        return [completion.count("1") / max(len(completion), 1) for completion in completions]
---
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata: {name: tiny}
spec:
  episodes: 6
  # A Ray on a busy machine may not start within its own 30 s.
  backoffLimit: 3
  algorithm: {type: GRPO, optimizer: {learningRate: 1e-2}}
  models: {actor: {uri: /mnt/rlhf/policy}}
  rewards: [{function: "local_rewards:ones"}]
  prompts: {uri: /mnt/rlhf/prompts.jsonl}
  evaluation: {uri: /mnt/rlhf/held-out.jsonl, everyEpisodes: 3}
  rollout: {promptsPerEpisode: 4, samplesPerPrompt: 4, maxNewTokens: 4}
  checkpoint: {everyEpisodes: 100, storage: {persistentVolumeClaim: {claimName: shared}}}
  runtime:
    code: {configMap: {name: code}}
    env: [{name: PAUSE, value: "0.5"}]
"""


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of a few thousand parameters that knows digits, plus, equals and an end token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("policy")
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(VOCABULARY)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@dataclass
class Bench:
    """A storage with policy and prompts, and the commands that were run on it."""

    storage: Path
    job: Path
    scratch: Path
    running: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "rlhf_cli.main", "run", "-f", str(self.job), "--storage", str(self.storage)]
        process = subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # torch's cache of what it compiles is for all runs, and no attempt's; torch itself names a place only once.
            env={
                **os.environ,
                "TMPDIR": str(self.scratch),
                "TORCHINDUCTOR_CACHE_DIR": str(self.storage.parent / "compiled"),
            },
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def processes(self) -> list[str]:
        """Command lines of all processes that a run on this bench has started and that are still alive."""
        found = []
        for entry in Path("/proc").iterdir():
            # Of processes that end meanwhile, and of other users', nothing can be read.
            with contextlib.suppress(OSError):
                ours = entry.name.isdigit() and str(self.scratch).encode() in (entry / "environ").read_bytes()
                if ours and (entry / "cmdline").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return found

    def kept(self) -> set[Path]:
        """What is left of the attempts' temporary folders."""
        return set(self.scratch.iterdir())


@pytest.fixture
def bench(tmp_path: Path, policy: Path) -> Iterator[Bench]:
    storage = tmp_path / "runs"
    storage.mkdir()
    (storage / "policy").symlink_to(policy)
    for name, numbers in (("prompts", range(30)), ("held-out", range(50, 56))):
        rows = [f'{{"prompt": "{n % 10}+{n // 10}=", "answer": "{n}"}}\n' for n in numbers]
        (storage / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="rt-") as scratch:
        made = Bench(storage=storage, job=tmp_path / "job.yaml", scratch=Path(scratch))
        yield made
        for process in made.running:
            if process.poll() is None:
                process.kill()
                process.wait(60)
        until(lambda: not made.processes(), 60, "what a killed command had started ends")


def until(look: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def read_until(process: "subprocess.Popen[str]", pattern: str) -> str:
    """The output up to the first line that matches."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if re.search(pattern, line):
            return seen
    raise AssertionError(f"no line matched {pattern!r} in:\n{seen}")


def finish(process: "subprocess.Popen[str]") -> str:
    return process.communicate(timeout=600)[0]


def episodes_in(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"^episode (\d+)/6 reward", text, re.MULTILINE)]


def paths_in(text: str, labels: Sequence[str]) -> list[Path]:
    return [Path(re.findall(rf"^{label}: +(.+)$", text, re.MULTILINE)[-1]) for label in labels]


def logs_in(text: str) -> set[Path]:
    """The folders of failed attempts, which are kept for people and named."""
    return {Path(path) for path in re.findall(r"^Logs of attempt \d+: (.+)$", text, re.MULTILINE)}


def test_stopped_resumed_finished_and_finished_again(bench: Bench) -> None:
    first = bench.start()
    before = read_until(first, r"^episode 2/6")
    first.send_signal(signal.SIGINT)
    before += finish(first)
    assert first.returncode == 130, before
    assert "Stopping after the episode in training" in before
    resume = f"rlhfjob run -f {bench.job} --storage {bench.storage}"
    assert f"Resume with:\n  {resume}\n" in before
    (checkpoint,) = paths_in(before, ["Checkpoint"])
    assert (checkpoint / "model.safetensors").exists(), "stopping saves a checkpoint that everyEpisodes would not"
    assert bench.processes() == []
    assert bench.kept() == logs_in(before)

    second = bench.start()
    after = finish(second)
    assert second.returncode == 0, after
    trained = episodes_in(before)
    assert trained == list(range(1, len(trained) + 1))
    assert episodes_in(after) == list(range(len(trained) + 1, 7)), "no episode is trained twice or left out"
    assert f"Resuming: {len(trained)} of 6 episodes are in the journal." in after
    assert "\x1b" not in before + after
    assert re.search(r"^  completion ", after, re.MULTILINE)
    model, plot, report = paths_in(after, ["Trained model", "Plot", "Report"])
    assert (model / "config.json").exists()
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "Succeeded: 6 of 6 episodes" in report.read_text(encoding="utf-8")
    assert bench.processes() == []

    started = time.monotonic()
    third = bench.start()
    again = finish(third)
    assert third.returncode == 0, again
    assert "tiny is complete: 6 episodes were trained" in again
    assert paths_in(again, ["Trained model", "Plot", "Report"]) == [model, plot, report]
    assert time.monotonic() - started < 30, "a finished run starts nothing"


def test_a_second_ctrl_c_ends_everything_at_once(bench: Bench) -> None:
    bench.job.write_text(JOB.replace('value: "0.5"', 'value: "50"'), encoding="utf-8")
    process = bench.start()
    read_until(process, r"^attempt \d: running")
    process.send_signal(signal.SIGINT)
    read_until(process, r"^Stopping after the episode")
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    text = finish(process)
    assert process.returncode == 130, text
    assert time.monotonic() - started < 15
    assert "Resume with:" in text
    until(lambda: not bench.processes(), 10, "processes outlived the command")
    assert bench.kept() == logs_in(text)


def test_killed_outright_it_takes_all_it_started_with_it(bench: Bench) -> None:
    process = bench.start()
    read_until(process, r"^attempt \d: running")
    assert bench.processes() != []
    process.kill()
    process.wait(60)
    until(lambda: bench.processes() == [], 30, "processes outlived the command")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(("local_rewards:ones", "local_rewards:absent"), "RewardFunctionInvalid", id="no such function"),
        pytest.param(("/mnt/rlhf/policy", "/mnt/rlhf/absent"), "ModelInvalid", id="no such model"),
        pytest.param(("prompts.jsonl", "absent.jsonl"), "PromptsInvalid", id="no such prompt file"),
    ],
)
def test_what_no_attempt_can_cure_fails_at_once_and_says_why(bench: Bench, change: tuple[str, str], found: str) -> None:
    text = JOB.replace(*change).replace("backoffLimit: 3", "backoffLimit: 5")
    bench.job.write_text(text, encoding="utf-8")
    process = bench.start()
    said = finish(process)
    assert process.returncode == 1, said
    assert f"Failed: {found}: " in said
    assert "attempt 2" not in said.lower()
    assert bench.processes() == []


def test_validate_finds_the_files_in_the_storage_and_writes_nothing_there(bench: Bench) -> None:
    before = sorted(bench.storage.rglob("*"))
    command = [sys.executable, "-m", "rlhf_cli.main", "validate", "-f", str(bench.job), "--files"]
    ended = subprocess.run([*command, "--storage", str(bench.storage)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "tiny: files: models, tokenizer, 30 training prompts, 6 held out, reward functions: found" in ended.stdout
    assert sorted(bench.storage.rglob("*")) == before
    assert "tiny: a trainer needs at least 336.5 KiB: actor fp32 masters 84.1 KiB" in ended.stdout
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=False)
    assert elsewhere.returncode == 1
    assert "ModelInvalid" in elsewhere.stderr


def test_validate_says_where_a_template_has_no_amount(bench: Bench) -> None:
    template = "{spec: {containers: [{name: ray, resources: {limits: {memory: lots}}}]}}"
    text = JOB.replace("spec:\n", f"spec:\n  makers: {{template: {template}}}\n", 1)
    bench.job.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "rlhf_cli.main", "validate", "-f", str(bench.job), "--files"]
    ended = subprocess.run([*command, "--storage", str(bench.storage)], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "spec.makers.template.spec.containers[ray].resources.limits.memory: found 'lots', expected a" in ended.stderr


@pytest.mark.parametrize(
    ("role", "place"),
    [
        ("{resources: {limits: {memory: 200Ki}}}", "resources"),
        (
            "{template: {spec: {containers: [{name: log}, {name: ray, resources: {limits: {memory: 200Ki}}}]}}}",
            "template.spec.containers[ray].resources",
        ),
    ],
)
def test_validate_finds_a_pod_that_cannot_hold_its_models(bench: Bench, role: str, place: str) -> None:
    text = JOB.replace("spec:\n", f"spec:\n  trainers: {role}\n", 1)
    bench.job.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "rlhf_cli.main", "validate", "-f", str(bench.job), "--files"]
    ended = subprocess.run([*command, "--storage", str(bench.storage)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"MemoryTooSmall: spec.trainers.{place}.limits.memory is 200.0 KiB, but a trainer needs" in ended.stderr
