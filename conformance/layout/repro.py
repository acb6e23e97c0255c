"""Scripts of their own that show one failure: they import torch only, exit 1 while the fault is there
and 0 when it is gone.

A script is assembled from three parts: helpers that build a strided tensor inside a larger buffer of known
bytes, the call with its arguments written out, and the judgement of one kind of failure.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from conformance.layout import repro_reads, repro_writes
from conformance.layout.repro_parts import HEADER
from opinfo.layouts import Geometry
from opinfo.structure import Call, replace_tensors

if TYPE_CHECKING:
    from conformance.layout.context import ItemContext, Laid

#: How a script of each kind judges.
JUDGEMENTS = {**repro_reads.JUDGEMENTS, **repro_writes.JUDGEMENTS}

#: Clauses of the kinds that are not named after theirs.
_CLAUSE_OF = {
    "out_bounds": "layout.bounds",
    "inplace_bounds": "layout.bounds",
    "views_bits": "layout.views",
}

#: Tensors up to this many elements are written as lists, larger ones compressed.
_READABLE = 24


@dataclass(frozen=True, slots=True)
class CallScript:
    """Writes the script for one failing call when it is called; says which call that was."""

    ctx: ItemContext
    laid: Laid
    kind: str
    layout: str
    clause: str
    inplace: bool
    names: dict[str, Any]

    def __call__(self) -> str:
        ctx, laid = self.ctx, self.laid
        lines = ["tensors = ["]
        for tensor, geometry in zip(laid.sample.tensors, laid.geometries, strict=True):
            lines.append(f"    {_strided(tensor, geometry, guarded=ctx.device.lays_out)},")
        lines.append("]")
        args, kwargs = self.arguments()
        lines += [
            "",
            "",
            "def arguments(t):",
            '    """The call\'s arguments with the tensors ``t`` in their places."""',
            f"    return {literal(args, ctx)}, {literal(kwargs, ctx)}",
            "",
        ]
        if self.inplace:
            lines += ["", method_source(ctx)]
        return script(ctx, self.layout, self.kind, lines, clause=self.clause, **self.names)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, with ``t[n]`` in the places of its tensors."""
        return placed(self.laid.sample.call)

    def call(self) -> str:
        """The call in one line: ``torch.median(t[0], 0, out=…)``."""
        args, kwargs = self.arguments()
        function = self.ctx.op.inplace if self.inplace else self.ctx.op.function
        assert function is not None
        parts = [literal(a, self.ctx) for a in args]
        parts += [f"{name}={literal(value, self.ctx)}" for name, value in kwargs.items()]
        if "FORM" in self.names or self.layout.startswith("out="):
            parts.append("out=…")
        variant = self.names.get("VARIANT")
        of = f", as {variant}" if variant else ""
        return f"{public_name(function) or self.ctx.op.id}({', '.join(parts)}){of}"


def for_call(
    ctx: ItemContext,
    laid: Laid,
    kind: str,
    *,
    layout: str | None = None,
    inplace: bool = False,
    **names: Any,
) -> CallScript:
    """A writer of the script for a failing call of the op.

    ``layout`` names what failed, where that is not the inputs' layout; ``inplace`` gives the judgement the
    in-place variant as ``method``; ``names`` are assigned before it.
    """
    clause = _CLAUSE_OF.get(kind, f"layout.{kind}")
    if kind == "values" and laid.expands:
        clause = "layout.expanded_read"
    return CallScript(ctx, laid, kind, layout or laid.case.id, clause, inplace, names)


def script(
    ctx: ItemContext,
    layout: str,
    kind: str,
    body: Sequence[str],
    *,
    clause: str,
    **names: Any,
) -> str:
    """Put the parts together. ``names`` are assigned before the judgement."""
    descriptor = ctx.device.descriptor
    module = f"import {descriptor.module}  # the device's module\n" if descriptor.module else ""
    if descriptor.init:
        module += f"\n{descriptor.module}.{descriptor.init}()\n"
    assigned = "".join(f"{name} = {literal(value, ctx)}\n" for name, value in names.items())
    return (
        HEADER.format(
            clause=clause,
            cell=f"{ctx.op.id}[{ctx.dtype}]",
            layout=layout,
            torch=torch.__version__,
            device=str(ctx.device.torch_device),
            module=module,
        )
        + f"\n\n{function_source(ctx)}\n\n"
        + "\n".join(body)
        + "\n\n"
        + assigned
        + f"RTOL_ATOL = {ctx.tolerances!r}\n"
        + f"ROUNDINGS = {ctx.roundings!r}  # that many rtol of the largest element are allowed too\n"
        + JUDGEMENTS[kind]
    )


def placed(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with ``t[n]`` in the places of its tensors."""
    numbering = iter(range(len(call.tensors)))
    found: tuple[tuple[Any, ...], dict[str, Any]] = replace_tensors(
        (call.args, call.kwargs), lambda _: _Place(next(numbering))
    )
    return found


