"""dispatch.refusals: what an exception says of a dtype that an op does not take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.suites.dispatch.refusals import (
    is_undefined,
    judged_refusal,
    most_telling,
    says,
)
from opinfo.compare import Arguments, Wrong
from opinfo.exceptions import exceptions
from opinfo.guarded import identity
from opinfo.samples import Sample

_NAMES = ["gcd", "gcd_"]


def told(error: Exception | None, op: Any = torch.gcd, names: list[str] = _NAMES) -> Wrong | None:
    """What is judged of an exception for gcd of float16, which the CPU does not implement either."""
    one = torch.ones(2, dtype=torch.int64)
    return judged_refusal(
        *(error, op, identity, identity, [one, one], lambda tensors: (tensors, {})),
        dtype="float16",
        drawn="int64",
        names=names,
    )


@pytest.mark.parametrize(
    "message",
    [
        "\"gcd_cpu\" not implemented for 'Half'",
        "gcd is not available on this device",
        "unsupported scalar type",
        "expected integral tensors",
        "kernel does not take dtype=12",
        "only Long and Int tensors are supported",
        "f16 kernels are not built: float16",
    ],
)
def test_a_message_that_names_the_op_or_the_dtype_passes(message: str) -> None:
    assert told(RuntimeError(message)) is None
    assert told(NotImplementedError(message)) is None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("invalid argument"),
        RuntimeError(""),
        RuntimeError("failed to create a function state object"),
        RuntimeError("device error 700"),
        NotImplementedError(),
        RuntimeError(
            "gcd: false INTERNAL ASSERT FAILED at x.cpp:1, please report a bug to PyTorch"
        ),
        NotImplementedError("INTERNAL ASSERT FAILED: dtype"),
        KeyError("float16"),
        AssertionError("dtype"),
        TypeError("gcd of float16"),
        IndexError("gcd"),
        ValueError("float16"),
    ],
    ids=repr,
)
def test_another_answer_fails(error: Exception) -> None:
    assert told(error) is not None


def test_the_type_of_the_cpu_s_exception_is_right() -> None:
    def refuses(*_: object) -> None:
        raise TypeError("gcd takes integers")

    assert told(TypeError("gcd takes integers"), refuses) is None
    assert told(ValueError("gcd takes integers"), refuses) is not None


def test_no_message_is_judged_where_the_cpu_s_says_nothing() -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("invalid argument")

    assert told(RuntimeError("no"), refuses) is None
    assert told(RuntimeError("INTERNAL ASSERT FAILED"), refuses) is not None


def test_an_exception_of_every_dtype_says_nothing_of_the_refused_one() -> None:
    """A device without tensors of no dimensions refuses them in the op's own dtype as well."""

    def fails(*given: torch.Tensor) -> torch.Tensor:
        if given[0].dtype == torch.int64:
            raise RuntimeError("bad geometry")
        return torch.gcd(*given)

    def fails_otherwise(*given: torch.Tensor) -> torch.Tensor:
        raise KeyError("int64") if given[0].dtype == torch.int64 else RuntimeError("gcd of float16")

    error = RuntimeError("bad geometry")
    assert told(error) is not None
    assert told(error, fails) is None
    assert told(error, fails_otherwise) is not None


@pytest.mark.parametrize(
    ("op", "dtype", "undefined"),
    [
        ("masked.median", "uint32", True),
        ("masked.median", "int64", True),
        ("masked.median", "float64", False),
        ("masked.var", "uint8", True),
        ("masked.var", "int8", False),
        ("median", "uint32", False),
    ],
)
def test_values_are_free_where_a_conversion_is_undefined(
    op: str, dtype: str, undefined: bool
) -> None:
    assert is_undefined(dtype, exceptions().families_of(op)) is undefined


def test_no_exception_is_no_refusal() -> None:
    assert told(None) is None


def test_an_op_is_known_by_the_last_part_of_its_name() -> None:
    assert says("max_pool2d failed", ["nn.functional.max_pool2d"])
    assert says("MaxPool2d failed", ["nn.functional.max_pool2d"])
    assert not says("pooling failed", ["nn.functional.max_pool2d"])


def test_operands_are_moved_of_a_sample_in_which_one_has_dimensions() -> None:
    """All may be on the CPU otherwise, and nothing would be asked (``fill_`` with a tensor)."""
    scalars, whole = (
        Sample(index, Arguments((tensor, torch.tensor(2.0)), {}), None)
        for index, tensor in enumerate((torch.tensor(1.0), torch.ones(3)))
    )
    assert most_telling([scalars, whole]) is whole
