"""Failures by cause: groups the failing cells of a run by what they have in common, across ops, clauses and suites.

A cause is determined only from the fields of failures: the device's exception, the kind of failure, the form of the
call (such as ``out=``), the layout, the op's family, and the clause that blocks a cell. The most specific rule is
applied first (``_direct_cause``). After that, a cell whose failure another failure of the same op explains is added to
the cause of that failure. Finally, causes that ops of many families share are joined.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from devices.errors import ConformError
from devices.failure import Failure, Kind
from devices.files import read_toml
from reports.model import CellResult, Run, problem_with

#: The number of op families that must fail in the same way before their failures are one cause.
_SHARED: Final = 3

#: The share of a family's ops that must fail in the plain layout before their failures are one cause.
_MOST: Final = 0.5

#: The clause "equal seeds give equal numbers".
SEEDED: Final = "random.reproducible"

MEMORY: Final = ("contiguous", "transposed", "reversed", "channels_last")
PLAIN: Final = "contiguous"
#: Bits with which a tensor stands for the conjugate or the negative of what its memory holds.
LAZY: Final = ("conj", "neg")
_FACTORS: Final = ("channels_last", "strides", "expand", "offset", *LAZY)
#: The factors of the parts of a free layout's id.
_FREE: Final = {
    **dict.fromkeys(("order", "steps", "pads", "ones"), "strides"),
    **{"expand": "expand", "offset": "offset"},
}

#: The form of a check of derivatives (_Way), and the place of derivatives that vmap computes in one batch.
DERIVATIVE: Final = "derivative"
BATCHED: Final = "batched"
SLICED: Final = "inplace_slice"
#: The form of a check of derivatives with the tensors that backward needs in another layout.
SAVED: Final = "saved tensor"
#: Where the layout of a check of derivatives is: in the incoming gradient, in it and the inputs, in a tensor written to,
#: in the tensors that backward needs.
_LAID: Final = ("grad=", "both=", "inplace=", "inplace_slice=", "saved=")
#: Incoming gradients that have names instead of layouts: sum() makes an expanded one.
_GRADIENTS: Final = {"sum": "contiguous+expand_first", "large": PLAIN}


class CausesError(ConformError):
    """The error that is raised if ``causes.toml`` is malformed."""


class _Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``causes.toml``. The comments in that file explain the fields."""

    rests_on: dict[str, dict[str, str]]
    same_check: dict[str, str]
    dtypes: dict[str, str]
    by_op: tuple[str, ...]


ADVICE: Final = read_toml(Path(__file__).with_name("causes.toml"), _Advice, CausesError)


class CauseKey(NamedTuple):
    """The identity of a cause: the rule that found the cause, and the values that the rule compared."""

    rule: str
    about: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """Cells that fail for the same reason and have the same verdict.

    ``results`` are in plan order; ``partly`` are those cells that fail for another reason as well. If a cell ended
    its process as the manifest expects, and fails in other checks, ``results`` has the result of the other checks.
    ``gates`` is False for cells of provisional clauses, which the gate does not count. A cause never contains both
    cells that the gate counts and cells that it does not count. ``unlisted`` is True for cells that do not gate because
    a must-pass list does not name them.
    """

    key: CauseKey
    verdict: Verdict
    results: tuple[CellResult, ...]
    partly: frozenset[CellKey] = frozenset()
    gates: bool = True
    unlisted: bool = False

    @property
    def checks(self) -> int:
        """The number of failing checks. A cell without a failing check (it crashed or was blocked) counts as one."""
        return sum(max(result.failed, 1) for result in self.results)

    @property
    def example(self) -> CellResult:
        """The cell that represents the cause in reports. It is a cell of the clause whose failure explains the failures
        of the other clauses. Among the cells of that clause it is the cell with the smallest minimised example. If no
        cell has a minimised example, it is the first cell with a repro script or, if there is none, the first cell."""
        return min(self.results, key=self._telling)

    @property
    def most_used(self) -> CellResult | None:
        """The cell whose op most public models call; None if no model calls the op of a cell."""
        used = [each for each in self.results if each.called_by is not None]
        return max(used, key=lambda each: each.called_by or (0, 0), default=None)

    def _telling(self, result: CellResult) -> tuple[bool, int, int, int, int]:
        follows = result.outcome is Outcome.BLOCKED or (
            self.key.rule == "case" and result.key.clause != self.key.about[0]
        )
        if result.example is None:
            return (follows, 1 + (result.repro is None), 0, 0, 0)
        return (follows, 0, *result.example.complexity)


