"""The command as a shell sees it: nothing heavy loaded, exit codes, messages on stderr."""

import subprocess
import sys
from pathlib import Path

import pytest

VALID = """
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata: {name: tiny}
spec:
  episodes: 1
  algorithm: {type: GRPO, optimizer: {learningRate: 1e-6}}
  models: {actor: {uri: /not/here}}
  rewards: [{function: "m:f"}]
  prompts: {uri: /p.jsonl}
  rollout: {promptsPerEpisode: 4, samplesPerPrompt: 4, maxNewTokens: 4}
  checkpoint: {storage: {path: /data}}
"""


def rlhfjob(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rlhf_cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "module",
    ["rlhf_cli.main", "rlhf_cli.validation.command", "rlhf_cli.reading.command", "rlhf_cli.running.local_run"],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "ray", "transformers", "kubernetes", "matplotlib", "numpy", "kopf"} & set(loaded)


@pytest.mark.parametrize("command", ["validate", "run", "history", "samples"])
def test_every_command_explains_itself_and_its_exit_codes(command: str) -> None:
    shown = rlhfjob(command, "--help")
    assert shown.returncode == 0
    assert "130" in shown.stdout


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        pytest.param(["validate", "-f", "JOB"], 0, "tiny: valid", id="a valid file"),
        pytest.param(["validate", "-f", "BAD"], 1, "spec.episodes", id="a file that is not valid"),
        pytest.param(["validate", "-f", "absent.yaml"], 2, "No such file", id="a file that is not there"),
        pytest.param(["validate", "-f", "JOB", "--files"], 1, "ModelInvalid", id="a valid file whose model is absent"),
        pytest.param(
            ["validate", "-f", "FAR", "--files"],
            0,
            "not looked at any further: models.actor.uri: s3://",
            id="a valid file whose model cannot be reached from here",
        ),
        pytest.param(["run", "-f", "BAD", "--storage", "DIR"], 2, "spec.episodes", id="run: not valid"),
        pytest.param(["run", "-f", "JOB"], 2, "--storage", id="run: without --storage"),
        pytest.param(["run", "-f", "JOB", "--storage", "JOB"], 2, "is no folder", id="run: storage is a file"),
        pytest.param(["run", "-f", "JOB", "--storage", "DIR", "--name", "x"], 2, "named 'x'", id="run: another name"),
        pytest.param(["history"], 2, "give the NAME", id="history of nothing"),
        pytest.param(["history", "-s", "DIR", "-o", "xml"], 2, "xml", id="history in an unknown format"),
        pytest.param(["samples", "DIR"], 2, "found no run", id="samples of an empty storage"),
        pytest.param(["nonsense"], 2, "No such command", id="an unknown command"),
    ],
)
def test_exit_codes(tmp_path: Path, words: list[str], code: int, found: str) -> None:
    (tmp_path / "job.yaml").write_text(VALID, encoding="utf-8")
    (tmp_path / "bad.yaml").write_text(VALID.replace("episodes: 1", "episodes: none"), encoding="utf-8")
    # Nothing listens there.
    where = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    env = ", ".join(f"{{name: {name}, value: '{value}'}}" for name, value in where.items())
    runtime = f"  runtime: {{env: [{env}]}}\n"
    far = VALID.replace("uri: /not/here", "uri: s3://bucket/model") + runtime
    (tmp_path / "far.yaml").write_text(far, encoding="utf-8")
    (tmp_path / "runs").mkdir()
    places = {"JOB": "job.yaml", "FAR": "far.yaml", "BAD": "bad.yaml", "DIR": "runs"}
    ended = rlhfjob(*(str(tmp_path / places[w]) if w in places else w for w in words))
    text = ended.stdout + ended.stderr
    assert ended.returncode == code, text
    assert found in text
    assert "Traceback" not in text
