"""`rlhfjob history` and `rlhfjob samples` read what the runtime's own classes wrote, and what a cluster holds."""

import csv
import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rlhf_api.job import RLHFJob
from rlhf_api.status import EpisodeReport
from rlhf_cli.exits import BadInput, Unavailable
from rlhf_cli.reading.command import formatted, show_history, show_samples
from rlhf_cli.reading.results import write_results
from rlhf_cli.reading.run_folder import RunFolder, find_runs
from rlhf_cli.reading.samples import Sample, telling
from rlhf_runtime.storage.run_directory import RunDirectory

WriteRun = Callable[..., RunDirectory]


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize("where", ["", "default", "default/tiny-0123abcd"])
def test_a_run_is_found_from_its_storage_or_its_folder(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    write_run()
    if where == "default":
        with pytest.raises(BadInput, match="found no run"):
            show_history(None, tmp_path / where, None, "json")
        return
    show_history(None, tmp_path / where, None, "json")
    assert [e["episode"] for e in json.loads(printed(capsys))] == [1, 2, 3]


def test_superseded_episodes_are_not_in_the_history(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run([(0, 5), (3, 6)])
    show_history(None, tmp_path, None, "csv")
    rows = list(csv.DictReader(io.StringIO(printed(capsys))))
    assert [(r["attempt"], r["episode"]) for r in rows] == [
        *[("1", str(n)) for n in (1, 2, 3)],
        *[("2", str(n)) for n in (4, 5, 6)],
    ]
    assert float(rows[-1]["reward"]) == 2.06
    assert set(rows[0]) == {field.alias for field in EpisodeReport.model_fields.values()} - {"rewards"}


def test_each_of_several_rewards_is_a_column(make_episode: Callable[..., EpisodeReport]) -> None:
    episodes = [make_episode(1, rewards={"a:b": 0.25}), make_episode(2, rewards={"a:b": 0.5, "judge": 3})]
    rows = list(csv.DictReader(io.StringIO(formatted(episodes, "csv"))))
    assert [(row["rewards.a:b"], row["rewards.judge"]) for row in rows] == [("0.25", ""), ("0.5", "3.0")]
    assert [line.split()[-2:] for line in formatted(episodes, "table").splitlines()] == [
        ["a:b", "judge"],
        ["2.00", "0.2500"],
        ["0.5000", "3.0000"],
    ]
    assert "a:b" not in formatted(episodes[:1], "table"), "one alone is the reward itself"


def test_the_table_is_for_reading(tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]) -> None:
    write_run()
    show_history(None, tmp_path, None, "table")
    lines = printed(capsys).splitlines()
    assert lines[0].split() == [
        *["episode", "attempt", "version", "reward", "score", "KL", "staleness", "tokens/s", "seconds"]
    ]
    assert lines[2].split() == ["2", "1", "2", "1.0200", "0.2000", "0.00200", "0.50", "(max", "1)", "32", "2.00"]


def test_of_several_runs_one_must_be_named(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run()
    other = tmp_path / "default" / "other-99999999"
    (other / "attempts").mkdir(parents=True)
    with pytest.raises(BadInput, match="found 2 runs, give one of them"):
        show_history(None, tmp_path, None, "table")
    show_history("tiny", tmp_path, None, "json")
    assert len(json.loads(printed(capsys))) == 3
    assert {(r.namespace, r.name) for r in find_runs(tmp_path)} == {("default", "tiny"), ("default", "other")}
    assert RunFolder(directory.path).config() is not None


@pytest.mark.parametrize(
    ("name", "storage", "found"),
    [
        pytest.param(None, None, "give the NAME of a job", id="neither a name nor a folder"),
        pytest.param(None, "absent", "there is no such folder", id="a folder that is not there"),
        pytest.param("nobody", "", "found no run of a job 'nobody'", id="a name that no run has"),
    ],
)
def test_what_cannot_be_found_is_said(
    tmp_path: Path, write_run: WriteRun, name: str | None, storage: str | None, found: str
) -> None:
    write_run()
    with pytest.raises(BadInput, match=found):
        show_history(name, None if storage is None else tmp_path / storage, None, "table")


def write_samples(directory: RunDirectory, attempt: int, episode: int, *lines: str) -> None:
    path = directory.attempt(attempt).samples / f"episode-{episode:06d}.jsonl"
    directory.write(path, "".join(line + "\n" for line in lines).encode())


def row(**changes: Any) -> str:
    values = {"cursor": 0, "prompt": "1+1=", "completion": "2", "reward": 1.0, "advantage": 0.5, "versions": [1, 3]}
    return json.dumps({**values, **changes}, ensure_ascii=False)


def test_samples_are_of_the_attempt_that_counts(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run([(0, 3), (1, 3)])
    write_samples(directory, 1, 2, row(completion="superseded"))
    write_samples(directory, 2, 2, row(completion="counts"), row(completion="a second"))
    show_samples(tmp_path, None, 1, "text")
    assert printed(capsys) == (
        "episode 2  reward 1  advantage +0.500  version 1 to 3\n  prompt     1+1=\n  completion counts\n\n"
    )
    show_samples(tmp_path, 2, 8, "json")
    assert [s["completion"] for s in json.loads(printed(capsys))] == ["counts", "a second"]
    with pytest.raises(BadInput, match=r"no samples were kept of episode 3; they were of 2$"):
        show_samples(tmp_path, 3, 8, "text")
    with pytest.raises(BadInput, match="episode 9 was not trained; episodes there: 1 to 3"):
        show_samples(tmp_path, 9, 8, "text")


def test_a_completion_cannot_command_the_terminal(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(write_run(), 1, 3, row(completion="a\x1b[2Jb\nc\x07"))
    show_samples(tmp_path, 3, 8, "text")
    assert "  completion ab\n             c\\x07\n" in printed(capsys)


def test_a_bad_sample_line_is_named(tmp_path: Path, write_run: WriteRun) -> None:
    write_samples(write_run(), 1, 3, row(), '{"prompt": "1+')
    with pytest.raises(BadInput, match=r"episode-000003\.jsonl:2: expected a JSON object with prompt"):
        show_samples(tmp_path, 3, 8, "text")


def test_telling_samples_are_of_different_prompts_with_best_and_worst() -> None:
    def sample(prompt: str, reward: float) -> Sample:
        return Sample(episode=1, prompt=prompt, completion="", reward=reward, advantage=0.0, versions=(0, 0))

    samples = [sample("a", 0.9), sample("a", 0.8), sample("b", 0.1), sample("c", 0.5), sample("c", 0.4)]
    assert [(s.prompt, s.reward) for s in telling(samples, 2)] == [("a", 0.9), ("b", 0.1)]
    assert {s.prompt for s in telling(samples, 3)} == {"a", "b", "c"}
    assert len(telling(samples, 4)) == 4
    assert len(telling(samples, 99)) == 5
    assert telling([], 3) == []


def test_results_of_a_stopped_run_are_written_from_its_folder(write_run: WriteRun) -> None:
    directory = write_run([(0, 5), (3, 6)])
    write_samples(directory, 2, 6, row(completion="the last"))
    results = write_results(RunFolder(directory.path))
    assert results.model is None
    assert [s.completion for s in results.samples] == ["the last"]
    assert results.plot is not None
    assert results.plot.stat().st_size > 10_000
    assert results.report is not None
    page = results.report.read_text(encoding="utf-8")
    assert "Ended after 6 of 8 episodes" in page
    assert "the last" in page


class _ApiServer(BaseHTTPRequestHandler):
    """Answers as a Kubernetes API server would for one RLHFJob, and remembers what was asked."""

    held: dict[str, Any]
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        found = self.path.rpartition("/")[2] == "tiny"
        body = json.dumps(self.held if found else {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def api_server(
    tmp_path: Path, make_job: Callable[..., RLHFJob], make_episode: Callable[..., EpisodeReport]
) -> Iterator[type[_ApiServer]]:
    held = make_job().to_dict()
    held["status"] = {"episode": 12, "episodes": [make_episode(n).to_dict() for n in range(3, 13)]}
    handler = type("Handler", (_ApiServer,), {"held": held, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    yield handler
    server.shutdown()
    server.server_close()


def test_history_from_the_cluster_is_what_status_holds(
    tmp_path: Path, api_server: type[_ApiServer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    show_history("tiny", None, None, "json")
    show_history("tiny", None, "elsewhere", "json")
    out, err = capsys.readouterr()
    assert [e["episode"] for e in json.loads(out[: out.index("]") + 1])] == list(range(3, 13))
    assert "The object holds the last 10 of 12 episodes" in err
    assert api_server.asked == [
        "/apis/rlhf.dev/v1alpha1/namespaces/team/rlhfjobs/tiny",
        "/apis/rlhf.dev/v1alpha1/namespaces/elsewhere/rlhfjobs/tiny",
    ]
    with pytest.raises(BadInput, match="no RLHFJob 'absent' in namespace 'team'"):
        show_history("absent", None, None, "json")


def test_a_cluster_that_does_not_answer_is_not_bad_input(
    tmp_path: Path, api_server: type[_ApiServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((tmp_path / "kubeconfig").read_text(encoding="utf-8"))
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    (tmp_path / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    with pytest.raises(Unavailable, match="the API server does not answer"):
        show_history("tiny", None, None, "json")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nothing"))
    with pytest.raises(Unavailable, match="no cluster to ask"):
        show_history("tiny", None, None, "json")