# -- layouts


def place_of(layouts: Iterable[str]) -> str:
    """Returns the properties (factors) in which the simplest of the given failing layouts differs from a contiguous
    one.

    The result is ``contiguous`` if the plain layout fails. Otherwise it is ``offset``, ``strides`` (steps, or another
    order of the dimensions in memory), ``channels_last``, ``expand``, or several of these names joined by ``+``. The
    layout of an ``out=`` tensor has the prefix ``out=``. The name of a directed check (one with a program of its own)
    is returned unchanged.
    """
    places = (
        (each.removeprefix("out=") != PLAIN, each.count("+"), _is_special(each), each)
        for each in map(_factors, layouts)
    )
    return min(places, default=(True, 0, False, ""))[-1]


def _is_special(factors: str) -> bool:
    """Returns True if the factors of a layout include one that is named only if every failing layout has it."""
    return not {"channels_last", *LAZY}.isdisjoint(factors.removeprefix("out=").split("+"))


def _factors(layout: str) -> str:
    """Returns the factors of one layout id, written in the same way as the result of ``place_of``."""
    target = layout.startswith("out=")
    found: list[str] = []
    for single in layout.removeprefix("out=").split("/"):
        if single.startswith("free:"):
            parts = {each.partition("=")[0] for each in single.removeprefix("free:").split(",")}
            found += [_FREE[part] for part in parts]
            continue
        if single in LAZY:
            found.append(single)
            continue
        memory, *rest = single.split("+")
        if memory not in MEMORY:
            return layout  # a directed check, or a pinned example
        if memory != PLAIN:
            found.append(memory if memory == "channels_last" else "strides")
        found += [factor.partition("_")[0].replace("step", "strides") for factor in rest]
    text = "+".join(f for f in _FACTORS if f in found) or PLAIN
    return f"out={text}" if target else text


def _place_of_derivative(layouts: Iterable[str]) -> str:
    """Returns the same as ``place_of``, but for a check of derivatives. The result does not depend on which tensor of
    the check has the failing layout. Returns ``batched`` if only the derivatives that are computed in one batch are
    wrong. Returns ``inplace_slice`` if only the derivatives of in-place calls on a part of a larger tensor are wrong,
    and these are wrong in any layout."""
    layouts, bare = list(layouts), set()
    for layout in layouts:
        prefix = next((each for each in _LAID if layout.startswith(each)), "")
        name = layout.removeprefix(prefix)
        bare.add(_GRADIENTS.get(name, name))
    place = place_of(bare - {BATCHED} or bare)
    sliced = all(layout.startswith(f"{SLICED}=") for layout in layouts)
    return SLICED if place == PLAIN and sliced else place


def _covers(simple: str, other: str) -> bool:
    """Returns True if a failure in the layout ``simple`` explains a failure in the layout ``other``.

    vmap itself chooses the layouts of its tensors, so a failure in any layout explains the failure of a batch.
    """
    if simple == PLAIN or other == BATCHED:
        return True
    return set(simple.split("+")) <= set(other.split("+"))


# -- the device's exceptions

_KERNEL: Final = re.compile(r"Could not run '([\w:.]+)'")
_DTYPE: Final = re.compile(
    r"\b(?:torch\.)?(?:bool|u?int\d+|b?float\d+(?:_e\w+)?|complex\d+|bits\d+|Byte|Char|Short|Int|Long|Half|Float|Double"
    r"|BFloat16|Bool|ComplexHalf|ComplexFloat|ComplexDouble|UInt\d+|Float8_e\w+)\b"
)
_FIRST: Final = re.compile(r"\W*(?:\w+(?:::|\.))*(\w+)")
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_LIST: Final = re.compile(r"[\[(]#(?:, ?#)*,?[\])]")
_LACKS: Final = re.compile(r"^\"?\S+?\"? not implemented for '(\w+)'")


