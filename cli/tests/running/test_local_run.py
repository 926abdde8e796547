"""The same command means the same run; another spec does not go on with it, and two commands never share it."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.job import RLHFJob
from rlhf_cli.exits import BadInput
from rlhf_cli.running.local_run import LocalRun, choose_run, locked, read_jobs, the_job
from rlhf_cli.validation.config_map import ConfigMap

MakeJob = Callable[..., RLHFJob]


def choose(job: RLHFJob, storage: Path, *, fresh: bool = False, config_maps: Any = ()) -> LocalRun:
    return choose_run(job, config_maps, storage, fresh=fresh)


def begin(run: LocalRun) -> None:
    """As the supervisor does when an attempt begins."""
    config = run.config(run.next_attempt())
    run.directory.write(run.directory.attempt(config.attempt).config, config.to_json().encode())


def test_the_same_job_is_the_same_folder_and_the_next_attempt(tmp_path: Path, make_job: MakeJob) -> None:
    first = choose(make_job(), tmp_path)
    assert first.next_attempt() == 1
    begin(first)
    again = choose(make_job(), tmp_path)
    assert again.folder.path == first.folder.path
    assert again.next_attempt() == 2
    assert again.config(2).run_directory == str(first.folder.path)
    assert first.folder.name == "tiny"


def test_fresh_is_a_new_folder_and_what_later_commands_resume(tmp_path: Path, make_job: MakeJob) -> None:
    first = choose(make_job(), tmp_path, fresh=True)
    begin(first)
    second = choose(make_job(episodes=99), tmp_path, fresh=True)
    assert second.folder.path != first.folder.path
    begin(second)
    assert choose(make_job(episodes=99), tmp_path).folder.path == second.folder.path
    assert choose(make_job(), tmp_path, fresh=True).folder.path not in (first.folder.path, second.folder.path)


def test_another_spec_does_not_go_on_with_a_run(tmp_path: Path, make_job: MakeJob, spec: dict[str, Any]) -> None:
    begin(choose(make_job(), tmp_path))
    with pytest.raises(BadInput) as refused:
        choose(make_job(maxStaleness=3, rollout={**spec["rollout"], "temperature": 0.5}), tmp_path)
    assert "rollout.temperature: 1.0 → 0.5" in refused.value.problems[0]
    assert "maxStaleness: 1 → 3" in refused.value.problems[0]
    assert "--fresh" in refused.value.problems[0]


def test_what_no_attempt_reads_may_change(tmp_path: Path, make_job: MakeJob) -> None:
    begin(choose(make_job(), tmp_path))
    choose(make_job(makers={"resources": {"limits": {"cpu": 8}}}, backoffLimit=9), tmp_path)


def test_code_and_variables_reach_the_run(tmp_path: Path, make_job: MakeJob) -> None:
    code_one = ConfigMap(name="code", data={"my_rewards.py": "VALUE = 1\n"}, binary_data={})
    code_two = ConfigMap(name="code", data={"my_rewards.py": "VALUE = 2\n"}, binary_data={})
    runtime = {
        "code": {"configMap": {"name": "code"}},
        "env": [{"name": "A", "value": "b"}, {"name": "PYTHONPATH", "value": "/job"}],
    }
    run = choose(make_job(runtime=runtime), tmp_path, config_maps=[code_one])
    environment = run.environment({"HOME": "/home", "PYTHONPATH": "/shell", "A": "overridden"})
    code, job, shell = environment["PYTHONPATH"].split(":")
    assert (Path(code) / "my_rewards.py").read_text(encoding="utf-8") == "VALUE = 1\n"
    assert Path(code).is_relative_to(run.folder.path)
    assert (job, shell, environment["A"], environment["HOME"]) == ("/job", "/shell", "b", "/home")
    changed = choose(make_job(runtime=runtime), tmp_path, config_maps=[code_two])
    assert changed.environment({})["PYTHONPATH"].split(":")[0] != code


def test_a_code_path_that_is_not_here_is_named(tmp_path: Path, make_job: MakeJob) -> None:
    with pytest.raises(BadInput, match=r"spec\.runtime\.code\.path: there is no folder /not/here on this machine"):
        choose(make_job(runtime={"code": {"path": "/not/here"}}), tmp_path)


def _hold(run: LocalRun, held: Any, release: Any) -> None:
    with locked(run):
        held.set()
        release.wait(60)


def test_a_run_at_work_is_locked_until_its_process_ends(tmp_path: Path, make_job: MakeJob) -> None:
    run = choose(make_job(), tmp_path)
    spawn = multiprocessing.get_context("fork")
    held, release = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(run, held, release))
    other.start()
    assert held.wait(60)
    with pytest.raises(BadInput, match=f"another rlhfjob run is at work there \\(process {other.pid}\\)"), locked(run):
        pass
    other.kill()
    other.join(60)
    with locked(run):
        pass


def test_storage_that_takes_no_folder_is_bad_input(tmp_path: Path, make_job: MakeJob) -> None:
    run = choose(make_job(), tmp_path)
    (tmp_path / "default").write_text("a file where the namespace's folder should be")
    with pytest.raises(BadInput, match="--storage: cannot write in"), locked(run):
        pass


@pytest.mark.parametrize(
    ("names", "name", "found"),
    [
        pytest.param([], None, "expected one RLHFJob, found 0; in the files: none", id="no job"),
        pytest.param(["a", "b"], None, "2 RLHFJobs, give one with --name: default/a, default/b", id="several"),
        pytest.param(["a"], "b", "expected one RLHFJob named 'b', found 0; in the files: default/a", id="another name"),
        pytest.param(["a", "b"], "b", None, id="one of several by name"),
    ],
)
def test_which_job(make_job: MakeJob, names: list[str], name: str | None, found: str | None) -> None:
    jobs = [make_job().model_copy(update={"metadata": {"name": n, "namespace": "default"}}) for n in names]
    if found is None:
        assert the_job(jobs, name).name == name
        return
    with pytest.raises(BadInput, match=found):
        the_job(jobs, name)


def test_files_give_jobs_with_defaults_and_config_maps(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        """
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data: {a.py: ""}
---
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata: {name: tiny}
spec:
  episodes: 1
  algorithm: {type: GRPO, optimizer: {learningRate: 1e-6}}
  models: {actor: {uri: /p}}
  rewards: [{function: "m:f"}]
  prompts: {uri: /p.jsonl}
  rollout: {promptsPerEpisode: 4, samplesPerPrompt: 4, maxNewTokens: 4}
  checkpoint: {storage: {path: /data}}
