"""GAE, whitening over ranks, and what the samples of a group are compared with."""

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from rlhf_runtime.maths.advantages import (
    Baseline,
    Moments,
    Normalization,
    bootstrap_values,
    gae,
    global_moments,
    group_advantages,
    whiten,
)
from torch import Tensor
from trl.trainer.utils import nanstd

NAN = float("nan")


def one_row(
    rewards: Sequence[float], values: Sequence[float], *, mask: Sequence[int] | None = None, bootstrap: float = 0.0,
    gamma: float = 1.0, lambda_: float = 0.95,
) -> tuple[list[float], list[float]]:  # fmt: skip
    mask_bt = torch.tensor([mask or [1] * len(rewards)], dtype=torch.bool)
    advantages, returns = gae(
        torch.tensor([rewards]),
        torch.tensor([values]),
        mask_bt,
        torch.tensor([bootstrap]),
        gamma=gamma,
        lambda_=lambda_,
    )
    assert advantages.dtype == returns.dtype == torch.float32
    return advantages[0].tolist(), returns[0].tolist()


def test_gae_of_three_tokens() -> None:
    advantages, returns = one_row([0, 0, 1.0], [0.5, 0.4, 0.3])
    assert advantages == pytest.approx([0.43675, 0.565, 0.7], abs=1e-7)
    assert returns == pytest.approx([0.93675, 0.965, 1.0], abs=1e-7)
    discounted, _ = one_row([0, 0, 1.0], [0.5, 0.4, 0.3], gamma=0.99)
    assert discounted == pytest.approx([0.418306675, 0.55535, 0.7], abs=1e-7)


def test_a_truncated_sample_goes_on_with_the_value_of_what_would_have_come() -> None:
    """The last delta is 1 + .99 * .2 - .3 = .898; the return of the last token 1.198."""
    truncated = bootstrap_values(torch.tensor([0.2, 0.2]), torch.tensor([True, False]))
    assert truncated.tolist() == pytest.approx([0.2, 0.0])
    advantages, returns = one_row([0, 0, 1.0], [0.5, 0.4, 0.3], bootstrap=float(truncated[0]), gamma=0.99)
    assert advantages[2] == pytest.approx(0.898, abs=1e-6)
    assert returns[2] == pytest.approx(1.198, abs=1e-6)
    assert advantages[1] == pytest.approx(0.99 * 0.3 - 0.4 + 0.99 * 0.95 * 0.898, abs=1e-6)


def test_without_discount_and_with_lambda_one_the_return_is_the_sum_of_what_comes() -> None:
    _, returns = one_row([0.5, -1.0, 2.0], [7.0, -3.0, 0.25], lambda_=1.0)
    assert returns == pytest.approx([1.5, 1.0, 2.0], abs=1e-6)


@pytest.mark.parametrize("masked", [100.0, NAN])
def test_a_masked_value_reaches_no_valid_advantage(masked: float) -> None:
    advantages, returns = one_row([0, 1.0, masked], [0, 0, masked], mask=[1, 1, 0])
    assert advantages == returns == pytest.approx([0.95, 1.0, 0.0], abs=1e-7)


def test_long_rows_with_holes_are_as_the_recursion_says() -> None:
    """A_t = delta_t + gamma lambda A_t+1 over the valid tokens, one by one."""
    torch.manual_seed(0)
    rewards, values, mask = torch.randn(4, 300), torch.randn(4, 300), torch.rand(4, 300) < 0.7
    bootstrap = torch.randn(4)
    for gamma, lambda_ in ((1.0, 1.0), (0.99, 0.95), (0.9, 0.0), (0.0, 0.5)):
        found, _ = gae(rewards, values, mask, bootstrap, gamma=gamma, lambda_=lambda_)
        for row in range(4):
            next_value, advantage = float(bootstrap[row]), 0.0
            for t in reversed(range(300)):
                if not mask[row, t]:
                    assert float(found[row, t]) == 0.0
                    continue
                value = float(values[row, t])
                advantage = float(rewards[row, t]) + gamma * next_value - value + gamma * lambda_ * advantage
                next_value = value
                assert float(found[row, t]) == pytest.approx(advantage, abs=1e-5, rel=1e-6)


def test_padding_on_either_side_gives_the_same() -> None:
    expected, _ = one_row([0, 1.0], [0.5, 0.4], bootstrap=0.3)
    for mask in ([1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]):
        spread = iter(expected)
        where = [next(spread) if valid else 0.0 for valid in mask]
        pieces = {name: iter(row) for name, row in (("rewards", (0.0, 1.0)), ("values", (0.5, 0.4)))}
        rewards, values = ([next(row) if valid else NAN for valid in mask] for row in pieces.values())
        assert one_row(rewards, values, mask=mask, bootstrap=0.3)[0] == pytest.approx(where, abs=1e-7)


@pytest.mark.parametrize(
    ("rewards", "normalization", "baseline", "expected"),
    [
        ([1, 0, 0, 1], "Std", "Mean", [0.86587543, -0.86587543, -0.86587543, 0.86587543]),
        ([1, 0, 0, 0], "Std", "Mean", [1.49970006, -0.49990002, -0.49990002, -0.49990002]),
        ([1, 0, 0, 1], "None", "Mean", [0.5, -0.5, -0.5, 0.5]),
        ([1, 0, 0, 0], "None", "LeaveOneOut", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ([3, 1], "None", "LeaveOneOut", [2.0, -2.0]),
    ],
)
def test_advantages_of_a_group(
    rewards: list[float], normalization: Normalization, baseline: Baseline, expected: list[float]
) -> None:
    found = group_advantages(torch.tensor(rewards), len(rewards), normalization, baseline)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-7)


