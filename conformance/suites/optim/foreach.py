"""optim.foreach: every op on lists of tensors that the build has, against the loop over the op of one tensor, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import NotShown
from conformance.checks.ops.roundings import wider
from conformance.suites.optim.lists import FILL, Piece, Tensors, apart, compare, packed
from devices.failure import Kind
from opinfo.torch_private import all_overloads, schema_of, storage_id, version_of

cases = Cases(Kind.VALUES)

_PREFIX = "aten::_foreach_"

# -- what there is, from the schemas


def ops() -> list[str]:
    """The names of the ops, without the underscore of those that write to their first list."""
    names = [name for name in all_overloads() if name.startswith(_PREFIX)]
    return sorted({name.removeprefix(_PREFIX).rstrip("_") for name in names})


def overloads_of(op: str) -> list[Any]:
    """The overloads of an op, out of place first. Those with ``out=`` are left out: torch's code generator makes them
    of the others, and no function of torch's Python calls them."""
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


# -- the op of one tensor


def _maximum(x: torch.Tensor, bound: Any) -> torch.Tensor:
    return torch.maximum(x, bound) if isinstance(bound, torch.Tensor) else x.clamp_min(bound)


def _minimum(x: torch.Tensor, bound: Any) -> torch.Tensor:
    return torch.minimum(x, bound) if isinstance(bound, torch.Tensor) else x.clamp_max(bound)


#: Counterparts that are not the function of torch with the name and the arguments of the op.
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
    """The op of one tensor. Raises NotShown for an op that is new and has none of its name."""
    known = SINGLE.get(op) or getattr(torch, op, None)
    if known is None:
        raise NotShown(
            f"_foreach_{op} is a new op: how is it called? Add the op of one tensor to SINGLE"
        )
    function: Callable[..., torch.Tensor] = known
    return function


# -- the lists

#: Every layout, sizes that are not multiples of a vector, no dimension, one element, no element.
MIXED: tuple[Piece, ...] = (
    ("row", (7,)),
    ("row", ()),
    ("transposed", (3, 5)),
    ("row", (0,)),
    ("stepped", (2, 9)),
    ("channels_last", (2, 3, 4, 5)),
    ("expanded", (4, 3)),
    ("row", (1,)),
    ("stepped", (67,)),
)

#: Dense, and each tensor in the same layout in all lists: what a kernel for lists may take in one launch.
ALIKE: tuple[Piece, ...] = (
    ("transposed", (4, 6)),
    ("row", (33,)),
    ("row", (0, 3)),
    ("channels_last", (2, 3, 4, 5)),
    ("row", ()),
    ("row", (8,)),
)


def _long(count: int, last: tuple[int, ...]) -> tuple[Piece, ...]:
    """More tensors than a launch takes, and empty ones among them."""
    shapes = [(0,) if n % 7 == 3 or 100 <= n < 112 else (1 + n % 5,) for n in range(count - 1)]
    return tuple(("row", shape) for shape in [*shapes, last])


#: By name. Launches take 110, 64, 48, 36 or 30 tensors, of one to five lists, and 320 blocks (ATen/native/cuda/MultiTensorApply.cuh).
LISTS: dict[str, tuple[Piece, ...]] = {
    "mixed": MIXED,
    "alike": ALIKE,
    "long": _long(350, (3,)),
    "long_ends_empty": _long(115, (0,)),
}

#: Beside small ones, tensors of more than one chunk of 65,536 elements.
LARGE: tuple[tuple[int, ...], ...] = ((5,), (65_537,), (0,), (2, 65_600), (3,))

#: dtypes in one list; and each of them in a list of its own.
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

_TURNED = {"row": "stepped", "transposed": "row", "stepped": "expanded", "expanded": "transposed"}


def turned(piece: Piece, times: int) -> Piece:
    """The same shape in another layout."""
    layout, shape = piece
    for _ in range(times):
        layout = _TURNED.get(layout, "row")
    return (layout if len(shape) > 1 or layout == "stepped" else "row"), shape


