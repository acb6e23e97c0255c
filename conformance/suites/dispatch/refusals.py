"""Checks that ops raise for invalid calls: operands on different devices, the error inputs of torch's op
database (OpInfo), and overloads and dtypes that are not implemented."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import torch

from conformance.checks.ops import standalone_checks
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.roundings import as_exact, exact_answer
from conformance.checks.ops.script import NotApplicable
from conformance.suites.dispatch import number_range
from conformance.suites.dispatch.fallback import dense_samples
from devices.descriptor import Descriptor
from opinfo.catalog import database_entry
from opinfo.compare import Wrong, raised, replace_tensors, tensors_of
from opinfo.exceptions import exceptions
from opinfo.sample_source import SampleSource
from opinfo.samples import Sample, Traits
from opinfo.torch_private import all_overloads, kernels, key_of, schema_of

CROSS_DEVICE, ERROR_INPUTS = "dispatch.cross_device", "dispatch.error_inputs"
UNSUPPORTED, REFUSALS = "dispatch.unsupported", "dispatch.refusals"

#: For checks that do not depend on the dtype, the first of these dtypes that an op takes represents the op.
_REPRESENTATIVE = ("float32", "int64", "bool", "complex64")


def once(traits: Traits) -> bool:
    """Returns True for the one dtype of an op in which checks are made that do not depend on the dtype."""
    op = traits.subject
    dtypes = op.dtypes or op.dtypes_anywhere  # the CPU does not implement some ops
    return traits.dtype == next((name for name in _REPRESENTATIVE if name in dtypes), min(dtypes))


# dispatch.cross_device: operands on different devices raise, except for combinations that are documented to
# work. Each tensor of a call in turn is put on the CPU, and on the next device index if there is one. CPU
# tensors without dimensions are legal operands and are not tried. Ops that take operands on other devices by
# design are listed in ``opinfo/exceptions.toml``.

#: Families of ops: operands may be on any device; indices may be on the CPU; the first operand decides on
#: which device the result is.
_ANY, _INDICES, _FIRST = "cross_device.any", "cross_device.indices", "cross_device.first_decides"
#: The dtypes of indices and masks.
_INDEX = (torch.int64, torch.int32, torch.bool, torch.uint8)


def mixes(traits: Traits) -> bool:
    """Returns True for ops with two or more tensor operands, in every dtype. Every dtype matters, because
    kernels read a CPU scalar according to its dtype."""
    return traits.two_operands and _ANY not in traits.families


def unmixed(descriptor: Descriptor, op: str, source: object = None) -> str:
    """Returns the reason why the op cannot be called with operands on different devices: the device is the CPU itself.
    The reason is empty if the device is not the CPU."""
    if key_of(descriptor.torch_type) == "CPU":
        return "by declaration: the device is the CPU, so no operand can be on a different device"
    return ""


def cross_device(ctx: OpContext) -> None:
    """Calls an op with each of its operands in turn on another device. The call must raise. A binary op is also
    called with a CPU scalar tensor as one operand, which it must accept."""
    with ctx.running(CROSS_DEVICE):
        sample = most_telling(dense_samples(ctx))
        here, count = ctx.device.torch_device, ctx.device.descriptor.device_count()
        others = ["cpu"]
        if "multi_device" in ctx.device.descriptor.capabilities and count > 1:
            others.append(f"{here.type}:{((here.index or 0) + 1) % count}")
        tensors = sample.tensors if sample is not None else ()
        for (place, tensor), other in product(enumerate(tensors), others):
            indexes = place > 0 and tensor.dtype in _INDEX
            design = indexes and _INDICES in ctx.traits.families
            if other != "cpu" or not (tensor.dim() == 0 or design):
                given: dict[str, Any] = {"sample": sample, "place": place, "other": other}
                standalone_checks.run(ctx, CROSS_DEVICE, "", refuses, **given)
        if ctx.traits.ufunc == "binary":
            for first in (False,) if _FIRST in ctx.traits.families else (False, True):
                standalone_checks.run(
                    ctx, CROSS_DEVICE, "", takes_scalar, dtype=ctx.dtype, first=first
                )


def most_telling(samples: list[Sample]) -> Sample | None:
    """Returns the sample with the most tensors. Samples whose tensors all have dimensions and elements are preferred, then
    those of which one tensor has dimensions: a tensor without dimensions may be on the CPU."""

    def rank(sample: Sample) -> tuple[Any, ...]:
        tensors = sample.tensors
        dims = [t.dim() for t in tensors]
        whole = min(dims) > 0, max(dims) > 0, all(t.numel() for t in tensors)
        return (*whole, len(tensors), -sample.index)

    return max((s for s in samples if len(s.tensors) > 1), key=rank, default=None)


def refuses(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, place: Any, other: Any
) -> Wrong | None:
    args, kwargs = arguments([move(tensor) for tensor in tensors])
    try:
        op(*args, **kwargs)
    except NotImplementedError:
        raise
    except Exception as error:
        return raised(error, subject="the call with every operand on the device")
    placed = [
        tensor.to(other, copy=True) if number == place else move(tensor)
        for number, tensor in enumerate(tensors)
    ]
    args, kwargs = arguments(placed)
    try:
        # a lazy device raises when results are read
        replace_tensors(op(*args, **kwargs), back)
    except Exception:  # refused; dispatch.error_inputs judges the type of the exception
        return None
    where = f"operand {place} on {other} and the other operands on {placed[place - 1].device}"
    return Wrong("not_raised", f"an error for {where}", "no exception")


def takes_scalar(op: Any, move: Any, back: Any, dtype: Any, first: Any) -> Wrong | None:
    whole = torch.tensor([1, 1, 0, 1]).to(getattr(torch, dtype))
    numbers = torch.tensor([1, 0, 0, 2, 1]).to(getattr(torch, dtype))
    scalar = numbers[3]  # with a storage offset
    try:
        want = op(scalar, whole) if first else op(whole, scalar)
    except Exception as exc:
        raise NotApplicable("the CPU raises an exception for the operands") from exc
    got = back(op(scalar, move(whole)) if first else op(move(whole), scalar))
    what = f"the call with a 0-d CPU tensor as {'first' if first else 'second'} operand"
    if got.dtype != want.dtype:
        return Wrong("dtype", want.dtype, got.dtype, what)
    a, b = got.to(torch.complex128), want.to(torch.complex128)
    if torch.allclose(a, b, rtol=1e-2, atol=1e-3, equal_nan=True):
        return None
    return Wrong("values", want.tolist(), got.tolist(), what)


# dispatch.error_inputs: the error inputs of torch's database raise the documented exception type, or a
# subclass of it. Messages that differ from the documented one are reported and not judged. Assertions on the
# device are not judged here: if the device declares device_assert, errors that depend on values (an index out
# of range) are not tried. Such errors are recognized because meta tensors, which have no values, do not raise
# them.


#: The family of ops whose first integer operand holds indices, and the family of ops that convert a Python number to the
#: dtype of their operands.
_INDEXED, _CONVERTING = "index_range", number_range.FAMILY


def has_error_inputs(traits: Traits) -> bool:
    """Returns True if an op has error inputs, takes indices or converts numbers, and the dtype is the one that represents
    the op. One dtype is enough, because error inputs define their own dtypes."""
    known = traits.subject.has_error_inputs or bool({_INDEXED, _CONVERTING} & traits.families)
    return known and once(traits)


def only_asserts(descriptor: Descriptor, op: str, source: SampleSource) -> str:
    """Returns the reason why the error inputs of an op are not tried: its only error is an index out of range,
    which may be an assertion on the device that ends the process. The reason is empty if the error inputs are
    tried."""
    if "device_assert" not in descriptor.capabilities or source.subjects()[op].has_error_inputs:
        return ""
    if number_range.FAMILY in exceptions().families_of(op):
        return ""
    return "by declaration: an index out of range triggers an assertion on the device (see dispatch.device_assert)"


def error_inputs(ctx: OpContext) -> None:
    """Makes every invalid call of an op that torch's op database generates for the device. Each call must raise the
    documented type of exception."""
    with ctx.running(ERROR_INPUTS) as record:
        device, left_out, unlike = str(ctx.device.torch_device), 0, []
        asserts = "device_assert" in ctx.device.descriptor.capabilities
        known = ctx.subject.error_inputs(device) if ctx.subject.has_error_inputs else ()
        for number, given in enumerate(known):
            if asserts and is_assertion(ctx.subject.function, given):
                left_out += 1
                continue
            where: dict[str, Any] = {"id": ctx.subject.id, "which": number, "device": device}
            made = standalone_checks.DirectedScript(ctx, ERROR_INPUTS, "", raises, parameters=where)
            if not made.may_run():
                continue
            try:
                wrong, said = judged(ctx.subject.function, given)
            except NotImplementedError as exc:
                record.refuse(exc)
                continue
            made.found(wrong)
            unlike += [said] if said else []
        if _INDEXED in ctx.traits.families and not asserts:
            _out_of_range(ctx)
        if _CONVERTING in ctx.traits.families:
            number_range.too_large(ctx, ERROR_INPUTS)
        if unlike:
            record.note(
                f"{len(unlike)} messages differ from the documented messages, for example {unlike[0]}"
            )
        if left_out:
            why = "errors that depend on values may be assertions on the device, which end the process"
            record.note(f"{left_out} error inputs were not tried, because {why}")


def _out_of_range(ctx: OpContext) -> None:
    """Checks an op with invalid indices: just past the end, just before the start, and far past the end. The invalid
    index replaces the last element of an index tensor."""
    for sample in dense_samples(ctx):
        of_integers = [n for n, t in enumerate(sample.tensors) if t.dtype in _INDEX[:2]]
        if not of_integers or not sample.tensors[of_integers[0]].numel():
            continue
        place = of_integers[0]
        end = max((t.numel() for n, t in enumerate(sample.tensors) if n != place), default=1)
        far = (2**31 - 1,) if _cpu_refuses_index(ctx, sample, place, end) else ()
        for value in (end, -end - 1, *far):
            given: dict[str, Any] = {"sample": sample, "place": place, "value": value}
            standalone_checks.run(ctx, ERROR_INPUTS, "", refuses_index, **given)
        return


def _cpu_refuses_index(ctx: OpContext, sample: Sample, place: int, value: int) -> bool:
    """Returns True if the CPU refuses an index. An op that takes the one past the end may use the largest index as the size
    of its result, as an op that counts classes does."""
    changed = [tensor.clone() for tensor in sample.tensors]
    changed[place].view(-1)[-1] = value
    args, kwargs = sample.call.bind(changed)
    try:
        ctx.subject.reference(*args, **kwargs)
    except Exception:  # any type: the call is only asked about
        return True
    return False


def refuses_index(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, place: Any, value: Any
) -> Wrong | None:
    changed = [tensor.clone() for tensor in tensors]
    changed[place].view(-1)[-1] = value
    args, kwargs = arguments([tensor.clone() for tensor in changed])
    try:
        op(*args, **kwargs)
    except Exception:
        args, kwargs = arguments([move(tensor) for tensor in changed])
    else:
        raise NotApplicable("the CPU accepts the index")
    try:
        # a lazy device raises when results are read
        replace_tensors(op(*args, **kwargs), back)
    except NotImplementedError:
        raise
    except Exception:  # the database documents no type
        return None
    return Wrong(
        "not_raised", f"an error for the index {value}", "no exception", f"operand {place}"
    )


def raises(op: Any, move: Any, back: Any, id: Any, which: Any, device: Any) -> Wrong | None:
    info = database_entry(id)
    return judged(op, list(info.error_inputs_func(info, device))[which])[0]


def judged(op: Any, given: Any) -> tuple[Wrong | None, str]:
    """Makes an invalid call. Returns two values: the failure if the call raised no exception or a wrong one,
    otherwise None; and the message of the exception if it differs from the documented message, otherwise an empty
    string."""
    call = given.sample_input
    try:
        result = op(call.input, *call.args, **call.kwargs)
        replace_tensors(result, torch.Tensor.cpu)  # a lazy device raises here
    except Exception as error:
        read_pending(call)
        like = re.search(given.error_regex, str(error)) is not None
        if isinstance(error, NotImplementedError) and not like:
            raise  # the device does not support the op or the dtype
        if isinstance(error, given.error_type):
            line = (str(error).strip().splitlines() or [""])[0][:150]
            return None, "" if like else f"{line!r} instead of {given.error_regex[:150]!r}"
        return raised(error, f"the documented {given.error_type.__name__}"), ""
    if result is NotImplemented:
        return None, ""  # Python then raises TypeError
    documented = f"the documented {given.error_type.__name__}: {given.error_regex[:150]}"
    return Wrong("not_raised", documented, "no exception"), ""


def read_pending(call: Any) -> None:
    """Reads a new tensor on the device of an invalid call. A device that computes when results are read may raise the
    error of the call a second time then, and would raise it in the next call otherwise, as torch's lazy device does
    after as_strided_scatter."""
    for tensor in tensors_of((call.input, call.args, call.kwargs))[:1]:
        with suppress(Exception):  # the error of the call, which was judged
            torch.zeros(1, device=tensor.device).cpu()


#: Matches the messages of errors that depend on values, in torch's database.
_OF_VALUES = re.compile(r"\bind(ex|ices)\b.*(out of|range|bound)|between 0 and 1|probabilit|target")


def is_assertion(op: Any, given: Any) -> bool:
    """Returns True if an error depends on the values of the tensors: the same call on meta tensors, which have
    no values, does not raise it."""
    if not _OF_VALUES.search(given.error_regex):
        return False
    call = given.sample_input

    def without_values(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.device.type == "cpu" else tensor.to("meta")

    try:
        args = replace_tensors((call.input, *call.args), without_values)
        op(*args, **replace_tensors(call.kwargs, without_values))
    except NotImplementedError:
        return True
    except Exception as error:
        return "meta" in str(error).lower()
    return True


# dispatch.unsupported and dispatch.refusals: unimplemented overloads and unsupported dtypes raise. Overloads
# for which the dispatcher's tables have no kernel of the device are called with arbitrary arguments that fit
# the schema, because no kernel can object to them. Ops are also called with dtypes that the database does not
# list for them. If such a call returns, its result must be right, and the report mentions it. If it raises,
# the exception must say what is not supported (dispatch.refusals).

#: The dtypes that are tried with every op that does not list them. complex32 is left out because each use
#: warns that it is experimental.
_TRIED = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_INTEGERS = (*_UNSIGNED, "int8", "int16", "int32", "int64")


def is_undefined(dtype: str, families: Collection[str]) -> bool:
    """Returns True if C++ leaves open what an op of the given families returns in a dtype, so that only the shape and
    the dtype of the result can be judged."""
    return (
        "values.free" in families
        or (dtype in _UNSIGNED and "values.undefined_unsigned" in families)
        or (dtype in _INTEGERS and "values.undefined_integers" in families)
    )


def reads_tensors(traits: Traits) -> bool:
    """Returns True for every op that reads tensors, for the dtype that represents the op."""
    return traits.dense and once(traits)


def may_refuse(traits: Traits) -> bool:
    """Returns True for every op that reads tensors and does not take every dtype, for the dtype that represents
    the op."""
    return reads_tensors(traits) and not set(_TRIED) <= traits.subject.dtypes


def unsupported(ctx: OpContext) -> None:
    """Calls the overloads of an op for which the device has no kernel, and then calls the op with dtypes that
    torch's op database does not list for it."""
    with ctx.running(UNSUPPORTED, REFUSALS):
        record = ctx.recorder.get(UNSUPPORTED)
        descriptor = ctx.device.descriptor
        key = key_of(descriptor.torch_type)
        # Kernels of a tensor subclass with __torch_dispatch__ are in no table.
        tabled = (
            type(ctx.place(torch.ones(1))).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        )
        packets = ctx.subject.packets if tabled else ()
        for name in (n for packet in packets for n in without_kernel(packet, key)):
            plain = name.partition("::")[2]
            packet = plain.partition(".")[0]
            if not any(fnmatchcase(packet, glob) for glob in descriptor.permitted_fallbacks):
                standalone_checks.run(ctx, UNSUPPORTED, "", lacks, cpu_first=True, name=plain)
        sample = _smallest(dense_samples(ctx), ctx.dtype)
        if sample is None:
            return
        works: list[str] = []
        listed, families = ctx.subject.dtypes_on(descriptor.torch_type), ctx.traits.families
        # For example "nn.functional.max_pool2d" -> max_pool2d. The kernel may belong to another packet.
        names = sorted(
            {ctx.subject.id, *(packet.partition("::")[2] for packet in ctx.subject.packets)}
        )
        for dtype in (name for name in _TRIED if name not in listed):
            free = is_undefined(dtype, families)
            given: dict[str, Any] = {"dtype": dtype, "drawn": ctx.dtype}
            # A call that ends the process is attributed to the last of these clauses.
            judges: list[tuple[str, Any, dict[str, Any]]] = [
                (REFUSALS, says_why, {**given, "names": names}),
                (UNSUPPORTED, refuses_dtype, {**given, "free": free}),
            ]
            made = {
                clause: standalone_checks.DirectedScript(
                    ctx, clause, "", judge, sample=sample, parameters=parameters, cpu_first=True
                )
                for clause, judge, parameters in judges
                if ctx.recorder.get(clause) is not None
                # A dtype that the device does not declare at all is not only refused by the op.
                and (clause != REFUSALS or dtype in descriptor.dtypes)
            }
            allowed = [clause for clause in made if made[clause].may_run()]
            if not allowed:
                continue
            op, move, back, tensors, arguments = made[allowed[0]].given()
            call = op, move, back, tensors, arguments, dtype, ctx.dtype
            answer = given_dtype(*call, free)
            ctx.device.let_go()
            if UNSUPPORTED in allowed:
                made[UNSUPPORTED].found(answer.wrong)
            if REFUSALS in allowed:
                made[REFUSALS].found(judged_refusal(answer.error, *call, names))
            if answer.returned and not answer.wrong:
                works.append(dtype)
        refused = ctx.recorder.get(REFUSALS)
        if refused is not None and not refused.checks:
            refused.pass_over("the op takes every dtype that the descriptor declares")
        if works and record is not None:
            record.note(
                f"the op works with dtypes that torch's op database does not list: {', '.join(works)}"
            )


