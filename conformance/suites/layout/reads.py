"""Calls that read: one call for each sample in each layout, judged for seven clauses at once; calls made twice, and
calls in full precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from conformance.checks.ops.calls import (
    Ambiguous,
    Answer,
    Call,
    Found,
    Judge,
    Laid,
    called,
    copies,
    damages,
    differs,
    strided,
)
from conformance.checks.ops.context import ItemContext, Reference
from opinfo.compare import Wrong, bit_equal, raised, replace_tensors, tensors_of
from opinfo.device import ByValues, Guarded, differing, identity
from opinfo.layouts import covering_set
from opinfo.memory import fresh_memory
from opinfo.reference import OutputSpec, output_specs, significant
from opinfo.samples import Sample
from opinfo.torch_private import negated, storage_id

PRECISION, DETERMINISM = "layout.fp32_precision", "layout.determinism"


def reads(ctx: ItemContext) -> None:
    """Call the op on every sample in every layout of the covering set."""
    with ctx.running(*READS):
        if not (ctx.device.lays_out or ctx.device.slices):
            for clause in ("layout.bounds", "layout.expanded_read"):
                if (record := ctx.recorder.get(clause)) is not None:
                    record.pass_over("it declares no strides, and makes no views by slicing")
        # Calls without elements last: they work where all others end the process, which is then known.
        for sample in sorted(ctx.samples, key=lambda s: any(not t.numel() for t in s.tensors)):
            for laid in ctx.laid_out(sample):
                _one_call(ctx, laid)
            ctx.release(sample)
        if ctx.recorder.get("layout.views") is not None:
            _lazy_bits(ctx)
        if ctx.recorder.get("layout.values") is not None and not ctx.traits.declares_view:
            _lazy_operands(ctx)


def _one_call(ctx: ItemContext, laid: Laid) -> None:
    if not _as_asked(ctx, laid):
        return
    judges = _EXPANDED if laid.expands else _PLAIN
    reference = Reference(ctx, laid, eager_specs=partial(_eager_specs, ctx, laid))
    values = ctx.recorder.get("layout.expanded_read" if laid.expands else "layout.values")
    unread = (False,) if values is None else ()
    intact = ctx.recorder.get("layout.inputs_intact")
    failed = intact.failed if intact is not None else 0
    answer = ctx.judge(judges, called, unread, reference)
    if intact is not None and intact.failed > failed:
        ctx.rebuild(laid.sample)  # an input may have other strides now
    if "storage" not in ctx.device.descriptor.capabilities:
        ctx.rebuild(laid.sample)  # outputs were written to
    if answer is not None and reference.mutable:
        ctx.rebuild(
            laid.sample
        )  # the next call begins with the values that the reference begins with
        return
    if answer is None or answer.damages is None:
        return
    for each, damage in zip(laid.inputs, answer.damages, strict=True):
        if damage is not None and isinstance(each, Guarded):
            each.restore(ctx.device.to_device)


def _as_asked(ctx: ItemContext, laid: Laid) -> bool:
    """Whether the device built the requested layout; otherwise nothing can be checked."""
    for guarded in laid.inputs:
        if isinstance(guarded, Guarded) and not guarded.built_as_asked:
            view = guarded.view
            text = (
                f"[{laid.case.id}] the device did not build the layout: expected strides "
                f"{guarded.geometry.stride} at offset {guarded.geometry.offset}, found "
                f"{tuple(view.stride())} at {view.storage_offset()}"
            )
            for clause in READS:
                if (record := ctx.recorder.get(clause)) is not None:
                    record.block("layout.as_strided", text)
            return False
    return True


def judge_values(call: Call, answer: Answer, reference: Any) -> Found:
    """The result has the reference's values, and so have the inputs that the call updates; where they are unspecified,
    its shapes and dtypes. Raising is correct if the CPU raises for contiguous copies, or FakeTensor for this
    layout."""
    want = reference.value
    if answer.raised is not None:
        refused = want.raises is not None or reference.raises
        expected = "no exception, as from the reference"
        yield None if refused else raised(answer.raised, expected)
    elif want.raises is not None:
        yield Wrong("not_raised", f"{raised(want.raises).found}, as on the CPU", "a result")
    elif reference.free:
        yield other_form(answer.read, want.result)
    else:
        wrong = differs(answer.read, want.result, reference, lambda: reference.exact.result)
        yield wrong or (other_zeros(answer.read, want.result) if reference.signed else None)
        for place in sorted(reference.mutable):
            given = call.inputs[place]
            if want.after and isinstance(given, Guarded):
                there, exact = call.back(given.view), partial(exact_after, reference, place)
                wrong = differs(there, want.after[place], reference, exact)
                yield wrong.about(f"input {place} after the call") if wrong is not None else None


def exact_after(reference: Any, place: int) -> Any:
    """An input after the call in float64, if that has an answer."""
    return list(reference.exact.after)[place : place + 1]


def other_zeros(read: Any, want: Any) -> Wrong | None:
    """The first zero with another sign than the reference's, where both results are zero."""
    for got, wanted in zip(tensors_of(read), tensors_of(want)):
        if got.is_floating_point() and got.dtype == wanted.dtype:
            both = (got == 0) & (wanted == 0)
            other = both & (torch.signbit(got) != torch.signbit(wanted))
            if bool(other.any()):
                where = tuple(other.nonzero()[0].tolist())
                found = repr(got[where].item())
                return Wrong("values", repr(wanted[where].item()), found, f"at {where}")
    return None


