"""What a publish announces before its first byte: which version, which tensors, in which buckets. Needs no torch."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlhf_runtime.weight_sync.probe import Probe

#: Largest bucket of weights that travels in one piece, bytes; a larger tensor is a bucket of its own.
BUCKET_BYTES = 64 * 2**20


class SyncRefused(ValueError):
    """A version that must not be applied; the message says which rule it breaks. The live weights are as before."""


class NotInPreparation(ValueError):
    """A part of a version that nobody prepared for, or whose lease has ended; it may be prepared again."""


class Order(NamedTuple):
    """Publishes are ordered by (attempt, repair, version): after a rollback versions go back, the order does not."""

    attempt: int
    repair: int
    version: int


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor on the wire: `dtype` as torch names it ("float32"), `size` in bytes, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of a version's tensors, each once, in the order of the wire.

    `must_differ` says that training has moved the weights: a version equal to the one before is then an error.
    `changed_weights`: share of the policy's weights that differ from the version published before, None if none was.
    """

    order: Order
    buckets: tuple[tuple[TensorSpec, ...], ...]
    must_differ: bool
    changed_weights: float | None = None

    def tensors(self) -> Iterator[TensorSpec]:
        return (spec for bucket in self.buckets for spec in bucket)


def bucket_digest(content: memoryview | bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def version_digest(manifest: Manifest, bucket_digests: Sequence[str]) -> str:
    """One digest of names, shapes, dtypes and all bytes: what commit compares on both sides."""
    described = [(spec.name, spec.shape, spec.dtype, spec.size) for spec in manifest.tensors()]
    text = repr((tuple(manifest.order), described, list(bucket_digests)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def into_buckets(specs: Sequence[TensorSpec], limit: int = BUCKET_BYTES) -> tuple[tuple[TensorSpec, ...], ...]:
    """Tensors in their order, cut so that no bucket of more than one tensor is larger than `limit` bytes."""
    buckets: list[list[TensorSpec]] = []
    room = 0
    for spec in specs:
        if not buckets or spec.size > room:
            buckets.append([])
            room = limit
        buckets[-1].append(spec)
        room -= spec.size
    return tuple(tuple(bucket) for bucket in buckets)


#: Something in Ray's object store: whoever gets it passes it on, unopened.
Payload = Any


@dataclass(frozen=True, slots=True)
class Publication:
    """A complete version in the object store; the coordinator keeps the newest one, for makers that come later."""

    manifest: Manifest
    buckets: tuple[tuple[str, Payload], ...]
    digest: str
    probe: Probe | None = None

    @property
    def version(self) -> int:
        return self.manifest.order.version
