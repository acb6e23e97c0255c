"""The device: tensors whose numbers live in tensors of the CPU, ops that run there.

It goes through PrivateUse1, the dispatch key that torch keeps for devices of others, by torch's own way
for backends in Python (``torch.utils.backend_registration``). Its tensors have shapes and dtypes; they
report the strides of a contiguous tensor whatever view they stand for, and have no address.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils import backend_registration

DEVICE = "abacus"

#: A fault to see a gate fail with, as a new version of a driver may bring it: `mul` adds.
FAULT = os.environ.get("ABACUS_FAULT") == "1"


class AbacusTensor(torch.Tensor):
    """A tensor on the abacus; ``beads`` is the CPU tensor that holds its numbers."""

    beads: torch.Tensor
    # Results are what the kernels below make them, not what Python's subclass rules would.
    __torch_function__ = torch._C._disabled_torch_function_impl


def on_abacus(beads: torch.Tensor) -> AbacusTensor:
    """A tensor on the device that holds these numbers."""
    made: Any = torch._C._acc.create_empty_tensor(beads.shape, beads.dtype)
    made.__class__ = AbacusTensor
    made.beads = made.untyped_storage().beads = beads
    return made  # type: ignore[no-any-return]


def _is_ours(value: Any) -> bool:
    """True for tensors on the abacus, also if they are no AbacusTensor: those that autograd saves are shallow copies, which
    C++ makes and which share nothing with the tensor but its storage."""
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


def _own_beads(tensor: torch.Tensor) -> torch.Tensor:
    """The beads of one tensor on the abacus."""
    if isinstance(tensor, AbacusTensor):
        return tensor.beads
    return tensor.untyped_storage().beads  # type: ignore[attr-defined,no-any-return]


def _beads_of(value: Any) -> Any:
    """Arguments with the CPU's tensors and the CPU's device in place of ours."""
    value = pytree.tree_map_only(_is_ours, _own_beads, value)
    return pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), value)


def _as_declared(op: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers as tensors where the schema has a tensor: torch hands wrapped numbers over as numbers."""
    places = zip(args, op._schema.arguments, strict=False)
    return tuple(
        torch.tensor(value)
        if isinstance(value, (bool, int, float, complex)) and str(place.type) == "Tensor"
        else value
        for value, place in places
    )


_TAKE_INDICES = frozenset(
    f"aten::{name}"
    for name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
)


def _all_here(op: Any, args: Any, kwargs: Any) -> None:
    """Raise where an operand is elsewhere. A tensor without dimensions may be, and lists of indices may."""
    if op._schema.name in _TAKE_INDICES:
        args = (args[0], *args[2:])
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and not _is_ours(leaf) and leaf.dim():
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{DEVICE}:0 and {leaf.device}!"
            )


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Every op without a kernel of its own: run it on the beads.

    A tensor that the op changed and returns is the tensor that it was given.
    """
    given = {
        id(_own_beads(leaf)): leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_ours(leaf)
    }
    _all_here(op, args, kwargs)
    if FAULT and op.overloadpacket is torch.ops.aten.mul:
        op = getattr(torch.ops.aten.add, op._overloadname)
    result = op(*_as_declared(op, _beads_of(args)), **_beads_of(kwargs))
    for tensor in given.values():
        if (beads := _own_beads(tensor)).shape != tensor.shape:  # resized, by out= or in place
            tensor.data = on_abacus(beads)

    def ours(beads: torch.Tensor) -> torch.Tensor:
        return given[id(beads)] if id(beads) in given else on_abacus(beads)

    return pytree.tree_map_only(torch.Tensor, ours, result)


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> AbacusTensor:
    return on_abacus(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> AbacusTensor:
    return on_abacus(torch.empty(size, dtype=dtype))


def _as_strided(
    tensor: torch.Tensor, size: Any, stride: Any, storage_offset: Any = None
) -> AbacusTensor:
    """torch reckons from the strides that our tensors report, which are those of contiguous ones."""
    beads = _beads_of(tensor).contiguous()
    return on_abacus(beads.as_strided(size, stride, beads.storage_offset() + (storage_offset or 0)))


def _as_strided_in_place(tensor: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    strided = _as_strided(tensor, size, stride, storage_offset)
    tensor.beads, tensor.data = strided.beads, strided
    return tensor


def _view(tensor: torch.Tensor, size: Any, stride: Any = None) -> AbacusTensor:
    """A copy where the beads do not lie in a row: torch takes them to, and asks for no less."""
    return on_abacus(_beads_of(tensor).reshape(size))


def _same(tensor: torch.Tensor) -> AbacusTensor:
    """Another tensor of the same beads."""
    return on_abacus(_beads_of(tensor))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    """To the device, from it, or on it."""
    _beads_of(target).copy_(_beads_of(source))
    return target


def _conj(tensor: torch.Tensor) -> AbacusTensor:
    """Computed at once: torch's conjugate views would need kernels that know the bit."""
    return on_abacus(_beads_of(tensor).conj_physical())


def _negated(tensor: torch.Tensor) -> AbacusTensor:
    return on_abacus(_beads_of(tensor).neg())


def _scalar(tensor: torch.Tensor) -> Any:
    return _beads_of(tensor).item()


class AbacusModule:
    """``torch.abacus``: what device modules have, as far as one device without a driver has it."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def get_device_name(self, device: Any = None) -> str:
        return "Wooden abacus"

    def synchronize(self, device: Any = None) -> None:
        """Nothing is ever under way."""

    def _is_in_bad_fork(self) -> bool:
        return False

    # Random numbers come from the CPU's generator, so its state is the device's.

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


_libraries: list[torch.library.Library] = []  # a registration lives as long as its library


def register() -> None:
    """Tell torch about the device; once per process."""
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(
        DEVICE, backend_module=AbacusModule()
    )
    every = torch.library.Library("_", "IMPL")
    every.fallback(_run, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    for name, kernel in (
        ("_copy_from", _copy_from),
        ("_local_scalar_dense", _scalar),
        ("as_strided", _as_strided),
        ("as_strided_", _as_strided_in_place),
        ("view", _view),
        ("_unsafe_view", _view),
        ("_reshape_alias", _view),
        ("alias", _same),
        ("detach", _same),
        ("_conj", _conj),
        ("_neg_view", _negated),
    ):
        aten.impl(name, kernel, "PrivateUse1")
    _libraries.extend((every, aten))