def exception_of(result: CellResult) -> tuple[str, str] | None:
    """Returns the type and the text of the exception that the device raised in a failing cell; None if the device
    raised none."""
    failure = result.failure
    if failure is not None and failure.kind is Kind.RAISED and failure.raises:
        return failure.raises, failure.said or failure.found or failure.detail
    if result.outcome in (Outcome.UNSUPPORTED, Outcome.BLOCKED) and result.raises:
        return result.raises, result.said or ""
    return None


@cache
def _naming(op: str) -> re.Pattern[str]:
    """Returns a pattern that matches names derived from an op's name, such as ``aten::abs_``, ``_aten_abs()`` and
    ``abs.out``. The pattern does not match the op's name alone."""
    words = {part for part in (*op.split("."), op.replace(".", "_")) if part}
    word = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    before, after = r"(?<![\w:.])(\w+::)?(_|[a-z0-9_]+_)?", r"(_(?!\w))?(\.\w+)?(\(\))?(?!\w)"
    return re.compile(f"{before}(?:{word}){after}")


def normal(text: str, names: frozenset[str] = frozenset(), op: str = "") -> str:
    """Returns the first line of a text, with placeholders for everything that varies from call to call.

    Placeholders replace numbers, shapes, dtypes and names derived from the name of the ``op``. A placeholder also
    replaces the first word if it is one of ``names``, the names of all ops.
    """
    line = (text.strip().splitlines() or [""])[0]
    if op:
        line = _naming(op).sub(lambda found: "OP" if any(found.groups()) else found[0], line)
    first = _FIRST.match(line)
    if first and first[1].rstrip("_") in names:
        line = line.replace(first[1], "OP", 1)
    line = _NUMBER.sub("#", _DTYPE.sub("DTYPE", line))
    return _LIST.sub("[#]", line)[:200]


def kernel_of(text: str) -> str:
    """Returns the op that has no kernel, with its overload, if the text is the NotImplementedError of torch's
    dispatcher; otherwise an empty text."""
    found = _KERNEL.match(text)
    return found[1] if found else ""


# -- one cell


def _wrong(kind: Kind) -> str:
    """Returns the name of a kind of failure as causes use it. Insufficient precision counts as wrong values."""
    return "values" if kind is Kind.PRECISION else kind.value


class _Way(NamedTuple):
    """A description of how a cell of an op fails: the kind of fault (``wrong``), the form of the call (``call``,
    ``in-place``, ``out=``, ``derivative`` or ``saved tensor``), and the layout (``place``). Failures with an exception and failures of
    directed checks have no such description.

    Derivatives have a form of their own. torch computes them with kernels of other ops too, so wrong derivatives
    never explain wrong results of the op.
    """

    wrong: str
    form: str
    place: str

    def explains(self, other: _Way) -> bool:
        """Returns True if the failure that ``self`` describes explains the failure that ``other`` describes. Both must
        be failures of the same op."""
        covers = _covers(self.place, other.place)
        if self.form == DERIVATIVE and other.form == SAVED:
            return covers and self.wrong == other.wrong
        if other.form in (DERIVATIVE, SAVED) and self.form == "call":
            differs = self.wrong == Kind.NOT_DETERMINISTIC.value
            return covers and (self.wrong == "values" or differs or self.overwrites)
        if self.wrong == "values":
            if self.form == "call":
                follows = other.wrong in _FOLLOWS if self.place == PLAIN else other.wrong in _READ
                return follows and covers and (self.place == PLAIN or other.form != "out=")
            written = self.form == other.form or (self.form == "in-place" and other.form == "call")
            return written and covers and other.wrong in ("values", "bytes")
        spoilt = _READ if self.overwrites else {Kind.NOT_DETERMINISTIC.value}
        overwritten = self.wrong == "bytes" and other.wrong in spoilt
        return self.form == other.form and covers and (overwritten or self.wrong == other.wrong)

    @property
    def overwrites(self) -> bool:
        """True if a call on contiguous tensors overwrites bytes that it must not change. If the bytes belong to an
        input, later checks read wrong values."""
        return tuple(self) == ("bytes", "call", PLAIN)


