"""The data of a failed check: the expected value and the found value, the position of the difference, and the call that
failed.

All code that groups, minimises, matches or shows failures uses the fields of ``Failure``. Messages are made from the
fields and are never parsed.
"""

from __future__ import annotations

from enum import Enum

import msgspec


def sentence(
    subject: str,
    expected: object,
    found: object,
    detail: str,
    count: int,
    total: int,
    first: tuple[int, ...],
) -> str:
    """Returns the text of a failure. The function uses only builtins, because repro scripts contain a copy of it."""
    values = (("expected", expected), ("found", found))
    text = detail or ", ".join(f"{name} {value}" for name, value in values if value != "")
    if count:
        text += f"; {count} of {total} differ, the first at {list(first)}"
    return ": ".join(part for part in (subject, text) if part)


class Word(str, Enum):
    """The base class of enumerations whose values are written as they are in files and on pages."""

    def __str__(self) -> str:
        return str(self.value)


class Kind(Word):
    """The kind of a failure. The values are stable, because manifests, files and pages use them."""

    VALUES = "values"  # elements differ from the reference
    SHAPE = "shape"
    DTYPE = "dtype"
    DEVICE = "device"  # a tensor is on the wrong device or device index
    STRIDES = "strides"
    OFFSET = "offset"  # the storage offset
    ALIAS = "alias"  # a result shares memory that it must not share
    NOT_ALIASED = "not_aliased"  # a result does not share the memory that it must share
    BYTES = "bytes"  # bytes changed that nothing may write: outside a view, between elements, of an input
    STORAGE = "storage"  # the storage is too small, or of the wrong size
    MOVED = "moved"  # a tensor that must stay in place has a new address or new strides
    BITS = "bits"  # the conjugate or negative bit
    RAISED = "raised"  # an exception where the reference raises none
    NOT_RAISED = "not_raised"  # no exception where one is documented
    NOT_WARNED = "not_warned"
    COUNT = "count"  # a wrong number of things: outputs, devices, events, calls
    ORDER = "order"  # work did not run in the order that the program asked for
    PRECISION = "precision"
    NOT_DETERMINISTIC = "not_deterministic"
    STATE = "state"  # an object or a query gives a wrong answer
    MEMORY = "memory"  # the allocator's counters or blocks
    ENDED = "ended"  # a process died, hung or ended with the wrong status


class Geometry(msgspec.Struct, frozen=True):
    """The layout of a tensor in memory. Sizes, strides and offset are in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    def __str__(self) -> str:
        where = f", storage offset {self.offset}" if self.offset else ""
        return f"{self.dtype} of shape {self.shape}, strides {self.stride}{where}"


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """The difference of two tensors: ``count`` of ``total`` elements (or bytes) differ, the first at index ``first``.
    ``error`` is the largest absolute difference, ``relative`` the largest relative difference."""

    count: int
    total: int
    first: tuple[int, ...] = ()
    error: float | None = None
    relative: float | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failed check.

    ``subject`` names the thing that was checked ("output 0", "input 1", "allocated bytes"). ``expected`` and ``found``
    are short texts, or values as Python writes them. If both are empty, the subject is a sentence that says what is
    wrong. ``detail`` is a sentence for a failure that the other fields do not describe. ``raises`` is the type of the
    exception that was raised or should have been raised. ``said`` is the text of the device's exception; a manifest's
    ``match`` is searched for in this text only. ``check`` is the sort of check: ``inputs`` (a call on inputs in a
    layout), ``target`` (a call into an ``out=`` target in a layout), or the name of a directed check, which has a
    program of its own. ``layout`` is the stable id of the failing layout. ``call`` is the call as Python, with
    ``t[0]``, ``t[1]`` … for the tensors whose geometry is in ``inputs``. ``program`` describes the random program after
    which the check failed. ``rank`` is the rank of the process in which the check failed, if several processes worked
    together. ``frame`` is the innermost frame of the stack in the device's own code, if the process ended there.
    """

    kind: Kind
    subject: str = ""
    expected: str = ""
    found: str = ""
    detail: str = ""
    where: Difference | None = None
    raises: str | None = None
    said: str | None = None
    check: str = "inputs"
    layout: str = ""
    sample: int | None = None
    call: str = ""
    inputs: tuple[Geometry, ...] = ()
    targets: tuple[Geometry, ...] = ()  # of out=
    program: str = ""
    rank: int | None = None
    frame: str = ""

    @property
    def title(self) -> str:
        """The failure in one or two words, for headings: ``strides``, ``not raised``, ``raised RuntimeError``."""
        if self.kind is Kind.RAISED and self.raises:
            return f"raised {self.raises}"
        return self.kind.value.replace("_", " ")

    @property
    def message(self) -> str:
        """The text of the failure for a person to read, without its layout and call."""
        where = self.where or Difference(0, 0)
        after = f"after {self.program}" if self.program else ""
        rank = "" if self.rank is None else f"rank {self.rank}"
        subject = ": ".join(part for part in (after, rank, self.subject) if part)
        return sentence(
            subject, self.expected, self.found, self.detail, where.count, where.total, where.first
        )

    def of_rank(self, rank: int | None) -> Failure:
        """Returns a copy of the failure with the given rank, that of the process in which the check failed."""
        return Failure(
            **{**{name: getattr(self, name) for name in self.__annotations__}, "rank": rank}
        )

    def report(self, failed: int, checks: int) -> str:
        """Returns the text of the failure for a report: its layout, its message and, if several checks fail, that
        ``failed`` of ``checks`` checks fail."""
        where = f"[{self.layout}] " if self.layout else ""
        more = f" ({failed} of {checks} checks fail)" if failed > 1 else ""
        return f"{where}{self.message}{more}"
