"""What an RLHFJob means on one machine: its ConfigMaps become files and variables, its storage a folder.

Pure. Whatever only a cluster could give is refused by its path in the manifest, before anything is started.
"""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_api.gpus import PodGpus, pod_gpus
from rlhf_api.job import RLHFJob
from rlhf_api.names import storage_root
from rlhf_api.runtime import EnvFromSource, EnvVar

from rlhf_cli.exits import BadInput
from rlhf_cli.validation.config_map import ConfigMap

_ENV_NAME = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")
_EXPANSION = re.compile(r"\$(\$)?\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """An RLHFJob made ready for this machine."""

    job: RLHFJob
    """With a uid, without what only pods have, and with paths below its storage moved to the local folder."""
    environment: Mapping[str, str]
    """From runtime.env and runtime.envFrom."""
    code_files: Mapping[str, bytes] = field(default_factory=dict)
    """From runtime.code.configMap: file name to content."""
    code_path: str | None = None
    """From runtime.code.path."""
    notes: Sequence[str] = ()
    """What the manifest says and this machine ignores, one sentence each."""
    gpus: Sequence[PodGpus] = ()
    """What it would ask a cluster for; here makers and trainers compute on what there is."""


def localize(job: RLHFJob, config_maps: Sequence[ConfigMap], storage: Path, uid: str) -> LocalJob:
    """Resolve the job's references with the ConfigMaps of its own file, and move its storage to `storage`.

    Raises BadInput that names every reference that only a cluster can resolve.
    """
    found = {each.name: each for each in config_maps if each.namespace in (None, job.namespace)}
    problems = [f"{path}: {problem}" for path, problem in _unresolved(job, found)]
    if problems:
        raise BadInput(*problems)
    code = job.spec.runtime.code
    in_config_map = found[code.config_map.name] if code is not None and code.config_map is not None else None
    moved = _moved(job, storage_root(job), str(storage), uid)
    moved_code = moved.spec.runtime.code
    return LocalJob(
        job=moved,
        environment=_environment(job.spec.runtime.env, job.spec.runtime.env_from, found),
        code_files=_files(in_config_map) if in_config_map is not None else {},
        code_path=moved_code.path if moved_code is not None else None,
        notes=_notes(job),
        gpus=[gpus for gpus in (pod_gpus("makers", job.spec.makers), pod_gpus("trainers", job.spec.trainers)) if gpus],
    )


def local_uid(namespace: str, name: str, number: int) -> str:
    """The uid of a job's `number`-th run here (from 0): equal for equal names, so that the next command resumes."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"rlhf.dev/local/{namespace}/{name}/{number}"))


def _unresolved(job: RLHFJob, config_maps: Mapping[str, ConfigMap]) -> Iterator[tuple[str, str]]:
    """(path, problem) of every reference that cannot be resolved here."""
    runtime = job.spec.runtime
    for i, variable in enumerate(runtime.env):
        path = f"spec.runtime.env[{i}].valueFrom"
        if variable.value_from is None:
            continue
        if variable.value_from.secret_key_ref is not None:
            yield f"{path}.secretKeyRef", _secret(variable.value_from.secret_key_ref.name)
        if (key := variable.value_from.config_map_key_ref) is not None:
            yield from _missing(f"{path}.configMapKeyRef", key.name, key.key, config_maps)
    for i, source in enumerate(runtime.env_from):
        path = f"spec.runtime.envFrom[{i}]"
        if source.secret_ref is not None:
            yield f"{path}.secretRef", _secret(source.secret_ref.name)
        if source.config_map_ref is not None:
            yield from _missing(f"{path}.configMapRef", source.config_map_ref.name, None, config_maps)
    if runtime.code is not None and runtime.code.config_map is not None:
        yield from _missing("spec.runtime.code.configMap", runtime.code.config_map.name, None, config_maps)


def _secret(name: str) -> str:
    return (
        f"refers to Secret {name!r}, which only a cluster has; "
        "for a local run give the variable a plain value, or leave the entry out and export it in the shell"
    )


def _missing(path: str, name: str, key: str | None, config_maps: Mapping[str, ConfigMap]) -> Iterator[tuple[str, str]]:
    if name not in config_maps:
        listed = ", ".join(sorted(config_maps)) or "none"
        yield path, f"refers to ConfigMap {name!r}, which is not among the given files (found there: {listed})"
    elif key is not None and key not in config_maps[name].data:
        listed = ", ".join(sorted(config_maps[name].data)) or "none"
        yield path, f"refers to key {key!r} of ConfigMap {name!r}, whose keys are: {listed}"


def _files(config_map: ConfigMap) -> dict[str, bytes]:
    return {key: text.encode() for key, text in config_map.data.items()} | dict(config_map.binary_data)


def _environment(
    env: Sequence[EnvVar], env_from: Sequence[EnvFromSource], config_maps: Mapping[str, ConfigMap]
) -> dict[str, str]:
    """Variables as the kubelet would set them: later sources win, `env` over `envFrom`, `$(NAME)` is expanded."""
    variables: dict[str, str] = {}
    for source in env_from:
        if source.config_map_ref is not None:
            data = config_maps[source.config_map_ref.name].data
            variables.update({key: value for key, value in data.items() if _ENV_NAME.match(key)})
    for variable in env:
        if variable.value_from is not None and (key := variable.value_from.config_map_key_ref) is not None:
            variables[variable.name] = config_maps[key.name].data[key.key]
        else:
            variables[variable.name] = _expanded(variable.value or "", variables)
    return variables


def _expanded(value: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' own expansion: `$(NAME)` of a variable set before, `$$(NAME)` stays `$(NAME)`."""

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        return variables.get(match[2], match[0])

    return _EXPANSION.sub(replace, value)


def _moved(job: RLHFJob, root: str, storage: str, uid: str) -> RLHFJob:
    """The job with a uid and no pods, every path below its storage's mount point moved below the local folder."""
    root = root.rstrip("/")

    def move(value: Any) -> Any:
        if isinstance(value, str) and (value == root or value.startswith(root + "/")):
            return storage + value[len(root) :]
        return value

    content = job.to_dict()
    spec = content["spec"]
    content["metadata"] = {**content["metadata"], "uid": uid}
    for role in ("head", "makers", "trainers"):
        for part in ("resources", "template"):
            spec.get(role, {}).pop(part, None)
    places = [*spec["models"].values(), spec["prompts"], spec.get("evaluation", {})]
    for place in places:
        if "uri" in place:
            place["uri"] = move(place["uri"])
    if "path" in spec.get("runtime", {}).get("code", {}):
        spec["runtime"]["code"]["path"] = move(spec["runtime"]["code"]["path"])
    return RLHFJob.model_validate(content)


def _notes(job: RLHFJob) -> list[str]:
    spec = job.spec
    notes = []
    roles = (("head", spec.head), ("makers", spec.makers), ("trainers", spec.trainers))
    ignored = [
        f"{name}.{part}"
        for name, role in roles
        for part, value in (("resources", role.resources.to_dict()), ("template", role.template))
        if any(value.values())
    ]
    if ignored:
        notes.append(f"Only a cluster uses {', '.join(ignored)}; ignored here.")
    if spec.runtime.image_pull_secrets:
        notes.append("Only a cluster pulls images; runtime.imagePullSecrets is ignored here.")
    return notes
