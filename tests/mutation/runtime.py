"""Tries mutants of the runtime: runs the cases that can notice a mutant, in a fork of its own for each."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from random import Random

import msgspec

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from conformance.suites import planned_cases
from devices.simulated.backend import build
from opinfo.catalog import catalogue
from tests.mutation.items import device, is_refused, not_gating, subject
from tests.mutation.kernels import Result
from tests.mutation.reach import reaches
from tests.mutation.sources import SITES, Site

#: Reports that the work continues.
Say = Callable[[], None]
#: Whether the op or the case of a name reaches the mutation of a number.
Reach = Callable[[str, int], bool]
#: Seconds after which a fork that reports nothing is taken to hang.
SILENCE = 60.0
#: Ops whose items notice mutants of what runs kernels.
OPS = ("add", "sum", "cat", "index_select", "sort", "linalg.solve")
#: Cases that start processes and take seconds: they come last.
_SLOW = frozenset(
    {
        ("device.fork", "spawned"), ("device.lazy_init", "imported"), ("device.autoload", "failing_backend"),
        ("events.ipc", "orders_processes"), ("allocator.pluggable", "sees_all"),
        ("device.clean_exit", "with_everything_alive"),
    }
)  # fmt: skip


def can_differ(site: Site) -> bool:
    """False for a condition that is always true, or never, where no fault is planted, and that the mutation makes so."""
    text = site.text
    if site.kind == "condition true":
        return not (re.search(r"!on\(Fault::\w+\)", text) and " && " not in text)
    if site.kind == "condition false":
        return not (re.search(r"(?<!!)on\(Fault::\w+\)", text) and " || " not in text)
    return True


def sample_of(seed: int, count: int, family: str | None, all_sites: list[Site]) -> list[Site]:
    """``count`` sites: an equal number of each family, as far as the family has that many."""
    rng, by_family = Random(seed), dict[str, list[Site]]()
    for site in all_sites:
        if can_differ(site):
            by_family.setdefault(site.family, []).append(site)
    if family is not None:
        by_family = {family: by_family.get(family, [])}
    rows = [rng.sample(sites, len(sites)) for _, sites in sorted(by_family.items())]
    found: list[Site] = []
    while len(found) < count and any(rows):
        for row in rows:
            if row and len(found) < count:
                found.append(row.pop())
    return found


@cache
def known() -> dict[int, Site]:
    """The mutations of the sources that this process's device is built from."""
    sites = msgspec.json.decode((build.SOURCES / SITES).read_bytes(), type=list[Site])
    return {site.number: site for site in sites}


@cache
def library() -> ctypes.CDLL:
    from devices.simulated.backend import library as loaded

    found = ctypes.CDLL(loaded.__spec__.origin)
    found.simulated_mutant_reached.restype = ctypes.c_long
    return found


def name_of(site: Site) -> str:
    return f"{site.file}:{site.line}"


def result_of(site: Site, number: int) -> Result:
    kind = f"{site.kind}: {site.text}"
    return Result(f"r{number:04d}", site.family, name_of(site), site.axis, kind, "")


def tried(number: int, site_number: int, tell: Callable[[Result], None]) -> Result:
    site = known()[site_number]
    found = result_of(site, number)

    def on() -> None:
        tell(found)

    on()
    if _is_noticed(site, found, on, reaches):
        return found
    # Twice: what a probe sees of a race may be chance.
    first, again = (_different(_in_a_fork(site, _traced, on)[0], on) for _ in range(2))
    different = first & again
    if different:  # … or the load of the machine: what the device itself says now is no difference
        different -= _different(_in_a_fork(None, _traced, on)[0], on)
    found.note = min(different, default="")[:200]
    if not different:
        found.result = found.result or "equivalent"
    # What a case reaches depends on what ran before it, for example whether its memory was in the cache: all of the family.
    elif not _is_noticed(site, found, on, lambda name, _: name.startswith(f"{site.family}.")):
        found.result = found.result or ("survived" if found.reached else "not_reached")
    return found


def _is_noticed(site: Site, found: Result, on: Say, reached: Reach) -> bool:
    """Whether the gate refuses a cell with the mutant and not without it.

    A cell that is refused without the mutant as well, for example because the machine is busy, says nothing about the mutant:
    the cells behind it are run, too.
    """
    unsteady: set[str] = set()
    while True:
        skipped = frozenset(unsteady)

        def work(say: Say, skipped: frozenset[str] = skipped) -> str:
            return _until_the_gate(_refused(site, say, reached, skipped=skipped))

        cells, times = _in_a_fork(site, work, on)
        found.reached = max(found.reached, times)
        for cell in cells.splitlines():

            def again(say: Say, cell: str = cell) -> str:
                return "\n".join(_refused(site, say, reached, only=cell))

            if _in_a_fork(None, again, on)[0]:
                unsteady.add(cell)
            else:
                found.credit([cell.partition("::")[0]])
        found.unsteady = sorted({*found.unsteady, *unsteady})
        if found.by or unsteady == skipped:
            return bool(found.by)


