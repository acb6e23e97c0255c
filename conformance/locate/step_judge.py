"""Judges the calls of a program: compares each result of a device with the CPU's results for the same inputs, computed
both in the dtype of the inputs and in float64.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from conformance.checks.ops.calls import elements_named
from conformance.checks.ops.roundings import allowance, exact_answer
from conformance.locate.steps import (
    Operand,
    Step,
    WithTargets,
    arguments_with,
    keeping_random_state,
    numbers_of,
    operands_of,
    substitute,
)
from opinfo.compare import Wrong, bit_equal, tensors_of
from opinfo.reference import ValueAnswer, significant, value_answer
from opinfo.torch_private import storage_id

#: The bytes of storages, by the number of the storage.
Contents = Mapping[int, torch.Tensor]

#: By how much the bound of a call is multiplied if an input is not the device's, but was computed on the CPU.
_COMPUTED = 64.0
#: Dtypes for which torch's CPU has no comparison, and those that have the same bits.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a call: ``wrong`` is the difference from the expected result, ``unjudged`` the reason why the call
    could not be judged. For a right call, ``wrong`` is None and ``unjudged`` is empty."""

    wrong: Wrong | None = None
    unjudged: str = ""


RIGHT = Verdict()


def judge_steps(steps: Sequence[Step], before: Contents, after: Contents) -> list[Verdict]:
    """Returns a verdict for each call of a sequence that the device made without results being read back in between.

    ``before`` has the bytes of each storage before the first call, ``after`` those after the last call, by storage
    number. If a later call has overwritten the result of a call, the device's result of the earlier call is unknown.
    The calls that read it are then judged with the CPU's result as their input and with a larger bound, or, if the CPU
    has no such result, as for random numbers, they are not judged.
    """
    last = {number: place for place, step in enumerate(steps) for number in step.changed}
    current, computed, unknown, found = {**after, **before}, set[int](), set[int](), []
    for place, step in enumerate(steps):
        known = {each: after[each] for each in _seen_in(step) if last.get(each, -1) <= place}
        factor = _COMPUTED if any(each.storage in computed for each in step.inputs) else 1.0
        verdict, references = RIGHT, dict[int, torch.Tensor]()
        try:
            if unknown.intersection(each.storage for each in step.inputs):
                verdict = Verdict(unjudged="an input was overwritten")
            else:
                verdict, references = judge_step(step, current, known, factor)
        except Exception as error:  # of the judge: the program must go on, and the report names it
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
            verdict = Verdict(unjudged=f"the comparison failed: {reason}")
        if verdict.wrong is None and len(steps) == 1:
            verdict = _worse(verdict, _unread_bytes(step, before, after))
        found.append(verdict)
        current |= known
        computed -= known.keys()
        unknown -= known.keys()
        for number in step.changed - known.keys():
            current[number] = references.get(number, after[number])
            has_result = number in references or "uninitialized" in step.traits
            (computed if has_result else unknown).add(number)
    return found


def _seen_in(step: Step) -> set[int]:
    """Returns the numbers of the storages in which the results of a call lie. They include the storage of an input that
    an op such as ``_unsafe_view`` returns although it is not a view according to its schema."""
    shared = () if "geometry" in step.traits else (each.storage for each in step.outputs)
    return {*step.changed, *shared}


def _worse(verdict: Verdict, memory: Verdict) -> Verdict:
    """Returns ``memory``, the verdict on bytes that the call must not change, if it says that they were changed;
    otherwise ``verdict``, the verdict on the result."""
    return memory if memory.wrong is not None else verdict


