"""Checks of the clause optim.foreach: each foreach op of the installed torch is compared with a loop over the
single-tensor op on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotShown
from conformance.checks.cases.layouts import DENSE
from conformance.checks.ops.roundings import wider
from conformance.suites.optim.tensor_lists import Piece, Tensors, apart, compare, packed
from devices.failure import Kind
from opinfo.torch_private import all_overloads, schema_of, storage_id, version_of

cases = Cases(Kind.VALUES)

_PREFIX = "aten::_foreach_"

# -- the foreach ops, from their schemas


def ops() -> list[str]:
    """Return the names of the foreach ops, without the trailing underscore of in-place variants."""
    names = [name for name in all_overloads() if name.startswith(_PREFIX)]
    return sorted({name.removeprefix(_PREFIX).rstrip("_") for name in names})


def overloads_of(op: str) -> list[Any]:
    """Return the overloads of a foreach op, out-of-place overloads first. Overloads with ``out=`` are left out, because
    torch's code generator derives them from the other overloads and no Python function of torch calls them."""
    found = []
    for packet in (op, f"{op}_"):
        for full in all_overloads().get(_PREFIX + packet, ()):
            name = full.partition(".")[2] or "default"
            overload = getattr(getattr(torch.ops.aten, f"_foreach_{packet}"), name)
            if not any(argument.is_out for argument in schema_of(overload).arguments):
                found.append(overload)
    return found


def is_in_place(overload: Any) -> bool:
    first = schema_of(overload).arguments[0].alias_info
    return first is not None and bool(first.is_write)


def name_of(overload: Any) -> str:
    return str(overload).removeprefix("aten._foreach_")


# -- the single-tensor ops


def _maximum(x: torch.Tensor, bound: Any) -> torch.Tensor:
    return torch.maximum(x, bound) if isinstance(bound, torch.Tensor) else x.clamp_min(bound)


def _minimum(x: torch.Tensor, bound: Any) -> torch.Tensor:
    return torch.minimum(x, bound) if isinstance(bound, torch.Tensor) else x.clamp_max(bound)


#: Single-tensor ops that differ in name or arguments from the function in ``torch`` with the foreach op's name.
SINGLE: dict[str, Callable[..., torch.Tensor]] = {
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "copy": lambda x, source: x.clone().copy_(source),
    "maximum": _maximum,
    "minimum": _minimum,
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    # torch 2.9 has neither of the two, so the name is looked up when the op is called.
    "powsum": lambda x, *more, **named: torch.ops.aten.linalg__powsum(x, *more, **named),
    "zero": torch.zeros_like,
}


def single(op: str) -> Callable[..., torch.Tensor]:
    """Return the single-tensor op of a foreach op. Raises NotShown if neither SINGLE nor ``torch`` has such an op."""
    known = SINGLE.get(op) or getattr(torch, op, None)
    if known is None:
        raise NotShown(
            f"_foreach_{op} is a new op without a known single-tensor op: add it to SINGLE"
        )
    function: Callable[..., torch.Tensor] = known
    return function


# -- the lists

#: Tensors of every layout, of sizes that are not multiples of a vector, 0-d, with one element, and with none.
MIXED: tuple[Piece, ...] = (
    (DENSE, (7,)),
    (DENSE, ()),
    ("transposed", (3, 5)),
    (DENSE, (0,)),
    ("contiguous+step_inner", (2, 9)),
    ("channels_last", (2, 3, 5, 5)),
    ("contiguous+expand_first", (4, 3)),
    (DENSE, (1,)),
    ("contiguous+step_inner", (67,)),
)

#: Dense tensors with the same layout in all lists, which a multi-tensor kernel may process in one launch.
ALIKE: tuple[Piece, ...] = (
    ("transposed", (4, 6)),
    (DENSE, (33,)),
    (DENSE, (0, 3)),
    ("channels_last", (2, 3, 5, 5)),
    (DENSE, ()),
    (DENSE, (8,)),
)


def _long(count: int, last: tuple[int, ...]) -> tuple[Piece, ...]:
    """Return the shapes of a list of more tensors than one kernel launch takes, some of them empty. ``last`` is the
    shape of the last tensor."""
    shapes = [(0,) if n % 7 == 3 or 100 <= n < 112 else (1 + n % 5,) for n in range(count - 1)]
    return tuple((DENSE, shape) for shape in [*shapes, last])


