"""The supervisor's report endpoint, as its reader: the long poll that the operator does, on this machine."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
from pydantic import ValidationError
from rlhf_api.run import REPORT_PATH, Report
from rlhf_api.schema import first_error
from rlhf_api.status import ReportCursor

#: Longest wait of one long poll, seconds.
POLL_SECONDS = 25
#: Time above the long poll's own in which an answer must come, seconds.
_GRACE_SECONDS = 10.0


class EndpointError(Exception):
    """The supervisor answered, and not with a report: the two ends do not fit together."""


class Endpoint:
    """One supervisor's endpoint."""

    def __init__(self, session: aiohttp.ClientSession, port: int, token: str) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}{REPORT_PATH}"
        self._headers: Mapping[str, str] = {"Authorization": f"Bearer {token}"}

    async def poll(self, cursor: ReportCursor, revision: int | None, wait: int = POLL_SECONDS) -> Report | None:
        """The report with the episodes after the cursor, at once if there are any or if `revision`, that of the last
        report read (None: none yet), is not the newest; otherwise after `wait` seconds.

        None when nobody answers (yet), or not now (too many polls, a slow storage). Raises EndpointError for an
        answer that is not a report.
        """
        query: dict[str, Any] = {"attempt": cursor.attempt, "seq": cursor.seq, "wait": wait}
        if revision is not None:
            query["revision"] = revision
        try:
            async with asyncio.timeout(wait + _GRACE_SECONDS):
                async with self._session.get(self._url, params=query, headers=self._headers) as response:
                    body = await response.text()
                    if response.status in (429, 503):
                        return None
                    if response.status != 200:
                        raise EndpointError(f"GET {self._url}: {response.status} {body[:200].strip()}")
                    return Report.read_json(body)
        except (aiohttp.ClientConnectionError, TimeoutError):
            return None
        except ValidationError as error:
            raise EndpointError(f"GET {self._url}: not a report: {first_error(error)}") from error
