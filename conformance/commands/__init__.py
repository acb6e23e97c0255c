"""The commands of ``conform``; ``conformance/cli.py`` puts them together."""

from __future__ import annotations

from collections.abc import Iterable

from devices.cell import CellKey
from devices.errors import ConformError, suggestion


def known_cell(text: str, planned: Iterable[CellKey] = ()) -> CellKey:
    """The cell that a user names as reports write it, ``clause::op[dtype]`` or ``clause::case``.

    Raises ConformError with the nearest names if the clause, op, dtype or case is misspelt. ``planned`` cells are
    known, and so are those of the contract's levels; torch is only imported for a name that is not among them.
    """
    from conformance.contract import load
    from conformance.contract.levels import levels
    from devices.descriptor import DTYPES

    try:
        cell = CellKey.parse(text)
    except ValueError as error:
        raise ConformError(str(error)) from None
    known = {*planned}
    if cell in known:
        return cell
    contract = load()
    if cell.clause not in contract.clauses:
        near = suggestion(cell.clause, contract.clauses)
        raise ConformError(f"unknown clause '{cell.clause}'{near}; see `conform contract`")
    known = known.union(*(level.cells for level in levels()))
    if not cell.dtype:
        names, what = {c.op for c in known if c.clause == cell.clause}, f"{cell.clause} has no case"
    else:
        if cell.dtype not in DTYPES:
            near = suggestion(cell.dtype, DTYPES)
            raise ConformError(f"{cell}: unknown dtype '{cell.dtype}'{near}")
        names, what = {c.op for c in known if c.dtype}, "unknown op"
    if cell.op not in names and not _in_torch(cell):
        raise ConformError(f"{cell}: {what} '{cell.op}'{suggestion(cell.op, names)}")
    return cell


def _in_torch(cell: CellKey) -> bool:
    """Whether this torch has the op, or this suite the case."""
    from conformance.suites import find_case

    if not cell.dtype:
        return find_case(cell) is not None
    try:
        from opinfo.catalog import catalogue
    except ModuleNotFoundError:  # torch is not installed: only the names above are known
        return False
    return cell.op in catalogue()