def other_form(read: Any, want: Any) -> Wrong | None:
    """How the shapes and dtypes of what was read back differ from the reference's."""
    got, wanted = ([(tuple(t.shape), t.dtype) for t in tensors_of(each)] for each in (read, want))
    return None if got == wanted else Wrong("shape", f"shapes and dtypes {wanted}", got)


def judge_strides(call: Call, answer: Answer, reference: Any) -> Found:
    """Outputs have the strides that the meta device says, or FakeTensor, or eager CPU."""
    if answer.raised is not None:
        return
    outputs = strided(answer.result)
    found = [significant(each.shape, each.stride()) for each in outputs]
    wanted = comparable(reference.meta_specs, outputs)
    if wanted is None or wanted != found:
        wanted = comparable(reference.specs, outputs)
    if wanted is None or wanted != found:
        eager = comparable(reference.eager_specs, outputs)
        if wanted is None and eager is None:
            return  # no reference has an answer for this call
        if eager != found:
            by_fake = f"{wanted} as FakeTensor says" if wanted is not None else ""
            by_cpu = f"{eager} as eager CPU says" if eager is not None else ""
            expected = " or ".join(filter(None, (by_fake, by_cpu)))
            wrong = Wrong("strides", expected, found, "output strides")
            yield from [None] * (len(found) - 1)
            both = wanted is not None and eager is not None and wanted != eager
            yield Ambiguous(str(wrong)) if both else wrong
            return
    yield from [None] * len(found)


def comparable(
    specs: Sequence[OutputSpec] | None, outputs: Sequence[torch.Tensor]
) -> list[tuple[int, ...]] | None:
    """A reference's significant strides, where it describes outputs of the same shapes."""
    if specs is None or len(specs) != len(outputs):
        return None
    if any(s.shape != tuple(t.shape) for s, t in zip(specs, outputs)):
        return None  # layout.values judges the shapes
    return [s.significant for s in specs]


def _eager_specs(ctx: ItemContext, laid: Laid) -> tuple[OutputSpec, ...] | None:
    """What the eager CPU returns for the same layout; None on the CPU itself, which is not a second opinion."""
    if ctx.device.fake_only:
        return None
    tensors = []
    for tensor, geometry in zip(laid.sample.tensors, laid.geometries, strict=True):
        if tensor.layout != torch.strided:
            return None
        tensors.append(Guarded(tensor, geometry, identity).view)
    args, kwargs = laid.sample.call.bind(tensors)
    try:
        return output_specs(ctx.op.function(*args, **kwargs), tensors)
    except Exception:  # the CPU refuses this layout, so it cannot be a reference for it
        return None


