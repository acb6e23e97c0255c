"""Random search in the subprocess: calls of ops in random layouts, and programs of cases.

For ops, new samples of the database are drawn, resized, and laid out in layouts beyond those that every plan uses.
Cases that draw programs in a plan draw further programs from other seeds.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import torch

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.exceptions import failure_of
from conformance.checks.cases.execution import attempt
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.results import Attempt
from conformance.checks.cases.script import has_source, script_of_case
from conformance.checks.cells import Failed
from conformance.checks.child import Tell
from conformance.checks.ops.standalone_checks import DirectedScript
from conformance.checks.programs.trials import Program, Search
from conformance.plan.selection import Item
from conformance.search.explore.encoding import encode, encode_program
from conformance.search.explore.exploration import Counts, Finding, Found, Orders, Sign, Turn, Turns
from conformance.search.minimise import shrink
from conformance.search.minimise.candidates import Candidate, CandidateRunner
from conformance.search.minimise.simplify import NAMED, with_tensors
from conformance.suites import case_of, find_case
from conformance.suites.layout import SUITE
from devices.cell import CellKey
from devices.failure import Failure
from opinfo.device import Device, first_index
from opinfo.encoding import NotEncodable
from opinfo.layouts import CONTIGUOUS, AnyLayout, FreeLayout, forget_geometries
from opinfo.reference import forget_dispatches
from opinfo.samples import Sample

#: The number of candidates per turn of an item, and of programs per turn of a case.
_CANDIDATES, _PROGRAMS = 24, 20
_CHECKS = tuple(check for check in SUITE.op_checks if check.sampled)
#: Seconds after which a candidate or program counts as hung.
_SECONDS = 60.0
#: The longest time in seconds between two messages while programs run.
_SIGN = 10.0

#: The sizes that resizing chooses from; 16 and 17 are a vector register of float32 and one element more.
_SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 16, 17)
_STEPS = (1, 1, 1, 2, 3)
_OFFSETS = (0, 0, 1, 2, 3, 4, 7, 8, 16, 17, 31, 33)
#: Candidates with more elements are not tried, because they take longer and find nothing more.
_MOST_ELEMENTS = 20_000


def serve(given: object, tell: Tell) -> None:
    """Searches until the time is over. The function runs in the subprocess."""
    orders = msgspec.convert(given, Orders)
    device = orders.bench.open()
    turns = Turns(orders.items, orders.seed)
    # Load the ops and suites first, so that the seconds it takes do not count for the first item.
    if turns.ops:
        orders.bench.source().subjects()
    for item in turns.cases:
        find_case(item.cells[0])
    hunt = Hunt(orders, device, tell)
    position, tried = orders.position, len(orders.left_out) < len(orders.items)
    while tried and time.time() < hunt.end:
        item, visit, place = turns.at(position)
        if item not in orders.left_out:
            hunt.send(Turn(position, Counts(), 0))
            counts = (hunt.programs if item.is_case else hunt.calls)(
                item, visit, f"{visit}:{place}"
            )
            hunt.send(Turn(position + 1, counts, _peak_bytes()))
            forget_dispatches()
            forget_geometries()
        position += 1
    tell(None)


def _peak_bytes() -> int:
    """Returns the largest resident memory of this process so far, in bytes.

    On Linux the number comes from VmHWM in /proc/self/status. ru_maxrss (getrusage(2)) would start at the resident
    memory of the parent process and hide any growth up to that size.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


