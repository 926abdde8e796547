"""The effects on Kubernetes, over HTTP against a server that answers as kube-apiserver does (texts are its own)."""

import base64
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client
from rlhf_api import names
from rlhf_operator.clients.cluster import OPERATOR_KEY_SECRET, Cluster, NotOurs, Proof, operator_key
from rlhf_operator.clients.kube import ApiError, Conflict, Kube, NotFound
from rlhf_operator.metrics import Metrics
from rlhf_operator.observed.picture import Code

G = Any
CODES = {
    "NotFound": 404,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Invalid": 422,
    "BadRequest": 400,
    "Forbidden": 403,
    "InternalError": 500,
}


class Server:
    """Objects by path; ``answers`` overrules it by verb and the end of a path."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.answers: dict[tuple[str, str], tuple[str, str]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.default_memory = ""
        """What a LimitRange gives to containers that set no memory."""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.path, dict(request.query)))
        self.bodies.append(body)
        for (verb, end), (reason, message) in self.answers.items():
            if request.method == verb and request.path.endswith(end) and _concerns(body, message):
                return _status(reason, message)
        if request.method == "POST":
            return self._create(f"{request.path}/{body['metadata']['name']}", body, "dryRun" in request.query)
        if request.path not in self.objects and not request.path.endswith("/status"):
            return _status("NotFound", f"{request.path} not found")
        if request.method == "DELETE":
            del self.objects[request.path]
            return web.json_response({"kind": "Status", "status": "Success"})
        return web.json_response(body if request.method == "PUT" else self.objects[request.path])

    def _create(self, path: str, body: dict[str, Any], dry_run: bool) -> web.Response:
        if path in self.objects:
            return _status("AlreadyExists", f"{path} already exists")
        if not dry_run:
            self.objects[path] = body
        if body["kind"] == "Pod" and self.default_memory:
            body = copy.deepcopy(body)
            for container in body["spec"]["containers"]:
                container.setdefault("resources", {"limits": {"memory": self.default_memory}})
        return web.json_response(body, status=201)


def _concerns(body: Any, message: str) -> bool:
    """An answer that quotes a pod's name is for that pod alone."""
    return body is None or '"' not in message or str(body["metadata"]["name"]) in message


def _status(reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "reason": reason, "message": message, "code": CODES[reason]}
    return web.json_response(body, status=CODES[reason])


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[Kube]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with Kube(client.ApiClient(configuration), Metrics()) as kube:
        yield kube
    await runner.cleanup()


@pytest.fixture
def cluster(kube: Kube) -> Cluster:
    return Cluster(kube, b"key")


MAKER = "addition-39d55-maker"
INVALID = f'Pod "{MAKER}" is invalid: spec.nodeSelector: Invalid value: "a b"'
STRICT = 'strict decoding error: unknown field "spec.nodeSelektor"'


@pytest.mark.parametrize(
    ("verb_and_path", "answer", "reason", "message", "heals"),
    [
        (("POST", "/pods"), ("Invalid", INVALID), "TemplateInvalid", "the API server refuses the maker pod: ", False),
        (
            ("POST", "/pods"),
            ("Forbidden", f'pods "{MAKER}" is forbidden: violates PodSecurity "restricted:latest": hostNetwork=true'),
            "TemplateInvalid",
            "the API server refuses the maker pod: ",
            False,
        ),
        (
            ("POST", "/pods"),
            ("Forbidden", f'pods "{MAKER}" is forbidden: exceeded quota: gpus, requested: 8, used: 0, limited: 4'),
            "Provisioning",
            "the API server refuses the maker pod: ",
            True,
        ),
        (
            ("POST", "/rayclusters"),
            ("NotFound", "the server could not find the requested resource"),
            "KubeRayMissing",
            "the cluster has no RayCluster (ray.io/v1): install KubeRay 1.6 or later ",
            True,
        ),
        (
            ("POST", "/rayclusters"),
            ("Invalid", "spec.workerGroupSpecs: Required value"),
            "RayClusterInvalid",
            "the API server refuses the RayCluster: ",
            False,
        ),
        (
            ("POST", "/rayclusters"),
            ("InternalError", "failed calling webhook: connection refused"),
            "Provisioning",
            "the API server refuses the RayCluster: ",
            True,
        ),
        (
            ("POST", "/secrets"),
            ("Forbidden", "secrets is forbidden: exceeded quota: objects, requested: 1, used: 5, limited: 5"),
            "Provisioning",
            "the API server refuses the job's Secret: ",
            True,
        ),
        (
            ("POST", "/configmaps"),
            ("Forbidden", "configmaps is forbidden: exceeded quota: objects, requested: 1, used: 5, limited: 5"),
            "Provisioning",
            "the API server refuses the job's ConfigMap: ",
            True,
        ),
    ],
)
async def test_what_the_dry_run_says(
    server: Server,
    cluster: Cluster,
    given: G,
    verb_and_path: tuple[str, str],
    answer: tuple[str, str],
    reason: str,
    message: str,
    heals: bool,
) -> None:
    server.answers[verb_and_path] = answer
    [obstacle] = (await cluster.prove(given.job(given.begun()), Code({"rewards.py": "x"}, {}))).obstacles
    assert (obstacle.reason, obstacle.heals) == (reason, heals)
    assert obstacle.message.startswith(message)
    assert answer[1] in obstacle.message, "the server's own words are kept"
    assert server.objects == {}