def judge_fresh(call: Call, answer: Answer, reference: Any) -> Found:
    """Outputs have separate memory, and enough of it.

    Some ops hand an input through (``dropout`` in evaluation, ``Tensor.float`` of float32): they are written above
    the kernels, the same for every device, and FakeTensor shows it for the same call.
    """
    if answer.raised is not None:
        return
    outputs = strided(answer.result)
    for place, out in enumerate(outputs):
        if call.storage:
            wrong = aliases(call, out, None)
            if wrong is not None:
                wrong = aliases(call, out, handed_through(reference, place, outputs))
            wrong = wrong or outside_storage(out)
        else:
            through = handed_through(reference, place, outputs)
            wrong = written_to_inputs(call, answer, out, through)
            if answer.unjudged is not None:
                return
        if wrong is not None:
            yield wrong.about(f"output {place}")
            return
        if out.numel():  # no memory shows nothing
            yield None


def handed_through(reference: Any, place: int, outputs: Sequence[torch.Tensor]) -> int | None:
    """The input that FakeTensor hands through as this output."""
    specs = reference.specs
    alias: int | None = specs[place].alias if specs and len(specs) == len(outputs) else None
    return alias


def written_to_inputs(
    call: Call, answer: Answer, out: torch.Tensor, through: int | None
) -> Wrong | None:
    """Whether what is written to an output is seen in an input: of devices that declare no storage. An output that is
    input number ``through`` is not written to."""
    if through is not None:
        return None
    changed = damages(call, answer)  # by the call itself
    try:
        with torch.no_grad():
            out.fill_(1)
    except Exception as exc:  # elements that overlap, or no fill_
        answer.unjudged = exc
        return None
    for number, each in enumerate(call.inputs):
        if isinstance(each, Guarded) and changed[number] is None and not each.intact(call.back):
            each.restore(call.move)
            return Wrong("alias", "separate memory", f"a write to it is seen in input {number}")
    return None


def aliases(call: Call, out: torch.Tensor, through: int | None) -> Wrong | None:
    """Whether a tensor shares memory with one of the inputs but number ``through``: by identity, or by overlapping
    addresses."""
    storage = out.untyped_storage()
    for number, each in enumerate(call.inputs):
        if not isinstance(each, Guarded) or number == through:
            continue
        if storage_id(out) == storage_id(each.base):
            return Wrong("alias", "separate memory", f"the storage of input {number}")
        if not call.pointers:
            continue
        start, size = storage.data_ptr(), storage.nbytes()
        other = each.base.untyped_storage()
        at = other.data_ptr()
        if start and at and size and at < start + size and start < at + other.nbytes():
            return Wrong("alias", "separate memory", f"an overlap with input {number}")
    return None


def outside_storage(out: torch.Tensor) -> Wrong | None:
    """Whether some element of a tensor is beyond the end of its storage."""
    if out.numel() == 0:
        return None
    last = out.storage_offset() + sum((n - 1) * s for n, s in zip(out.shape, out.stride()))
    need, have = (last + 1) * out.element_size(), out.untyped_storage().nbytes()
    return Wrong("storage", f"a storage of {need} bytes or more", have) if need > have else None


def judge_inputs(call: Call, answer: Answer, reference: Any) -> Found:
    """The elements of inputs, and the bytes between them, are as they were; so are shape, strides and offset."""
    for place, damage in enumerate(damages(call, answer)):
        each = call.inputs[place]
        if isinstance(each, Guarded) and place not in reference.mutable and not each.as_asked():
            expected = f"shape {each.geometry.shape}, strides {each.geometry.stride}"
            found = f"shape {tuple(each.view.shape)}, strides {tuple(each.view.stride())}"
            yield Wrong("moved", expected, found, f"input {place}")
            continue
        if damage and (damage.between or (damage.inside and place not in reference.mutable)):
            found = f"{damage.inside} changed bytes in its elements, {damage.between} between them"
            found = f"{found}, the first at storage byte {damage.first_offset}"
            yield Wrong("bytes", "no change", found, f"input {place}")
        elif isinstance(each, Guarded):
            yield None