#: The lists by name. On CUDA, one launch takes 110, 64, 48, 36 or 30 tensors (for one to five lists) and 320 blocks
#: (ATen/native/cuda/MultiTensorApply.cuh).
LISTS: dict[str, tuple[Piece, ...]] = {
    "mixed": MIXED,
    "alike": ALIKE,
    "long": _long(350, (3,)),
    "long_ends_empty": _long(115, (0,)),
    "one": (("contiguous+step_inner", (2, 7)),),
    "large": (  # more than one chunk (65,536 elements)
        (DENSE, (3,)),
        ("transposed", (300, 230)),
        ("contiguous+step_inner", (66_000,)),
        (DENSE, (2, 33_000)),
    ),
}

#: Small tensors, and tensors of more than one chunk (65,536 elements), of which the third has known elements around it (see
#: ``apart``).
LARGE: tuple[tuple[int, ...], ...] = ((5,), (65_537,), (2, 65_600), (0,), (3,))

#: Dtypes that are tried, together in one list and each in its own list.
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "complex64",
    "int32",
    "uint8",
    "bool",
)

_TURNED = {
    DENSE: "contiguous+step_inner",
    "transposed": DENSE,
    "contiguous+step_inner": "contiguous+expand_first",
    "contiguous+expand_first": "transposed",
}


def turned(piece: Piece, times: int) -> Piece:
    """Return ``piece``, a pair of layout and shape, with another layout: the layout is replaced by the one that
    follows it in ``_TURNED``, ``times`` times in a row."""
    layout, shape = piece
    for _ in range(times):
        layout = _TURNED.get(layout, DENSE)
    return (layout if len(shape) > 1 or layout == "contiguous+step_inner" else DENSE), shape


def pieces_of(op: str, name: str, number: int, written: bool) -> list[Piece]:
    """Return the layouts and shapes of list ``number`` of a call. List 0 is ``self``; if ``written`` is true, the call
    writes to the list, so none of its tensors is expanded."""
    pieces = [turned(p, number) for p in LISTS[name]] if name == "mixed" else list(LISTS[name])
    if op in MATRICES:
        pieces = [(layout, _matrix(shape, number)) for layout, shape in pieces]
    elif name == "mixed" and number:
        pieces[2] = (DENSE, (5,))  # broadcast
    if written:
        pieces = [
            (DENSE if layout == "contiguous+expand_first" else layout, shape)
            for layout, shape in pieces
        ]
    return pieces


#: Ops that take matrices; the shapes of the second list fit those of the first.
MATRICES = frozenset({"mm"})


def _matrix(shape: tuple[int, ...], number: int) -> tuple[int, int]:
    rows, columns = (*shape, 2, 3)[:2]
    return (columns, 2) if number else (rows, columns)


# -- the arguments