async def test_a_dry_run_asks_for_strictness_and_creates_nothing(server: Server, cluster: Cluster, given: G) -> None:
    job = given.job(given.begun())
    assert await cluster.prove(job, Code({"rewards.py": "x"}, {})) == Proof(given.ray_cluster(job))
    assert [(method, path.rsplit("/", 1)[-1]) for method, path, _ in server.requests] == [
        ("POST", "pods"),
        ("POST", "pods"),
        ("POST", "pods"),
        ("POST", "rayclusters"),
        ("POST", "secrets"),
        ("POST", "configmaps"),
    ]
    assert {tuple(query.items()) for _, _, query in server.requests} == {
        (("dryRun", "All"), ("fieldValidation", "Strict"))
    }
    assert server.objects == {}


async def test_object_stores_follow_the_memory_that_the_namespace_gives_to_pods_without_any(
    server: Server, cluster: Cluster, given: G
) -> None:
    """A LimitRange's defaults are in the pod that a dry run returns, and nowhere in the job."""
    server.default_memory = "512Mi"
    job = given.job(given.begun(), makers={"resources": {"limits": {"memory": "2Gi"}}})
    manifest = (await cluster.prove(job, None)).ray_cluster
    assert manifest is not None
    head, (maker, trainer) = manifest["spec"]["headGroupSpec"], manifest["spec"]["workerGroupSpecs"]
    stores = [group["rayStartParams"]["object-store-memory"] for group in (head, maker, trainer)]
    assert stores == [str(int(0.3 * size * 1024**2)) for size in (512, 2048, 512)]
    assert "resources" not in head["template"]["spec"]["containers"][0], "what the namespace sets is left to it"
    posted = [body["spec"] for body in server.bodies if body["kind"] == "RayCluster"]
    assert posted == [manifest["spec"]], "what was proven is what will be created"


async def test_a_template_that_cannot_be_merged_is_refused_without_asking(
    server: Server, cluster: Cluster, given: G
) -> None:
    job = given.job(given.begun(), makers={"template": {"spec": {"containers": "x"}}})
    [obstacle] = (await cluster.prove(job, None)).obstacles
    assert (obstacle.reason, obstacle.heals) == ("TemplateInvalid", False)
    assert obstacle.message == "spec.makers.template.spec.containers: found str, expected a list"
    assert server.requests == []


async def test_creating_again_is_success(server: Server, cluster: Cluster, given: G) -> None:
    job = given.job(given.begun())
    for _ in range(2):
        await cluster.create_secret(job)
        await cluster.create_config_map(job, Code({"rewards.py": "x"}, {}))
        await cluster.create_ray_cluster(job, given.ray_cluster(job))
    assert len(server.objects) == 3
    assert not [path for method, path, _ in server.requests if method == "GET" and "secrets" in path]


async def test_a_name_that_somebody_else_has_is_an_error(server: Server, cluster: Cluster, given: G) -> None:
    job = given.job(given.begun())
    name = names.ray_cluster_name(job, 1)
    path = f"/apis/ray.io/v1/namespaces/team/rayclusters/{name}"
    server.objects[path] = {"metadata": {"name": name, "ownerReferences": [{"uid": "another"}]}}
    with pytest.raises(NotOurs, match=f"rayclusters {name} exists and does not belong to this job"):
        await cluster.create_ray_cluster(job, given.ray_cluster(job))


