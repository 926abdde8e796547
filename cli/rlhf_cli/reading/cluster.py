"""Reads an RLHFJob from the cluster that kubectl would use. The only module that knows Kubernetes."""

from typing import Any

from rlhf_api.job import GROUP, PLURAL, VERSION, RLHFJob

from rlhf_cli.exits import BadInput, Unavailable

#: Longest wait for the API server, seconds.
REQUEST_SECONDS = 30


def read_job(name: str, namespace: str | None) -> RLHFJob:
    """The job as the API server holds it; without a namespace, in the current context's.

    Raises BadInput when there is no such job, Unavailable when the cluster cannot be asked.
    """
    try:
        from kubernetes import client, config
        from urllib3.exceptions import HTTPError
    except ImportError as error:
        raise Unavailable(
            "reading from a cluster needs the kubernetes package: pip install 'rlhfjob[operator]'"
        ) from error
    try:
        config.load_kube_config()
    except config.ConfigException as error:
        raise Unavailable(f"no cluster to ask: {error}; set KUBECONFIG, or give a folder with --storage") from error
    place = namespace or _current_namespace(config)
    api = client.CustomObjectsApi()
    try:
        found: dict[str, Any] = api.get_namespaced_custom_object(
            GROUP, VERSION, place, PLURAL, name, _request_timeout=REQUEST_SECONDS
        )
    except client.ApiException as error:
        if error.status == 404:
            raise BadInput(f"there is no RLHFJob {name!r} in namespace {place!r} of the cluster") from error
        raise Unavailable(f"the API server refused: {error.status} {error.reason}") from error
    except HTTPError as error:
        raise Unavailable(f"the API server does not answer: {error}") from error
    return RLHFJob.read(found)


def _current_namespace(config: Any) -> str:
    _, current = config.list_kube_config_contexts()
    return str(current["context"].get("namespace") or "default")