def judge_step(
    step: Step, before: Contents, after: Contents, factor: float = 1.0
) -> tuple[Verdict, dict[int, torch.Tensor]]:
    """Returns the verdict on one call, and the bytes that each storage written by the call would have if the CPU had
    computed the call. ``before`` and ``after`` have the bytes of the storages before and after the call; outputs whose
    storage is not in ``after`` are not compared. ``factor`` multiplies the accepted error."""
    if step.raised:
        return _raised(step, before), {}
    values = [_dense(each.view(before[each.storage])) for each in step.distinct_inputs]
    arguments = _arguments(step)
    function = WithTargets(step.overload)
    if "geometry" in step.traits:
        return _of_geometry(step, before, after), {}
    with keeping_random_state(step.overload):
        answer = value_answer(function, arguments, values, mutates=True)
        numbers = function.numbers
        verdict, references = _against(
            step, function, arguments, values, answer, before, after, factor
        )
        if verdict is RIGHT and answer.raises is None and not _is_free(step):
            verdict = _numbers(step, numbers)
    if verdict.wrong is None:
        verdict = _worse(verdict, _outside(step, before, after))
    return verdict, references


def _is_free(step: Step) -> bool:
    """Returns True if the result of a call may have any values, because they are random or uninitialized."""
    return bool(step.traits & {"random", "uninitialized"})


def _against(
    step: Step,
    function: WithTargets,
    arguments: _Arguments,
    values: list[torch.Tensor],
    answer: ValueAnswer,
    before: Contents,
    after: Contents,
    factor: float,
) -> tuple[Verdict, dict[int, torch.Tensor]]:
    """Compares the form and the values of a call's result with ``answer``, the CPU's result. Returns the verdict, and
    the bytes of the written storages as the CPU computes them."""
    is_free = _is_free(step)
    if answer.raises is not None:
        no_kernel = isinstance(answer.raises, NotImplementedError)
        why = f"the CPU {'has no kernel' if no_kernel else 'raises'} for {step.op}"
        return RIGHT if is_free else Verdict(unjudged=why), {}
    verdict = _form(step, answer)
    if is_free:
        return verdict, {}
    references = _bytes_of(step, answer, before)
    if verdict is not RIGHT:
        return verdict, references
    if "not unique" in step.traits:
        return Verdict(unjudged=f"the result of {step.op} is not unique"), references
    wrong = _values(step, function, arguments, values, answer, after, factor)
    return (RIGHT if wrong is None else Verdict(wrong)), references


# -- the parts of a judgement


def _raised(step: Step, before: Contents) -> Verdict:
    try:
        _on_copies(step, before)
    except Exception:  # whatever the CPU raises, the program may expect it
        return Verdict(unjudged="the CPU raises an exception too")
    return Verdict(Wrong("raised", "no exception", step.raised))


def _form(step: Step, answer: ValueAnswer) -> Verdict:
    """Compares the number of outputs, and the dtype, shape and memory of each output, with those of the CPU's
    result."""
    expected = tensors_of(answer.result)
    found, read = step.outputs, {each.storage for each in step.inputs}
    if len(found) != len(expected):
        return Verdict(Wrong("count", f"{len(expected)} tensors", f"{len(found)}"))
    own = {storage_id(each) for each in answer.after}
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        wrong = None
        if mine.dtype != theirs.dtype:
            wrong = Wrong("dtype", str(theirs.dtype), str(mine.dtype))
        elif mine.shape != tuple(theirs.shape):
            wrong = Wrong("shape", f"shape {tuple(theirs.shape)}", str(mine.shape))
        elif (storage_id(theirs) in own) != (mine.storage in read):
            memory = "the memory of an input", "memory of its own"
            shared = storage_id(theirs) in own
            wrong = Wrong("alias", memory[not shared], memory[shared])
        if wrong is not None:
            return Verdict(wrong.about(f"output {place}") if len(found) > 1 else wrong)
    return RIGHT


