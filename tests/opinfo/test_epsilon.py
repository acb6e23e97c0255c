"""The default epsilon of a norm is that of the dtype of its operands, also where a result is computed in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.checks.ops.roundings import exact_answer

NORMS: dict[str, Callable[..., Any]] = {
    "nn.functional": torch.nn.functional.rms_norm,
    "torch": torch.rms_norm,
    "aten": torch.ops.aten.rms_norm.default,
    "fused": lambda x, shape: torch.ops.aten._fused_rms_norm(x, shape, None, None)[0],
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_the_exact_result_of_small_elements_has_the_epsilon_of_their_dtype(
    name: str, kind: torch.dtype
) -> None:
    x = (torch.arange(1.0, 7.0).reshape(2, 3) * 2.0**-14).to(kind)
    found = NORMS[name](x, (3,))
    exact = exact_answer(NORMS[name], lambda given, _: ((*given, (3,)), {}), [x]).result
    assert exact.dtype == torch.float64
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(kind).eps, atol=0)


def test_an_epsilon_that_is_given_stays() -> None:
    x = torch.full((3,), 2.0**-14)
    norm = torch.nn.functional.rms_norm
    exact = exact_answer(norm, lambda given, _: ((*given, (3,), None, 1.0), {}), [x]).result
    torch.testing.assert_close(exact, x.double(), rtol=1e-6, atol=0)
