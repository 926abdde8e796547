"""Weight sync as a transaction: prepare, shards, commit. A version is applied complete and in order, or not at all.

::

    Publisher (trainer rank 0)                          Receiver (every maker, at its own pace)
    prepare(order) -> Manifest               ------->   prepare(manifest, lease): names, shapes, dtypes fit?
    shard(order, i) -> digest, bytes         ------->   stage(order, i, digest, bytes): beside the live weights
    commit(order) -> digest of the version   ------->   commit(order, digest): all there, all as sent, not unchanged
                                                        apply_pending(): between two engine calls

The publisher keeps nothing and waits for nobody: receivers pull, so N publishers of M receivers cannot deadlock.
A publisher that dies half way leaves the receiver's live weights alone, and the staged ones are freed when the
lease ends. Neither end takes part in a collective.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlhf_runtime.weight_sync.changed_weights import ChangedWeights
from rlhf_runtime.weight_sync.manifest import BUCKET_BYTES, Manifest, Order, bucket_digest, into_buckets, version_digest
from rlhf_runtime.weight_sync.tensors import Bytes, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPart:
    """One model of a publish: its tensors go under `prefix` and a dot, floating-point ones as `dtype`.

    `weights(version)` gives the whole tensors by plain name, and {} on ranks that do not publish; all ranks call it.
    """

    prefix: str
    dtype: torch.dtype
    weights: Callable[[int], Mapping[str, Tensor]]


class Publisher:
    """Gives models' weights away, the policy's as the first part. They rest from prepare to commit.

    Every rank has one, because weights that are divided over ranks come together by all of them; with `publishes`
    false it takes part in that, and gives nothing.
    """

    def __init__(
        self, parts: Sequence[PublishedPart], *, publishes: bool = True, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._parts = parts
        self._publishes = publishes
        self._bucket_bytes = bucket_bytes
        self._tensors: dict[str, tuple[Tensor, torch.dtype]] = {}
        self._manifest: Manifest | None = None
        self._digests: dict[int, str] = {}
        self._changed = ChangedWeights()

    def prepare(self, order: Order, *, must_differ: bool) -> Manifest | None:
        """Begin a publish; one that was begun before is forgotten. None where nothing is published."""
        weights = [part.weights(order.version) for part in self._parts]
        self._tensors = {
            f"{part.prefix}.{name}": (tensor, part.dtype if tensor.is_floating_point() else tensor.dtype)
            for part, tensors in zip(self._parts, weights, strict=True)
            for name, tensor in tensors.items()
        }
        if not self._publishes:
            self._tensors = {}
            return None
        specs = [spec_of(name, tensor, dtype) for name, (tensor, dtype) in self._tensors.items()]
        changed = self._changed.share(order.version, weights[0], self._parts[0].dtype)
        self._manifest = Manifest(order, into_buckets(specs, self._bucket_bytes), must_differ, changed)
        self._digests = {}
        return self._manifest

    def shard(self, order: Order, index: int) -> tuple[str, Bytes]:
        """Digest and bytes of one bucket: a copy, so that training may go on once all are taken."""
        manifest = self._of(order)
        # Cast here: one bucket at a time, so that no second copy of the model is held.
        chosen = [self._tensors[spec.name] for spec in manifest.buckets[index]]
        content = np.concatenate([_as_bytes(tensor.to(dtype)) for tensor, dtype in chosen])
        self._digests[index] = bucket_digest(content.data)
        return self._digests[index], content

    def commit(self, order: Order) -> str:
        """Digest of the whole version; raises ValueError if a bucket was never taken."""
        manifest = self._of(order)
        missing = [index for index in range(len(manifest.buckets)) if index not in self._digests]
        if missing:
            raise ValueError(f"commit of {order}: buckets {missing} were never taken")
        self._tensors = {}
        return version_digest(manifest, [self._digests[index] for index in range(len(manifest.buckets))])

    def _of(self, order: Order) -> Manifest:
        if self._manifest is None or self._manifest.order != order:
            found = self._manifest.order if self._manifest else "none"
            raise ValueError(f"publish {order}: found {found} prepared")
        return self._manifest


def _as_bytes(tensor: Tensor) -> Bytes:
    """[size] uint8, row-major."""
    content: Bytes = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return content
