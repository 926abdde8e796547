"""The samples through `rlhfjob run`: they learn, and the controls that must not, do not."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel
from rlhf_runtime.data.locations import local_path
from rlhf_runtime.storage.journal import history
from rlhf_runtime.storage.run_directory import RunDirectory
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.timeout(900)

SAMPLES = Path(__file__).resolve().parents[3] / "manifests" / "samples"
POLICY = local_path("package://rlhf_samples/addition/policy")


def run_sample(folder: Path, name: str, *, code: str = "", **changes: Any) -> tuple[float, list[float]]:
    """Run a sample with top-level fields of its spec replaced; its starting score and those that followed.

    `code` is added to the functions of the sample's ConfigMap.
    """
    documents = list(yaml.safe_load_all((SAMPLES / name).read_text()))
    if code:
        documents[0]["data"]["my_rewards.py"] += code
    documents[-1]["spec"].update(changes)
    folder.mkdir(exist_ok=True)
    manifest = folder / "job.yaml"
    manifest.write_text(yaml.safe_dump_all(documents))
    command = ["run", "-f", str(manifest), "--storage", str(folder / "runs")]
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli.main", *command], text=True, capture_output=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (folder / "runs" / "default").glob("addition*-*")
    scores = [entry.score for entry in history(RunDirectory(run.resolve())) if entry.score is not None]
    # The last attempt's: on a busy machine a local Ray may be too slow to start for the first.
    *_, attempt = sorted((run / "attempts").iterdir())
    start = json.loads((attempt / "result.json").read_text())["report"]["initialScore"]
    return start, scores


@pytest.mark.parametrize(
    "sample",
    [
        "addition.yaml",
        pytest.param("addition-jsonl.yaml", marks=pytest.mark.full),
        pytest.param("addition-lora.yaml", marks=pytest.mark.full),
    ],
)
def test_learning_rate_0_leaves_every_score_where_it_was(tmp_path: Path, sample: str) -> None:
    spec = list(yaml.safe_load_all((SAMPLES / sample).read_text()))[-1]["spec"]
    start, scores = run_sample(
        tmp_path,
        sample,
        algorithm={**spec["algorithm"], "optimizer": {"learningRate": 0.0}},
        episodes=3,
        evaluation={**spec["evaluation"], "everyEpisodes": 1},
    )
    # Draws are keyed by prompt and seed, so the same weights give the very same samples.
    assert scores == [start] * 3


def test_ppo_whose_policy_may_not_move_trains_its_critic_and_leaves_every_score(tmp_path: Path) -> None:
    spec = yaml.safe_load((SAMPLES / "addition-ppo.yaml").read_text())["spec"]
    start, scores = run_sample(
        tmp_path,
        "addition-ppo.yaml",
        algorithm={**spec["algorithm"], "optimizer": {"learningRate": 0.0}},
        episodes=3,
        evaluation={**spec["evaluation"], "everyEpisodes": 1},
        rollout={**spec["rollout"], "promptsPerEpisode": 64},
    )
    assert scores == [start] * 3
    [run] = (tmp_path / "runs" / "default").glob("addition*-*")
    episodes = list(history(RunDirectory(run.resolve())))
    assert [entry.reference_kl for entry in episodes] == pytest.approx([0.0] * 3, abs=1e-6)
    assert episodes[-1].value_loss < episodes[0].value_loss


#: The functions of a ConfigMap, dealing out anew what the first gives: as many rewards, for nothing that was done.
DEALT_OUT = """
import random

graded = digits

def digits(prompts, completions, **columns):
    rewards = graded(prompts, completions, **columns)
    random.Random(str(completions)).shuffle(rewards)
    return rewards