def _smallest(samples: list[Sample], dtype: str) -> Sample | None:
    """Returns the smallest sample that contains a tensor of the given dtype, preferring samples without empty
    tensors."""
    found = [
        s for s in samples if any(str(t.dtype) == f"torch.{dtype}" and t.numel() for t in s.tensors)
    ]
    return min(found, key=lambda s: (not all(t.numel() for t in s.tensors), s.numel), default=None)


def lacks(op: Any, move: Any, back: Any, name: Any) -> Wrong | None:
    packet, _, overload = name.partition(".")
    overloaded = getattr(getattr(torch.ops.aten, packet), overload or "default")
    plain = {
        "int": 1, "float": 1.0, "bool": False, "number": 1, "Scalar": 1, "SymInt": 1, "str": "none",
        "ScalarType": torch.float32, "List[int]": [1], "List[SymInt]": [1], "List[float]": [1.0],
        "List[bool]": [False], "Layout": torch.strided,
    }  # fmt: skip
    args, kwargs, tensors = [], {}, 0
    for argument in schema_of(overloaded).arguments:
        kind = str(argument.real_type)
        if argument.has_default_value():
            continue
        if kind in ("Tensor", "List[Tensor]"):
            value, tensors = move(torch.ones(2, 2)), tensors + 1
            value = value if kind == "Tensor" else [value]
        elif kind in plain or kind.startswith("Optional"):
            value = plain.get(kind)
        else:
            raise NotApplicable(f"the check knows no value for an argument of type {kind}")
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    if not tensors:
        raise NotApplicable(
            "no required argument of the overload is a tensor, so none determines the device"
        )
    what = f"aten::{name}, which has no kernel for the device"
    try:
        result = overloaded(*args, **kwargs)
    except NotImplementedError:
        return None
    except Exception as error:
        return raised(error, "NotImplementedError", subject=what)
    return Wrong("not_raised", "NotImplementedError", f"a {type(result).__name__}", what)


