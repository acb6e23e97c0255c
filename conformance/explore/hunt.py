"""The process that searches at random: calls of ops in layouts, and programs of cases."""

from __future__ import annotations

import faulthandler
import gc
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from conformance.aside import Tell, teller
from conformance.behaviour.attempts import Attempt
from conformance.behaviour.cases import Case
from conformance.behaviour.drawing import Program, said
from conformance.behaviour.process import Where
from conformance.behaviour.script import CaseScript
from conformance.explore import programs
from conformance.explore.aside import COUNTED, Finding
from conformance.explore.draw import random_candidate
from conformance.explore.encoding import NotEncodable, encode
from conformance.explore.turns import Item, Turns
from conformance.layout import suite
from conformance.layout.directed import DirectedScript
from conformance.minimise.describe import example_of
from conformance.minimise.search import minimise
from conformance.minimise.subject import Sign, Subject
from conformance.suites import case_of
from devices.cell import CellKey
from opinfo.device import Device
from opinfo.samples import draw

#: Candidates of one item before the next one's turn.
BATCH = 24
#: Seconds that one candidate or program may take before it hangs.
_SECONDS = 60.0
#: Seconds between signs of life while programs run.
_SIGN = 10.0


def main(orders: dict[str, Any], pipe: int) -> None:
    """Search until the time is over."""
    from conformance.worker import limit_threads
    from devices import registry
    from opinfo.catalog import catalogue
    from opinfo.device import open_device
    from opinfo.layouts import forget_geometries
    from opinfo.reference import forget_dispatches

    tell = teller(pipe)
    limit_threads()
    path = orders["descriptor"]
    device = open_device(registry.load_file(Path(path)) if path else registry.get(orders["device"]))
    turns = Turns([(op, dtype, clauses) for op, dtype, clauses in orders["items"]], orders["seed"])
    if turns.ops:
        catalogue()  # takes seconds: before any work is told to have begun
    end = time.time() + orders["seconds"]
    where = Where(device=orders["device"], path=path or "")
    hunt = Hunt(device, orders["samples"], orders["seed"], end, tell, where)
    hunt.seen = {tuple(sign) for sign in orders["seen"]}
    left_out = {(op, dtype, tuple(clauses)) for op, dtype, clauses in orders["left_out"]}
    position, tried = orders["position"], len(left_out) < len(turns.items)
    while tried and time.time() < end:
        item, visit, place = turns.at(position)
        if (item[0], item[1], tuple(item[2])) in left_out:
            position += 1
            continue
        tell(_progress(position, f"{visit}:{place}", Counter(), 0))
        counts = hunt.turn(item, visit, place)
        position += 1
        tell(_progress(position, f"{visit}:{place}", counts, _peak_bytes()))
        forget_dispatches()
        forget_geometries()
    tell({"what": "over"})


def _progress(position: int, number: str, counts: Counter[str], peak: int) -> dict[str, Any]:
    effort = {name: counts[name] for name in COUNTED}
    return {
        "what": "item",
        "position": position,
        "number": number,
        "effort": {**effort, "peak_bytes": peak},
    }


