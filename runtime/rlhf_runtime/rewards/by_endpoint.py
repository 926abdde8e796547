"""A reward that an HTTP endpoint gives: POSTed prompts, completions and columns as JSON, it answers with rewards.

What may heal (no connection, no answer in time, 429, 5xx) is tried again a bounded number of times, and then is an
error that the next attempt may not meet. What the endpoint refuses (401, 403, 404, 422, a redirect ...) or answers
wrongly is not tried again. It ends the job at once as long as nothing was ever right: then URL, token or endpoint are
not what they should be. Once there was a right answer it ends the attempt only, for what worked may work again: a token
is renewed, a proxy has its backend back. The next attempt asks anew before it loads anything.
"""

import asyncio
import json
import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from rlhf_api.conditions import Reason
from rlhf_api.rewards import HttpReward

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.rewards.answers import NotRewards, rewards_of, shortened
from rlhf_runtime.rewards.batch import Batch
from rlhf_runtime.rewards.together import together

log = logging.getLogger(__name__)

#: Largest request, bytes; a larger batch must be split by `maxBatchSamples`.
MAX_REQUEST_BYTES = 256 << 20
#: Largest answer, bytes: for any number of completions, and for each of them.
ANSWER_BYTES, ANSWER_BYTES_EACH = 1 << 20, 256
#: Requests of one batch that are under way at the same time.
MAX_REQUESTS = 4
#: The first pause before another try, the longest that grows from it, and the longest that an endpoint may ask for.
FIRST_PAUSE, LONGEST_PAUSE, LONGEST_RETRY_AFTER = 0.5, 30.0, 120.0
#: Bytes of an answer that a message shows.
_SHOWN = 200
#: What is raised for a value that JSON cannot hold: NaN, half a surrogate pair, lists nested too deep.
_UNSENDABLE = (TypeError, ValueError, RecursionError)


class EndpointReward:
    """Raises RunFailure: RewardEndpointInvalid (permanent until there was a right answer), RewardEndpointFailed."""

    def __init__(
        self,
        label: str,
        http: HttpReward,
        seconds: float,
        environment: Mapping[str, str] = os.environ,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        """``label`` begins every message; ``seconds`` are for one try."""
        self._label = label
        self._http = http
        self._seconds = seconds
        self._environment = environment
        self._first_pause = first_pause
        self._was_right = False

    def start(self) -> None: ...

    def until_ready(self) -> None: ...

    def check(self, columns: Sequence[str]) -> None: ...

    def end(self) -> None: ...

    async def score(self, batch: Batch) -> list[float | None]:
        size = self._http.max_batch_samples or max(1, len(batch))
        parts = [slice(first, first + size) for first in range(0, len(batch), size)]
        free = asyncio.Semaphore(MAX_REQUESTS)
        headers = self._headers()

        async def one(part: slice) -> list[float | None]:
            async with free:
                return await self._answer(session, batch, part)

        # Proxies and certificate authorities are taken from the environment, as other programs do.
        async with aiohttp.ClientSession(trust_env=True, headers=headers, timeout=aiohttp.ClientTimeout()) as session:
            return [reward for rewards in await together([one(part) for part in parts]) for reward in rewards]

    def _headers(self) -> dict[str, str]:
        # An answer that is not compressed is as large as it looks.
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if (name := self._http.token_env) is not None:
            token = self._environment.get(name, "").strip()
            if not token or not token.isascii() or not token.isprintable():
                found = "no" if not token else "something that no header can hold as"
                raise self._invalid(
                    f"found {found} environment variable {name} (http.tokenEnv); set it by runtime.env or envFrom"
                )
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _answer(self, session: aiohttp.ClientSession, batch: Batch, part: slice) -> list[float | None]:
        """The rewards of a part of the batch, after as many tries as it takes, and may take."""
        body = self._body(batch, part)
        expected = len(batch.completions[part])
        tries = self._http.retries + 1
        for number in range(1, tries + 1):
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._once(session, body, expected)
            except TimeoutError:
                problem, after = f"it did not answer within timeoutSeconds ({self._seconds:g} s)", None
            except _Later as later:
                problem, after = str(later), later.after
            except aiohttp.InvalidURL as error:
                raise self._invalid(f"found a URL that cannot be used: {error}") from error
            except (aiohttp.ClientError, OSError) as error:
                unreachable = isinstance(error, OSError | aiohttp.ClientConnectionError)
                what = "no connection" if unreachable else "no HTTP answer"
                problem, after = f"{what}: {_why(error)}", None
            log.warning("%s: %s (try %d of %d)", self._label, problem, number, tries)
            if number < tries:
                await asyncio.sleep(pause(number, after, self._first_pause))
        raise RunFailure(
            Reason.REWARD_ENDPOINT_FAILED,
            f"{self._label}: {problem}, after {tries} tries (http.retries)",
            permanent=False,
        )

    def _body(self, batch: Batch, part: slice) -> bytes:
        try:
            body = _json(batch.request(part))
        except _UNSENDABLE as error:
            raise self._invalid(f"{_unsendable(batch)} cannot be sent as JSON: {error}") from error
        if len(body) > MAX_REQUEST_BYTES:
            raise self._invalid(
                f"a request of {len(batch.completions[part])} completions has {len(body)} bytes, expected at most "
                f"{MAX_REQUEST_BYTES}; set http.maxBatchSamples"
            )
        return body

    async def _once(self, session: aiohttp.ClientSession, body: bytes, expected: int) -> list[float | None]:
        # A redirect would turn the POST into a GET, and could take the token to another host.
        async with session.post(self._http.url, data=body, allow_redirects=False) as response:
            if response.status == 429 or response.status >= 500:
                what = f"it answered {response.status} {response.reason or ''}".rstrip()
                raise _Later(what, retry_after(response.headers.get("Retry-After"), datetime.now(UTC)))
            most = ANSWER_BYTES + ANSWER_BYTES_EACH * expected
            content = await _at_most(response.content, most + 1)
            if not 200 <= response.status < 300:
                place = f" to {response.headers['Location']}" if "Location" in response.headers else ""
                raise self._wrong(
                    f"it answered {response.status} {response.reason or ''}{place}: {_shown(content)}; expected 200"
                )
            if len(content) > most:
                raise self._wrong(f"its answer is larger than {most} bytes, expected {expected} numbers")
            rewards = self._rewards(content, expected)
            self._was_right = True
            return rewards

    def _rewards(self, content: bytes, expected: int) -> list[float | None]:
        wanted = 'expected {"rewards": [...]}'
        try:
            answer: Any = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"its answer is not JSON: found {_shown(content)}, {wanted}") from error
        if not isinstance(answer, dict) or "rewards" not in answer:
            raise self._wrong(f"found {_shown(content)}, {wanted}")
        try:
            return rewards_of(answer["rewards"], expected)
        except NotRewards as error:
            raise self._wrong(str(error)) from error

    def _invalid(self, message: str) -> RunFailure:
        return RunFailure(Reason.REWARD_ENDPOINT_INVALID, f"{self._label}: {message}", permanent=True)

    def _wrong(self, message: str) -> RunFailure:
        return RunFailure(Reason.REWARD_ENDPOINT_INVALID, f"{self._label}: {message}", permanent=not self._was_right)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _unsendable(batch: Batch) -> str:
    """What of a batch that is no JSON is none."""
    for name, values in batch.columns.items():
        for index, value in enumerate(values):
            try:
                _json(value)
            except _UNSENDABLE:
                return f"column {name!r} ({shortened(value, repr)}) of {batch.place(index)}"
    return "the batch"