def judge_bounds(call: Call, answer: Answer, reference: Any) -> Found:
    """The bytes of an input's storage outside of the view are as they were."""
    for place, damage in enumerate(damages(call, answer)):
        each = call.inputs[place]
        if not isinstance(each, Guarded) or (isinstance(each, ByValues) and each.whole):
            continue
        wrong = None
        if damage and damage.outside:
            at = f"{damage.first_offset} (the view begins at element {each.geometry.offset})"
            found = f"{damage.outside} changed bytes, the first at storage byte {at}"
            wrong = Wrong("bytes", "no change outside its elements", found, f"input {place}")
        yield wrong


def judge_views(call: Call, answer: Answer, reference: Any) -> Found:
    """An op that declares aliasing shares the base's storage where its reference does, at the reference's offset and
    strides; a write through the view is seen in the base and the other way round; conj and neg bits are the CPU's."""
    if answer.raised is not None:
        return
    found = list(_views(call, answer, reference, reference.meta_specs))
    if reference.meta_specs is None or any(found):
        found = list(_views(call, answer, reference, reference.specs))
    yield from found


def _views(call: Call, answer: Answer, reference: Any, specs: Sequence[OutputSpec] | None) -> Found:
    """The same, with what one reference says of the outputs."""
    outputs = strided(answer.result)
    if specs is None or len(specs) != len(outputs):
        return
    cpu = tensors_of(reference.value.result)
    for place, (out, spec) in enumerate(zip(outputs, specs)):
        if spec.shape != tuple(out.shape):
            continue  # layout.values judges the shapes
        wrong = other_bits(out, cpu[place]) if place < len(cpu) else None
        if wrong is None and spec.alias is not None:
            yield None
            wrong = not_its_view(call, out, spec)
            eager = reference.eager_specs if wrong and wrong.kind in ("strides", "offset") else None
            if eager is not None and len(eager) == len(outputs):  # the two references may differ
                wrong = not_its_view(call, out, eager[place])
        yield wrong.about(f"output {place}") if wrong is not None else None
        if wrong is not None:
            return


def other_bits(out: torch.Tensor, cpu: torch.Tensor) -> Wrong | None:
    """Whether the conj and neg bits differ."""
    if out.is_conj() != cpu.is_conj():
        return Wrong("bits", f"conj bit {cpu.is_conj()}, as on the CPU", out.is_conj())
    if out.is_neg() != cpu.is_neg():
        return Wrong("bits", f"neg bit {cpu.is_neg()}, as on the CPU", out.is_neg())
    return None


def not_its_view(call: Call, out: torch.Tensor, spec: OutputSpec) -> Wrong | None:
    """Whether an output is not the view of an input that it should be."""
    base = call.inputs[spec.alias or 0]
    if not isinstance(base, Guarded):
        return None
    if call.storage and storage_id(out) != storage_id(base.base):
        return Wrong("not_aliased", f"the storage of input {spec.alias}", "another storage")
    if not isinstance(base, ByValues):
        if significant(out.shape, out.stride()) != spec.significant:
            return Wrong("strides", f"strides {spec.stride}", tuple(out.stride()))
        if out.numel() and out.storage_offset() != spec.offset:
            return Wrong("offset", f"storage offset {spec.offset}", out.storage_offset())
    if out.numel() == 0 or out.is_conj() or out.is_neg() or 0 in spec.significant:
        return None
    if may_overlap(spec.shape, spec.stride):
        return None  # writes through it are not defined
    return not_written_through(call, base, out, spec)


