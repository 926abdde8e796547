"""The newest known state of jobs, RayClusters and pods, kept by kopf's watches and by the operator's own reads.

Own code: kopf's indices hold what handlers return, and take in no reads and no written status.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_api.job import RLHFJob
from rlhf_api.names import JOB_NAME_LABEL, JOB_UID_LABEL

from rlhf_operator.queue import Key

Raw = dict[str, Any]


class _Objects:
    """Raw objects by namespace and name; an older version never replaces a newer one."""

    def __init__(self) -> None:
        self._objects: dict[Key, Raw] = {}

    def put(self, raw: Raw) -> None:
        key = key_of(raw)
        known = self._objects.get(key)
        if known is None or known["metadata"]["uid"] != raw["metadata"]["uid"] or _version(raw) >= _version(known):
            self._objects[key] = raw

    def remove(self, key: Key, uid: str) -> None:
        """Only the object of that UID: a successor of the same name stays."""
        if key in self._objects and self._objects[key]["metadata"]["uid"] == uid:
            del self._objects[key]

    def discard(self, key: Key) -> None:
        self._objects.pop(key, None)

    def get(self, key: Key) -> Raw | None:
        return self._objects.get(key)

    def __iter__(self) -> Iterator[Raw]:
        return iter(list(self._objects.values()))


class Watched:
    """What the watches have told. A watch may miss a deletion: what matters is read again before it is believed."""

    def __init__(self) -> None:
        self.jobs = _Objects()
        self.clusters = _Objects()
        self._pods: dict[str, _Objects] = {}

    def pods_of(self, job_uid: str) -> list[Raw]:
        return list(self._pods.get(job_uid, ()))

    def put_pod(self, raw: Raw) -> None:
        self._pods.setdefault(_job_uid(raw), _Objects()).put(raw)

    def remove_pod(self, raw: Raw) -> None:
        job_uid = _job_uid(raw)
        if (pods := self._pods.get(job_uid)) is not None:
            pods.remove(key_of(raw), raw["metadata"]["uid"])
            if not list(pods):
                del self._pods[job_uid]

    def replace_pods(self, job_uid: str, pods: list[Raw]) -> None:
        """An authoritative list: what it does not hold is gone."""
        objects = _Objects()
        for raw in pods:
            objects.put(raw)
        self._pods[job_uid] = objects

    def forget(self, job_uid: str) -> None:
        """The job is gone, and so is the interest in its pods."""
        self._pods.pop(job_uid, None)


def key_of(raw: Mapping[str, Any]) -> Key:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]


def job_key(raw: Mapping[str, Any]) -> Key | None:
    """The key of the job that a child belongs to, by its labels."""
    name = raw["metadata"].get("labels", {}).get(JOB_NAME_LABEL)
    return (raw["metadata"]["namespace"], name) if name else None


def child_key(job: RLHFJob, name: str) -> Key:
    return job.namespace, name


def _job_uid(raw: Mapping[str, Any]) -> str:
    return str(raw["metadata"]["labels"][JOB_UID_LABEL])


def _version(raw: Mapping[str, Any]) -> int:
    return int(raw["metadata"]["resourceVersion"])
