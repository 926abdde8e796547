"""Laying a user's PodTemplateSpec under what the operator sets: pure dict work, checked as far as it is read.

Whether the rest of a template means anything is for the API server to say (a dry run proves it). Here only the
parts that are merged need their shape; another shape raises TemplateError, which says where and what was found.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any


class TemplateError(ValueError):
    """A role's template has a shape that no PodTemplateSpec has."""


def lay_under(template: Mapping[str, Any], pod: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``pod`` (metadata and spec of ours) over ``template``: mappings merge deeply and ours win; containers, volumes
    and variables merge by name, mounts by path, ports by number; other lists of ours replace the template's.

    Containers of ours come first (KubeRay takes the first one for Ray). Raises TemplateError.
    """
    return _merge_mapping(template, pod, where)


#: Lists that merge by a key: an entry of ours replaces the template's, or is laid over it if it is a container.
_KEYS = {
    "containers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
}
#: Lists of ours that are added to the template's.
_APPENDED = frozenset({"envFrom"})


def _merge_mapping(under: Any, over: Mapping[str, Any], where: str) -> dict[str, Any]:
    _expect(under, Mapping, where)
    merged = copy.deepcopy(dict(under))
    for key, value in over.items():
        known, place = merged.get(key), f"{where}.{key}"
        if known is None:
            merged[key] = copy.deepcopy(value)
        elif isinstance(value, Mapping):
            merged[key] = _merge_mapping(known, value, place)
        elif key in _KEYS:
            merged[key] = _merge_by_key(key, known, value, place)
        elif key in _APPENDED:
            _expect(known, Sequence, place)
            merged[key] = [*known, *copy.deepcopy(value)]
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_by_key(field: str, under: Any, over: Sequence[Mapping[str, Any]], where: str) -> list[Any]:
    _expect(under, Sequence, where)
    for index, entry in enumerate(under):
        _expect(entry, Mapping, f"{where}[{index}]")
    key = _KEYS[field]
    known = {str(entry.get(key)): entry for entry in under}
    ours = {str(entry[key]): entry for entry in over}
    others = [entry for entry in under if str(entry.get(key)) not in ours]
    if field != "containers":
        # A variable with our value and the template's valueFrom would mean nothing: ours replaces it.
        return [*copy.deepcopy(list(over)), *others]
    return [*(_merge_mapping(known.get(n, {}), entry, f"{where}[{n}]") for n, entry in ours.items()), *others]


def _expect(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind) or isinstance(value, str):
        expected = "a mapping" if kind is Mapping else "a list"
        raise TemplateError(f"{where}: found {type(value).__name__}, expected {expected}")