def not_written_through(
    call: Call, base: Guarded, out: torch.Tensor, spec: OutputSpec
) -> Wrong | None:
    """Fill the view, and see exactly its elements change in the base; put the base back, and see the view follow."""
    reaches = "a write through the view to reach the base"
    known, wanted = base.before, base.before.clone()
    usable = len(wanted) // out.element_size() * out.element_size()

    def elements(held: torch.Tensor) -> torch.Tensor:
        return held[:usable].view(out.dtype).as_strided(spec.shape, spec.stride, spec.offset)

    elements(wanted).fill_(1)
    try:
        with torch.no_grad():
            out.fill_(1)
    except NotImplementedError:
        return None  # the cells of fill say so
    except RuntimeError as error:
        return raised(error, reaches)
    base.before = wanted
    written = base.intact(call.back)
    base.before = known
    base.restore(call.move)
    if not written:
        return Wrong("not_aliased", reaches, "other bytes")
    if differing(call.back(out), elements(known)).any():
        return Wrong("not_aliased", "a write to the base to reach the view", "other values")
    return None


def may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements of the view may share an address (sufficient test: sorted strides nest)."""
    reach = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape) if n > 1):
        if step < reach:
            return True
        reach = step * (size - 1) + reach
    return False


_PLAIN: dict[str, Judge] = {
    "layout.values": judge_values,
    "layout.output_strides": judge_strides,
    "layout.output_fresh": judge_fresh,
    "layout.inputs_intact": judge_inputs,
    "layout.bounds": judge_bounds,
    "layout.views": judge_views,
}
_EXPANDED: dict[str, Judge] = {"layout.expanded_read": judge_values, **_PLAIN}
del _EXPANDED["layout.values"]

#: The clauses that the calls of :func:`reads` are judged for.
READS = ("layout.values", *_EXPANDED)


# -- layout.views: conjugated and negated views as inputs


def _lazy_bits(ctx: ItemContext) -> None:
    """Give the op conjugated and negated views: the bits are the CPU's, and so are the values."""
    for turn, sample in product(_turns(ctx), ctx.common):
        first = sample.call.args[0]
        if isinstance(first, torch.Tensor) and first.numel():
            _turned(ctx, sample, turn, (0,), {"layout.views": judge_turned}, called_turned)


def _lazy_operands(ctx: ItemContext) -> None:
    """Give an op that is no view each operand as such a view, and all of them: some kernels read them as they are. Of
    one sample of each number of operands, as the bits are read, or resolved, before anything that depends on the
    sample."""
    if ctx.cases[:1] != covering_set().cases[:1]:
        return  # one layout is asked for: that of a pinned or minimised call
    if ctx.mutates or "values.free" in ctx.traits.families:
        return
    kind, seen = getattr(torch, ctx.dtype), set()
    for sample in ctx.common:
        places = [p for p, t in enumerate(sample.tensors) if t.dtype == kind and t.numel()]
        strided = all(t.layout == torch.strided for t in sample.tensors)
        if not places or len(places) in seen or not strided or ctx.mutable_inputs(sample):
            continue
        seen.add(len(places))
        groups = dict.fromkeys([*((place,) for place in places), tuple(places)])
        for turn, group in product(_turns(ctx), groups):
            _turned(ctx, sample, turn, group, _LAZY_OPERANDS, called_lazily)


def _turns(ctx: ItemContext) -> list[str]:
    """The bits that operands may have: the CPU's op takes them."""
    kind = getattr(torch, ctx.dtype)
    turns = ["conj"] if kind.is_complex and ctx.op.takes_conj_view else []
    real = kind.is_complex or kind.is_floating_point
    return [*turns, "neg"] if real and ctx.op.takes_neg_view else turns


def _turned(
    ctx: ItemContext,
    sample: Sample,
    turn: str,
    group: tuple[int, ...],
    judges: dict[str, Judge],
    procedure: Callable[..., Answer],
) -> None:
    lazy, resolved = (
        ctx.answer_for(sample, make, turn, group) for make in (lazily_turned, turned_and_resolved)
    )
    if any(each.value().raises is not None for each in (lazy, resolved)):
        return
    try:
        for each in (lazy, resolved):
            resolve(each.value().result)
    except NotImplementedError:
        return  # the CPU cannot read its own result: complex32 with both bits set
    exact = ctx.exact_for(sample, turned_and_resolved, turn, group)
    reference = Reference(
        *(ctx, ctx.first(sample)), turn=turn, lazy=lazy, resolved=resolved, resolved_exact=exact
    )
    ctx.judge(judges, procedure, (turn, group), reference, layout=turn)