def on_host(tensor: torch.Tensor) -> str:
    """Source of a dense CPU tensor that holds these values."""
    return f"dense({_data(tensor)}, {tensor.dtype}, {tuple(tensor.shape)})"


class _Place:
    """Stands for tensor number ``n`` in an argument list."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"t[{self.number}]"


def function_source(ctx: ItemContext) -> str:
    """How a script gets hold of the op: by its public name, or from torch's database where the database's
    entry is a function of its own."""
    name = public_name(ctx.op.function)
    if name is not None:
        return f"op = {name}"
    return (
        "# The database's entry for this op is a function of its own; it needs the package expecttest.\n"
        "from torch.testing._internal.common_methods_invocations import op_db\n\n"
        f"info = next(o for o in op_db if o.full_name == {ctx.op.id!r})\n"
        "op = info.op"
    )


def method_source(ctx: ItemContext) -> str:
    """The same for the in-place variant."""
    assert ctx.op.inplace is not None
    name = public_name(ctx.op.inplace)
    if name is not None:
        return f"method = {name}"
    return (
        "from torch.testing._internal.common_methods_invocations import op_db\n\n"
        f"method = next(o for o in op_db if o.full_name == {ctx.op.id!r}).inplace_variant"
    )


def public_name(function: Callable[..., Any]) -> str | None:
    """``torch.nn.functional.relu`` for a function that has such a name, else None."""
    name = getattr(function, "__name__", "")
    spaces = ("torch", "torch.Tensor", "torch.nn.functional", "torch.linalg", "torch.fft")
    more = ("torch.special", "torch.masked", "torch.signal.windows", "torch.ops.aten")
    for space in (*spaces, *more):
        holder: Any = torch
        for part in space.split(".")[1:]:
            holder = getattr(holder, part, None)
        short = name.removeprefix("linalg_").removeprefix("fft_").removeprefix("special_")
        for candidate in (name, short):
            if candidate.isidentifier() and getattr(holder, candidate, None) is function:
                return f"{space}.{candidate}"
    return None


def literal(value: Any, ctx: ItemContext) -> str:
    """Python source of an argument."""
    if isinstance(value, _Place):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _strided(
            value,
            Geometry(tuple(value.shape), tuple(value.stride()), 0, value.numel()),
            guarded=ctx.device.lays_out,
        )
    if isinstance(value, tuple):
        inner = ", ".join(literal(v, ctx) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return "[" + ", ".join(literal(v, ctx) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {literal(v, ctx)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
    if (isinstance(value, float) and value in (float("inf"), float("-inf"))) or value != value:
        return f"float('{value}')"
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.device):
        return "torch.device(DEVICE)"
    if isinstance(value, torch.nn.Module):
        return f"torch.nn.{value!r}"
    return repr(value)


def _strided(tensor: torch.Tensor, geometry: Geometry, *, guarded: bool = True) -> str:
    """Source of a tensor of this geometry that holds these values; contiguous where not ``guarded``."""
    if tensor.layout != torch.strided:
        dense = tensor.to_dense()
        data = _data(dense)
        return f"dense({data}, {tensor.dtype}, {tuple(tensor.shape)}).to_{_name(tensor.layout)}()"
    if not guarded:
        return f"dense({_data(tensor)}, {tensor.dtype}, {tuple(tensor.shape)}).to(DEVICE)"
    if geometry.expanded is not None:
        tensor = tensor.narrow(geometry.expanded, 0, 1).expand(tensor.shape)
    return (
        f"strided({_data(tensor)}, {tensor.dtype}, {geometry.shape}, {geometry.stride}, "
        f"{geometry.offset}, {geometry.extent})"
    )


def _name(layout: torch.layout) -> str:
    return str(layout).removeprefix("torch.")


def _data(tensor: torch.Tensor) -> str:
    flat = tensor.contiguous().view(-1)
    if (flat.numel() <= _READABLE and flat.dtype.itemsize > 1) or flat.dtype in (
        torch.bool,
        torch.int8,
    ):
        values = flat.tolist()
        if all(v == v and v not in (float("inf"), float("-inf")) for v in values):
            return repr(values)
    raw = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    return repr(base64.b64encode(zlib.compress(raw)).decode())
