"""dispatch.unsupported: what is not implemented raises NotImplementedError, what a dtype does not have raises.

Overloads that the dispatcher's tables give the device no kernel for are called with whatever their schema takes: no
kernel is reached that could mind the arguments. Dtypes that the database does not list for an op are given to it;
where it takes one all the same, its result must be right, and the report says so.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch

from conformance.dispatch import calls, tables
from conformance.layout.context import ItemContext
from opinfo.samples import Sample
from opinfo.traits import Traits

CLAUSE = "dispatch.unsupported"

#: Given to every op that the database does not list for them. Not complex32: each use warns that it is experimental.
_TRIED = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def applies(traits: Traits) -> bool:
    """Every op that reads tensors, once."""
    return traits.dense and calls.once(traits)


def check(ctx: ItemContext) -> None:
    """Overloads without a kernel, then dtypes that the op is not said to take."""
    with ctx.running(CLAUSE) as (record,):
        if record is None:
            return
        descriptor = ctx.device.descriptor
        key = tables.key_of(descriptor.torch_type)
        for name in (n for packet in ctx.op.packets for n in tables.without_kernel(packet, key)):
            plain = name.partition("::")[2]
            if not any(
                fnmatchcase(plain.partition(".")[0], p) for p in descriptor.permitted_fallbacks
            ):
                calls.judge(ctx, record, lacks, name=plain)
        sample = _smallest(calls.dense_samples(ctx), ctx.dtype)
        if sample is None:
            return
        works: list[str] = []
        listed = ctx.op.dtypes_on(descriptor.torch_type)
        for dtype in (name for name in _TRIED if name not in listed):
            given: dict[str, Any] = {
                "dtype": dtype,
                "drawn": ctx.dtype,
                "free": "values.free" in ctx.traits.families,
            }
            returned, problem = given_dtype(*calls.place(ctx, sample), **given)
            calls.let_go(ctx)
            calls.told(ctx, record, refuses_dtype, sample, problem, **given)
            if returned and not problem:
                works.append(dtype)
        if works:
            record.note(f"works for {', '.join(works)}, which the database does not list")


def _smallest(samples: list[Sample], dtype: str) -> Sample | None:
    """The smallest sample with a tensor of the dtype that has elements."""
    found = [
        s for s in samples if any(str(t.dtype) == f"torch.{dtype}" and t.numel() for t in s.tensors)
    ]
    return min(found, key=lambda s: (not all(t.numel() for t in s.tensors), s.numel), default=None)


def lacks(op: Any, move: Any, back: Any, name: Any) -> str | None:
    packet, _, overload = name.partition(".")
    overloaded = getattr(getattr(torch.ops.aten, packet), overload or "default")
    plain = {
        "int": 1, "float": 1.0, "bool": False, "number": 1, "Scalar": 1, "SymInt": 1, "str": "none",
        "ScalarType": torch.float32, "List[int]": [1], "List[SymInt]": [1], "List[float]": [1.0],
        "List[bool]": [False], "Layout": torch.strided,
    }  # fmt: skip
    args, kwargs, tensors = [], {}, 0
    for argument in overloaded._schema.arguments:
        kind = str(argument.real_type)
        if argument.has_default_value() or kind.startswith("Optional"):
            if argument.has_default_value():
                continue
            value = None
        elif kind == "Tensor":
            value, tensors = move(torch.ones(2, 2)), tensors + 1
        elif kind == "List[Tensor]":
            value, tensors = [move(torch.ones(2, 2))], tensors + 1
        elif kind in plain:
            value = plain[kind]
        else:
            return "not applicable"
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    if not tensors:
        return "not applicable"  # nothing says which device is meant
    try:
        result = overloaded(*args, **kwargs)
    except NotImplementedError:
        return None
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0][:200]
        return f"aten::{name} has no kernel, and raises {type(error).__name__} for it: {line}"
    return f"aten::{name} has no kernel, and returns a {type(result).__name__}"


def refuses_dtype(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, dtype: Any, drawn: Any, free: Any
) -> str | None:
    problem: str | None = given_dtype(op, move, back, tensors, arguments, dtype, drawn, free)[1]
    return problem


def given_dtype(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, dtype: Any, drawn: Any, free: Any
) -> Any:
    """Whether the call returns when its tensors of the drawn dtype have another, and what is wrong with that."""
    kind, own = getattr(torch, dtype), getattr(torch, drawn)
    given = [t.to(kind) if t.dtype == own else t for t in tensors]
    try:
        args, kwargs = arguments([move(t.clone()) for t in given])
        got = op(*args, **kwargs)
        got = back(got) if isinstance(got, torch.Tensor) else got
        back(move(torch.ones(1)))  # behind it: a copy to the host that did not block is complete
    except Exception:  # refused, as a dtype that the op does not take is to be
        return False, None
    try:
        args, kwargs = arguments([t.clone() for t in given])
        want = op(*args, **kwargs)
    except Exception:
        if not (kind.is_floating_point and own.is_floating_point):
            return True, None  # what it would be is not known
        args, kwargs = arguments([t.to(own) if t.dtype == kind else t.clone() for t in given])
        want = op(*args, **kwargs)
    if free or not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return True, None
    if want.device.type != "cpu":
        return True, None  # the call names the device
    if want.layout != torch.strided or got.layout != torch.strided:
        return True, None
    if got.shape != want.shape:
        return True, f"{dtype}: shape {tuple(want.shape)} expected, got {tuple(got.shape)}"
    step = 4 * torch.finfo(kind).eps if kind.is_floating_point or kind.is_complex else 1e-3
    a, b = got.to(torch.complex128), want.to(torch.complex128)
    if torch.allclose(a, b, rtol=step, atol=step, equal_nan=True):
        return True, None
    return (
        True,
        f"{dtype}: {want.reshape(-1)[:4].tolist()} expected, got {got.reshape(-1)[:4].tolist()}",
    )


calls.HELPERS[refuses_dtype] = (given_dtype,)
