"""Ray's job API as Ray 2.60 answers: what is known, what is unknown, and what is no answer at all."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from rlhf_api.run import RUN_CONFIG_ENV, RunConfig
from rlhf_operator.clients.heads import MAX_ANSWER
from rlhf_operator.clients.rayjobs import RayJobs, RayRefused
from rlhf_operator.decisions.plan import Submit
from rlhf_operator.observed.picture import Submission, Unreachable

G = Any
HOST = "127.0.0.1"
ID = "addition-0f1e2d3c-1-1"


class Head:
    """A head's job API with one table of jobs; texts and codes are Ray's own."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.requests: list[dict[str, Any]] = []
        self.failing = 0

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self.authorised])
        application.router.add_post("/api/jobs/", self.submit)
        application.router.add_get("/api/jobs/{id}", self.info)
        application.router.add_post("/api/jobs/{id}/stop", self.stop)
        return application

    @web.middleware
    async def authorised(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer token":
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        if self.failing:
            return web.Response(status=self.failing, text="No available agent to submit job, please try again later.")
        response: web.StreamResponse = await handler(request)
        return response

    async def submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        if body["submission_id"] in self.jobs:
            text = f"ValueError: Job with submission_id {body['submission_id']} already exists. Please use another."
            return web.Response(status=400, text=text)
        if body["entrypoint"] != "rlhf-supervisor":
            return web.Response(status=400, text="TypeError: no")
        self.jobs[body["submission_id"]] = {"status": "PENDING", "message": None, "driver_exit_code": None}
        return web.json_response({"job_id": body["submission_id"], "submission_id": body["submission_id"]})

    async def info(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            return web.Response(status=404, text=f"Job {request.match_info['id']} does not exist")
        return web.json_response(job)

    async def stop(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.jobs:
            return web.Response(status=404, text=f"Job {request.match_info['id']} does not exist")
        self.jobs[request.match_info["id"]]["status"] = "STOPPED"
        return web.json_response({"stopped": True})


@pytest.fixture
def head() -> Head:
    return Head()


@pytest.fixture
async def ray(head: Head) -> AsyncIterator[RayJobs]:
    runner = web.AppRunner(head.application())
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    async with aiohttp.ClientSession() as session:
        yield RayJobs(session, port=runner.addresses[0][1])
    await runner.cleanup()


def submit(**changes: Any) -> Submit:
    return Submit(**{"ip": HOST, "submission_id": ID, "incarnation": 1, "attempt": 1, **changes})


async def test_a_submission_carries_the_run_config_and_asks_for_no_resources(
    head: Head, ray: RayJobs, given: G
) -> None:
    # Not of Ray, that is: of its GPUs each process is told, and insists on them.
    await ray.submit("token", given.job(makers={"resources": {"limits": {"nvidia.com/gpu": 1}}}), submit())
    [request] = head.requests
    assert request["entrypoint"] == "rlhf-supervisor"
    assert request["entrypoint_num_cpus"] == 0
    config = RunConfig.model_validate_json(request["runtime_env"]["env_vars"][RUN_CONFIG_ENV])
    assert (config.attempt, config.incarnation, config.episodes) == (1, 1, 12)
    assert config.run_directory == "/mnt/rlhf/team/addition-0f1e2d3c"
    assert str(config.maker_gpus) == "makers.resources asks for 1 nvidia.com/gpu"
    assert "token" not in json.dumps(request)


async def test_submitting_again_is_success_and_changes_nothing(head: Head, ray: RayJobs, given: G) -> None:
    await ray.submit("token", given.job(), submit())
    await ray.submit("token", given.job(), submit())
    assert list(head.jobs) == [ID]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"status": "PENDING", "message": "waiting"}, Submission("Pending", "waiting")),
        ({"status": "RUNNING", "message": None}, Submission("Running")),
        ({"status": "SUCCEEDED", "message": "ok", "driver_exit_code": 0}, Submission("Succeeded", "ok", 0)),
        ({"status": "FAILED", "message": "code 78", "driver_exit_code": 78}, Submission("Failed", "code 78", 78)),
        ({"status": "STOPPED", "message": "stopped"}, Submission("Stopped", "stopped")),
    ],
)
async def test_a_known_job(head: Head, ray: RayJobs, job: dict[str, Any], expected: Submission) -> None:
    head.jobs[ID] = job
    assert await ray.ask(HOST, "token", ID) == expected


async def test_a_head_that_never_heard_of_it_says_so(ray: RayJobs) -> None:
    assert await ray.ask(HOST, "token", ID) == Submission("Unknown")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"status": 404, "text": "404 page not found"}, "404: 404 page not found"),
        ({"status": 302, "headers": {"Location": "/secret"}}, "302: found a redirect, expected an answer"),
        ({"text": '{"status": "RUNN', "content_type": "application/json"}, '200: {"status": "RUNN'),
        ({"body": b"x" * (MAX_ANSWER + 1)}, f"found an answer of more than {MAX_ANSWER} bytes, expected less"),
    ],
)
async def test_what_something_else_says_in_the_head_is_no_answer(answer: dict[str, Any], error: str) -> None:
    paths = []

    async def elsewhere(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(**answer)

    application = web.Application()
    application.router.add_get("/{path:.*}", elsewhere)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    async with aiohttp.ClientSession() as session:
        found = await RayJobs(session, port=runner.addresses[0][1]).ask(HOST, "token", ID)
    await runner.cleanup()
    assert found == Unreachable(error)
    assert paths == [f"/api/jobs/{ID}"]


async def test_errors_of_the_head_are_no_answer(head: Head, ray: RayJobs) -> None:
    head.failing = 500
    answer = await ray.ask(HOST, "token", ID)
    assert answer == Unreachable("500: No available agent to submit job, please try again later.")


async def test_a_refused_token_is_no_answer(ray: RayJobs) -> None:
    assert await ray.ask(HOST, "other", ID) == Unreachable("401: Unauthorized: Missing authentication token")


async def test_a_job_status_of_a_later_ray_is_no_answer(head: Head, ray: RayJobs) -> None:
    head.jobs[ID] = {"status": "PAUSED"}
    answer = await ray.ask(HOST, "token", ID)
    assert isinstance(answer, Unreachable)
    assert "found job status 'PAUSED', expected one of PENDING, RUNNING" in answer.error


async def test_nobody_there_is_no_answer(unused_tcp_port: int) -> None:
    async with aiohttp.ClientSession() as session:
        answer = await RayJobs(session, port=unused_tcp_port).ask(HOST, "token", ID)
    assert isinstance(answer, Unreachable)
    assert "Cannot connect" in answer.error


async def test_a_head_that_cannot_submit_yet_is_an_error_with_its_words(head: Head, ray: RayJobs, given: G) -> None:
    head.failing = 500
    with pytest.raises(RayRefused, match="500: No available agent"):
        await ray.submit("token", given.job(), submit())


async def test_stopping_is_idempotent_and_unknown_is_stopped(head: Head, ray: RayJobs, given: G) -> None:
    await ray.stop(HOST, "token", ID)
    await ray.submit("token", given.job(), submit())
    await ray.stop(HOST, "token", ID)
    await ray.stop(HOST, "token", ID)
    assert await ray.ask(HOST, "token", ID) == Submission("Stopped")
