"""What stands in the job's way, read off its pods: pure checks, the most serious first."""

from collections.abc import Iterable, Iterator

from rlhf_api.conditions import Reason

from rlhf_operator.observed.picture import HEAD_ROLE, ClusterSeen, Observed, Obstacle, PodSeen

#: A container that ended so often before Ray ran will not heal by itself.
CRASHES_BEFORE_GIVING_UP = 3

_IMAGE_PULL_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError"}
)
_CREATION_REASONS = {
    "CreateContainerConfigError": Reason.REFERENCE_MISSING,
    "CreateContainerError": Reason.CONTAINER_CRASHED,
    "RunContainerError": Reason.CONTAINER_CRASHED,
}


def obstacles(observed: Observed, job_uid: str, *, first_attempt: bool) -> tuple[Obstacle, ...]:
    """Everything that keeps pods from being ready; those that cannot heal come first, then the head's.

    After a head was lost KubeRay's old workers crash until the new head answers: only in the ``first_attempt`` do
    crashes of a worker say that it can never start.
    """
    found: list[Obstacle] = [*observed.refusals]
    for pod in sorted(observed.pods, key=lambda pod: pod.role != HEAD_ROLE):
        if not pod.ready and not pod.terminating:
            found.extend(_of_pod(pod, crashes_are_final=first_attempt or pod.role == HEAD_ROLE))
    if observed.cluster is not None:
        found.extend(_of_cluster(observed.cluster, job_uid))
    return tuple(sorted(found, key=lambda obstacle: obstacle.heals))


def of_sidecars(pods: Iterable[PodSeen]) -> str:
    """What is wrong with containers that Ray runs without, one after the other; empty when nothing is."""
    said = []
    for pod in pods:
        for container in pod.containers if not pod.terminating else ():
            where = f"sidecar {container.name} of pod {pod.name}"
            if container.sidecar and container.exit_code and container.restarts >= 1:
                said.append(f"{where} has ended {container.restarts} times {container.ending}")
            elif container.sidecar and container.waiting_message:
                said.append(f"{where} cannot be started: {container.waiting_message}")
    return "; ".join(said)


def _of_cluster(cluster: ClusterSeen, job_uid: str) -> Iterator[Obstacle]:
    if cluster.owner_uid != job_uid:
        message = f"RayCluster {cluster.name} exists and does not belong to this job; delete it, or rename the job"
        yield Obstacle(Reason.RAY_CLUSTER_INVALID, message, heals=True)
    elif cluster.deleting:
        yield Obstacle(
            Reason.PENDING, f"RayCluster {cluster.name} is being deleted; it will then be created again", heals=True
        )
    elif cluster.replica_failure:
        message = f"KubeRay cannot create the pods of {cluster.name}: {cluster.replica_failure}"
        yield Obstacle(Reason.PROVISIONING, message, heals=True)


def _of_pod(pod: PodSeen, crashes_are_final: bool) -> Iterator[Obstacle]:
    if pod.unschedulable:
        yield Obstacle(Reason.UNSCHEDULABLE, f"pod {pod.name} cannot be scheduled: {pod.unschedulable}", heals=True)
    for container in pod.containers:
        if container.sidecar:
            continue
        where = f"container {container.name} of pod {pod.name}"
        if container.waiting_reason == "InvalidImageName":
            message = f"{where}: {container.image!r} is not a valid image name: {container.waiting_message}"
            yield Obstacle(Reason.IMAGE_NAME_INVALID, message, heals=False)
        elif container.waiting_reason in _IMAGE_PULL_REASONS:
            message = f"{where}: image {container.image!r} cannot be pulled: {container.waiting_message}"
            yield Obstacle(Reason.IMAGE_PULL, message, heals=True)
        elif container.waiting_reason in _CREATION_REASONS:
            message = f"{where} cannot be started: {container.waiting_message}"
            yield Obstacle(_CREATION_REASONS[container.waiting_reason], message, heals=True)
        elif container.exit_code and container.restarts >= 1:
            final = crashes_are_final and container.restarts >= CRASHES_BEFORE_GIVING_UP
            message = f"{where} ended {container.restarts} times before Ray ran {container.ending}"
            yield Obstacle(Reason.CONTAINER_CRASHED, message, heals=not final)