""",
        encoding="utf-8",
    )
    (job,), (config_map,) = read_jobs([file])
    assert (job.spec.algorithm.optimizer.learning_rate, job.spec.max_staleness) == (1e-6, 1)
    assert config_map == ConfigMap(name="code", data={"a.py": ""}, binary_data={})
    file.write_text(file.read_text(encoding="utf-8").replace("episodes: 1", "episodes: 0"), encoding="utf-8")
    with pytest.raises(BadInput, match=r"job\.yaml:\d+: spec\.episodes"):
        read_jobs([file])


def test_a_job_that_is_there_twice_is_not_run(tmp_path: Path) -> None:
    job = """\
apiVersion: rlhf.dev/v1alpha1
kind: RLHFJob
metadata: {name: tiny}
spec:
  episodes: 1
  algorithm: {type: GRPO, optimizer: {learningRate: 1e-6}}
  models: {actor: {uri: /p}}
  rewards: [{function: "m:f"}]
  prompts: {uri: /p.jsonl}
  rollout: {promptsPerEpisode: 4, samplesPerPrompt: 4, maxNewTokens: 4}
  checkpoint: {storage: {path: /data}}
"""
    file = tmp_path / "job.yaml"
    file.write_text(f"{job}---\n{job}", encoding="utf-8")
    with pytest.raises(BadInput) as refused:
        read_jobs([file])
    assert refused.value.problems == (
        f"{file}:15: metadata.name: RLHFJob default/tiny is also at {file}:3; "
        "expected one: the last would replace the others",
    )