def refuses_dtype(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, dtype: Any, drawn: Any, free: Any
) -> Wrong | None:
    wrong: Wrong | None = given_dtype(op, move, back, tensors, arguments, dtype, drawn, free).wrong
    return wrong


@dataclass
class GivenDtype:
    """The outcome of a call with tensors of a dtype that torch's op database does not list for the op."""

    returned: bool = False
    wrong: Any = None  # what is wrong with the result
    error: Any = None  # the exception of the call


def given_dtype(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, dtype: Any, drawn: Any, free: Any
) -> GivenDtype:
    """Calls an op with its tensors converted to another dtype, and compares the result with the result on the CPU."""
    kind, own = getattr(torch, dtype), getattr(torch, drawn)
    given = [t.to(kind) if t.dtype == own else t for t in tensors]
    try:
        there = [move(t.clone()) for t in given]
    except Exception:
        return GivenDtype()
    if any(a.dtype != b.dtype for a, b in zip(given, there)):
        return GivenDtype()  # the device lacks this dtype; device.capability judges that
    try:
        args, kwargs = arguments(there)
        got = op(*args, **kwargs)
        got = back(got) if isinstance(got, torch.Tensor) else got
        back(move(torch.ones(1)))  # completes non-blocking copies to the host
    except Exception as error:  # refused, as expected for a dtype that the op does not take
        return GivenDtype(error=error)
    try:
        args, kwargs = arguments([t.clone() for t in given])
        want = op(*args, **kwargs)
    except Exception:
        if not (kind.is_floating_point and own.is_floating_point):
            return GivenDtype(True)  # the right result is not known
        args, kwargs = arguments([t.to(own) if t.dtype == kind else t.clone() for t in given])
        want = op(*args, **kwargs)
    if free or not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return GivenDtype(True)
    if want.device.type != "cpu" or not want.layout == got.layout == torch.strided:
        return GivenDtype(True)  # the call names a device, or the layouts differ
    if got.shape != want.shape:
        expected = f"shape {tuple(want.shape)}"
        return GivenDtype(
            True, Wrong("shape", expected, tuple(got.shape), f"the call with {dtype} operands")
        )
    step = 4 * torch.finfo(kind).eps if kind.is_floating_point or kind.is_complex else 1e-3
    a, b = got.to(torch.complex128), want.to(torch.complex128)
    if torch.allclose(a, b, rtol=step, atol=step, equal_nan=True):
        return GivenDtype(True)
    if kind.is_floating_point or kind.is_complex:
        true = exact_answer(op, lambda held, _: arguments(held), given).result
        if as_exact(got, want, true, {dtype: (step, step)}, 0.0):
            return GivenDtype(True)
    shown = [each.reshape(-1)[:4].tolist() for each in (want, got)]
    return GivenDtype(True, Wrong("values", shown[0], shown[1], f"the call with {dtype} operands"))


