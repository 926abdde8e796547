"""Rewards from an HTTP endpoint and from a reward model: real servers that misbehave, and what is made of it."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rlhf_api.rewards import HttpReward, Reward
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.rewards import by_endpoint
from rlhf_runtime.rewards.batch import Batch, Tokens
from rlhf_runtime.rewards.by_endpoint import EndpointReward
from rlhf_runtime.rewards.runner import RewardRunner
from tiny_judge import Judge

#: Pauses between tries in these tests, seconds.
PAUSE = 0.02


@pytest.fixture
def judge() -> Iterator[Judge]:
    server = Judge()
    yield server
    server.stop()


def endpoint(url: str, seconds: float = 10.0, environment: dict[str, str] | None = None, **http: Any) -> EndpointReward:
    settings = HttpReward(url=url, **{"retries": 3, **http})
    return EndpointReward(f"rewards[0] ({url})", settings, seconds, environment or {}, first_pause=PAUSE)


def scored(source: EndpointReward, completions: Sequence[str] = ("a", "bcd")) -> list[float | None]:
    columns = {"answer": [str(number) for number, _ in enumerate(completions)]}
    return asyncio.run(source.score(Batch(["p"] * len(completions), completions, columns)))


def failure(source: EndpointReward) -> RunFailure:
    with pytest.raises(RunFailure) as error:
        scored(source)
    assert "\n" not in error.value.message
    return error.value


def answer(content: str | bytes, status: int = 200, **headers: str) -> Callable[[], web.Response]:
    body = content.encode() if isinstance(content, str) else content
    return lambda: web.Response(body=body, status=status, headers=headers)


def test_an_endpoint_gets_the_batch_as_json_and_gives_its_rewards(judge: Judge) -> None:
    assert scored(endpoint(judge.url)) == [1.0, 3.0]
    assert judge.requests == [{"prompts": ["p", "p"], "completions": ["a", "bcd"], "columns": {"answer": ["0", "1"]}}]
    assert "Authorization" not in judge.headers[0]
    judge.script = [answer('{"rewards": [null, -2.5]}')]
    assert scored(endpoint(judge.url)) == [None, -2.5]
    assert scored(endpoint(judge.url), []) == []
    assert len(judge.requests) == 2, "nothing is asked about no completions"


def test_a_large_batch_is_split_and_a_few_requests_are_under_way_at_once(judge: Judge) -> None:
    judge.seconds = 0.05
    completions = ["x" * n for n in range(23)]
    assert scored(endpoint(judge.url, max_batch_samples=2), completions) == list(range(23))
    assert sorted(len(request["completions"]) for request in judge.requests) == [1] + [2] * 11
    assert all(len(request["completions"]) == len(request["columns"]["answer"]) for request in judge.requests)
    assert 1 < judge.most_under_way <= by_endpoint.MAX_REQUESTS


def test_the_token_is_sent_and_one_that_is_missing_is_named(judge: Judge) -> None:
    environment = {"JUDGE_TOKEN": "s3cret\n", "EMPTY": "", "BROKEN": "a\r\nb"}
    scored(endpoint(judge.url, environment=environment, token_env="JUDGE_TOKEN"))
    assert judge.headers[0]["Authorization"] == "Bearer s3cret"
    for name in ("EMPTY", "ABSENT", "BROKEN"):
        found = failure(endpoint(judge.url, environment=environment, token_env=name))
        assert (found.reason, found.permanent) == ("RewardEndpointInvalid", True)
        assert f"environment variable {name} (http.tokenEnv); set it by runtime.env" in found.message
    assert len(judge.requests) == 1


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param(answer("busy", 503), id="503"),
        pytest.param(answer("oops", 500), id="500"),
        pytest.param(answer("", 429), id="429"),
    ],
)
def test_what_may_heal_is_tried_again(judge: Judge, failing: Callable[[], web.Response]) -> None:
    judge.script = [failing, failing]
    assert scored(endpoint(judge.url)) == [1.0, 3.0]
    assert len(judge.requests) == 3
    first, second = (after - before for before, after in zip(judge.times, judge.times[1:], strict=False))
    assert first >= PAUSE / 2
    assert second >= PAUSE, "pauses double, and half of each is left to chance"


def test_an_endpoint_that_asks_for_time_gets_it(judge: Judge) -> None:
    judge.script = [answer("", 429, **{"Retry-After": "1"})]
    assert scored(endpoint(judge.url)) == [1.0, 3.0]
    assert judge.times[1] - judge.times[0] >= 1.0


@pytest.mark.parametrize(
    ("script", "parts"),
    [
        pytest.param(answer("", 503), ["it answered 503 Service Unavailable, after 3 tries (http.retries)"], id="503"),
        pytest.param(answer("", 429), ["it answered 429 Too Many Requests, after 3 tries"], id="429"),
    ],
)
def test_what_does_not_heal_is_an_error_that_another_attempt_may_not_meet(
    judge: Judge, script: Callable[[], web.Response], parts: list[str]
) -> None:
    judge.script = [script] * 3
    found = failure(endpoint(judge.url, retries=2))
    assert (found.reason, found.permanent) == ("RewardEndpointFailed", False)
    assert found.message.startswith(f"rewards[0] ({judge.url}): ")
    assert all(part in found.message for part in parts)
    assert len(judge.requests) == 3


def test_a_slow_endpoint_has_so_many_tries_of_its_time(judge: Judge) -> None:
    judge.seconds = 2
    began = time.monotonic()
    found = failure(endpoint(judge.url, seconds=0.2, retries=1))
    assert "it did not answer within timeoutSeconds (0.2 s), after 2 tries" in found.message
    assert (found.reason, len(judge.requests)) == ("RewardEndpointFailed", 2)
    assert time.monotonic() - began < 2, "not one of its answers was waited for"


def test_an_endpoint_that_is_not_there_is_not_there_yet() -> None:
    found = failure(endpoint("http://127.0.0.1:9/score", retries=1))
    assert "no connection: Connection refused, after 2 tries" in found.message
    assert (found.reason, found.permanent) == ("RewardEndpointFailed", False)
    unknown = failure(endpoint("http://no-such-host.invalid/", retries=0))
    assert unknown.reason == "RewardEndpointFailed"
    assert "ssl" not in unknown.message


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    """The first connection dies in the middle of its answer, the second is closed at once, the third is answered."""
    good = b'HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{"rewards": [4, 5]}'
    answers = [good[:-5], b"", good]

    async def serve() -> list[float | None]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            content = answers.pop(0)
            if content:
                await reader.readuntil(b"columns")
            writer.write(content)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            batch = Batch(["p", "p"], ["a", "b"], {})
            return await endpoint(f"http://127.0.0.1:{port}/").score(batch)

    assert asyncio.run(serve()) == [4.0, 5.0]
    assert answers == []


@pytest.mark.parametrize(
    ("script", "part"),
    [
        pytest.param(answer("who?", 401), "it answered 401 Unauthorized: 'who?'; expected 200", id="401"),
        pytest.param(answer("none", 404), "it answered 404 Not Found: 'none'; expected 200", id="404"),
        pytest.param(answer("", 302, Location="/b"), "it answered 302 Found to /b: ''; expected 200", id="a redirect"),
        pytest.param(answer("<html>" * 99), "its answer is not JSON: found '<html><html>", id="a page"),
        pytest.param(answer(b"\xff\xfe"), "its answer is not JSON", id="no text"),
        pytest.param(answer("[" * 100_000), "its answer is not JSON", id="nested without end"),
        pytest.param(answer("[1, 2]"), "found '[1, 2]', expected {\"rewards\": [...]}", id="a list"),
        pytest.param(answer('{"scores": [1, 2]}'), "expected {\"rewards\": [...]}", id="another key"),
        pytest.param(answer('{"rewards": 1}'), "of type int, expected a list of 2 numbers", id="one number"),
        pytest.param(answer('{"rewards": [1]}'), "it returned 1 numbers for 2 completions", id="too few"),
        pytest.param(answer('{"rewards": [1, 2, 3]}'), "it returned 3 numbers for 2 completions", id="too many"),
        pytest.param(answer('{"rewards": [1, "2"]}'), "item 1 is of type str ('2'), expected a number", id="text"),
        pytest.param(answer('{"rewards": [1, NaN]}'), "item 1 is nan, expected a finite number", id="NaN"),
        pytest.param(answer('{"rewards": [1e999, 1]}'), "item 0 is inf, expected a finite number", id="infinite"),
        pytest.param(answer('{"rewards": [1, 2]}' + " " * (1 << 21)), "its answer is larger than 1049088 bytes",
                     id="too large"),
    ],
)  # fmt: skip
def test_what_an_endpoint_refuses_or_answers_wrongly_is_said_and_not_tried_again(
    judge: Judge, script: Callable[[], web.Response], part: str
) -> None:
    judge.script = [script]
    found = failure(endpoint(judge.url))
    assert (found.reason, found.permanent) == ("RewardEndpointInvalid", True)
    assert found.message.startswith(f"rewards[0] ({judge.url}): ")
    assert part in found.message
    assert len(found.message) < 500
    assert len(judge.requests) == 1


@pytest.mark.parametrize("script", [answer("renew", 401), answer("", 404), answer("<html>")])
def test_what_worked_before_may_work_again(judge: Judge, script: Callable[[], web.Response]) -> None:
    source = endpoint(judge.url)
    scored(source)
    judge.script = [script]
    found = failure(source)
    assert (found.reason, found.permanent) == ("RewardEndpointInvalid", False)
    assert len(judge.requests) == 2, "the next attempt tries again, not this one"
    assert scored(source) == [1.0, 3.0]


def test_a_server_of_another_kind_is_said_in_one_line() -> None:
    async def serve() -> RunFailure:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
            writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(RunFailure) as error:
                await endpoint(f"http://127.0.0.1:{port}/", retries=0).score(Batch(["p"], ["a"], {}))
            return error.value

    found = asyncio.run(serve())
    assert found.reason == "RewardEndpointFailed"
    assert ": no HTTP answer: " in found.message
    assert "\n" not in found.message


def test_what_cannot_be_sent_is_said(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    source = endpoint(judge.url)
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    columns = {"level": [1, 2], "answer": [{"low": 1.5}, {"low": float("nan")}]}
    for changes, part in (
        (
            {},
            r"column 'answer' \(\{'low': nan\}\) of row 7, whose prompt is 'q' cannot be sent as JSON: Out of range",
        ),
        ({"answer": ["\ud800", "b"]}, r"column 'answer' \('\\ud800'\) of row 4, whose prompt is 'p' .* surrogates"),
        ({"answer": ["a", deep]}, "column 'answer' .* of row 7, whose prompt is 'q' .* recursion"),
    ):
        with pytest.raises(RunFailure, match=part):
            asyncio.run(source.score(Batch(["p", "q"], ["c", "c"], {**columns, **changes}, rows=[4, 7])))
    monkeypatch.setattr(by_endpoint, "MAX_REQUEST_BYTES", 100)
    with pytest.raises(RunFailure, match=r"has 1\d\d bytes, expected at most 100; set http.maxBatchSamples"):
        asyncio.run(source.score(Batch(["p"], ["c" * 100], {})))
    assert judge.requests == []


class Scorer:
    """Scores by the number of tokens, and takes its time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.texts: list[Any] = []

    def score(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], texts: Sequence[Any]
    ) -> list[float]:
        time.sleep(self.seconds)
        self.texts += texts
        return [float(len(p) + 10 * len(c)) for p, c in zip(prompt_ids, completion_ids, strict=True)]


