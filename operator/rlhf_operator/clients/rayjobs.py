"""Ray's job REST API on a head: submit, ask, stop. No answer is told apart from "never heard of it"."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import aiohttp
from rlhf_api.job import RLHFJob
from rlhf_api.names import storage_root
from rlhf_api.run import RUN_CONFIG_ENV, run_config

from rlhf_operator.clients.heads import address, text_of
from rlhf_operator.decisions.plan import Submit
from rlhf_operator.observed.picture import Submission, Unreachable

DASHBOARD_PORT = 8265
ENTRYPOINT = "rlhf-supervisor"
#: Submitting waits for the head's job agent, which may still be starting.
TIMEOUT = aiohttp.ClientTimeout(total=20, connect=5)

_STATES: Mapping[str, Literal["Pending", "Running", "Succeeded", "Failed", "Stopped"]] = {
    "PENDING": "Pending",
    "RUNNING": "Running",
    "SUCCEEDED": "Succeeded",
    "FAILED": "Failed",
    "STOPPED": "Stopped",
}


class RayRefused(Exception):
    """Ray answered, and will not do it."""


class RayJobs:
    """The job API of any head, by its IP; ``port`` is for tests."""

    def __init__(self, session: aiohttp.ClientSession, port: int = DASHBOARD_PORT) -> None:
        self._session = session
        self._port = port

    async def ask(self, ip: str, token: str, submission_id: str) -> Submission | Unreachable:
        """What the head knows of a submission. Only a 404 of the job API itself means that it knows nothing."""
        try:
            status, text, content = await self._request("GET", ip, token, f"/api/jobs/{submission_id}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Unreachable(_reason(error))
        if status == 404 and "does not exist" in text:
            return Submission("Unknown")
        if status != 200 or not isinstance(content, dict):
            return Unreachable(f"{status}: {text[:200]}")
        state = _STATES.get(content.get("status", ""))
        if state is None:
            return Unreachable(f"found job status {content.get('status')!r}, expected one of {', '.join(_STATES)}")
        return Submission(state, content.get("message") or "", content.get("driver_exit_code"))

    async def submit(self, token: str, job: RLHFJob, action: Submit) -> None:
        """Hands the attempt over; "already exists" is success. Raises RayRefused, or ClientError without an answer."""
        config = run_config(job, storage_root(job), action.attempt, action.incarnation)
        request = {
            "entrypoint": ENTRYPOINT,
            "submission_id": action.submission_id,
            # Asking for nothing places the driver on the head, where the report endpoint is looked for.
            "entrypoint_num_cpus": 0,
            "runtime_env": {"env_vars": {RUN_CONFIG_ENV: config.to_json()}},
            "metadata": {"rlhfjob": f"{job.namespace}/{job.name}", "attempt": str(action.attempt)},
        }
        status, text, _ = await self._request("POST", action.ip, token, "/api/jobs/", request)
        if status != 200 and f"{action.submission_id} already exists" not in text:
            raise RayRefused(f"submit {action.submission_id}: {status}: {text.strip()[-500:]}")

    async def stop(self, ip: str, token: str, submission_id: str) -> None:
        """Ends a submission's processes; unknown or ended already is success. Raises as submit does."""
        status, text, _ = await self._request("POST", ip, token, f"/api/jobs/{submission_id}/stop")
        if status not in (200, 404):
            raise RayRefused(f"stop {submission_id}: {status}: {text.strip()[-500:]}")

    async def _request(self, method: str, ip: str, token: str, path: str, body: Any = None) -> tuple[int, str, Any]:
        url = f"{address(ip, self._port)}{path}"
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.request(
            method, url, json=body, headers=headers, timeout=TIMEOUT, allow_redirects=False
        ) as response:
            text = await text_of(response)
            return response.status, text, _content(text) if response.content_type == "application/json" else None


def _content(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # cut, or not what it says it is


def _reason(error: BaseException) -> str:
    return f"no answer within {TIMEOUT.total:.0f} s" if isinstance(error, TimeoutError) else str(error)