def _of_geometry(step: Step, before: Contents, after: Contents) -> Verdict:
    """Judges a call whose result depends only on the geometry of its inputs and not on their elements, such as a
    view."""
    try:
        result, copies = _on_copies(step, before)
    except Exception:  # the device need not raise what the CPU raises
        return Verdict(unjudged=f"the CPU raises for {step.op}")
    numbers = {storage_id(data): number for number, data in copies.items()}
    found, expected = operands_of(step.results), tensors_of(result)
    if len(found) != len(expected):
        return Verdict(Wrong("count", f"{len(expected)} tensors", f"{len(found)}"))
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        wrong = _other_view(mine, theirs, numbers.get(storage_id(theirs)))
        if wrong is None and mine.storage in after:
            wrong = _difference(
                mine.view(after[mine.storage]), _dense(theirs), None, step.bounds, 1.0
            )
        if wrong is not None:
            return Verdict(wrong.about(f"output {place}") if len(found) > 1 else wrong)
    return RIGHT


def _other_view(mine: Operand, theirs: torch.Tensor, base: int | None) -> Wrong | None:
    """Returns how a view that the device returned (``mine``) differs from the CPU's view (``theirs``); None if they are
    equal. ``base`` is the number of the storage that the CPU's view shares."""
    if mine.dtype != theirs.dtype:
        return Wrong("dtype", str(theirs.dtype), str(mine.dtype))
    if mine.shape != tuple(theirs.shape):
        return Wrong("shape", f"shape {tuple(theirs.shape)}", str(mine.shape))
    if base is None or 0 in mine.shape:
        return None
    if mine.storage != base:
        return Wrong("alias", "a view of the input", "other memory")
    expected = significant(theirs.shape, theirs.stride()), int(theirs.storage_offset())
    if (significant(mine.shape, mine.stride), mine.offset) != expected:
        return Wrong(
            "strides",
            f"strides {tuple(theirs.stride())}, offset {theirs.storage_offset()}",
            f"strides {mine.stride}, offset {mine.offset}",
        )
    if (mine.conj, mine.neg) != (theirs.is_conj(), theirs.is_neg()):
        return Wrong("conj", f"conj {theirs.is_conj()}, neg {theirs.is_neg()}", "others")
    return None


def _values(
    step: Step,
    function: WithTargets,
    arguments: _Arguments,
    values: list[torch.Tensor],
    answer: ValueAnswer,
    after: Contents,
    factor: float,
) -> Wrong | None:
    """Compares the values of a call's outputs with those of the CPU's result. Returns the first difference; None if
    there is none."""
    found, expected = step.outputs, tensors_of(answer.result)
    exact = exact_answer(function, arguments, values)
    exacts = tensors_of(exact.result) if exact.raises is None else []
    if [tuple(each.shape) for each in exacts] != [tuple(each.shape) for each in expected]:
        exacts = []
    slack: list[torch.Tensor] | None = None
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if mine.storage not in after or mine in found[:place]:
            continue
        got = _dense(mine.view(after[mine.storage]))
        compare = partial(
            _difference,
            got,
            theirs,
            exacts[place] if exacts else None,
            step.bounds,
            factor,
        )
        wrong = compare()
        if wrong is not None and theirs.is_floating_point() | theirs.is_complex():
            if slack is None:
                slack = allowance(function, arguments, values)
            wrong = compare(slack[place] * factor) if slack else wrong
        if wrong is not None and "any index" in step.traits:
            wrong = _other_elements(step, values[0], answer, after)
        if wrong is not None:
            return wrong.about(f"output {place}") if len(found) > 1 else wrong
    return None