USER_CODE = """
import time

def slow(prompts, completions, **columns):
    time.sleep(0.6)
    return [100.0] * len(completions)

def hangs(prompts, completions, **columns):
    time.sleep(300)
"""


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judging.py").write_text(USER_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


TOKENS = Tokens([[1, 2], [3]], [[4], [5, 6, 7]])


@pytest.mark.usefixtures("user_code")
def test_functions_endpoints_and_the_model_work_at_the_same_time_and_are_summed(judge: Judge) -> None:
    judge.seconds = 0.6
    rewards = [
        Reward(function="judging:slow", timeout_seconds=1),
        Reward(name="judge", http=HttpReward(url=judge.url), weight=0.5, timeout_seconds=1),
        Reward(model="reward", weight=2.0),
    ]
    # The model takes longer than the others may: their answers count, and are not late because nobody listened.
    scorer = Scorer(seconds=1.5)
    with RewardRunner(rewards, scorer=scorer) as runner:
        runner.check_importable()
        scores = runner.score(["p", "q"], ["a", "bcd"], {}, TOKENS)
    assert scores.each == {"judging:slow": [100.0, 100.0], "judge": [1.0, 3.0], "models.reward": [12.0, 31.0]}
    assert scores.total == [100 + 0.5 + 24, 100 + 1.5 + 62]
    assert scorer.texts == ["pa", "qbcd"]