def pieces_of(op: str, name: str, number: int, written: bool) -> list[Piece]:
    """The tensors of the list of that number of a call: number 0 is ``self``, and may be ``written`` to."""
    pieces = [turned(p, number) for p in LISTS[name]] if name == "mixed" else list(LISTS[name])
    if op in MATRICES:
        pieces = [(layout, _matrix(shape, number)) for layout, shape in pieces]
    elif name == "mixed" and number:
        pieces[2] = ("row", (5,))  # broadcast
    if written:
        pieces = [("row" if layout == "expanded" else layout, shape) for layout, shape in pieces]
    return pieces


#: Ops that take matrices; the second fits the first.
MATRICES = frozenset({"mm"})


def _matrix(shape: tuple[int, ...], number: int) -> tuple[int, int]:
    rows, columns = (*shape, 2, 3)[:2]
    return (columns, 2) if number else (rows, columns)


# -- the arguments


class Arguments:
    """What a call of an overload is given besides its lists: by the name of the argument."""

    def __init__(self, overload: Any, options: dict[str, Any]) -> None:
        self.arguments = schema_of(overload).arguments
        self.in_place = is_in_place(overload)
        self.count = 0  # of tensors in each list
        self.whole: bool = options["whole"]  # numbers are integers
        self.alpha: bool = options["alpha"]  # is given
        self.ord: Any = options["ord"]
        self.base = torch.tensor([-3, 2]) if self.whole else torch.tensor([-3.0, 1.3])

    @property
    def lists(self) -> list[str]:
        return [a.name for a in self.arguments if str(a.type) == "List[Tensor]"]

    def scalars(self) -> list[Any]:
        """One for each tensor, no two neighbours alike."""
        if self.whole:
            return [1 + number % 3 for number in range(self.count)]
        return [(1 + (5 * number) % 13) / 3.7 for number in range(self.count)]

    def of(
        self, lists: dict[str, list[torch.Tensor]], factor: torch.Tensor
    ) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments of the call."""
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
            elif kind == "Tensor":  # numbers in a row are read on the host; one is on the device
                given.append(torch.tensor(self.scalars()) if name == "scalars" else factor)
            elif not argument.has_default_value():
                raise NotShown(f"{name}, {kind}, is a new argument: what is it given?")
        return given, named

    def each(
        self, given: Sequence[Any], named: dict[str, Any]
    ) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """The arguments of the op of one tensor, for each place of the lists."""
        kinds = [(str(a.type), a.name) for a in self.arguments]
        for number in range(self.count):
            one = []
            for (kind, name), value in zip(kinds, given):
                several = kind.startswith("List") or name == "scalars"
                item = value[number] if several else value
                one.append(item.item() if name == "scalars" and kind == "Tensor" else item)
            yield one, named


# -- judging

EQUAL = "an op on lists gives what the loop over its tensors gives"
KEPT = "an op on lists writes to nothing but its results"
FRESH = "results share no memory with the arguments, nor with each other"
BUMPED = "what is written to has a new version, and nothing else"


def judge(
    context: Context, op: str, overload: Any, name: str, lists: dict[str, Tensors], made: Arguments
) -> bool:
    """Call an overload on the device with these lists, and compare with what the loop on the CPU gives. False where the op
    of one tensor takes no such list."""
    values = {key: each.here for key, each in lists.items()}
    want = loop(op, made, values, made.base[1])
    if want is None:
        return False
    at = f"{name_of(overload)}, list {name!r}"
    written = lists[made.lists[0]] if made.in_place else None
    there = context.to_device(made.base)[1]  # not at the start of its storage
    before = {key: [version_of(t) for t in each.there] for key, each in lists.items()}
    given, named = made.of({key: each.there for key, each in lists.items()}, there)
    results = overload(*given, **named)
    if written is not None:
        context.same(results, None, "what writes to its first list returns nothing", at=at)
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
        _kept(context, each, each is written, at)
        if each.buffer is not None:
            continue  # views share the counter of their buffer
        for number, (tensor, old) in enumerate(zip(each.there, before[key], strict=True)):
            if (version_of(tensor) > old) != (each is written):
                now = f"{version_of(tensor) - old} writes"
                where = f"{at}, {key}, tensor {number}"
                wanted = "a write" if each is written else "0 writes"
                context.check(False, BUMPED, expected=wanted, found=now, kind=Kind.STATE, at=where)
    return True


def _fresh(
    context: Context, found: Sequence[torch.Tensor], lists: dict[str, Tensors], at: str
) -> None:
    if not context.has("storage"):
        return
    theirs = {storage_id(t) for each in lists.values() for t in each.there}
    mine = [storage_id(t) for t in found]
    context.check(not theirs & {*mine} and len({*mine}) == len(mine), FRESH, kind=Kind.ALIAS, at=at)


def _kept(context: Context, tensors: Tensors, written: bool, at: str) -> None:
    """Nothing of a list that is only read has changed, nor what lies around the tensors of one that is written."""
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
        around = torch.cat([edge[:2], edge[-2:]])
        if not bool((around == FILL).all()):
            context.check(False, KEPT, expected=FILL, found=around.tolist(), at=at)


def orders_of(overload: Any) -> tuple[Any, ...]:
    """The orders of a norm to try; one value where there is none."""
    takes = any(argument.name == "ord" for argument in schema_of(overload).arguments)
    return (2, 1, float("inf"), 3) if takes else (None,)


def loop(
    op: str, made: Arguments, lists: dict[str, list[torch.Tensor]], factor: torch.Tensor
) -> list[torch.Tensor] | None:
    """What the op of one tensor gives for each place of the lists, on the CPU; None where it takes no such list: for
    want of elements, or in these dtypes."""
    function = single(op)
    given, named = made.of(lists, factor)
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
    """The same in float64; empty where that takes no such list."""
    wide = {key: list(map(wider, each)) for key, each in lists.items()}
    return loop(op, made, wide, wider(made.base[1])) or []


def _fits(made: torch.dtype, into: torch.dtype) -> bool:
    """Whether an op that gives a dtype may write to a tensor of another: not where it is complex and the result is not."""
    return torch.can_cast(made, into) and made.is_complex == into.is_complex


def _built(
    context: Context, op: str, overload: Any, name: str, made: Arguments, *, empty: bool
) -> dict[str, Tensors]:
    """The lists of one call; without the tensors that have no elements unless they may be ``empty``."""
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
def lists_of_views(context: Context, op: str) -> None:
    """An op on lists equals the loop: tensors in mixed layouts, dense ones, hundreds with empty ones among them."""
    for overload in overloads_of(op):
        for name in LISTS:
            for ord in orders_of(overload):
                options: dict[str, Any] = {"whole": False, "alpha": name != "alike", "ord": ord}
                for empty in (True, False):  # some ops take no tensor without elements
                    made = Arguments(overload, options)
                    lists = _built(context, op, overload, name, made, empty=empty)
                    made.count = len(lists[made.lists[0]].here)
                    if judge(context, op, overload, name, lists, made):
                        break
                else:
                    raise NotShown(
                        f"{name_of(overload)}: the op of one tensor takes no list {name!r}"
                    )


def _apart(
    context: Context,
    op: str,
    overload: Any,
    name: str,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    indices: Sequence[int] = (0,),
) -> int:
    """Judge an overload with tensors that share no memory, and return in how many ways: not at all where the op of one
    tensor takes no such list. In place the first list keeps its dtypes: what cannot be written to them is left out."""
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
def lists_of_dtypes(context: Context, op: str) -> None:
    """An op on lists equals the loop: of each dtype, of several in one list, of more than a chunk of elements."""
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
        if not large or not tried:
            raise NotShown(
                f"{name_of(overload)} was not called: the op of one tensor takes nothing"
            )


@cases("optim.foreach", requires={"multi_device"}, indices=2)
def several_indices(context: Context) -> None:
    """A list may hold tensors of several indices of the device: each result is where its tensor is."""
    shapes = [(4,), (2, 3), (), (0,), (9,), (17,)]
    for op in ops():
        for overload in overloads_of(op):
            takes = [str(argument.type) for argument in schema_of(overload).arguments]
            if "Tensor" in takes:
                continue  # one tensor is on one index, and so must all of the list be
            _apart(context, op, overload, "several indices", shapes, ["float32"], [0, 1, 1])


@cases("optim.foreach")
def tensors_that_come_twice(context: Context) -> None:
    """A tensor that is only read may be in a list twice, or in two lists; one that is written may be its own operand."""
    for op in ops():
        for overload in overloads_of(op):
            made = Arguments(overload, {"whole": False, "alpha": False, "ord": 2})
            for name in ("twice in each list", "the same list"):
                lists: dict[str, Tensors] = {}
                for number, key in enumerate(made.lists):
                    if name == "the same list" and number:
                        lists[key] = lists[made.lists[0]]
                        continue
                    shapes = [(4, 4), (7, 7), (4, 4)] if op in MATRICES else [(4,), (7, 2), ()]
                    one = apart(context, shapes, [torch.float32], 10 + number, away=number > 0)
                    if name == "twice in each list" and not (made.in_place and number == 0):
                        one.here[2], one.there[2] = one.here[0], one.there[0]
                    elif name == "twice in each list":
                        one.here[2] = one.here[0].clone()
                        one.there[2] = context.to_device(one.here[2].clone())
                    lists[key] = one
                made.count = 3
                if not judge(context, op, overload, name, lists, made):
                    raise NotShown(
                        f"{name_of(overload)}: the op of one tensor takes no list {name!r}"
                    )


EMPTY = "an op on lists refuses an empty list, or gives one"


@cases("optim.foreach")
def refused_lists(context: Context) -> None:
    """Lists of different lengths are refused with a RuntimeError. An empty list is, or it gives an empty one."""
    one = context.to_device(torch.ones(3))
    for op in ops():
        for overload in overloads_of(op):
            made = Arguments(overload, {"whole": False, "alpha": False, "ord": 2})
            factor = context.to_device(made.base)[1]
            given, named = made.of({key: [] for key in made.lists}, factor)
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
                given, named = made.of(lists, factor)
                text = "an op on lists refuses lists of different lengths"
                context.raises(RuntimeError, overload, *given, text=text, **named)


def _public(overload: Any) -> bool:
    """Whether torch's Python has a function for it. Others are called by code that has looked at the lengths: torch
    2.13's own `aten::_foreach_copy`, which reads past the end of the shorter list."""
    return hasattr(torch, name_of(overload).partition(".")[0].join(("_foreach_", "")))


#: Values at which functions have rules of their own.
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38)


def _special_list(context: Context, special: torch.Tensor) -> Tensors:
    """Tensors that hold these values, as views where the device has any."""
    count = len(special)
    pieces = [
        ("row", (count,)),
        ("stepped", (2, count)),
        ("transposed", (count, 3)),
        ("row", (count,)),
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


@cases("optim.foreach")
def special_values(context: Context) -> None:
    """NaN, infinities, zeros of both signs and subnormal numbers go through an op on lists as through the loop."""
    for op in ops():
        if op in MATRICES:
            continue  # what a sum of infinities is depends on its order
        for overload in overloads_of(op):
            made = Arguments(overload, {"whole": False, "alpha": False, "ord": 2})
            subnormal = context.descriptor.flushes_subnormals
            special = torch.tensor([v for v in SPECIAL if v != 1e-40 or "float32" not in subnormal])
            lists = {}
            for number, key in enumerate(made.lists):
                lists[key] = _special_list(context, special.roll(3 * number))
            made.count = 4
            if not judge(context, op, overload, "special values", lists, made):
                raise NotShown(f"{name_of(overload)}: the op of one tensor takes no special values")