#: The failures that wrong values of a call in some layout explain (_READ), and those of a plain call (_FOLLOWS).
_READ: Final = frozenset({"values", "not_deterministic"})
_FOLLOWS: Final = _READ | {"offset", "not_aliased", "shape", "dtype", "not_raised"}

#: The forms of call, in the order in which they are tried as the explanation of an op's other failures.
_ROOTS: Final = ("call", "in-place", "out=", DERIVATIVE, SAVED)


def _way_of(result: CellResult, failure: Failure) -> _Way:
    layouts = (result.example.layout,) if result.example is not None else result.layouts
    if failure.check == "gradient":
        place = _place_of_derivative(layouts or (failure.layout,))
        known = set(place.split("+")) <= {PLAIN, BATCHED, SLICED, *_FACTORS}
        saved = all(layout.startswith("saved=") for layout in layouts or (failure.layout,))
        form = SAVED if saved else DERIVATIVE
        return _Way(_wrong(failure.kind), form, place if known else PLAIN)
    place = place_of(layouts or (failure.layout,))
    if failure.check == "target" or place.startswith("out="):
        return _Way(_wrong(failure.kind), "out=", place.removeprefix("out="))
    form = (
        "in-place" if "inplace" in (failure.check, result.key.clause.partition(".")[2]) else "call"
    )
    known = set(place.split("+")) <= {PLAIN, *_FACTORS}
    return _Way(_wrong(failure.kind), form, place if known else PLAIN)


def _ended(result: CellResult, families: Mapping[str, str]) -> CauseKey:
    """Returns the key of the cause of a cell that crashed or hung. The key contains the way in which the process
    ended, the form of the call, its layout, and for a call on contiguous tensors the innermost frame in the device's
    own code. If that frame is not known, because the code is not Python, the key contains the family of the op
    instead."""
    failure, clause, op = result.failure, result.key.clause, result.key.unit
    how = normal(failure.detail) if failure is not None else ""
    layout = failure.layout if failure is not None else ""
    if layout.startswith("out") or clause.partition(".")[2].startswith("out_"):
        form, place = "out=", ""
    elif layout.startswith(("inplace", "self=")) or clause.endswith(".inplace"):
        form, place = "in-place", ""
    else:
        form, place = "call", place_of((layout,)) if layout else PLAIN
        if not set(place.split("+")) <= {PLAIN, *_FACTORS}:
            place = PLAIN  # the name of a directed check
    frame, family = "", ""
    if (form, place) == ("call", PLAIN):
        frame = failure.frame if failure is not None else ""
        family = "" if frame else families.get(op, op)
    return CauseKey("ended", (result.outcome.value, how, form, place, frame, family))


