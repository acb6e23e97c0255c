"""A direct probe of each planted fault: a few lines that show the device misbehaving, without the suite.

A probe answers whether the device misbehaves in this way: False on a sound device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

DEVICE = "simulated"

Probe = Callable[[], bool]
PROBES: dict[str, Probe] = {}


def probe(name: str) -> Callable[[Probe], Probe]:
    """Register the decorated function as the probe of a fault."""

    def register(function: Probe) -> Probe:
        assert name not in PROBES, name
        PROBES[name] = function
        return function

    return register


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


def stepped(*values: float) -> torch.Tensor:
    """The values as every second element of a storage whose others are -1."""
    base = torch.full((2 * len(values),), -1.0, device=DEVICE)
    base[::2] = torch.tensor(values, device=DEVICE)
    return base[::2]


def wrong(function: Callable[..., Any], *args: Any) -> bool:
    """Whether the device's result is not the CPU's."""
    got = function(*args).cpu()
    want = function(*(a.cpu() if isinstance(a, torch.Tensor) else a for a in args))
    return not torch.allclose(got, want, equal_nan=True)


def raises(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        function(*args, **kwargs)
    except (RuntimeError, IndexError, ValueError):
        return True
    return False


# Reading


@probe("values.ignore_strides")
def _() -> bool:
    return wrong(torch.exp, stepped(0, 1, 2))


@probe("values.ignore_storage_offset")
def _() -> bool:
    return wrong(torch.neg, torch.arange(6.0, device=DEVICE)[2:])


@probe("expand.read_as_dense")
def _() -> bool:
    return wrong(torch.mul, torch.arange(6.0, device=DEVICE)[:1].expand(3), 2.0)


@probe("stride.ignore_channels_last")
def _() -> bool:
    image = ones(1, 2, 4, 4).to(memory_format=torch.channels_last)
    return torch.nn.functional.avg_pool2d(image, 2).stride(1) != 1


@probe("stride.always_contiguous")
def _() -> bool:
    return torch.sub(ones(2, 3).t(), 1).stride() != (1, 3)


@probe("storage.output_past_end")
def _() -> bool:
    return torch.cat([ones(2), ones(2)]).untyped_storage().nbytes() < 16


# Writing


@probe("inputs.overwritten")
def _() -> bool:
    given = ones(4)
    torch.atan2(given, ones(4))
    return not torch.equal(given, ones(4))


def _tail_changes(write: Callable[[torch.Tensor], Any]) -> bool:
    base = torch.zeros(16, device=DEVICE)
    write(base[:5])
    return bool(base[5:].any())


@probe("bounds.write_past_end")
def _() -> bool:
    return _tail_changes(lambda out: torch.maximum(ones(5), ones(5), out=out))


@probe("bounds.vectorised_tail_overrun")
def _() -> bool:
    return _tail_changes(lambda target: target.add_(1))


@probe("bounds.write_between_elements")
def _() -> bool:
    base = torch.zeros(6, device=DEVICE)
    torch.fmax(ones(3), ones(3), out=base[::2])
    return bool(base[1::2].any())


@probe("out.restride")
def _() -> bool:
    out = ones(2, 3).t()
    torch.add(ones(3, 2), ones(3, 2), out=out)
    return bool(out.stride() != (1, 3))


@probe("out.reallocate")
def _() -> bool:
    out = ones(3)
    address = out.data_ptr()
    torch.mul(ones(3), ones(3), out=out)
    return out.data_ptr() != address


@probe("out.ignore_strides")
def _() -> bool:
    out, given = stepped(0, 0, 0), torch.arange(3.0, device=DEVICE)
    return not torch.allclose(torch.exp(given, out=out).cpu(), given.cpu().exp())


@probe("out.accumulate_into_old_values")
def _() -> bool:
    out = ones(2)
    torch.atan2(torch.zeros(2, device=DEVICE), ones(2), out=out)
    return bool(out.any())


@probe("out.resize_silently")
def _() -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        torch.copysign(ones(2), ones(2), out=ones(3))
        torch.set_warn_always(always)
    return not caught


@probe("inplace.write_to_copy")
def _() -> bool:
    given = ones(2)
    given.neg_()
    return given.tolist() != [-1.0, -1.0]


@probe("inplace.reallocate")
def _() -> bool:
    given = ones(2)
    address = given.data_ptr()
    given.mul_(ones(2))
    return given.data_ptr() != address


@probe("variants.out_differs")
def _() -> bool:
    out = ones(1, 2, 2)
    torch.bmm(ones(1, 2, 2), ones(1, 2, 2), out=out)
    return not torch.equal(out, torch.bmm(ones(1, 2, 2), ones(1, 2, 2)))


@probe("overlap.skip_internal_check")
def _() -> bool:
    return not raises(torch.sub, ones(3), ones(3), out=ones(1).expand(3))


# Values


@probe("promotion.scalar_through_float")
def _() -> bool:
    return int(torch.ones(2, dtype=torch.int64, device=DEVICE).mul(2**60 + 1)[0]) != 2**60 + 1


@probe("special.zero_divisor_spoils_others")
def _() -> bool:
    given, by = (torch.tensor(each, device=DEVICE) for each in ([7, 9], [0, 2]))
    try:
        return torch.floor_divide(given, by).tolist()[1] != 4
    except RuntimeError:
        return False


@probe("special.max_drops_nan")
def _() -> bool:
    return not bool(torch.maximum(ones(1), ones(1) * torch.nan).isnan())


@probe("beta_zero.multiply_input")
def _() -> bool:
    result = torch.addmm(ones(2, 2) * torch.nan, ones(2, 2), ones(2, 2), beta=0)
    return bool(result.isnan().any())


@probe("reduce.empty_sum_one")
def _() -> bool:
    return float(torch.empty(0, device=DEVICE).sum(0)) != 0.0


@probe("precision.truncate_mantissa")
def _() -> bool:
    return wrong(torch.mm, ones(2, 2) + 2**-12, ones(2, 2))


def wrong_at(precision: str) -> bool:
    """Return True if a product at the given precision differs from the exact one by more than TF32 would."""
    torch.set_float32_matmul_precision(precision)
    try:
        product = torch.mm(ones(1, 1) + 2**-9, ones(1, 1)).item()
    finally:
        torch.set_float32_matmul_precision("highest")
    return abs(product - (1 + 2**-9)) > 2**-11


@probe("precision.high_too_short")
def _() -> bool:
    return wrong_at("high") and not wrong_at("highest")


@probe("precision.high_kept")
def _() -> bool:
    return not wrong_at("highest") and not wrong_at("high") and wrong_at("highest")


@probe("determinism.varying_reduction_order")
def _() -> bool:
    first, second = (torch.bmm(ones(1, 2, 2), ones(1, 2, 2)) for _ in range(2))
    return not torch.equal(first, second)


# Tensors and views


@probe("views.copy_instead_of_alias")
def _() -> bool:
    base = torch.zeros(4, device=DEVICE)
    base.unfold(0, 2, 1).fill_(1)
    return not bool(base.any())


@probe("views.wrong_offset")
def _() -> bool:
    return torch.arange(6.0, device=DEVICE)[2:].unfold(0, 2, 1).storage_offset() != 2


@probe("views.forget_conj_bit")
def _() -> bool:
    return complex(torch.tensor(1j, device=DEVICE).conj().cpu()) != -1j


@probe("as_strided.set_ignores_offset")
def _() -> bool:
    storage = ones(6).untyped_storage()
    view = torch.empty(0, device=DEVICE).set_(storage, 2, (2,), (1,))
    return view.storage_offset() != 2


@probe("memory_format.ignore_requested")
def _() -> bool:
    image = torch.empty(1, 2, 3, 3, device=DEVICE, memory_format=torch.channels_last)
    return not image.is_contiguous(memory_format=torch.channels_last)