class Hunt:
    def __init__(self, orders: Orders, device: Device, tell: Tell) -> None:
        self.device, self.tell = device, tell
        self.samples, self.seed = orders.bench.samples, orders.seed
        self.source = orders.bench.source()
        self.end = time.time() + orders.seconds
        self.where = DeviceLocator(device=orders.bench.device, path=orders.bench.descriptor or "")
        self.seen = set(orders.seen)
        self.sent = time.monotonic()
        self.littered = False  # True if there may be reference cycles to collect

    def send(self, message: Turn | Found) -> None:
        self.tell(msgspec.to_builtins(message))

    # -- calls in layouts

    def calls(self, item: Item, visit: int, turn: str) -> Counts:
        """Runs one batch of random calls of an op and sends new findings. Returns the counts."""
        op, dtype = item.unit, item.dtype
        self.littered = True
        counts = Counts()
        runner = CandidateRunner.of(
            op, dtype, self.device, self.samples, self.source, variant=item.variant
        )
        drawn = Random(f"{self.seed}:{visit}:{op}:{dtype}").getrandbits(31)
        pool = runner.source.samples(runner.subject, dtype, seed=drawn) or runner.source_samples
        if not pool:
            return counts
        may_resize = "explore.keeps_sizes" not in runner.traits.families
        for number in range(_CANDIDATES):
            if time.time() > self.end:
                break
            random = Random(f"{self.seed}:{visit}:{op}:{dtype}:{number}")
            faulthandler.dump_traceback_later(_SECONDS, exit=True)
            try:
                candidate = random_candidate(random, pool, may_resize=may_resize)
                records = runner.run(candidate, item.clauses, _CHECKS)
            except (RuntimeError, IndexError, ValueError, TypeError):
                # The values do not fit the size, or the dtype has no kernel.
                counts.unmade += 1
                continue
            finally:
                faulthandler.cancel_dump_traceback_later()
            counts.candidates += 1
            for record in records.values():
                counts.checks += record.checks
                for failed in record.failures:
                    self._report_finding(runner, record.key, candidate, failed, f"{turn}:{number}")
        return counts

    def _report_finding(
        self,
        runner: CandidateRunner,
        cell: CellKey,
        candidate: Candidate,
        failed: Failed,
        number: str,
    ) -> None:
        failure = failed.failure
        if isinstance(failed.repro, DirectedScript):
            return  # a directed check uses its own tensors, so the plan makes the same check
        sign = Sign(cell, failure.title, failure.check)
        if sign in self.seen:
            return
        self.seen.add(sign)
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        found = shrink.Search(runner, cell.clause, candidate, failed).run()
        faulthandler.cancel_dump_traceback_later()
        try:
            (call, layouts), unpinnable = encode(found.candidate), ""
        except NotEncodable as error:
            call, layouts, unpinnable = {}, {}, str(error)
        finding = Finding(
            *sign,
            number=number,
            example=found.example,
            script=found.script,
            call=call,
            layouts=layouts,
            unpinnable=unpinnable,
            raises=failure.raises,
        )
        self.send(Found(finding))

    # -- programs

    def programs(self, item: Item, visit: int, turn: str) -> Counts:
        """Runs one batch of random programs of a case and sends new findings. Returns the counts."""
        (cell,) = item.cells
        case = case_of(cell.clause, cell.unit, cell.variant)
        if self.littered:  # freeing tensors in cycles during a program would change its counters
            gc.collect()
            self.littered = False

        def failing(program: Program, error: BaseException) -> None:
            assert case.drawn is not None
            failure = msgspec.structs.replace(
                failure_of(error), program=case.drawn.describe(*program)
            )
            made = Attempt(1, failure, program=program)
            finding = self._finding(case, Sign(cell, kind_of(error), ""), turn, made)
            self.send(Found(finding, shrunk=False))

        known = frozenset(kind for of, kind, _ in self.seen if of == cell)
        end = time.monotonic() + self.end - time.time()
        search = Search(kind_of, known, end, self._begun, failing)
        drawn = case.anew(batch_seed(self.seed, visit, cell), _PROGRAMS)
        with first_index(self.device) as opened:  # cases count indices from 0
            made = attempt(drawn, opened, self.where, search)
        faulthandler.cancel_dump_traceback_later()
        if made.failure is not None:
            sign = Sign(cell, search.wanted or kind_of_failure(made.failure), "")
            if sign not in self.seen:
                self.seen.add(sign)
                self.send(Found(self._finding(case, sign, turn, made)))
            self.littered = True  # errors keep frames alive
        counts = Counts(checks=made.checks, programs=search.programs, unshown=search.unshown)
        if made.undeclared or made.not_shown or made.refused is not None:
            # The case did not fail inside a program, so no program proved anything.
            counts.programs = counts.unshown = max(search.programs, 1)
        return counts

    def _begun(self) -> None:
        """Restarts the time limit when a program begins, and reports from time to time that the process is alive."""
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        if time.monotonic() - self.sent > _SIGN:
            self.sent = time.monotonic()
            self.tell.ready()

    def _finding(self, case: BehaviourCase, sign: Sign, number: str, attempt: Attempt) -> Finding:
        failure, program = attempt.failure, attempt.program
        assert failure is not None
        held, script, unpinnable = [], "", "the case failed outside of its programs"
        if program is not None:
            try:
                held, unpinnable = encode_program(program), ""
            except NotEncodable as error:
                unpinnable = str(error)
        if held and has_source(self.device.descriptor):
            script = script_of_case(case, self.device.descriptor, failure, program)
        return Finding(
            *sign,
            number=number,
            script=script,
            unpinnable=unpinnable,
            text=failure.message,
            program=held,
            raises=failure.raises,
        )


