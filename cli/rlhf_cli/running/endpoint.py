"""The supervisor's report endpoint, as its reader: the long poll that the operator does, on this machine."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError
from rlhf_api.run import REPORT_PATH, Report

#: Longest wait of one long poll, seconds.
POLL_SECONDS = 25
#: Time above the long poll's own in which an answer must come, seconds.
_GRACE_SECONDS = 10.0


class EndpointError(Exception):
    """The supervisor answered, and not with a report: the two ends do not fit together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What the reader has: the last episode it read, and the revision of the last report (None: none yet)."""

    attempt: int = 0
    seq: int = 0
    revision: int | None = None


class Endpoint:
    """One supervisor's endpoint."""

    def __init__(self, session: aiohttp.ClientSession, port: int, token: str) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}{REPORT_PATH}"
        self._headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"}

    async def poll(self, cursor: Cursor, wait: int = POLL_SECONDS) -> Report | None:
        """The next report, at once when there is news for the cursor, after `wait` seconds otherwise.

        None when nobody answers (yet), or not now (too many polls, a slow storage). Raises EndpointError for an
        answer that is no report.
        """
        query: dict[str, Any] = {"attempt": cursor.attempt, "seq": cursor.seq, "wait": wait}
        if cursor.revision is not None:
            query["revision"] = cursor.revision
        try:
            async with asyncio.timeout(wait + _GRACE_SECONDS):
                async with self._session.get(self._url, params=query, headers=self._headers) as response:
                    body = await response.text()
                    if response.status in (429, 503):
                        return None
                    if response.status != 200:
                        raise EndpointError(f"GET {self._url}: {response.status} {body[:200].strip()}")
                    return Report.model_validate_json(body)
        except (aiohttp.ClientConnectionError, TimeoutError):
            return None
        except ValidationError as error:
            raise EndpointError(f"GET {self._url}: no report: {error.errors()[0]}") from error