def lazily_turned(
    values: Sequence[torch.Tensor], turn: str, group: Sequence[int]
) -> list[torch.Tensor]:
    """The tensors, some of them as views with the conj or neg bit set."""
    view = torch.conj if turn == "conj" else negated
    return [view(each) if place in group else each for place, each in enumerate(values)]


def turned_and_resolved(
    values: Sequence[torch.Tensor], turn: str, group: Sequence[int]
) -> list[torch.Tensor]:
    """The same values without the bits."""
    return [each.resolve_conj().resolve_neg() for each in lazily_turned(values, turn, group)]


def resolve(result: Any) -> Any:
    """A result whose tensors have no bits set."""
    return replace_tensors(result, lambda t: t.resolve_conj().resolve_neg())


def called_turned(call: Call, turn: str, group: Sequence[int]) -> Answer:
    """Make the call with some tensors as such views; a device that makes no such view fails in it."""
    given = copies(call)
    try:
        given = lazily_turned(given, turn, group)
    except Exception as error:  # anything may come out of a kernel; it is judged, not swallowed
        return Answer(raised=error)
    return called_on(call, given)


def called_lazily(call: Call, turn: str, group: Sequence[int]) -> Answer:
    """The same of operands that have their bits; nothing where the device makes no such view, or loses the bits: that is
    for layout.views to say."""
    given = copies(call)
    try:
        given = lazily_turned(given, turn, group)
    except Exception as error:
        return Answer(unjudged=error, judged_by="layout.views")
    kept = all(
        given[place].is_conj() if turn == "conj" else given[place].is_neg() for place in group
    )
    return called_on(call, given) if kept else Answer()


def called_on(call: Call, given: list[torch.Tensor]) -> Answer:
    """Make the call with these inputs, and read its result without their bits."""
    answer = called(replace(call, inputs=given), False)
    if answer.raised is None:
        answer.read = resolve(replace_tensors(answer.result, call.back))
    return answer


def judge_turned(call: Call, answer: Answer, reference: Any) -> Found:
    """The result of a call with a lazily conjugated or negated input has the CPU's bits and values."""
    if answer.raised is None:
        pairs = zip(tensors_of(answer.result), tensors_of(reference.lazy.result))
        wrong = next(filter(None, (other_bits(out, cpu) for out, cpu in pairs)), None)
        if wrong is not None:
            yield wrong.about(f"{reference.turn} view as input")
            return
    yield from judge_turned_values(call, answer, reference)


def judge_turned_values(call: Call, answer: Answer, reference: Any) -> Found:
    """The result of a call with lazily conjugated or negated inputs has the CPU's values."""
    what = f"{reference.turn} view as input"
    if answer.raised is not None:
        if isinstance(answer.raised, NotImplementedError) or not reference.raises:
            yield raised(answer.raised).about(what)
        else:  # FakeTensor raises too: the call is not one for this device
            yield None
        return
    if answer.result is None:
        return
    want = resolve(reference.resolved.result)
    wrong = differs(answer.read, want, reference, lambda: reference.resolved_exact.result)
    yield wrong.about(what) if wrong is not None else None


_LAZY_OPERANDS: dict[str, Judge] = {"layout.values": judge_turned_values}


# -- layout.determinism: with deterministic algorithms on, repeated calls are bit-equal or raise RuntimeError
# (https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html).
#
# A kernel that reads memory before it wrote it gives equal results by luck, as long as the allocator hands out the
# same bytes. So on the CPU the two calls are given different ones: see fresh_memory.

#: Layouts that take different paths through a kernel; more would only repeat them.
_LAYOUTS = frozenset(
    {
        "contiguous",
        "transposed+step_outer+offset",
        "channels_last",
        "contiguous+step_inner+offset",
    }
)


