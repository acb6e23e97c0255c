"""A C++ device with many faults at once, most of which show in many ops and clauses.

Each fault of an op has ops of its own (``OPS``), so that a test can say of a failing cell which fault it has. Negated
inputs end the process in all ops. Faults of streams, memory and random numbers are those of the simulated device, on
which this one is built.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import torch

from tests.strangers.crowded import OPS, SIMULATED

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
    for fault in OPS:
        name, lacks, _ = fault.partition(" has no kernel")
        if not lacks:
            continue

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
        given = (query, key, value, *a, *k.values())
        if len({each.device for each in given if isinstance(each, torch.Tensor)}) > 1:
            raise RuntimeError("expected all operands on the same device")
        return torch.zeros(
            *query.shape[:-1], value.shape[-1], dtype=query.dtype, device=query.device
        )

    _put("scaled_dot_product_attention", kernel, "AutogradPrivateUse1")


def out_of_another_shape() -> None:
    """An ``out=`` of another shape than the first operand ends the process."""
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if not full.startswith("aten::") or not overload.endswith("out"):
            continue
        if name not in [op.rpartition(".")[2] for op in OPS["an out= of another shape crashes"]]:
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


def fallback() -> None:
    """Some ops run on the CPU instead, whatever their family."""
    for name in OPS["the CPU computes instead"]:
        op = getattr(torch.ops.aten, name).default

        def kernel(keys: Any, *args: Any, _op: Any = op, **kwargs: Any) -> Any:
            host = [each.cpu() if isinstance(each, torch.Tensor) else each for each in args]
            result = _op(*host, **kwargs)
            if isinstance(result, torch.Tensor):
                return result.to("simulated")
            return tuple(each.to("simulated") for each in result)

        _put(name, kernel)


def contiguous_results() -> None:
    """The result is contiguous, whatever the strides of the operands."""
    for name in OPS["results are contiguous"]:
        packet = getattr(torch.ops.aten, name)
        overload = "default" if "default" in packet.overloads() else "Tensor"

        def kernel(keys: Any, *args: Any, _op: Any = packet.out, **kwargs: Any) -> Any:
            shape = torch.broadcast_shapes(*(x.shape for x in args if isinstance(x, torch.Tensor)))
            return _op(
                *args, **kwargs, out=torch.empty(shape, dtype=args[0].dtype, device="simulated")
            )

        _put(name if overload == "default" else f"{name}.{overload}", kernel)


os.environ.setdefault("SIMULATED_FAULTS", ",".join(SIMULATED))

import devices.simulated.backend  # noqa: E402, F401  # the driver, which reads the environment

for _manner in (
    negated_inputs,
    missing_kernels,
    attention_of_zeros,
    out_of_another_shape,
    fallback,
    contiguous_results,
):
    _manner()
