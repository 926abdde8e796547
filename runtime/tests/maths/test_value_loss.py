"""The critic's clipped loss: half the larger square, of valid tokens only."""

import pytest
import torch
from rlhf_runtime.maths.value_loss import value_loss
from torch import Tensor

NAN = float("nan")


def loss_of(values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float | None) -> Tensor:
    return value_loss(values, old, returns, mask, clip=clip, aggregation="Token", denominator=1.0)


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "expected"),
    [
        pytest.param(1.0, 0.5, 0.2, 0.2, 0.32, id="the value itself is further off: (1 - .2)^2 / 2"),
        pytest.param(0.2, 0.5, 0.3, 0.2, 0.005, id="held at .3, the return: the value's own error counts"),
        pytest.param(1.0, 0.0, 2.0, 0.2, 1.62, id="held at .2: (.2 - 2)^2 / 2"),
        pytest.param(1.0, 0.0, 2.0, None, 0.5, id="without a clip"),
    ],
)
def test_the_loss_of_one_token(value: float, old: float, target: float, clip: float | None, expected: float) -> None:
    found = loss_of(*(torch.tensor([[x]]) for x in (value, old, target)), torch.ones(1, 1).bool(), clip)
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_a_step_beyond_the_clip_gets_no_gradient() -> None:
    values = torch.tensor([[1.0]], requires_grad=True)
    loss_of(values, torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.ones(1, 1).bool(), 0.2).backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert float(values.grad) == 0.0


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_nan_behind_the_mask_reaches_neither_loss_nor_gradient(where: int) -> None:
    rows = [torch.tensor([[x, NAN if where == i else 5.0]]) for i, x in enumerate((1.0, 0.5, 0.2))]
    rows[0].requires_grad_()
    loss = loss_of(*rows, torch.tensor([[True, False]]), 0.2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss) == pytest.approx(0.32, abs=1e-6)
    assert rows[0].grad is not None
    assert rows[0].grad[0].tolist() == pytest.approx([0.8, 0.0], abs=1e-6)