"""


@pytest.mark.full
def test_a_function_of_ones_own_that_deals_rewards_out_does_not_raise_the_score(tmp_path: Path) -> None:
    start, scores = run_sample(tmp_path, "addition-jsonl.yaml", code=DEALT_OUT)
    assert scores[-1] <= start + 0.05


@pytest.mark.full
@pytest.mark.parametrize("sample", ["addition.yaml", "addition-lora.yaml"])
def test_shuffled_rewards_do_not_raise_the_score(tmp_path: Path, sample: str) -> None:
    # Dealing rewards out anew leaves their mean: the score is still the accuracy.
    start, scores = run_sample(tmp_path, sample, rewards=[{"function": "rlhf_samples.addition:shuffled_answer"}])
    assert scores[-1] <= start + 0.05


@pytest.mark.full
@pytest.mark.parametrize("sample", ["addition.yaml", "addition-jsonl.yaml", "addition-ppo.yaml"])
def test_a_sample_learns_from_below_06_to_above_08(tmp_path: Path, sample: str) -> None:
    start, scores = run_sample(tmp_path, sample)
    assert start < 0.6
    assert scores[-1] > 0.8


def distillation() -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec of the distillation sample; and what of it makes rewards count 0, while the score is the accuracy."""
    spec = yaml.safe_load((SAMPLES / "addition-distillation.yaml").read_text())["spec"]
    [reward] = spec["rewards"]
    return spec, {
        "rewards": [reward | {"weight": 0}],
        "evaluation": spec["evaluation"] | {"rewards": [reward]},
    }


@pytest.mark.full
def test_the_distillation_sample_learns_faster_than_its_rewards_alone_would_teach_it(tmp_path: Path) -> None:
    spec, _ = distillation()
    start, scores = run_sample(tmp_path / "with", "addition-distillation.yaml")
    assert start < 0.6
    assert scores[-1] > 0.7
    alone = {name: value for name, value in spec["algorithm"].items() if name != "distillation"}
    models = {"actor": spec["models"]["actor"]}
    _, without = run_sample(tmp_path / "without", "addition-distillation.yaml", algorithm=alone, models=models)
    assert fmean(scores) > fmean(without) + 0.05
    assert scores[-1] > without[-1]


@pytest.mark.full
def test_a_teacher_raises_the_score_without_any_reward(tmp_path: Path) -> None:
    _, unrewarded = distillation()
    start, scores = run_sample(tmp_path, "addition-distillation.yaml", **unrewarded)
    assert scores[-1] > start + 0.15


@pytest.mark.full
def test_a_teacher_that_knows_no_more_leaves_the_score_where_it_was(tmp_path: Path) -> None:
    spec, unrewarded = distillation()
    actor = spec["models"]["actor"]
    start, scores = run_sample(
        tmp_path, "addition-distillation.yaml", models={"actor": actor, "teacher": actor}, **unrewarded
    )
    assert all(abs(score - start) <= 0.05 for score in scores)


@pytest.mark.full
@torch.no_grad()
def test_the_lora_sample_learns_by_its_adapter_alone(tmp_path: Path) -> None:
    start, scores = run_sample(tmp_path, "addition-lora.yaml")
    assert start < 0.6
    assert scores[-1] > 0.8
    [run] = (tmp_path / "runs" / "default").glob("addition-lora-*")
    base = AutoModelForCausalLM.from_pretrained(POLICY)
    merged = AutoModelForCausalLM.from_pretrained(run / "model")
    tokens = torch.arange(17).unsqueeze(0)
    started_at = base(tokens).logits
    adapted = PeftModel.from_pretrained(base, run / "model" / "adapter")
    assert float((merged(tokens).logits - adapted(tokens).logits).abs().max()) < 1e-4
    assert float((merged(tokens).logits - started_at).abs().max()) > 1e-1
    # A checkpoint has what was trained, and nothing of the model below.
    checkpoint = run / "attempts" / "00001" / "checkpoints" / "episode-000030"
    assert all(".lora_" in name for name in load_file(checkpoint / "adapter_model.safetensors"))
    assert not (checkpoint / "model.safetensors").exists()


@pytest.mark.full
def test_a_truncated_policy_learns(tmp_path: Path) -> None:
    """Sampled, recorded and trained as what topP and topK leave of it."""
    rollout = list(yaml.safe_load_all((SAMPLES / "addition.yaml").read_text()))[-1]["spec"]["rollout"]
    start, scores = run_sample(tmp_path, "addition.yaml", rollout={**rollout, "topP": 0.95, "topK": 8})
    assert start < 0.7
    assert scores[-1] > 0.85
