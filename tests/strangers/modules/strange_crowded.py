"""A C++ device with many faults at once, most of which show in many ops and clauses.

``STRANGE_MANNERS`` names the faults that are on, separated by commas (all of them by default): those of ``MANNERS``, and
those of the simulated device, on which this one is built.
"""

import os
import signal
import zlib
from collections.abc import Callable
from typing import Any, Final

import torch

#: Faults of the simulated device (``devices/simulated/faults.toml``).
SIMULATED: Final = (
    "allocator.count_too_little",
    "allocator.ignore_record_stream",
    "events.elapsed_constant",
    "random.seed_ignored",
    "streams.ignore_wait",
    "transfer.drop_strides",
)

#: Overloads without a kernel.
WITHOUT: Final = ("max.dim_max", "min.dim_min", "sort.values_stable", "cumsum.out", "mode")

_library = torch.library.Library("aten", "IMPL")


def _put(name: str, kernel: Callable[..., Any], key: str = "PrivateUse1") -> None:
    _library.impl(name, kernel, key, with_keyset=True, allow_override=True)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def negated_inputs() -> None:
    """A tensor with the negative bit ends the process when its numbers are read."""
    copy = torch.library.get_kernel("aten::_copy_from", "PrivateUse1")

    def kernel(keys: Any, source: torch.Tensor, target: torch.Tensor, *more: Any) -> Any:
        if source.is_neg() and source.device.type == "simulated":
            _die()
        return copy.call_boxed(keys, source, target, *more)

    _put("_copy_from", kernel)


def missing_kernels() -> None:
    """Some overloads have no kernel."""
    for name in WITHOUT:

        def kernel(keys: Any, *args: Any, _name: str = name, **kwargs: Any) -> Any:
            raise NotImplementedError(
                f"Could not run 'aten::{_name}' with arguments from the 'PrivateUse1' backend. This could be because "
                "the operator doesn't exist for this backend, or was omitted during the selective/custom build process"
            )

        _put(name, kernel)


def attention_of_zeros() -> None:
    """Attention answers zeros."""

    def kernel(
        keys: Any, query: torch.Tensor, key: Any, value: torch.Tensor, *a: Any, **k: Any
    ) -> Any:
        return torch.zeros(
            *query.shape[:-1], value.shape[-1], dtype=query.dtype, device=query.device
        )

    _put("scaled_dot_product_attention", kernel, "AutogradPrivateUse1")


def out_of_another_shape() -> None:
    """An ``out=`` of another shape than the first operand ends the process, in a third of the ops."""
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if not full.startswith("aten::") or not overload.endswith("out"):
            continue
        if zlib.crc32(full.encode()) % 3:
            continue
        op = getattr(getattr(torch.ops.aten, name), overload)

        def kernel(keys: Any, *args: Any, _op: Any = op, **kwargs: Any) -> Any:
            out = kwargs.get("out")
            tensors = [each for each in args if isinstance(each, torch.Tensor)]
            if out is not None and tensors and out.shape != tensors[0].shape:
                _die()
            with torch._C._AutoDispatchBelowAutograd():
                return _op(*args, **kwargs)

        _put(f"{name}.{overload}", kernel, "AutogradPrivateUse1")


def division_of_integers() -> None:
    """An integer division by zero ends the process with another signal."""
    for name in ("div.Tensor_mode", "remainder.Tensor", "fmod.Tensor", "floor_divide"):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def kernel(
            keys: Any, first: Any, second: Any, *args: Any, _op: Any = op, **kwargs: Any
        ) -> Any:
            if not second.dtype.is_floating_point and bool((second.cpu() == 0).any()):
                os.kill(os.getpid(), signal.SIGFPE)
            with torch._C._AutoDispatchBelowAutograd():
                return _op(first, second, *args, **kwargs)

        _put(name, kernel, "AutogradPrivateUse1")


def fallback() -> None:
    """Some ops run on the CPU instead, whatever their family."""
    for name in (
        "lgamma",
        "digamma",
        "erfinv",
        "i0",
        "cumprod",
        "trace",
        "fmax",
        "hypot",
        "renorm",
        "kthvalue",
    ):
        op = getattr(torch.ops.aten, name).default

        def kernel(keys: Any, *args: Any, _op: Any = op, **kwargs: Any) -> Any:
            host = [each.cpu() if isinstance(each, torch.Tensor) else each for each in args]
            result = _op(*host, **kwargs)
            if isinstance(result, torch.Tensor):
                return result.to("simulated")
            return tuple(each.to("simulated") for each in result)

        _put(name, kernel)


MANNERS: Final = {
    each.__name__: each
    for each in (
        negated_inputs,
        missing_kernels,
        attention_of_zeros,
        out_of_another_shape,
        division_of_integers,
        fallback,
    )
}

_on = os.environ.get("STRANGE_MANNERS")
_asked = [*MANNERS, *SIMULATED] if _on is None else [each for each in _on.split(",") if each]
os.environ["SIMULATED_FAULTS"] = ",".join(each for each in _asked if each in SIMULATED)

import devices.simulated.backend  # noqa: E402, F401  # the driver, which reads the environment

for _each in _asked:
    if _each in MANNERS:
        MANNERS[_each]()
