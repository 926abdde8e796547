"""A maker's end of a weight sync; `publisher` describes the transaction."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlhf_runtime.weight_sync.manifest import (
    Manifest,
    NotInPreparation,
    Order,
    SyncRefused,
    bucket_digest,
    version_digest,
)
from rlhf_runtime.weight_sync.tensors import Bytes, spec_of

Apply = Callable[[Mapping[str, Tensor], int], None]


@dataclass
class _Staged:
    """A version that is being received; `lease_end` on the receiver's clock."""

    manifest: Manifest
    lease_end: float
    buckets: dict[int, Bytes] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    complete: bool = False

    def all_digests(self) -> list[str]:
        return [self.digests[index] for index in range(len(self.manifest.buckets))]


class Receiver:
    """A maker's end: stages versions beside the live weights, which change in `apply_pending` only.

    Called from several threads; `apply_pending` by the one that holds the engine. `expected` are tensors of the names,
    shapes and dtypes that a version must have; `apply` puts a version into use.
    """

    def __init__(
        self, expected: Mapping[str, Tensor], apply: Apply, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._expected = {name: spec_of(name, tensor, tensor.dtype) for name, tensor in expected.items()}
        self._apply = apply
        self._clock = clock
        self._lock = threading.Lock()
        self._staged: _Staged | None = None
        self._committed: Order | None = None
        self._committed_digests: list[str] = []

    @property
    def committed(self) -> Order | None:
        """The version in use; None before the first."""
        return self._committed

    @property
    def staging(self) -> bool:
        """Whether memory is held for a version to come."""
        return self._staged is not None

    def prepare(self, manifest: Manifest, lease_seconds: float) -> bool:
        """Make room for a version, for so long. False if it is in use already, so that nothing is to be sent.

        A version that was being received is forgotten: it was given up, or this one is newer. Raises SyncRefused if
        the version is older than the one in use, or does not fit the model.
        """
        with self._lock:
            if manifest.order == self._committed:
                return False
            if self._committed is not None and manifest.order < self._committed:
                raise SyncRefused(f"{manifest.order} is not after {self._committed}, which is in use")
            self._refuse_misfit(manifest)
            self._staged = _Staged(manifest, self._clock() + lease_seconds)
            return True

    def stage(self, order: Order, index: int, digest: str, content: Bytes) -> None:
        """Keep a copy of one bucket. Raises SyncRefused if it isn't what was sent, NotInPreparation."""
        with self._lock:
            staged = self._staged_of(order)
            expected = sum(spec.size for spec in staged.manifest.buckets[index])
        if content.nbytes != expected:
            raise SyncRefused(f"{order}, bucket {index}: found {content.nbytes} bytes, expected {expected}")
        # Out of the lock: copying and hashing a large bucket must not hold up a health check.
        copy = content.copy()
        found = bucket_digest(copy.data)
        if found != digest:
            raise SyncRefused(f"{order}, bucket {index}: found digest {found}, expected {digest}")
        with self._lock:
            staged = self._staged_of(order)
            staged.buckets[index] = copy
            staged.digests[index] = found

    def commit(self, order: Order, digest: str) -> None:
        """Accept the version, to be applied by the next `apply_pending`; again is no error.

        Raises SyncRefused if something is missing, differs from what was published, or did not change although
        training moved it; NotInPreparation.
        """
        with self._lock:
            if self._committed == order:
                return
            staged = self._staged_of(order)
            missing = [index for index in range(len(staged.manifest.buckets)) if index not in staged.buckets]
            if missing:
                raise SyncRefused(f"commit of {order}: buckets {missing} are missing")
            digests = staged.all_digests()
            found = version_digest(staged.manifest, digests)
            if found != digest:
                raise SyncRefused(f"commit of {order}: found digest {found}, expected {digest}")
            if staged.manifest.must_differ and digests == self._committed_digests:
                raise SyncRefused(
                    f"commit of {order}: every tensor equals {self._committed}'s although training has moved them; "
                    "what is published is not what is trained"
                )
            staged.complete = True

    def apply_pending(self) -> bool:
        """Put an accepted version into use; the caller holds the engine between two calls. True if there was one."""
        with self._lock:
            staged = self._staged
            if staged is None or not staged.complete:
                return False
            self._apply(_tensors(staged), staged.manifest.order.version)
            self._committed = staged.manifest.order
            self._committed_digests = staged.all_digests()
            self._staged = None
            return True

    def expire(self) -> bool:
        """Free what is staged if its lease has ended before its commit. True if something was freed."""
        with self._lock:
            if self._staged is None or self._staged.complete or self._clock() < self._staged.lease_end:
                return False
            self._staged = None
            return True

    def _staged_of(self, order: Order) -> _Staged:
        if self._staged is None or self._staged.manifest.order != order:
            found = self._staged.manifest.order if self._staged else "none (never prepared, or its lease has ended)"
            raise NotInPreparation(f"{order}: found {found} in preparation")
        return self._staged

    def _refuse_misfit(self, manifest: Manifest) -> None:
        announced = {spec.name: spec for spec in manifest.tensors()}
        problems = [f"missing {name}" for name in self._expected if name not in announced]
        problems += [f"unknown {name}" for name in announced if name not in self._expected]
        problems += [
            f"{name}: found {spec.dtype}{list(spec.shape)}, expected {expected.dtype}{list(expected.shape)}"
            for name, expected in self._expected.items()
            if (spec := announced.get(name)) is not None and spec != expected
        ]
        if problems:
            raise SyncRefused(f"{manifest.order} does not fit this model: {'; '.join(problems)}")


def _tensors(staged: _Staged) -> dict[str, Tensor]:
    """Views of the staged bytes as tensors, by name."""
    tensors = {}
    for index, bucket in enumerate(staged.manifest.buckets):
        offset = 0
        for spec in bucket:
            # Through bytes of their own: an element must start at a multiple of its size, and a bucket mixes sizes.
            content = torch.from_numpy(staged.buckets[index][offset : offset + spec.size].copy())
            tensors[spec.name] = content.view(getattr(torch, spec.dtype)).view(spec.shape)
            offset += spec.size
    return tensors