@pytest.mark.usefixtures("user_code")
def test_when_one_fails_the_others_are_not_waited_for(judge: Judge) -> None:
    judge.script = [answer("no", 400)]
    rewards = [Reward(function="judging:hangs", timeout_seconds=300), Reward(http=HttpReward(url=judge.url))]
    began = time.monotonic()
    with RewardRunner(rewards) as runner, pytest.raises(RunFailure, match=r"rewards\[1\] .* it answered 400"):
        runner.score(["p"], ["a"], {})
    assert time.monotonic() - began < 60


def test_a_reward_model_reads_messages_as_one_conversation() -> None:
    scorer = Scorer()
    prompt, completion = [{"role": "user", "content": "q"}], [{"role": "assistant", "content": "a"}]
    with RewardRunner([Reward(model="reward")], scorer=scorer) as runner:
        runner.score([prompt], [completion], {}, Tokens([[1]], [[2]]))
    assert scorer.texts == [[*prompt, *completion]]


def test_endpoints_are_asked_before_training_and_nothing_else_is(judge: Judge) -> None:
    judge.script = [answer('{"score": 1}')]
    rewards = [Reward(function="no_such:function"), Reward(model="reward"), Reward(http=HttpReward(url=judge.url))]
    with RewardRunner(rewards, field="evaluation.rewards") as runner:
        with pytest.raises(RunFailure, match=r"evaluation\.rewards\[2\] .*found '\{\"score\": 1\}'"):
            runner.check_endpoints(["p"], [""], {"answer": ["2"]})
        runner.check_endpoints(["p"], [""], {"answer": ["2"]})
    assert json.dumps(judge.requests[1]) == '{"prompts": ["p"], "completions": [""], "columns": {"answer": ["2"]}}'


@pytest.mark.parametrize(
    ("situation", "failed", "after", "chance", "seconds"),
    [
        ("the first pause, at its longest", 1, None, 1.0, 0.5),
        ("the first pause, at its shortest", 1, None, 0.0, 0.25),
        ("pauses double", 4, None, 1.0, 4.0),
        ("and stop growing", 20, None, 1.0, 30.0),
        ("never less than what is asked for", 1, 4.0, 0.0, 4.25),
        ("unless that is absurd", 1, 86_400.0, 0.0, 120.25),
    ],
)
def test_how_long_a_pause_is(situation: str, failed: int, after: float | None, chance: float, seconds: float) -> None:
    assert by_endpoint.pause(failed, after, chance=lambda: chance) == seconds, situation


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0), ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0), ("soon", None)],
)
def test_what_retry_after_says(header: str, seconds: float | None) -> None:
    assert by_endpoint.retry_after(header, datetime(2026, 1, 1, tzinfo=UTC)) == seconds