#: Matches the names of a dtype, or of a kind of dtype, in torch's messages.
_NAMES_DTYPE = re.compile(
    r"d-?types?\b|scalar ?type|data ?type|\btypes?\b|\b(u?int|float|complex|bfloat)\d|\bu?int\b|\b(long|short|char|byte|half|"
    r"bfloat16|float|double|bool(ean)?|complex|(non-?)?floating|(non-?)?integ(er|ral)s?|real|(un)?signed)\b|"
    r"\b(complex)?(float|double|half)\b",
    re.IGNORECASE,
)
#: Matches the message of an internal assertion (c10/util/Exception.h, TORCH_INTERNAL_ASSERT;
#: torch._check_with).
_INTERNAL = re.compile(r"INTERNAL ASSERT|report a bug", re.IGNORECASE)


def says_why(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, dtype: Any, drawn: Any, names: Any
) -> Wrong | None:
    error = given_dtype(op, move, back, tensors, arguments, dtype, drawn, True).error
    return judged_refusal(error, op, move, back, tensors, arguments, dtype, drawn, names)


def judged_refusal(
    error: Any,
    op: Any,
    move: Any,
    back: Any,
    tensors: Any,
    arguments: Any,
    dtype: Any,
    drawn: Any,
    names: Any,
) -> Wrong | None:
    """Returns the fault in the exception with which an op refused a dtype, or None. The exception type that the
    CPU raises is always accepted. If the CPU's message names neither the op nor a dtype, the message is not
    checked. If the device raises the same type of exception in the dtype that the op takes, the exception is not
    about the dtype, and layout.values judges it."""
    wrong = wrong_refusal(error, op, tensors, arguments, dtype, drawn, names)
    if wrong is None:
        return None
    try:
        args, kwargs = arguments([move(tensor.clone()) for tensor in tensors])
        replace_tensors(op(*args, **kwargs), back)
    except Exception as own:  # a kernel may raise any type
        internal = [_INTERNAL.search(str(each)) is not None for each in (own, error)]
        return None if type(own) is type(error) and internal[0] is internal[1] else wrong
    return wrong