def determinism(ctx: ItemContext) -> None:
    with ctx.running(DETERMINISM), deterministic():  # once for all calls: switching is slow
        for sample in ctx.common:
            for laid in ctx.laid_out(sample, _LAYOUTS):
                reference = Reference(ctx, laid)
                mutable = bool(reference.mutable)
                ctx.judge(_SAME_BITS, called_twice, (mutable,), reference)
                if mutable:
                    ctx.rebuild(sample)
            ctx.release(sample)


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms on, and off again as it was."""
    settings: Any = torch.utils.deterministic  # a module whose class makes this a property
    before, fill = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    if before and not fill:
        yield
        return
    torch.use_deterministic_algorithms(True)
    # Filling every fresh tensor with NaN would hide what this clause looks for: memory left unwritten.
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fill


def called_twice(call: Call, mutable: bool) -> list[Answer]:
    """Make the call twice, over fresh memory that holds other bytes."""
    answers = []
    for byte in (0, 1):
        with deterministic(), fresh_memory(call.device, byte):
            answers.append(called(call))
        if mutable:  # the result may be the input itself, which is put back
            answers[-1].read = replace_tensors(answers[-1].read, torch.Tensor.clone)
            for each in call.inputs:
                if isinstance(each, Guarded):
                    each.restore(call.move)
                    each.lay_again()
    return answers


def judge_same_bits(call: Call, answer: Sequence[Answer], reference: Any) -> Found:
    """Both of two equal calls raise, or give the same bits."""
    first, second = answer
    kind = "not_deterministic"
    if first.raised is not None and second.raised is not None:
        yield None  # a refusal, or what layout.values judges
        return
    if first.raised is not None or second.raised is not None:
        which = "first" if first.raised is not None else "second"
        yield Wrong(kind, "the same of two equal calls", f"an exception from the {which}")
        return
    pairs = list(zip(tensors_of(first.read), tensors_of(second.read)))
    for place, (one, other) in enumerate(pairs):
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        if not bit_equal(one, other):
            yield Wrong(kind, "the same bits from two equal calls", "other bits", f"output {place}")
            return
    if not pairs and first.read != second.read and first.read == first.read:
        yield Wrong(kind, f"{first.read!r} from two equal calls", repr(second.read))
        return
    yield None


_SAME_BITS: dict[str, Judge] = {DETERMINISM: judge_same_bits}


# -- layout.fp32_precision: matrix products in float32 are as precise as float32

#: Largest relative error (Frobenius norm) that float32 arithmetic leaves: measured errors lie near 1e-7; TF32 leaves
#: 3e-4, bfloat16 3e-3.
FLOAT32_LEVEL = 1e-5


def precision(ctx: ItemContext) -> None:
    """Compare every sample with the CPU in float64, at matmul precision "highest", which every check has."""
    with ctx.running(PRECISION):
        for sample in ctx.common:
            laid = ctx.plain(sample)
            wide = ctx.answer_for(sample, doubled, mutates=True)
            if wide.value().raises is not None or ctx.expected(laid).raises is not None:
                continue
            reference, judges = Reference(ctx, laid, wide=wide), {PRECISION: judge_precision}
            ctx.judge(judges, called, (), reference, layout="highest")


def doubled(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The values with floating-point tensors in float64."""
    return [each.double() if each.is_floating_point() else each for each in values]


def judge_precision(call: Call, answer: Answer, reference: Any) -> Found:
    """Each floating-point output is as near to the result in float64 as float32 arithmetic leaves it."""
    if answer.raised is not None:
        if isinstance(answer.raised, NotImplementedError):
            yield raised(answer.raised)
        return  # layout.values judges other exceptions
    for got, want in zip(tensors_of(answer.read), tensors_of(reference.wide.result)):
        if not want.is_floating_point() or not want.isfinite().all():
            continue  # layout.values judges what is not finite
        norm = float(want.norm())
        error = float((got.double() - want).norm()) / norm if norm else float(got.double().norm())
        if error <= FLOAT32_LEVEL:
            yield None
            continue
        expected = f"a relative error of at most {FLOAT32_LEVEL:g} against float64"
        yield Wrong("precision", expected, f"{error:.3g}", error=error)