class _Later(Exception):
    """The endpoint is there, and cannot answer now; ``after``: seconds that it asks to be left alone for."""

    def __init__(self, message: str, after: float | None) -> None:
        super().__init__(message)
        self.after = after


async def _at_most(stream: aiohttp.StreamReader, most: int) -> bytes:
    """The first bytes of an answer."""
    content = bytearray()
    while len(content) < most and (part := await stream.read(most - len(content))):
        content += part
    return bytes(content)


def _why(error: aiohttp.ClientError | OSError) -> str:
    """What is wrong with a connection, in the system's words: "Connection refused", "Name or service not known"."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _shown(content: bytes) -> str:
    return repr(content[:_SHOWN].decode(errors="replace")) + ("..." if len(content) > _SHOWN else "")


def pause(
    failed: int, after: float | None, first: float = FIRST_PAUSE, chance: Callable[[], float] = random.random
) -> float:
    """Seconds before the next try, after so many that failed: doubling, and spread so that makers don't come together.

    Never less than the endpoint asked for (``after``), if that is not absurd.

    >>> [pause(failed, None, chance=lambda: 1.0) for failed in (1, 2, 3, 9)]
    [0.5, 1.0, 2.0, 30.0]
    >>> pause(1, None, chance=lambda: 0.0), pause(1, 4.0, chance=lambda: 0.0), pause(1, 9999.0, chance=lambda: 0.0)
    (0.25, 4.25, 120.25)
    """
    grown = min(LONGEST_PAUSE, first * 2.0 ** (failed - 1)) * (0.5 + chance() / 2)
    return grown + min(after or 0.0, LONGEST_RETRY_AFTER)


def retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date (RFC 9110, 10.2.3); None without one.

    >>> new_year = datetime(2026, 1, 1, tzinfo=UTC)
    >>> [retry_after(header, new_year) for header in ("7", "Thu, 01 Jan 2026 00:01:00 GMT", "soon", None)]
    [7.0, 60.0, None, None]
    """
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdigit():
        return float(header.strip())
    try:
        return max(0.0, (parsedate_to_datetime(header) - now).total_seconds())
    except (TypeError, ValueError):
        return None