class Arguments:
    """The arguments of a call of an overload. Values are chosen by the type and name of each argument."""

    def __init__(self, overload: Any, options: dict[str, Any]) -> None:
        self.arguments = schema_of(overload).arguments
        self.in_place = is_in_place(overload)
        self.count = 0  # number of tensors in each list
        self.whole: bool = options["whole"]  # scalars are integers
        self.alpha: bool = options["alpha"]  # True: the alpha argument is passed
        self.ord: Any = options["ord"]
        self.base = torch.tensor([-3, 2]) if self.whole else torch.tensor([-3.0, 1.3])

    @property
    def lists(self) -> list[str]:
        return [a.name for a in self.arguments if str(a.type) == "List[Tensor]"]

    def scalars(self) -> list[Any]:
        """Return one scalar for each tensor of a list. Neighbouring scalars differ."""
        if self.whole:
            return [1 + number % 3 for number in range(self.count)]
        return [(1 + (5 * number) % 13) / 3.7 for number in range(self.count)]

    def call_arguments(
        self, lists: dict[str, list[torch.Tensor]], factor: torch.Tensor
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments of the call on the given lists."""
        given: list[Any] = []
        named: dict[str, Any] = {}
        for argument in self.arguments:
            kind, name = str(argument.type), argument.name
            if kind == "List[Tensor]":
                given.append(lists[name])
            elif name == "ord":
                given.append(self.ord)
            elif name == "alpha":
                if self.alpha:
                    named[name] = 2 if self.whole else 1.3
            elif kind == "number":
                given.append(2 if self.whole else 1.7)
            elif kind == "List[number]":
                given.append(self.scalars())
            elif (
                kind == "Tensor"
            ):  # a tensor of scalars is on the CPU; a single factor is on the device
                given.append(torch.tensor(self.scalars()) if name == "scalars" else factor)
            elif not argument.has_default_value():
                raise NotShown(
                    f"the new argument {name} of type {kind} has no known value: add one to Arguments.of"
                )
        return given, named

    def each(
        self, given: Sequence[Any], named: dict[str, Any]
    ) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """Yield the arguments of the single-tensor op for each position of the lists."""
        kinds = [(str(a.type), a.name) for a in self.arguments]
        for number in range(self.count):
            one = []
            for (kind, name), value in zip(kinds, given):
                several = kind.startswith("List") or name == "scalars"
                item = value[number] if several else value
                one.append(item.item() if name == "scalars" and kind == "Tensor" else item)
            yield one, named


# -- judging

EQUAL = "the result of a foreach op differs from the single-tensor loop on the CPU"
KEPT = "a foreach op changed memory outside its results"
FRESH = "results share memory with the arguments or with each other"
BUMPED = "the version counter of a tensor is wrong after a foreach op"


def judge(
    context: CaseContext,
    op: str,
    overload: Any,
    name: str,
    lists: dict[str, Tensors],
    made: Arguments,
) -> bool:
    """Call an overload on the device with the given lists, and compare the results with the single-tensor loop on the
    CPU. Returns False if the single-tensor op refuses the tensors of the lists."""
    values = {key: each.here for key, each in lists.items()}
    want = loop(op, made, values, made.base[1])
    if want is None:
        return False
    at = f"{name_of(overload)}, list {name!r}"
    written = lists[made.lists[0]] if made.in_place else None
    there = context.to_device(made.base)[1]  # a view with storage offset 1
    before = {key: [version_of(t) for t in each.there] for key, each in lists.items()}
    given, named = made.call_arguments({key: each.there for key, each in lists.items()}, there)
    results = overload(*given, **named)
    if written is not None:
        context.same(results, None, "an in-place foreach op returned a value", at=at)
        values[made.lists[0]] = [each.clone() for each in written.here]
        for target, value in zip(written.here, want, strict=True):
            target.copy_(value)
        found, want = written.there, written.here
    else:
        found = list(results)
        _fresh(context, found, lists, at)
    strides = not made.in_place and name == "alike"
    exact = partial(exact_loop, op, made, values)
    compare(context, found, want, EQUAL, at, strides=strides, exact=exact)
    for key, each in lists.items():
        _check_untouched_memory(context, each, each is written, at)
        if each.buffer is not None:
            continue  # views share the counter of their buffer
        for number, (tensor, old) in enumerate(zip(each.there, before[key], strict=True)):
            if (version_of(tensor) > old) != (each is written):
                now = f"an increase of {version_of(tensor) - old}"
                where = f"{at}, {key}, tensor {number}"
                wanted = "an increase" if each is written else "an unchanged counter"
                context.check(False, BUMPED, expected=wanted, found=now, kind=Kind.STATE, at=where)
    return True


def _fresh(
    context: CaseContext, found: Sequence[torch.Tensor], lists: dict[str, Tensors], at: str
) -> None:
    if not context.has("storage"):
        return
    theirs = {storage_id(t) for each in lists.values() for t in each.there}
    mine = [storage_id(t) for t in found]
    context.check(not theirs & {*mine} and len({*mine}) == len(mine), FRESH, kind=Kind.ALIAS, at=at)


def _check_untouched_memory(context: CaseContext, tensors: Tensors, written: bool, at: str) -> None:
    """Check that a list that is only read did not change, and that a write to a list changed no memory around the
    tensors of the list."""
    if tensors.buffer is not None and tensors.its_copy is not None:
        found, want = context.from_device(tensors.its_copy), tensors.buffer
        if written:
            outside = tensors.outside()
            found, want = found[outside], want[outside]
        context.equal(found, want, KEPT, at)
    elif not written:
        for mine, theirs in zip(tensors.there, tensors.here, strict=True):
            if theirs.numel() < 100 or theirs.numel() == LARGE[1][0]:
                context.equal(mine, theirs, KEPT, at)
    for edge in tensors.edges:
        if not edge.outside_intact():
            context.check(False, KEPT, found=edge.damage(), at=at)


def orders_of(overload: Any) -> tuple[Any, ...]:
    """Return the orders of a norm to check; (None,) for an op without the argument ``ord``."""
    takes = any(argument.name == "ord" for argument in schema_of(overload).arguments)
    return (2, 1, float("inf"), 3) if takes else (None,)


def loop(
    op: str, made: Arguments, lists: dict[str, list[torch.Tensor]], factor: torch.Tensor
) -> list[torch.Tensor] | None:
    """Return the results of the single-tensor op for each position of the lists, computed on the CPU. Returns None if
    the op refuses the tensors, or if the results of an in-place op cannot be cast to the dtypes of the first
    list."""
    function = single(op)
    given, named = made.call_arguments(lists, factor)
    try:
        found = [function(*one, **names) for one, names in made.each(given, named)]
    except (RuntimeError, IndexError, TypeError):
        return None
    into = lists[made.lists[0]]
    fits = all(_fits(a.dtype, b.dtype) for a, b in zip(found, into, strict=True))
    return found if fits or not made.in_place else None


def exact_loop(
    op: str, made: Arguments, lists: dict[str, list[torch.Tensor]]
) -> list[torch.Tensor]:
    """Return the results of :func:`loop` in float64; an empty list if the op refuses the tensors."""
    wide = {key: list(map(wider, each)) for key, each in lists.items()}
    return loop(op, made, wide, wider(made.base[1])) or []


def _fits(made: torch.dtype, into: torch.dtype) -> bool:
    """Return True if a result of dtype ``made`` may be written to a tensor of dtype ``into``: the cast is allowed, and
    both or neither of the dtypes are complex."""
    return torch.can_cast(made, into) and made.is_complex == into.is_complex


def _built(
    context: CaseContext, op: str, overload: Any, name: str, made: Arguments, *, empty: bool
) -> dict[str, Tensors]:
    """Build the lists of one call, by the name of the argument. Tensors without elements are included only if ``empty``
    is true."""
    lists = {}
    for number, key in enumerate(made.lists):
        pieces = pieces_of(op, name, number, is_in_place(overload) and number == 0)
        pieces = [piece for piece in pieces if empty or 0 not in piece[1]]
        away, seed = number > 0 or key == "exponent", 1000 * number + len(name)
        if context.has("strides") and context.has("storage"):
            lists[key] = packed(context, pieces, seed, away=away)
        else:
            shapes = [shape for _, shape in pieces]
            lists[key] = apart(context, shapes, [torch.float32], seed, away=away)
    return lists


@cases("optim.foreach", over={op: (op,) for op in ops()})
def lists_of_views(context: CaseContext, op: str) -> None:
    """Call a foreach op on lists of tensors in mixed layouts, of dense tensors, and of hundreds of tensors, some of
    them empty: results must equal those of a loop over the single-tensor op on the CPU, and no other memory may
    change."""
    for overload in overloads_of(op):
        for name in LISTS:
            for ord in orders_of(overload):
                options: dict[str, Any] = {"whole": False, "alpha": name != "alike", "ord": ord}
                for empty in (True, False):  # some ops refuse tensors without elements
                    made = Arguments(overload, options)
                    lists = _built(context, op, overload, name, made, empty=empty)
                    made.count = len(lists[made.lists[0]].here)
                    if judge(context, op, overload, name, lists, made):
                        break
                else:
                    raise NotShown(
                        f"{name_of(overload)}: the single-tensor op refuses the tensors of list {name!r}"
                    )


def _apart(
    context: CaseContext,
    op: str,
    overload: Any,
    name: str,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    indices: Sequence[int] = (0,),
) -> int:
    """Judge an overload on lists of tensors that share no memory. Returns the number of calls that were judged: 0 if
    the single-tensor op refuses the tensors, or if an in-place result cannot be cast to the dtypes of the first
    list."""
    tried = 0
    whole = not all(getattr(torch, each).is_floating_point for each in dtypes)
    for ord in orders_of(overload):
        made = Arguments(overload, {"whole": whole, "alpha": name == "large", "ord": ord})
        kinds, lists = [getattr(torch, each) for each in dtypes], {}
        for number, key in enumerate(made.lists):
            sizes = [_matrix(s, number) for s in shapes] if op in MATRICES else shapes
            away = number > 0 or key == "exponent"
            lists[key] = apart(context, sizes, kinds, 1000 * number, away=away, indices=indices)
        made.count = len(shapes)
        tried += judge(context, op, overload, name, lists, made)
    return tried


@cases("optim.foreach", over={f"{op}_dtypes": (op,) for op in ops()})
def lists_of_dtypes(context: CaseContext, op: str) -> None:
    """Call a foreach op on lists of each dtype, of several dtypes in one list, and of tensors of more than 65,536
    elements: results must equal those of a loop over the single-tensor op on the CPU."""
    declared = [each for each in DTYPES if each in context.descriptor.dtypes]
    for overload in overloads_of(op):
        tried = sum(
            _apart(context, op, overload, dtype, [(5,), (2, 3), (70,)], [dtype])
            for dtype in declared
        )
        takes = [
            dtype
            for dtype in declared
            if dtype in ("float32", "float64", "float16", "bfloat16", "int64")
        ]
        tried += _apart(
            context, op, overload, "mixed dtypes", [(4,), (2, 3), (), (9,), (17,)] * 2, takes
        )
        many = [(0,) if n % 7 == 3 else (2 + n % 3,) for n in range(80)] + [(1_500,), (1_501,)]
        tried += _apart(context, op, overload, "many dtypes", many, takes)
        floats = [each for each in takes if each != "int64"]
        tried += _apart(context, op, overload, "many floats", many, floats)
        tried += _apart(
            context, op, overload, "mixed floats", [(4,), (2, 3), (), (9,), (17,)] * 2, floats
        )
        large = _apart(context, op, overload, "large", LARGE, ["float32"]) or _apart(
            context, op, overload, "large", [s for s in LARGE if 0 not in s], ["float32"]
        )
        halves = [each for each in floats if each in ("float16", "bfloat16")]
        if halves:  # as above, some ops refuse them
            _apart(context, op, overload, "large, 16 bits", [(65_537,), (2, 65_600), (3,)], halves)
        if not large or not tried:
            raise NotShown(
                f"{name_of(overload)}: the single-tensor op refuses the list of large tensors, or all other lists"
            )


@cases("optim.foreach", requires={"multi_device"}, indices=2)
def several_indices(context: CaseContext) -> None:
    """Call foreach ops on lists whose tensors are on two device indices: results must equal those of a loop over the
    single-tensor op on the CPU."""
    shapes = [(4,), (2, 3), (), (0,), (9,), (17,)]
    for op in ops():
        for overload in overloads_of(op):
            takes = [str(argument.type) for argument in schema_of(overload).arguments]
            if "Tensor" in takes:
                continue  # a tensor argument is on one index, so all tensors of the list must be there too
            _apart(context, op, overload, "several indices", shapes, ["float32"], [0, 1, 1])


@cases("optim.foreach")
def tensors_that_come_twice(context: CaseContext) -> None:
    """Call foreach ops with a tensor that is twice in a list, and with the same list for every argument: results
    must equal those of a loop over the single-tensor op on the CPU."""
    for op in ops():
        for overload in overloads_of(op):
            made = Arguments(overload, {"whole": False, "alpha": False, "ord": 2})
            for name in ("a repeated tensor", "the same list for every argument"):
                lists: dict[str, Tensors] = {}
                for number, key in enumerate(made.lists):
                    if name == "the same list for every argument" and number:
                        lists[key] = lists[made.lists[0]]
                        continue
                    shapes = [(4, 4), (7, 7), (4, 4)] if op in MATRICES else [(4,), (7, 2), ()]
                    one = apart(context, shapes, [torch.float32], 10 + number, away=number > 0)
                    if name == "a repeated tensor" and not (made.in_place and number == 0):
                        one.here[2], one.there[2] = one.here[0], one.there[0]
                    elif name == "a repeated tensor":
                        one.here[2] = one.here[0].clone()
                        one.there[2] = context.to_device(one.here[2].clone())
                    lists[key] = one
                made.count = 3
                if not judge(context, op, overload, name, lists, made):
                    raise NotShown(
                        f"{name_of(overload)}: the single-tensor op refuses the tensors of list {name!r}"
                    )


EMPTY = "a foreach op returned tensors for an empty list"


@cases("optim.foreach")
def refused_lists(context: CaseContext) -> None:
    """Call foreach ops on lists of different lengths: RuntimeError must be raised. For empty lists, RuntimeError must
    be raised or the result must be empty. The infinity norm of a tensor without elements does not exist: RuntimeError
    must be raised if the CPU raises it."""
    one = context.to_device(torch.ones(3))
    for op in ops():
        for overload in overloads_of(op):
            made = Arguments(overload, {"whole": False, "alpha": False, "ord": 2})
            factor = context.to_device(made.base)[1]
            given, named = made.call_arguments({key: [] for key in made.lists}, factor)
            try:
                result = overload(*given, **named)
            except RuntimeError:
                result = None
            context.check(not result, EMPTY, found=result, at=name_of(overload))
            if len(made.lists) == 1 or not _public(overload):
                continue
            for first, others in ((2, 1), (1, 2)):
                made.count = first
                counts = {key: others if number else first for number, key in enumerate(made.lists)}
                lists = {key: [one.clone() for _ in range(count)] for key, count in counts.items()}
                given, named = made.call_arguments(lists, factor)
                text = "a foreach op does not raise the documented exception for lists of different lengths"
                context.raises(RuntimeError, overload, *given, text=text, **named)
    tensors = [torch.ones(3), torch.ones(0, 2)]
    if _refuses_infinity_norm(tensors):
        there = [context.to_device(each) for each in tensors]
        text = "_foreach_norm returns an infinity norm of a tensor without elements"
        context.raises(RuntimeError, torch._foreach_norm, there, float("inf"), text=text)


def _refuses_infinity_norm(tensors: list[torch.Tensor]) -> bool:
    """Return True if torch's CPU refuses the infinity norms of the tensors: earlier versions return 0 for no elements."""
    try:
        torch._foreach_norm(tensors, float("inf"))
    except RuntimeError:
        return True
    return False


def _public(overload: Any) -> bool:
    """Return True if ``torch`` has a Python function for the overload. Overloads without such a function are called
    only by code that has checked the lengths: `aten::_foreach_copy` of torch 2.13, for example, reads past the end of a
    shorter list."""
    return hasattr(torch, name_of(overload).partition(".")[0].join(("_foreach_", "")))


#: Values for which functions have special rules.
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38)


