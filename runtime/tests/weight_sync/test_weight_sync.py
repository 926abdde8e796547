"""The weight sync transaction: only a complete, fitting, newer version is ever used, and it is used whole."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from rlhf_runtime.models.policy_weights import load_weights, model_weights
from rlhf_runtime.weight_sync.manifest import Manifest, NotInPreparation, Order, SyncRefused, TensorSpec, into_buckets
from rlhf_runtime.weight_sync.parts import expected_weights
from rlhf_runtime.weight_sync.publisher import PublishedPart, Publisher
from rlhf_runtime.weight_sync.receiver import Receiver
from torch import nn

V0, V1, V2 = Order(1, 0, 0), Order(1, 0, 1), Order(1, 0, 2)


class Policy(nn.Module):
    """Tied embedding and head, as small language models have, and an integer buffer of odd size."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(5, 3)
        self.middle = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.counter = nn.Module()
        self.counter.register_buffer("counts", torch.arange(3, dtype=torch.uint8))


def part(model: nn.Module, dtype: torch.dtype) -> PublishedPart:
    return PublishedPart(prefix="actor", dtype=dtype, weights=lambda version: model_weights(model))


def plain(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("actor."): tensor for name, tensor in state.items()}


class Pair:
    """A trainer's policy and a maker's, which starts from other weights."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0, bucket_bytes: int = 40) -> None:
        self.trained, self.live = Policy(1), Policy(2)
        self.publisher = Publisher([part(self.trained, torch.float32)], bucket_bytes=bucket_bytes)
        self.version = -1
        self.receiver = Receiver(expected_weights({"actor": self.live}), self.load, clock)

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        load_weights(self.live, plain(state))
        self.version = version

    def train(self) -> None:
        with torch.no_grad():
            for parameter in self.trained.parameters():
                parameter += 0.5

    def prepare(self, order: Order, must_differ: bool = False) -> Manifest:
        manifest = self.publisher.prepare(order, must_differ=must_differ)
        self.receiver.prepare(manifest, 10.0)
        return manifest

    def stage_all(self, manifest: Manifest) -> None:
        for index in range(len(manifest.buckets)):
            self.receiver.stage(manifest.order, index, *self.publisher.shard(manifest.order, index))

    def sync(self, order: Order, must_differ: bool = False) -> None:
        self.stage_all(self.prepare(order, must_differ))
        self.receiver.commit(order, self.publisher.commit(order))
        assert self.receiver.apply_pending()

    def equal(self) -> bool:
        live = model_weights(self.live)
        return all(torch.equal(tensor, live[name]) for name, tensor in model_weights(self.trained).items())


def test_a_synced_maker_has_the_trainer_s_weights_bit_for_bit_and_its_version() -> None:
    pair = Pair()
    pair.sync(V0)
    assert pair.equal()
    assert (pair.version, pair.receiver.committed) == (0, V0)
    assert not pair.receiver.staging


def test_tied_weights_travel_once_and_stay_tied() -> None:
    pair = Pair()
    manifest = pair.prepare(V0)
    assert [spec.name for spec in manifest.tensors()].count("head.weight") == 0
    pair.sync(V0)
    assert pair.live.head.weight is pair.live.embedding.weight


def test_the_live_weights_do_not_change_before_the_commit_is_applied() -> None:
    pair = Pair()
    before = {name: tensor.clone() for name, tensor in model_weights(pair.live).items()}
    pair.stage_all(pair.prepare(V0))
    pair.receiver.commit(V0, pair.publisher.commit(V0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model_weights(pair.live).items())
    assert pair.receiver.committed is None
    assert pair.receiver.apply_pending()
    assert pair.equal()


def test_a_publisher_that_dies_half_way_leaves_the_old_version_and_the_lease_frees_the_staging() -> None:
    now = [100.0]
    pair = Pair(clock=lambda: now[0])
    pair.sync(V0)
    pair.train()
    manifest = pair.prepare(V1)
    pair.receiver.stage(V1, 0, *pair.publisher.shard(V1, 0))
    now[0] = 109.9
    assert not pair.receiver.expire()
    now[0] = 110.0
    assert pair.receiver.expire()
    assert not pair.receiver.staging
    assert not pair.receiver.apply_pending()
    assert pair.version == 0
    with pytest.raises(NotInPreparation, match="its lease has ended"):
        pair.receiver.stage(V1, 1, *pair.publisher.shard(V1, 1))
    assert len(manifest.buckets) > 2


@pytest.mark.parametrize("staged", range(4))
def test_versions_count_updates_and_not_their_parts_and_a_part_that_fails_leaves_the_last_whole(staged: int) -> None:
    """Case R4: three updates of four parts each; the next one fails before its first part, second, ..."""
    pair = Pair(bucket_bytes=1)
    for version in range(3):
        pair.train()
        pair.sync(Order(1, 0, version))
        assert pair.version == version
    whole = {name: tensor.clone() for name, tensor in model_weights(pair.live).items()}
    pair.train()
    broken = Order(1, 0, 3)
    assert len(pair.prepare(broken).buckets) == 4
    for index in range(staged):
        pair.receiver.stage(broken, index, *pair.publisher.shard(broken, index))
    digest, content = pair.publisher.shard(broken, staged)
    with pytest.raises(SyncRefused):
        pair.receiver.stage(broken, staged, digest, content[:-1])
    assert not pair.receiver.apply_pending()
    assert pair.version == 2
    assert all(torch.equal(tensor, whole[name]) for name, tensor in model_weights(pair.live).items())


def test_an_accepted_version_does_not_expire_before_it_is_applied() -> None:
    now = [0.0]
    pair = Pair(clock=lambda: now[0])
    pair.stage_all(pair.prepare(V0))
    pair.receiver.commit(V0, pair.publisher.commit(V0))
    now[0] = 1000.0
    assert not pair.receiver.expire()
    assert pair.receiver.apply_pending()


def test_training_may_go_on_once_all_shards_are_taken() -> None:
    pair = Pair()
    manifest = pair.prepare(V0)
    pair.stage_all(manifest)
    digest = pair.publisher.commit(V0)
    sent = {name: tensor.clone() for name, tensor in model_weights(pair.trained).items()}
    pair.train()
    pair.receiver.commit(V0, digest)
    pair.receiver.apply_pending()
    assert all(torch.equal(tensor, sent[name]) for name, tensor in model_weights(pair.live).items())


def test_weights_that_move_between_two_shards_are_refused() -> None:
    pair = Pair()
    manifest = pair.prepare(V0)
    pair.stage_all(manifest)
    pair.train()
    pair.publisher.shard(V0, 0)
    with pytest.raises(SyncRefused, match="found digest"):
        pair.receiver.commit(V0, pair.publisher.commit(V0))


@pytest.mark.parametrize(
    ("situation", "order"),
    [("an older version", V0), ("an older attempt's later version", Order(0, 0, 9))],
)
def test_what_is_not_newer_is_refused(situation: str, order: Order) -> None:
    pair = Pair()
    pair.sync(V1)
    with pytest.raises(SyncRefused, match="is not after"):
        pair.prepare(order)
    assert pair.version == 1, situation


def test_the_version_in_use_is_not_sent_again() -> None:
    pair = Pair()
    pair.sync(V1)
    assert not pair.receiver.prepare(pair.publisher.prepare(V1, must_differ=False), 10.0)
    assert not pair.receiver.staging


def test_after_a_rollback_a_lower_version_of_a_later_attempt_is_newer() -> None:
    pair = Pair()
    pair.sync(Order(1, 0, 7))
    pair.sync(Order(2, 0, 5))
    assert pair.version == 5


def test_a_second_commit_of_the_same_version_changes_nothing() -> None:
    pair = Pair()
    pair.sync(V0)
    pair.receiver.commit(V0, "whatever")
    assert not pair.receiver.apply_pending()


def changed(manifest: Manifest, change: Callable[[list[TensorSpec]], list[TensorSpec]]) -> Manifest:
    return replace(manifest, buckets=into_buckets(change(list(manifest.tensors()))))


@pytest.mark.parametrize(
    ("situation", "change", "message"),
    [
        (
            "a renamed key",
            lambda s: [replace(s[0], name="model.x"), *s[1:]],
            "missing actor.embedding.weight; unknown model.x",
        ),
        ("a missing tensor", lambda s: s[1:], "missing actor.embedding.weight"),
        ("nothing at all", lambda s: [], "missing actor.embedding.weight; missing actor.middle.weight"),
        (
            "another shape",
            lambda s: [replace(s[0], shape=(3, 5)), *s[1:]],
            r"found float32\[3, 5\], expected .*\[5, 3\]",
        ),
        ("another dtype", lambda s: [replace(s[0], dtype="bfloat16"), *s[1:]], "found bfloat16"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    situation: str, change: Callable[[list[TensorSpec]], list[TensorSpec]], message: str
) -> None:
    pair = Pair()
    manifest = changed(pair.publisher.prepare(V0, must_differ=False), change)
    with pytest.raises(SyncRefused, match=message):
        pair.receiver.prepare(manifest, 10.0)
    assert not pair.receiver.staging, situation


def test_a_flipped_bit_is_refused() -> None:
    pair = Pair()
    pair.prepare(V0)
    digest, content = pair.publisher.shard(V0, 0)
    content = content.copy()
    content[7] ^= 1
    with pytest.raises(SyncRefused, match="bucket 0: found digest"):
        pair.receiver.stage(V0, 0, digest, content)


def test_a_bucket_cut_short_is_refused() -> None:
    pair = Pair()
    pair.prepare(V0)
    with pytest.raises(SyncRefused, match="found 3 bytes, expected 60"):
        pair.receiver.stage(V0, 0, "", np.zeros(3, np.uint8))


def test_a_missing_bucket_is_refused_at_both_ends() -> None:
    pair = Pair()
    manifest = pair.prepare(V0)
    for index in range(len(manifest.buckets) - 1):
        pair.receiver.stage(V0, index, *pair.publisher.shard(V0, index))
    with pytest.raises(ValueError, match="were never taken"):
        pair.publisher.commit(V0)
    with pytest.raises(SyncRefused, match="are missing"):
        pair.receiver.commit(V0, "digest")
    assert not pair.receiver.apply_pending()


def test_unchanged_though_trained_is_refused_and_unchanged_at_learning_rate_0_is_not() -> None:
    pair = Pair()
    pair.sync(V0)
    pair.sync(V1, must_differ=False)
    with pytest.raises(SyncRefused, match="what is published is not what is trained"):
        pair.sync(V2, must_differ=True)
    assert pair.version == 1


def test_a_newer_version_takes_the_place_of_one_that_was_given_up() -> None:
    pair = Pair()
    pair.prepare(V0)
    pair.receiver.stage(V0, 0, *pair.publisher.shard(V0, 0))
    pair.train()
    pair.sync(V1)
    assert pair.equal()
    assert pair.version == 1


def test_makers_in_bfloat16_get_rounded_weights_and_the_trainer_keeps_its_own() -> None:
    trained, live = Policy(1), Policy(2).to(torch.bfloat16)
    publisher = Publisher([part(trained, torch.bfloat16)])
    receiver = Receiver(expected_weights({"actor": live}), lambda state, version: load_weights(live, plain(state)))
    manifest = publisher.prepare(V0, must_differ=False)
    receiver.prepare(manifest, 1.0)
    for index in range(len(manifest.buckets)):
        receiver.stage(V0, index, *publisher.shard(V0, index))
    receiver.commit(V0, publisher.commit(V0))
    receiver.apply_pending()
    assert torch.equal(live.middle.weight, trained.middle.weight.to(torch.bfloat16))
    assert trained.middle.weight.dtype == torch.float32


def test_buckets_keep_the_order_and_their_limit() -> None:
    specs = [TensorSpec(str(i), (size,), "uint8", size) for i, size in enumerate([3, 4, 5, 20, 1])]
    assert [[spec.size for spec in bucket] for bucket in into_buckets(specs, 10)] == [[3, 4], [5], [20], [1]]
