"""The samples through `rlhfjob run`: they learn, and the controls that must not, do not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlhf_runtime.journal import history
from rlhf_runtime.run_directory import RunDirectory

pytestmark = pytest.mark.timeout(900)

SAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "samples"


def run_sample(folder: Path, name: str, **changes: Any) -> tuple[float, list[float]]:
    """Run a sample with top-level fields of its spec replaced; its starting score and those that followed."""
    documents = list(yaml.safe_load_all((SAMPLES / name).read_text()))
    documents[-1]["spec"].update(changes)
    manifest = folder / "job.yaml"
    manifest.write_text(yaml.safe_dump_all(documents))
    command = ["run", "-f", str(manifest), "--storage", str(folder / "runs")]
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli.main", *command], text=True, capture_output=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (folder / "runs" / "default").glob("addition*-*")
    scores = [entry.score for entry in history(RunDirectory(run.resolve())) if entry.score is not None]
    start = json.loads((run / "attempts" / "00001" / "result.json").read_text())["report"]["initialScore"]
    return start, scores


def learning_rate(value: float) -> dict[str, Any]:
    return {"type": "GRPO", "optimizer": {"learningRate": value}}


def test_learning_rate_0_leaves_every_score_where_it_was(tmp_path: Path) -> None:
    evaluation = yaml.safe_load((SAMPLES / "addition.yaml").read_text())["spec"]["evaluation"]
    start, scores = run_sample(
        tmp_path,
        "addition.yaml",
        algorithm=learning_rate(0.0),
        episodes=3,
        evaluation={**evaluation, "everyEpisodes": 1},
    )
    # Draws are keyed by prompt and seed, so the same weights give the very same samples.
    assert scores == [start] * 3


@pytest.mark.full
def test_shuffled_rewards_do_not_raise_the_score(tmp_path: Path) -> None:
    # Dealing rewards out anew leaves their mean: the score is still the accuracy.
    start, scores = run_sample(
        tmp_path, "addition.yaml", rewards=[{"function": "rlhf_samples.addition:shuffled_answer"}]
    )
    assert scores[-1] <= start + 0.05


@pytest.mark.full
@pytest.mark.parametrize("sample", ["addition.yaml", "addition-jsonl.yaml"])
def test_a_sample_learns_from_below_06_to_above_08(tmp_path: Path, sample: str) -> None:
    start, scores = run_sample(tmp_path, sample)
    assert start < 0.6
    assert scores[-1] > 0.8