def _until_the_gate(cells: Iterator[str]) -> str:
    """The refused cells, one a line, up to the first whose clause gates."""
    found = []
    for cell in cells:
        found.append(cell)
        if cell.partition("::")[0] not in not_gating():
            break
    return "\n".join(found)


def _different(text: str, on: Say) -> set[str]:
    """The lines of a trace that differ from the trace without a mutant."""
    lines, clean = text.split("\n"), _clean_trace(on)
    if len(lines) != len(clean):
        return {"the program ended"}
    return {one for one, other in zip(lines, clean) if other is not None and one != other}


def cases_for(family: str) -> list[BehaviourCase]:
    """All cases of plan quick: those of the family first, and those that start processes last."""
    found = planned_cases(contract.load(), more=False)

    def late(case: BehaviourCase) -> tuple[bool, bool]:
        slow = case.own_process or (case.clause, case.name) in _SLOW
        return slow, not case.clause.startswith(f"{family}.")

    return sorted(found, key=late)


def refused_clauses(op: str) -> list[str]:
    """The clauses whose cells of an op are refused."""
    return [clause for clause, refused in subject(op, "float32").clean.items() if refused]


def _refused(
    site: Site, say: Say, reached: Reach, only: str = "", skipped: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Run the cells that have ``reached`` the mutation, except those that are ``skipped``, and yield those that are refused:
    clauses of ops, and cases.

    Ops come first for families that run kernels. With ``only``, run that case alone, or the ops if it is the clause of an op.
    """

    def of_ops() -> Iterator[str]:
        for op in OPS:
            say()
            if reached(op, site.number):
                yield from (each for each in refused_clauses(op) if each not in skipped)

    def of_cases() -> Iterator[str]:
        for case in cases_for(site.family):
            name = f"{case.clause}::{case.name}"
            if (name == only) if only else name not in skipped and reached(name, site.number):
                say()
                if is_refused(case):
                    yield name

    if only:
        yield from of_cases() if "::" in only else of_ops()
    elif site.family in ("dispatch", "transfer"):
        yield from of_ops()
        yield from of_cases()
    else:
        yield from of_cases()
        yield from of_ops()


def _traced(say: Say) -> str:
    from tests.mutation.trace import trace

    device()
    lines = []
    for line in trace():
        lines.append(line.replace("\n", " "))
        if len(lines) % 20 == 0:
            say()
    return "\n".join(lines)


#: The trace without a mutant, once this process has made it.
_CLEAN: list[str | None] = []


def _clean_trace(on: Say) -> list[str | None]:
    """The trace without a mutant; None for each line that differs from run to run."""
    if not _CLEAN:
        one, two, three = (_in_a_fork(None, _traced, on)[0].split("\n") for _ in range(3))
        _CLEAN.extend(a if a == b == c else None for a, b, c in zip(one, two, three))
    return _CLEAN


def _in_a_fork(site: Site | None, work: Callable[[Say], str], on: Say) -> tuple[str, int]:
    """Run ``work`` in a fork with the mutant on. Returns its result, and how often it reached the mutant.

    If the fork ends or hangs, the result says so. ``on`` is called whenever the fork reports progress.
    """
    catalogue()
    library()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(receive)
        pipe = os.fdopen(send, "wb", buffering=0)
        status = 1
        try:
            warnings.simplefilter("ignore")
            os.environ["SIMULATED_MUTANT"] = str(site.number if site is not None else -1)
            library().simulated_set_mutant(site.number if site is not None else -1)

            def say() -> None:
                pipe.write(msgspec.json.encode(("", library().simulated_mutant_reached())) + b"\n")

            answer = work(say)
            pipe.write(
                msgspec.json.encode((answer or "-", library().simulated_mutant_reached())) + b"\n"
            )
            status = 0
        except BaseException as error:
            # What the harness itself trips over is an error of the run: red.
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            pipe.write(msgspec.json.encode((text, library().simulated_mutant_reached())) + b"\n")
        finally:
            os._exit(status)
    os.close(send)
    answer, reached, buffer, how = "", 0, b"", "the process ended"
    while True:
        ready, _, _ = select.select([receive], [], [], SILENCE)
        if not ready:
            how = "the process hung"
            break
        data = os.read(receive, 2**16)
        if not data:
            break
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            answer, reached = msgspec.json.decode(line)
        on()
    os.close(receive)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return ("" if answer == "-" else answer or how), reached