def wrong_refusal(
    error: Any, op: Any, tensors: Any, arguments: Any, dtype: Any, drawn: Any, names: Any
) -> Wrong | None:
    """Returns the fault in the exception with which an op refused a dtype, or None, without regard to what the op does
    in the dtype that it takes."""
    if error is None:
        return None
    internal, named = _INTERNAL.search(str(error)) is not None, says(str(error), names)
    if isinstance(error, (NotImplementedError, RuntimeError)) and named and not internal:
        return None
    if internal:
        return raised(
            error,
            "an error about the op or the dtype, not an internal assertion",
            subject=f"the call with {dtype} operands",
        )
    kind, own, known = getattr(torch, dtype), getattr(torch, drawn), None
    try:
        args, kwargs = arguments([t.to(kind) if t.dtype == own else t.clone() for t in tensors])
        op(*args, **kwargs)
    except Exception as exc:
        known = exc
    if known is not None and not says(str(known), names):
        return None
    if not isinstance(error, (NotImplementedError, RuntimeError)):
        if known is not None and isinstance(error, type(known)):
            return None
        return raised(
            error, "NotImplementedError or RuntimeError", subject=f"the call with {dtype} operands"
        )
    return raised(
        error, "a message that names the op or the dtype", subject=f"the call with {dtype} operands"
    )


def says(message: str, names: Any) -> bool:
    """Returns True if an error message contains the name of a dtype, or the last part of one of the op's names."""
    text = message.lower().replace("_", "")
    parts = [name.rpartition(".")[2].rstrip("_").lower().replace("_", "") for name in names]
    return any(part in text for part in parts) or _NAMES_DTYPE.search(message) is not None


def without_kernel(packet: str, key: str) -> list[str]:
    """Returns the overloads of an op for which the device has no kernel of its own and torch has no composite
    kernel."""
    fallback = "[backend fallback]"
    names = all_overloads().get(packet, ())
    return [n for n in names if all(line.endswith(fallback) for line in kernels(n, key))]
