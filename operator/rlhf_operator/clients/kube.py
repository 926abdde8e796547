"""One thin door to the Kubernetes API: raw objects in and out, every call counted, every call with a deadline.

Own code: the generated clients turn objects into types that drop the fields they do not know, and count nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

from kubernetes.aio import client, config
from kubernetes.aio.config.config_exception import ConfigException

from rlhf_operator.metrics import Metrics

REQUEST_TIMEOUT_SECONDS = 30.0

Raw = dict[str, Any]


class ApiError(Exception):
    """The API server answered with an error; ``message`` is its own sentence."""

    def __init__(self, code: int, reason: str, message: str, where: str) -> None:
        super().__init__(f"{where}: {code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """404: the object, or its resource, does not exist."""


class Conflict(ApiError):
    """409: it exists already, or has changed since it was read."""


_ERRORS: Mapping[int, type[ApiError]] = {404: NotFound, 409: Conflict}


class Kube:
    """The API server, by paths. Use as an async context manager."""

    def __init__(self, api: client.ApiClient, metrics: Metrics) -> None:
        self.api = api
        self._metrics = metrics

    async def __aenter__(self) -> "Kube":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.api.close()

    async def call(
        self, verb: str, resource: str, path: str, body: Raw | None = None, query: Mapping[str, str] | None = None
    ) -> Raw:
        """One request. Raises ApiError, or aiohttp's ClientError and TimeoutError when there is no answer."""
        request = await self.api.param_serialize(
            method=_METHODS[verb],
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self.api.call_api(*request, _request_timeout=REQUEST_TIMEOUT_SECONDS)
            content = await response.read()
        except Exception:
            self._metrics.api_calls.labels(verb, resource, "none").inc()
            raise
        self._metrics.api_calls.labels(verb, resource, str(response.status)).inc()
        if response.status < 300:
            return dict(json.loads(content))
        reason, message = _explanation(content)
        error = _ERRORS.get(response.status, ApiError)
        raise error(response.status, reason, message, f"{verb} {path}")


_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "delete": "DELETE"}


def _explanation(content: bytes) -> tuple[str, str]:
    """Reason and message of a Status object; what stands between us and the server may answer with anything."""
    try:
        status = json.loads(content)
        return str(status.get("reason", "")), str(status["message"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return "", content[:300].decode("utf-8", "replace")


async def connect(metrics: Metrics) -> Kube:
    """With the pod's service account, else with the kubeconfig. Raises ConfigException when there is neither."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    return Kube(client.ApiClient(configuration), metrics)