# -- random calls


def random_candidate(random: Random, pool: Sequence[Sample], *, may_resize: bool) -> Candidate:
    """Returns a random call from a pool of samples. The call depends only on the pool and the state of ``random``."""
    sample = random.choice(pool)
    candidate = Candidate(sample)
    if may_resize and random.random() < 0.5:
        candidate = _resized(random, candidate)
    if random.random() < 0.3:
        candidate = _scaled(random, candidate)
    first = random_layout(random)
    rest = first if random.random() < 0.3 else random_layout(random)
    target = random_layout(random)
    if isinstance(target, FreeLayout):
        target = replace(target, expand=None)
    else:
        target = replace(target, expand="none")
    return replace(candidate, first=first, rest=rest, target=target)


def random_layout(random: Random) -> AnyLayout:
    """Returns a random layout: a named layout, or one with random order, steps, expanded dimension and offset."""
    kind = random.random()
    if kind < 0.1:
        return CONTIGUOUS
    if kind < 0.35:
        return random.choice(NAMED)
    return FreeLayout(
        tuple(random.sample(range(6), 6)) if random.random() < 0.8 else (),
        tuple(random.choice(_STEPS) for _ in range(random.randrange(4))),
        random.randrange(5) if random.random() < 0.25 else None,
        random.choice(_OFFSETS),
    )


def _resized(random: Random, candidate: Candidate) -> Candidate:
    """Returns the call with its sizes changed at random. Equal sizes stay equal, and values repeat if a tensor
    grows.

    Calls with integer tensors are not resized. Their values are indices, offsets and lengths, which would no longer
    fit, and the CPU, which is the reference, does not check all of them.
    """
    tensors = candidate.sample.tensors
    if any(not t.dtype.is_floating_point and not t.dtype.is_complex for t in tensors):
        return candidate
    sizes = sorted({n for t in tensors if t.layout == torch.strided for n in t.shape if n > 1})
    chosen = {n: random.choice(_SIZES) if random.random() < 0.6 else n for n in sizes}
    resized = []
    for tensor in tensors:
        if tensor.layout == torch.strided:
            for dim, size in enumerate(tensor.shape):
                if size > 1 and chosen[size] != size:
                    tensor = tensor.index_select(dim, torch.arange(chosen[size]) % size)
        resized.append(tensor)
    if sum(t.numel() for t in resized) > _MOST_ELEMENTS:
        return candidate
    return with_tensors(candidate, resized)


def _scaled(random: Random, candidate: Candidate) -> Candidate:
    """Returns the call with its floating-point values multiplied by a power of two below 1. The products are exact,
    and the values stay in the domain of the op."""
    factor = random.choice((0.5, 0.25, 0.125))

    def scaled(tensor: torch.Tensor) -> torch.Tensor:
        varies = tensor.layout == torch.strided and tensor.dtype.is_floating_point
        return tensor * factor if varies else tensor

    return with_tensors(candidate, [*map(scaled, candidate.sample.tensors)])


# -- random programs


def kind_of(error: BaseException) -> str:
    """Returns the kind of failure that is reported if a program raises this exception: the title of the failure, and
    what it is about."""
    return kind_of_failure(failure_of(error))


def kind_of_failure(failure: Failure) -> str:
    """Returns the kind of a failure: its title, and what it is about."""
    return f"{failure.title}: {failure.subject}" if failure.subject else failure.title


def batch_seed(seed: int, visit: int, cell: CellKey) -> int:
    """Returns the seed of the random programs of a case in pass number ``visit``."""
    return Random(f"{seed}:{visit}:{cell.clause}:{cell.unit}").getrandbits(63)
