"""The gradients that the other tests compare with, against finite differences and PyTorch's autograd."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.lib.gradients import NAMES, answers, distances, draw, forward, gradients
from tests.lib.masks import preset
from tests.lib.problem import Problem

PROBLEMS = [
    Problem(heads=2, seqlen=5, seqlen_kv=7, head_dim=4),
    Problem(batch=2, heads=4, kv_heads=2, seqlen=6, seqlen_kv=5, head_dim=3, mask="causal", scale=1.5),
    Problem(heads=3, kv_heads=1, seqlen=9, seqlen_kv=4, head_dim=8, mask="causal"),  # five empty rows
    Problem(heads=2, kv_heads=1, seqlen=6, seqlen_kv=8, head_dim=4, mask="window:3"),
    Problem(heads=2, seqlen=8, seqlen_kv=7, head_dim=4, mask="document:2,4,1"),
    Problem(seqlen=7, seqlen_kv=7, head_dim=4, mask="prefix:3"),
]
each_problem = pytest.mark.parametrize("p", PROBLEMS, ids=str)


def output(p: Problem, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    group = p.heads // p.kv_heads
    return forward(p, q, *(np.repeat(x, group, axis=1) for x in (k, v)))[1]


def differences(loss: Callable[..., float], tensors: list[np.ndarray], of: int) -> np.ndarray:
    """dL of each element of one tensor, by central differences."""
    found, step = np.empty_like(tensors[of]), 1e-5
    for index in np.ndindex(found.shape):
        sides = []
        for sign in (1, -1):
            changed = [x.copy() for x in tensors]
            changed[of][index] += sign * step
            sides.append(loss(*changed))
        found[index] = (sides[0] - sides[1]) / (2 * step)
    return found


@each_problem
def test_gradients_are_differences_of_the_loss(p: Problem) -> None:
    *tensors, d_o = draw(p, 1)

    def loss(*of: np.ndarray) -> float:
        return float((output(p, *of) * d_o).sum())

    expected = [differences(loss, tensors, of) for of in range(3)]
    assert max(distances(gradients(p, *tensors, d_o), expected)) < 1e-8


@each_problem
def test_gradients_are_those_of_autograd(p: Problem) -> None:
    torch = pytest.importorskip("torch", reason="Python has no PyTorch")
    *arrays, d_o = draw(p, 2)
    tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    q, k, v = tensors
    group = p.heads // p.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    attended = torch.tensor(preset(p))
    s = (p.scale_used() * q @ k.transpose(-1, -2)).masked_fill(~attended, -float("inf"))
    some = attended.any(-1, keepdim=True)
    probs = torch.softmax(s.masked_fill(~some, 0), -1) * some
    (probs @ v).backward(torch.tensor(d_o, dtype=torch.float64))
    assert max(distances(gradients(p, *arrays, d_o), [x.grad.numpy() for x in tensors])) < 1e-12


@each_problem
def test_o_and_lse_give_the_same_gradients(p: Problem) -> None:
    """answers() makes P and D of them, gradients() of the whole softmax; both have 0 where nothing is attended."""
    *tensors, d_o = draw(p, 3)
    group = p.heads // p.kv_heads
    _, o, lse = forward(p, tensors[0], *(np.repeat(x, group, axis=1) for x in tensors[1:]))
    found = [x.value for x in answers(p, *tensors, d_o, o, lse)]
    assert max(distances(found, gradients(p, *tensors, d_o))) < 1e-12
    empty = ~preset(p).any(-1)
    assert not found[NAMES.index("dq")][:, :, empty].any()
