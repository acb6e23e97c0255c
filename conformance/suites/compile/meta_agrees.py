"""The check of compile.meta_agrees: for each aten call that an op and its backward make, FakeTensor of the device's type
predicts the tensors that the device returns."""

from __future__ import annotations

from collections.abc import Collection

from conformance.checks.cases.cases import one_op_in
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Laid, ReferenceParts, Unjudged
from conformance.checks.ops.context import OpContext
from conformance.suites.compile.compiled_samples import laid_for, lead_first, places_of
from conformance.suites.compile.fake_calls import AtenCall, AtenCalls, Described, called_beside_fake
from opinfo.compare import Wrong, raised
from opinfo.reference import significant
from opinfo.samples import Traits

META = "compile.meta_agrees"
_COMPILED = "compile.eager_equals_compiled"
#: The dtypes in which an op is tried: FakeTensor computes half precision and complex numbers by other formulas.
_DTYPES = frozenset({"float32", "bfloat16", "complex64", "int64", "bool"})


def applies(t: Traits) -> bool:
    """Return True for ops that read and return strided tensors whose shapes do not depend on values."""
    strided = t.reads_strided and t.dense and t.returns_strided
    return strided and t.dtype in _DTYPES and not t.subject.unsafe_in_graphs


#: Whether the plan ``quick`` checks the op of this name. It checks one op in two.
in_quick = one_op_in(2)


def in_core(op: str, clauses: Collection[str]) -> bool:
    """Return True if the plan ``core`` has the variant ``layouts`` of an op in a dtype to which ``clauses`` apply: that
    of the dtypes in which the op is compiled. How FakeTensor treats layouts hardly depends on the dtype."""
    return _COMPILED in clauses


def check(ctx: OpContext) -> None:
    """Check that the result of one call has the metadata that fake tensors predict. In the variant ``layouts``, check
    calls of a few samples in several layouts."""
    with ctx.running(META) as record:
        whole = False  # whether a call with its backward was made to its end, and judged
        for number, sample in enumerate(lead_first(ctx)):
            if whole and not ctx.variant:
                break
            lays = laid_for(ctx, sample, lead=not number)
            for laid in lays:
                whole |= _judge(ctx, laid) and record.checks > 0
            if not whole and not ctx.variant:  # the op takes contiguous inputs only
                whole |= _judge(ctx, ctx.laid_contiguous(sample)) and record.checks > 0
            ctx.rebuild(sample)


def _judge(ctx: OpContext, laid: Laid) -> bool:
    """Judge one call. Return False if the device raised an exception, which may be after a part of its aten calls."""
    given = (places_of(ctx, laid.sample),)
    evidence = ctx.judge({META: judge_fake}, called_beside_fake, given, Reference(ctx, laid))
    return evidence is not None and evidence.raised is None


def judge_fake(evidence: AtenCalls, reference: ReferenceParts) -> Found:
    """Check, for each aten call, that FakeTensor and the device agree on the number of tensors, and on the shape, dtype,
    device, strides and aliasing of each of them."""
    if evidence.raised is not None and not evidence.calls:
        yield Unjudged(evidence.raised)
        return
    if not evidence.calls:  # the op gives its input back
        own = "a new tensor, although no aten call was made"
        yield None if evidence.handed_back else Wrong("alias", "an input of the op", own)
    for call in evidence.calls:
        if call.raised is not None:
            wrong: Wrong | None = raised(call.raised, "no exception from FakeTensor")
        elif call.fake is None:
            continue
        else:
            wrong = disagreement(call, call.fake)
        yield wrong.about(f"{call.name}({', '.join(call.given)})") if wrong is not None else None


def disagreement(call: AtenCall, fake: tuple[Described, ...]) -> Wrong | None:
    """Return a failure if the tensors that the device and FakeTensor returned differ; otherwise None."""
    if len(call.real) != len(fake):
        return Wrong("count", f"{len(fake)} tensors, as with FakeTensor", len(call.real))
    for place, (got, want) in enumerate(zip(call.real, fake)):
        wrong = other_tensor(got, want)
        if wrong is not None:
            return wrong.about(f"output {place}") if len(fake) > 1 else wrong
    return None


def other_tensor(got: Described, want: Described) -> Wrong | None:
    """Return a failure if a tensor of the device differs from the one that FakeTensor predicts; otherwise None."""
    if got.dtype != want.dtype:
        return Wrong("dtype", f"{want.dtype}, as with FakeTensor", got.dtype)
    if got.shape != want.shape:
        return Wrong("shape", f"shape {want.shape}, as with FakeTensor", got.shape)
    if got.device != want.device:
        return Wrong("device", f"{want.device}, as with FakeTensor", got.device)
    if significant(got.shape, got.stride) != significant(want.shape, want.stride):
        return Wrong("strides", f"strides {want.stride}, as with FakeTensor", got.stride)
    if (got.conj, got.neg) != (want.conj, want.neg):
        expected = f"conj bit {want.conj}, neg bit {want.neg}, as with FakeTensor"
        return Wrong("bits", expected, f"conj bit {got.conj}, neg bit {got.neg}")
    if (got.argument, got.output) != (want.argument, want.output):
        kind = "alias" if want.argument is None and want.output is None else "not_aliased"
        return Wrong(kind, f"{_memory(want)}, as with FakeTensor", _memory(got))
    if got.argument is not None and 0 not in got.shape and got.offset != want.offset:
        return Wrong("offset", f"storage offset {want.offset}, as with FakeTensor", got.offset)
    return None


def _memory(tensor: Described) -> str:
    if tensor.argument is not None:
        return f"the storage of argument {tensor.argument}"
    if tensor.output is not None:
        return f"the storage of output {tensor.output}"
    return "a storage of its own"