def _special_list(context: CaseContext, special: torch.Tensor) -> Tensors:
    """Return a list of four tensors that contain the given special values. If the device has strides and storage, the
    tensors are views of one buffer."""
    count = len(special)
    pieces = [
        (DENSE, (count,)),
        ("contiguous+step_inner", (2, count)),
        ("transposed", (count, 3)),
        (DENSE, (count,)),
    ]
    if context.has("strides") and context.has("storage"):
        made = packed(context, pieces, 0, away=False)
    else:
        made = apart(context, [shape for _, shape in pieces], [torch.float32], 0, away=False)
    for turn, each in enumerate(made.here):
        rows = torch.stack([special.roll(turn + row) for row in range(each.numel() // count)])
        each.copy_(rows.view_as(each) if turn != 2 else rows.t())
    if made.buffer is not None and made.its_copy is not None:
        made.its_copy.copy_(context.to_device(made.buffer.clone()))
    else:
        made.there = [context.to_device(each.clone()) for each in made.here]
    return made


def _special_dtypes(context: CaseContext, special: torch.Tensor) -> Tensors:
    """Return a list of small tensors, of column-major ones, and of tensors of more than 65,536 elements, with the given special
    values in each of the floating-point dtypes."""
    kinds = [getattr(torch, each) for each in DTYPES if each in context.descriptor.dtypes]
    columns, many = special.repeat(3, 1).t(), special.repeat(2**16 // len(special) + 1)
    sorts = (special, columns, many)
    here = [one.to(kind) for one in sorts for kind in kinds if kind.is_floating_point]
    return Tensors(here, [context.to_device(each.clone()) for each in here])


@cases("optim.foreach")
def special_values(context: CaseContext) -> None:
    """Call foreach ops on NaN, infinities, zeros of both signs and subnormal numbers, in float32 and in lists of several dtypes:
    results must equal those of a loop over the single-tensor op on the CPU."""
    flushed = {"float32", "bfloat16"} & {*context.descriptor.flushes_subnormals}
    special = torch.tensor([each for each in SPECIAL if each != 1e-40 or not flushed])
    for op in ops():
        if op in MATRICES:
            continue  # the result of a sum with infinities depends on its order
        for overload in overloads_of(op):
            for build in (_special_list, _special_dtypes):
                alpha = build is _special_dtypes
                made = Arguments(overload, {"whole": False, "alpha": alpha, "ord": 2})
                lists = {
                    key: build(context, special.roll(3 * number))
                    for number, key in enumerate(made.lists)
                }
                made.count = len(lists[made.lists[0]].here)
                judged = judge(context, op, overload, "special values", lists, made)
                # Some in-place ops refuse a list of several dtypes, also one tensor at a time.
                if not judged and build is _special_list:
                    raise NotShown(
                        f"{name_of(overload)}: the single-tensor op refuses the special values"
                    )