async def test_deleting_what_is_gone_is_success(server: Server, cluster: Cluster, given: G) -> None:
    job = given.job(given.begun(), runtime={"code": {"configMap": {"name": "mine"}}})
    await cluster.create_ray_cluster(job, given.ray_cluster(job))
    server.requests.clear()
    for _ in range(2):
        await cluster.delete_ray_cluster(job, names.ray_cluster_name(job, 1))
        await cluster.delete_secret_and_code(job)
    assert {body["propagationPolicy"] for body in server.bodies[-6:]} == {"Background"}
    assert server.objects == {}


async def test_a_secret_that_may_not_be_deleted_keeps_no_code(server: Server, cluster: Cluster, given: G) -> None:
    job = given.job(given.begun(), runtime={"code": {"configMap": {"name": "mine"}}})
    await cluster.create_config_map(job, Code({"rewards.py": "x"}, {}))
    server.answers["DELETE", names.token_secret_name(job)] = ("Forbidden", "secrets is forbidden")
    with pytest.raises(ApiError, match="secrets is forbidden"):
        await cluster.delete_secret_and_code(job)
    assert server.objects == {}


async def test_the_copy_of_the_code_counts_before_the_user_s_own(server: Server, cluster: Cluster, given: G) -> None:
    job = given.job(given.begun(), runtime={"code": {"configMap": {"name": "mine"}}})
    assert await cluster.read_code(job) is None
    base = "/api/v1/namespaces/team/configmaps"
    server.objects[f"{base}/mine"] = {"data": {"rewards.py": "edited"}}
    assert await cluster.read_code(job) == Code({"rewards.py": "edited"}, {})
    server.objects[f"{base}/{names.code_config_map_name(job)}"] = {"data": {"rewards.py": "first"}}
    assert await cluster.read_code(job) == Code({"rewards.py": "first"}, {}, copied=True)


async def test_status_is_replaced_with_the_version_that_was_read(server: Server, cluster: Cluster, given: G) -> None:
    raw = given.manifest()
    await cluster.write_status(raw, {"phase": "Pending"})
    assert server.requests[-1][:2] == ("PUT", "/apis/rlhf.dev/v1alpha1/namespaces/team/rlhfjobs/addition/status")
    assert server.bodies[-1]["metadata"]["resourceVersion"] == "1"
    assert server.bodies[-1]["status"]["phase"] == "Pending"
    assert server.bodies[-1]["spec"] == raw["spec"]
    server.answers["PUT", "/status"] = ("Conflict", "the object has been modified")
    with pytest.raises(Conflict):
        await cluster.write_status(raw, {"phase": "Pending"})


async def test_the_operator_s_key_is_made_once_and_read_after(server: Server, kube: Kube) -> None:
    first = await operator_key(kube, "rlhf-system")
    assert len(first) == 32
    assert await operator_key(kube, "rlhf-system") == first
    [path] = server.objects
    assert path == f"/api/v1/namespaces/rlhf-system/secrets/{OPERATOR_KEY_SECRET}"
    assert base64.b64decode(server.objects[path]["data"]["key"]) == first


async def test_errors_carry_the_server_s_reason_and_words(server: Server, kube: Kube) -> None:
    for reason, kind in (
        ("NotFound", NotFound),
        ("Conflict", Conflict),
        ("Forbidden", ApiError),
        ("Invalid", ApiError),
    ):
        server.answers = {("GET", "/x"): (reason, "in its own words")}
        with pytest.raises(kind, match="in its own words") as caught:
            await kube.call("get", "pods", "/x")
        assert (caught.value.code, caught.value.reason) == (CODES[reason], reason)


async def test_an_answer_that_is_no_status_is_an_error_too(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    async def proxy(_: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", proxy)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(kube.api.configuration, "_base_path", f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.raises(ApiError, match="502 : <html>bad gateway</html>"):
        await kube.call("get", "pods", "/x")
    await runner.cleanup()


async def test_every_call_is_counted(kube: Kube) -> None:
    metrics = Metrics()
    counted = Kube(kube.api, metrics)
    with pytest.raises(NotFound):
        await counted.call("get", "pods", "/nothing")
    sample = metrics.registry.get_sample_value(
        "rlhf_operator_api_calls_total", {"verb": "get", "resource": "pods", "code": "404"}
    )
    assert sample == 1