def test_they_are_those_of_trl() -> None:
    torch.manual_seed(0)
    rewards = torch.randn(6, 5, dtype=torch.float64)
    scaled = (rewards - rewards.mean(1, keepdim=True)) / (nanstd(rewards, dim=1, keepdim=True) + 1e-4)
    torch.testing.assert_close(group_advantages(rewards.flatten(), 5, "Std"), scaled.flatten().float())


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    rewards = torch.tensor([0.3, 2.0, -1.0, 0.7, 0.7])
    expected = [float(r - rewards[[j for j in range(5) if j != i]].mean()) for i, r in enumerate(rewards)]
    assert group_advantages(rewards, 5, "None", "LeaveOneOut").tolist() == pytest.approx(expected, abs=1e-6)


def test_groups_do_not_see_each_other() -> None:
    both = group_advantages(torch.tensor([1.0, 0, 0, 1, 5, 5, 5, 9]), 4, "Std")
    assert torch.equal(both[:4], group_advantages(torch.tensor([1.0, 0, 0, 1]), 4, "Std"))
    assert torch.equal(both[4:], group_advantages(torch.tensor([5.0, 5, 5, 9]), 4, "Std"))


@pytest.mark.parametrize("baseline", ["Mean", "LeaveOneOut"])
@pytest.mark.parametrize("normalization", ["Std", "None"])
@pytest.mark.parametrize("rewards", [[0.1] * 7, [1e8] * 3, [0.3], [0.0, -0.0]])
def test_equal_rewards_give_exactly_zero(rewards: list[float], normalization: str, baseline: str) -> None:
    """0.1 seven times has a mean that is not 0.1 in fp32: only equality gives an exact 0."""
    found = group_advantages(torch.tensor(rewards), len(rewards), normalization, baseline)  # type: ignore[arg-type]
    assert found.tolist() == [0.0] * len(rewards)


def test_rewards_that_differ_by_the_least_still_say_something() -> None:
    found = group_advantages(torch.tensor([1.0, 1.0 + 2**-23]), 2, "None")
    assert found.tolist() == [-(2.0**-24), 2.0**-24]


@pytest.mark.parametrize("group_size", [0, 3])
def test_rewards_that_do_not_fill_their_groups_are_refused(group_size: int) -> None:
    with pytest.raises(ValueError, match="found 4, expected whole groups"):
        group_advantages(torch.zeros(4), group_size, "Std")


def on_ranks(parts: Sequence[Tensor], task: Callable[[Tensor, Callable[[Tensor], Tensor]], Moments]) -> list[Moments]:
    """What each rank, a thread, gets; its second argument is a sum over all of them."""
    barrier, offered, found = threading.Barrier(len(parts), timeout=20), [Tensor()] * len(parts), [None] * len(parts)

    def run(rank: int) -> None:
        def sum_over_ranks(mine: Tensor) -> Tensor:
            offered[rank] = mine
            barrier.wait()
            total = torch.stack(offered).sum(0)
            barrier.wait()
            return total

        found[rank] = task(parts[rank], sum_over_ranks)  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found  # type: ignore[return-value]


def moments_on_ranks(*parts: Sequence[float]) -> list[Moments]:
    def task(values: Tensor, sum_over_ranks: Callable[[Tensor], Tensor]) -> Moments:
        return global_moments([values], [~values.isnan()], sum_over_ranks)

    return on_ranks([torch.tensor(part) for part in parts], task)


@pytest.mark.parametrize("parts", [([1.0, 2], [3.0, 4, 8]), ([1.0, 2, 3, 4, 8], []), ([1.0, NAN, 2], [3.0, 4, 8])])
def test_whitening_is_over_all_ranks(parts: tuple[list[float], ...]) -> None:
    """Per rank it would be [-.707, .707] and [-.756, -.378, 1.134]."""
    found = moments_on_ranks(*parts)
    assert found[0] == found[1] == Moments(count=5, mean=pytest.approx(3.6), variance=pytest.approx(7.3))
    values = torch.tensor([x for part in parts for x in part])
    whitened = whiten(values, ~values.isnan(), found[0])
    expected = [-0.9623032, -0.5921866, -0.2220700, 0.1480466, 1.6285131]
    assert whitened[~values.isnan()].tolist() == pytest.approx(expected, abs=1e-6)
    assert (whitened[values.isnan()] == 0).all()


def test_the_variance_survives_a_mean_that_is_much_larger() -> None:
    values = torch.tensor([1e6, 1e6 + 1, 1e6 + 2], dtype=torch.float32)
    found = global_moments([values[:1], values[1:]], [torch.ones(1).bool(), torch.ones(2).bool()])
    assert (found.mean, found.variance) == (pytest.approx(1e6 + 1), pytest.approx(1.0))


def test_one_value_or_none_whitens_to_zero() -> None:
    for parts in ([5.0], []), ([], []):
        for found in moments_on_ranks(*parts):
            assert found.variance == 0
            assert whiten(torch.tensor([5.0]), torch.tensor([found.count == 1]), found).tolist() == [0.0]