def _direct_cause(
    result: CellResult, names: frozenset[str], families: Mapping[str, str]
) -> CauseKey | None:
    """Returns the cause of a cell if the cell's own fields show it: a fault that the CPU has as well, an exception, how
    its process ended, or the directed check that failed. Returns None for wrong results in some layout; such cells are compared with each other
    later."""
    failure, clause = result.failure, result.key.clause
    if result.on_cpu:
        return CauseKey("cpu", (result.on_cpu,))
    if result.outcome is Outcome.ERROR:
        return CauseKey("error", (normal(result.note),))
    if (spoken := exception_of(result)) is not None:
        name, text = spoken
        if kernel := kernel_of(text):
            return CauseKey("kernel", (kernel,))
        if lacks := _LACKS.match(text):
            return CauseKey("dtype", (ADVICE.dtypes.get(lacks[1], lacks[1]),))
        if text or failure is None or failure.check in ("inputs", "target", "inplace", "case"):
            return CauseKey("raised", (name, normal(text, names, result.key.unit)))
    if result.outcome is Outcome.BLOCKED:
        return CauseKey("blocked", (result.blocked_by,))
    if result.outcome in (Outcome.CRASH, Outcome.HANG):
        return _ended(result, families)
    if failure is None:
        return CauseKey("other", (clause, result.outcome.value))
    if clause == "dispatch.no_silent_fallback" and failure.kind is Kind.DEVICE:
        return CauseKey("fallback")
    if not result.key.dtype:
        return CauseKey("case", (clause,))
    if failure.check not in ("inputs", "target", "inplace") and failure.kind is not Kind.VALUES:
        asked = ADVICE.same_check.get(f"{clause}/{failure.check}")
        apart = (result.key.unit,) if clause in ADVICE.by_op else ()
        check = "" if asked else failure.check
        return CauseKey("check", (asked or clause, check, failure.kind.value, *apart))
    return None


def _with_plain_calls(
    results: Sequence[CellResult], keys: Sequence[CauseKey | None]
) -> list[CauseKey | None]:
    """Returns the causes of the cells with one change: if an op crashes in some layout and crashes in the same way on
    contiguous tensors, both crashes get the cause of the crash on contiguous tensors. Crashes on lazily conjugated or
    negated inputs are left out, because these calls come after the plain ones, which did not crash in that cell."""
    plain = {
        (result.key.unit, key.about[:3]): key
        for result, key in zip(results, keys)
        if key is not None and key.rule == "ended" and key.about[3] == PLAIN
    }
    return [
        plain.get((result.key.unit, key.about[:3]), key)
        if key is not None and key.rule == "ended" and key.about[3] not in LAZY
        else key
        for result, key in zip(results, keys)
    ]


# -- all cells