def _peak_bytes() -> int:
    """The largest resident memory of this process so far.

    Linux keeps it in VmHWM. Its ru_maxrss (getrusage(2)) begins with what the process that started this
    one had resident, which would hide growth up to that.
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
    """The search itself."""

    def __init__(
        self, device: Device, samples: int, seed: int, end: float, tell: Tell, where: Where
    ) -> None:
        self.device = device
        self.samples = samples
        self.seed = seed
        self.end = end  # on time.time()
        self.tell = tell
        self.where = where
        self.seen: set[tuple[str, ...]] = set()
        self.sign = time.monotonic()
        self.littered = False  # since cycles were last collected

    def turn(self, item: Item, visit: int, place: int) -> Counter[str]:
        """One batch of an item: what was done."""
        if item[1]:
            return self.calls(item, visit, place)
        return self.programs(item, visit, place)

    # -- calls in layouts

    def calls(self, item: Item, visit: int, place: int) -> Counter[str]:
        """One batch of calls of an op."""
        op, dtype, clauses = item
        self.littered = True
        counts: Counter[str] = Counter()
        subject = Subject.of(op, dtype, self.device, self.samples)
        drawn = Random(f"{self.seed}:{visit}:{op}:{dtype}").getrandbits(31)
        pool = draw(subject.op, dtype, seed=drawn) or subject.drawn
        if not pool:
            return counts
        may_resize = "explore.keeps_sizes" not in subject.traits.families
        for number in range(BATCH):
            if time.time() > self.end:
                break
            random = Random(f"{self.seed}:{visit}:{op}:{dtype}:{number}")
            faulthandler.dump_traceback_later(_SECONDS, exit=True)
            try:
                candidate = random_candidate(random, pool, may_resize=may_resize)
                records = subject.run(candidate, clauses, suite.SAMPLED)
            except (RuntimeError, IndexError, ValueError, TypeError):
                # Values that do not go with the size, a dtype without a kernel.
                counts["unmade"] += 1
                continue
            finally:
                faulthandler.cancel_dump_traceback_later()
            counts["candidates"] += 1
            for clause, record in records.items():
                counts["checks"] += record.checks
                for failure in record.failures:
                    self._found(subject, clause, candidate, failure, f"{visit}:{place}:{number}")
        return counts

    def _found(self, subject: Any, clause: str, candidate: Any, failure: Any, number: str) -> None:
        if isinstance(failure.repro, DirectedScript):
            return  # made on tensors of its own: the plan makes the very same check
        sign = Sign.of(failure)
        key = (clause, subject.op.id, subject.dtype, sign.kind, sign.where)
        if key in self.seen:
            return
        self.seen.add(key)
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        found = minimise(subject, clause, candidate, failure)
        faulthandler.cancel_dump_traceback_later()
        try:
            (call, layouts), unpinnable = encode(found.candidate), ""
        except NotEncodable as error:
            call, layouts, unpinnable = {}, {}, str(error)
        script = found.failure.repro
        finding = Finding(
            CellKey(clause, subject.op.id, subject.dtype),
            sign.kind,
            sign.where,
            number,
            example_of(found),
            script() if script is not None else "",
            call,
            layouts,
            unpinnable,
        )
        self.tell({"what": "found", "finding": asdict(finding)})

    # -- programs

    def programs(self, item: Item, visit: int, place: int) -> Counter[str]:
        """One batch of programs of a case."""
        name, _, (clause,) = item
        cell, case = CellKey(clause, name, ""), case_of(clause, name)
        number = f"{visit}:{place}"
        if self.littered:  # cycles hold tensors, which would be freed, and counted, amid a program
            gc.collect()
            self.littered = False

        def failing(program: Program, error: BaseException) -> None:
            assert case.drawn is not None
            text = f"{case.drawn.told(*program)}: {said(error)}"
            made = Attempt(1, failed=text, replay=(case.drawn.replay, program))
            self._tell_program("failing", case, cell, programs.kind_of(error), number, made)

        attempt, search = programs.searched(
            *(case, self.device, self.where, programs.batch_seed(self.seed, visit, cell)),
            *({kind for *of, kind, _ in self.seen if tuple(of) == cell}, self.end - time.time()),
            *(self._begun, failing),
        )
        faulthandler.cancel_dump_traceback_later()
        if attempt.failed:
            outside = f"raised {attempt.raised}" if attempt.raised else attempt.failed
            kind = search.wanted or programs.kind_of_text(outside)
            if (*cell, kind, "") not in self.seen:
                self.seen.add((*cell, kind, ""))
                self._tell_program("found", case, cell, kind, number, attempt)
            self.littered = True  # errors hold frames
        counts = {"programs": search.programs, "unshown": search.unshown}
        if (
            attempt.not_shown or attempt.refused
        ):  # outside of a program: none of them shows anything
            counts = dict.fromkeys(counts, max(search.programs, 1))
        return Counter({**counts, "checks": attempt.checks})

    def _begun(self) -> None:
        """A program begins: it has its time, and the process is alive."""
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        if time.monotonic() - self.sign > _SIGN:
            self.sign = time.monotonic()
            self.tell({"what": "alive"})

    def _tell_program(
        self, what: str, case: Case, cell: CellKey, kind: str, number: str, attempt: Attempt
    ) -> None:
        held, unpinnable = [], ""
        try:
            if attempt.replay is not None:
                held = programs.encode(attempt.replay[1])
            else:
                unpinnable = "it failed outside of a program"
        except NotEncodable as error:
            unpinnable = str(error)
        script = CaseScript.of(case, self.device.descriptor, attempt)
        finding = Finding(
            *(cell, kind, "", number),
            script=script() if script is not None and held else "",
            unpinnable=unpinnable,
            told=attempt.failed,
            program=held,
        )
        self.tell({"what": what, "finding": asdict(finding)})