def _other_elements(
    step: Step, operand: torch.Tensor, answer: ValueAnswer, after: Contents
) -> Wrong | None:
    """Compares the results of an op that returns indices, such as ``sort``. Among equal elements, the index of any of
    them is right. Returns the first difference; None if there is none."""
    given = [each for each in (*step.args, *step.kwargs.values()) if type(each) is int]
    after_k = given[1:] if "index after k" in step.traits else given
    dim = int(step.kwargs.get("dim", after_k[0] if after_k else -1))

    def named(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return tensors_of(
            elements_named(tensors[0] if len(tensors) == 1 else tensors, operand, dim)
        )

    mine = named([_dense(each.view(after[each.storage])) for each in step.outputs])
    for got, want in zip(mine, named(tensors_of(answer.result)), strict=True):
        if (wrong := _difference(got, want, None, step.bounds, 1.0)) is not None:
            return wrong
    return None


def _difference(
    found: torch.Tensor,
    cpu: torch.Tensor,
    exact: torch.Tensor | None,
    bounds: Mapping[str, tuple[float, float]],
    factor: float,
    slack: torch.Tensor | None = None,
) -> Wrong | None:
    """Returns how a result differs from the CPU's by more than its bound; None if it does not.

    An element of ``found`` is right if it equals the CPU's element, if it is at least as close to ``exact`` (the result
    in float64) as the CPU's element is, or if its distance from one of the two is within the bound. The bound for the
    result's dtype in ``bounds`` is a relative error and a number of units in the last place of the largest element;
    both are multiplied by ``factor``. ``slack`` is an additional error to accept.
    """
    if found.shape == cpu.shape and found.dtype == cpu.dtype and bit_equal(found, cpu):
        return None
    if not (cpu.is_floating_point() or cpu.is_complex()):
        return _of_integers(found, cpu, exact)
    relative, ulps = bounds.get(str(cpu.dtype)[6:], (0.0, 0.0))
    mine, theirs = _wide(found), _wide(cpu)
    true = theirs if exact is None or exact.dtype.itemsize < 8 else _wide(exact)
    true = torch.where(true.isfinite() & theirs.isfinite(), true, theirs)
    sizes = true.abs()
    largest = float(sizes[sizes.isfinite()].max()) if bool(sizes.isfinite().any()) else 0.0
    allowed = (relative * sizes + ulps * _ulp(largest, cpu.dtype)) * factor
    distance = (mine - true).abs()
    right = (mine == theirs) | (mine.isnan() & theirs.isnan())
    finite = mine.isfinite() & theirs.isfinite()
    right |= finite & ((distance <= allowed) | ((mine - theirs).abs() <= allowed))
    right |= finite & (distance <= (theirs - true).abs() * factor)
    if slack is not None:
        right |= finite & (distance <= slack)
    if bool(right.all()):
        return None
    bad = ~right
    worst = distance.nan_to_num(torch.inf, torch.inf).masked_fill(right, -1.0)
    where = tuple((worst == worst.max()).nonzero()[0].tolist())
    most = distance[bad & distance.isfinite()]
    bound = float(allowed[where]) if allowed.dim() else float(allowed)
    return Wrong(
        "values",
        f"{true[where].item():.9g} (bound {bound:.2g})",
        f"{mine[where].item():.9g}",
        count=int(bad.sum()),
        total=bad.numel(),
        first=tuple(bad.nonzero()[0].tolist()),
        error=float(most.max()) if most.numel() else None,
    )


def _of_integers(
    found: torch.Tensor, cpu: torch.Tensor, exact: torch.Tensor | None
) -> Wrong | None:
    if found.dtype in _SIGNED:
        found, cpu = found.view(_SIGNED[found.dtype]), cpu.view(_SIGNED[cpu.dtype])
    right = found == cpu
    if exact is not None and exact.dtype == cpu.dtype and exact.shape == cpu.shape:
        right |= found == exact
    if bool(right.all()):
        return None
    where = tuple((~right).nonzero()[0].tolist())
    return Wrong(
        "values",
        repr(cpu[where].item()),
        repr(found[where].item()),
        count=int((~right).sum()),
        total=right.numel(),
        first=where,
    )


def _numbers(step: Step, expected: list[Any]) -> Verdict:
    """Compares the Python numbers in a call's result with the expected ones, in value and type. They must be equal:
    they are sizes or were read from a tensor."""
    found = numbers_of(step.results)
    same = [type(each) for each in found] == [type(each) for each in expected]
    same = same and all(a == b or (a != a and b != b) for a, b in zip(found, expected, strict=True))
    if same:
        return RIGHT
    wanted, got = (", ".join(map(repr, each)) or "no number" for each in (expected, found))
    return Verdict(Wrong("values", wanted, got))


def _outside(step: Step, before: Contents, after: Contents) -> Verdict:
    """Compares, in each storage that the call wrote to, the bytes outside the written tensors, which must be
    unchanged."""
    for number in {each.storage for each in step.written} & after.keys():
        left = before[number].clone()
        if left.numel() != after[number].numel():
            continue  # resized
        for each in step.written:
            if each.storage == number and each.has_own_elements:
                _plain(each).view(left).copy_(_plain(each).view(after[number]))
            elif each.storage == number:
                return RIGHT
        if not torch.equal(left, after[number]):
            return Verdict(_stray(left, after[number], "bytes around the tensor that is written"))
    return RIGHT


def _unread_bytes(step: Step, before: Contents, after: Contents) -> Verdict:
    """Compares the storages that the call reads and does not write, which must be unchanged."""
    for each in step.inputs:
        number = each.storage
        if number in step.changed or number not in before:
            continue
        if before[number].numel() != after[number].numel():
            continue  # resized
        if not torch.equal(before[number], after[number]):
            about = f"the tensor {each}, which the call only reads,"
            return Verdict(_stray(before[number], after[number], about))
    return RIGHT


def _stray(left: torch.Tensor, right: torch.Tensor, about: str) -> Wrong:
    changed = (left != right).nonzero()
    found = f"{len(changed)} bytes changed, the first at byte {int(changed[0])} of the storage"
    return Wrong("memory", f"{about} to stay as it was", found)


# -- tensors


#: Takes tensors for the distinct inputs of a call, and a device; returns the arguments.
_Arguments = Callable[[Sequence[torch.Tensor], torch.device], Any]


def _arguments(step: Step) -> _Arguments:
    """Returns a function that builds the arguments of a call from tensors for its distinct inputs and a device."""
    inputs = step.distinct_inputs

    def arguments(tensors: Sequence[torch.Tensor], device: torch.device) -> Any:
        given = arguments_with(step, dict(zip(inputs, tensors, strict=True)))
        return substitute(given, torch.device, lambda _: device)

    return arguments


def _on_copies(step: Step, before: Contents) -> tuple[Any, dict[int, torch.Tensor]]:
    """Makes a call on the CPU, on copies of its input storages and with the geometries of its inputs. Returns the
    result, and the copies by storage number. Raises what the call raises."""
    copies = {each.storage: before[each.storage].clone() for each in step.inputs}
    tensors = [each.view(copies[each.storage]) for each in step.distinct_inputs]
    args, kwargs = _arguments(step)(tensors, torch.device("cpu"))
    with keeping_random_state(step.overload):
        return step.overload(*args, **kwargs), copies


def _bytes_of(step: Step, answer: ValueAnswer, before: Contents) -> dict[int, torch.Tensor]:
    """Returns, by storage number, the bytes that each storage written by the call would have with the CPU's result in
    it."""
    found: dict[int, torch.Tensor] = {}
    for mine, theirs in zip(step.outputs, tensors_of(answer.result)):
        if mine.storage not in step.changed or mine.shape != tuple(theirs.shape):
            continue
        last = sum((n - 1) * s for n, s in zip(mine.shape, mine.stride)) + mine.offset + 1
        if mine.storage not in found:
            known = before.get(mine.storage)
            empty = torch.zeros(max(last, 0) * mine.dtype.itemsize, dtype=torch.uint8)
            fits = known is not None and known.numel() >= empty.numel()
            found[mine.storage] = known.clone() if known is not None and fits else empty
        if mine.has_own_elements and mine.dtype == theirs.dtype:
            _plain(mine).view(found[mine.storage]).copy_(_dense(theirs))
    return found


def _plain(each: Operand) -> Operand:
    return replace(each, conj=False, neg=False)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _ulp(size: float, dtype: torch.dtype) -> float:
    """Returns the unit in the last place of a number of magnitude ``size`` in a dtype."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(torch.tensor(max(size, info.tiny), dtype=torch.float64))
    return float(info.eps) * 2.0 ** (int(exponent) - 1)