@dataclass(slots=True)
class _Sorting:
    """Finds the causes of cells that all have the same verdict."""

    results: Sequence[CellResult]
    families: Mapping[str, str]
    ran: Mapping[tuple[str, str], int]  # ops by family and clause that ran

    def keys(self) -> Iterator[CauseKey]:
        """Yields the cause of each cell, in the order of ``results``."""
        names = frozenset(op.rpartition(".")[2] for op in self.families)
        told = _with_plain_calls(
            self.results, [_direct_cause(result, names, self.families) for result in self.results]
        )
        red = {key.about[0] for key in told if key is not None and key.rule == "case"}
        ways = {
            place: _way_of(result, result.failure)
            for place, (result, key) in enumerate(zip(self.results, told))
            if key is None and result.failure is not None
        }
        roots = self._roots(ways)
        widths = self._widths(ways, roots, red)
        of_op: dict[CellKey, int] = {}
        for place, result in enumerate(self.results):
            of_op.setdefault(result.key, place)
        keys: list[CauseKey] = []
        for place, key in enumerate(told):
            if key is None:
                key = widths[roots[place]]
            elif key.rule == "case":
                key = CauseKey("case", (_root_of(self.results[place], red),))
            keys.append(key)
        for place, key in enumerate(keys):
            if key.rule == "blocked":
                result = self.results[place]
                by = of_op.get(result.key._replace(clause=result.blocked_by))
                if by is not None and keys[by].rule != "blocked":
                    key = keys[by]
            yield key

    def _roots(self, ways: Mapping[int, _Way]) -> dict[int, int]:
        """Maps the position of each cell to the position of another cell of the same op whose failure explains this
        cell's failure. If there is no such cell, maps the position to itself."""
        of_op: dict[str, list[int]] = defaultdict(list)
        for place in ways:
            of_op[self.results[place].key.unit].append(place)
        roots: dict[int, int] = {}
        for places in of_op.values():
            places.sort(key=lambda p: _rank(ways[p], p))
            for index, place in enumerate(places):
                before = (p for p in places[:index] if roots[p] == p)
                found = (p for p in before if ways[p].explains(ways[place]))
                roots[place] = next(found, place)
        return roots

    def _widths(
        self, ways: Mapping[int, _Way], roots: Mapping[int, int], red: Collection[str]
    ) -> dict[int, CauseKey]:
        """Returns the cause of each root, that is, of each cell whose failure no other failure of its op explains,
        by the position of the cell. A cause covers one op, a family of ops, or all ops."""
        alike: dict[_Way, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for place in set(roots.values()):
            op = self.results[place].key.unit
            alike[ways[place]][self.families.get(op, op)].append(place)
        keys = self._random_cause(ways, roots) if SEEDED in red else {}
        for way, by_family in alike.items():
            for family, places in by_family.items():
                places = [place for place in places if place not in keys]
                about: tuple[str, ...] = (*way, family)
                if way.place != PLAIN and len(by_family) >= _SHARED:
                    about = (*way, "")
                elif way.place == PLAIN and way.wrong in _READ and not self._most(family, places):
                    keys |= {p: CauseKey("op", (*way, self.results[p].key.unit)) for p in places}
                    continue
                keys |= dict.fromkeys(places, CauseKey("layout", about))
        return keys

    def _random_cause(
        self, ways: Mapping[int, _Way], roots: Mapping[int, int]
    ) -> dict[int, CauseKey]:
        """Returns the cause of failures of ops that draw random numbers, for a device on which equal seeds give
        different numbers. The result has the position of each root (a cell whose failure no other failure of its op
        explains) of such an op.

        An op counts as drawing random numbers if two equal calls give different results. An op is left out if another
        op of its family gives wrong values that do not differ from call to call.
        """
        differ = {
            self.results[place].key.unit
            for place, way in ways.items()
            if way.wrong == Kind.NOT_DETERMINISTIC.value
        }
        of_root = {place: self.results[place].key.unit for place in set(roots.values())}
        wrong = {
            self.families.get(op, op)
            for place, op in of_root.items()
            if ways[place] == _Way("values", "call", PLAIN) and op not in differ
        }
        drawn = CauseKey("case", (SEEDED,))
        differ = {op for op in differ if self.families.get(op, op) not in wrong}
        return {place: drawn for place, op in of_root.items() if op in differ}

    def _most(self, family: str, places: Sequence[int]) -> bool:
        """Returns True if most ops of a family fail. Only ops that ran for a clause of the cells at the positions
        ``places`` are counted."""
        ops = {self.results[place].key.unit for place in places}
        ran = (self.ran.get((family, self.results[place].key.clause), 0) for place in places)
        of = max(ran, default=0)
        return len(ops) > 1 and len(ops) >= _MOST * of


def _rank(way: _Way, place: int) -> tuple[int, int, bool, int, bool, int]:
    """Returns the key to sort failures by, so that each failure can be explained only by an earlier one. An overwritten
    input comes after wrong values of calls on contiguous tensors, and before wrong values of calls in other layouts."""
    simple, overwrites = way.place == PLAIN, way.overwrites
    wrong = 0 if overwrites else {"values": 0, "bytes": 1}.get(way.wrong, 2)
    return (
        wrong + 3 * (way.form in (DERIVATIVE, SAVED)),
        _ROOTS.index(way.form),
        not simple,
        way.place.count("+"),
        overwrites,
        place,
    )


def _root_of(result: CellResult, red: Collection[str]) -> str:
    """Returns the failing clause that explains the failure of a case, according to the table ``rests_on`` of
    ``causes.toml``: the first clause that fails and whose expression is found in the words of the failure. If there is
    no such clause, returns the case's own clause."""
    cell, failure = result.key, result.failure
    words = "" if failure is None else f"{failure.subject} {failure.detail}"
    family = cell.clause.partition(".")[0]
    for name in (str(cell), cell.clause, f"{family}.*"):
        if name in ADVICE.rests_on:
            roots = ADVICE.rests_on[name].items()
            found = (root for root, shows in roots if root in red and re.search(shows, words))
            return next(found, cell.clause)
    return cell.clause


def _main(result: CellResult) -> CellResult:
    """Returns the result by which a cell is assigned to a cause. If the manifest expects that the cell ends its
    process, and the cell's verdict comes from its other checks, this is the result of the other checks; otherwise it
    is the result of the cell."""
    rest = result.rest
    if rest is None or rest.ended is result.verdict or rest.verdict is not result.verdict:
        return result
    return _of_rest(result)


def _of_rest(result: CellResult) -> CellResult:
    """Returns the result of the other checks (those that the cell still makes without the calls that end its
    process), in the form of a cell's result."""
    rest = result.rest
    assert rest is not None
    names = ("outcome", "layouts", "raises", "failure", "failed", "also", "note", "said", "repro")
    told = {name: getattr(rest, name) for name in (*names, "blocked_by")}
    return msgspec.structs.replace(result, rest=None, **told)


def _others(result: CellResult) -> Iterable[CellResult]:
    """Yields a copy of the cell's result for each further failure of the cell, with that failure as the main one."""
    if result.rest is not None and result.rest.outcome is not Outcome.PASS:
        yield _of_rest(result)
    for failure in result.also:
        layouts = (failure.layout,) if failure.layout else ()
        yield msgspec.structs.replace(
            result, failure=failure, also=(), layouts=layouts, raises=failure.raises, example=None
        )


def causes(
    results: Iterable[CellResult],
    families: Mapping[str, str],
    every: Iterable[CellResult] = (),
    not_gating: Collection[str] = (),
) -> tuple[Cause, ...]:
    """Returns the causes of the given cells. Gating causes come before other causes; within each group, regressions
    come before improvements, and large causes before small ones.

    ``families`` gives the family of each op; an op that is not in ``families`` is a family of its own. ``every`` has
    all results of the run, which show how many ops of each family ran for each clause. ``not_gating`` has the ids of
    the provisional clauses.
    """
    ops: dict[tuple[str, str], set[str]] = defaultdict(set)
    for result in every:
        op = result.key.unit
        ops[families.get(op, op), result.key.clause].add(op)
    ran = {key: len(names) for key, names in ops.items()}
    of_verdict: dict[Verdict, list[CellResult]] = defaultdict(list)
    for result in map(_main, results):
        of_verdict[result.verdict].append(result)
    found = []
    for verdict, members in of_verdict.items():
        of_cause: dict[tuple[bool, CauseKey], list[CellResult]] = defaultdict(list)
        more = [other for result in members for other in _others(result)]
        keys = list(_Sorting([*members, *more], families, ran).keys())
        other_keys: dict[CellKey, set[CauseKey]] = defaultdict(set)
        for result, key in zip(more, keys[len(members) :]):
            other_keys[result.key].add(key)
        for result, key in zip(members, keys):
            of_cause[result.key.clause not in not_gating, key].append(result)
        for (gates, key), cells in of_cause.items():
            partly = frozenset(r.key for r in cells if other_keys.get(r.key, {key}) != {key})
            found.append(Cause(key, verdict, tuple(cells), partly, gates))
    found.sort(key=lambda c: (not c.gates, c.verdict is not Verdict.REGRESSION, -len(c.results)))
    return tuple(found)


def causes_of(run: Run, results: Iterable[CellResult]) -> tuple[Cause, ...]:
    """Returns the causes of the given results of a run. The order of ``results`` does not matter.

    Every report calls this function with all unexpected results of the run, so all reports list the same causes.
    """
    wanted = {result.key for result in results}
    if not wanted:
        return ()
    ordered = [result for key, result in run.results.items() if key in wanted]
    provisional = {clause.id for clause in run.plan.clauses if clause.provisional}
    return causes(ordered, run.plan.families, run.results.values(), provisional)


def unexpected(run: Run) -> list[CellResult]:
    """Returns the results that the manifest does not expect (regressions and improvements), those of provisional
    clauses included."""
    return [
        result
        for result in run.results.values()
        if result.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
        and problem_with(result) is None
    ]
