"""Runs cases, and scripts of cases, on the simulated device in forks of one process: each fault gets its own.

Faults of allocators and queues outlive their switch, so that no trial may follow another in one process; and
loading torch takes seconds, so that a process which has it loaded, and has not used the device, is forked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from conformance.checks.clock import Clock
from conformance.run.fork_client import ForkServer
from devices.cell import CellKey, Outcome

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT = 60.0  # seconds that a cell may take, while it can run


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a cell."""

    outcome: Outcome
    checks: int
    message: str
    script: str  # of its repro, where it failed
    reached: frozenset[str]  # the faults that could have changed it; of cells that ran without one

    @property
    def summary(self) -> tuple[Outcome, int]:
        return self.outcome, self.checks


class Server:
    """The process that is forked."""

    def __init__(self, environment: dict[str, str]) -> None:
        # Made as workers are, so that the processes of cases are copies, too.
        self._server = ForkServer(environment)
        its_stdin, stdin = os.pipe()
        stdout, its_stdout = os.pipe()
        self._process = self._server.start(its_stdin, its_stdout, 2, environment)
        os.close(its_stdin)
        os.close(its_stdout)
        self._stdin, self._stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)
        code = f"import os; os.chdir({str(CHECKOUT)!r}); from {__name__} import main; main()"
        self._stdin.write(f"{code!r}\n")
        self._stdin.flush()

    def run(
        self,
        fault: str,
        cells: Iterable[CellKey],
        without: Sequence[str] = (),
        enough: int | None = None,
    ) -> dict[CellKey, Seen]:
        """These cells with a fault on, or none (""), on a device ``without`` some fields of its descriptor. A cell
        after one that killed the process, or that took too long, is not in the answer; the guilty one is a crash or a
        hang. Where ``enough`` cells of a clause have failed, its others are left out."""
        return {
            CellKey(*key): Seen(Outcome(outcome), checks, message, script, frozenset(reached))
            for key, outcome, checks, message, script, reached in self._ask(
                [fault, list(cells), "", without, enough]
            )
        }

    def run_script(self, fault: str, script: Path) -> tuple[int, str]:
        """The exit status of a repro script with a fault on, or none (""), and what it printed. It has the
        modules that it carries, not ours."""
        status, text = self._ask([fault, [], str(script), [], None])
        return status, text

    def _ask(self, question: list[Any]) -> Any:
        self._stdin.write(json.dumps(question) + "\n")
        self._stdin.flush()
        answer = self._stdout.readline()
        assert answer, f"the server ended with status {self._process.wait()}"
        return json.loads(answer)

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()
        self._server.close()


@contextmanager
def serving(environment: dict[str, str]) -> Iterator[Server]:
    server = Server(environment)
    try:
        yield server
    finally:
        server.close()


# -- in the process


def main() -> None:
    import importlib

    from conformance import suites
    from opinfo.device import limit_threads

    limit_threads()
    importlib.import_module("devices.simulated.backend")
    importlib.import_module("torch._dynamo")  # an optimiser's first step loads it
    suites.suites()
    for line in sys.stdin:
        fault, cells, script, without, enough = json.loads(line)
        if script:
            answer: Any = _scripted(fault, script)
        else:
            answer = _ran(fault, [CellKey(*cell) for cell in cells], without, enough)
        print(json.dumps(answer), flush=True)


def _ran(
    fault: str, cells: list[CellKey], without: list[str], enough: int | None
) -> list[list[Any]]:
    lines, over, _ = _forked(lambda stream: _trial(fault, cells, without, enough, stream))
    found: list[list[Any]] = [json.loads(line) for line in lines if line.endswith(b"]")]
    if len(found) < len(cells):  # those that are left out are told of, too
        guilty = cells[len(found)]
        outcome = Outcome.HANG if over else Outcome.CRASH
        found.append([list(guilty), outcome.value, 0, "the process ended in it", "", []])
    return [row for row in found if row[1] is not None]


def _scripted(fault: str, script: str) -> tuple[int, str]:
    lines, _, status = _forked(lambda stream: _script(fault, script, stream))
    return status, b"\n".join(lines).decode(errors="replace")


def _forked(work: Callable[[IO[str]], None]) -> tuple[list[bytes], bool, int]:
    """What is written by work in a fork, whether its time was over, and its exit status."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 1
        try:
            os.dup2(2, 1)  # what a backend prints must not be taken for an answer
            with os.fdopen(writer, "w") as stream:
                work(stream)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    lines, over = _lines(reader, Clock(child))
    if over:
        os.kill(child, signal.SIGKILL)
    return lines, over, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _lines(reader: int, clock: Clock) -> tuple[list[bytes], bool]:
    """What a child tells until it ends, and whether its time was over first."""
    held = b""
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while clock.wait(lambda seconds: select.select([stream], [], [], seconds)[0], LIMIT):
            chunk = stream.read(1 << 16)
            if not chunk:
                return held.splitlines(), False
            held += chunk
            clock.restart()
    return held.splitlines(), True


def _trial(
    fault: str, cells: list[CellKey], without: list[str], enough: int | None, stream: Any
) -> None:
    from collections import Counter
    from contextlib import nullcontext
    from dataclasses import replace

    from conformance import suites
    from conformance.checks.cases.processes import DeviceLocator
    from conformance.checks.cases.run_case import run_case
    from conformance.checks.cells import CellRecord
    from devices import registry
    from devices.simulated.backend.fault_switches import planted, reached
    from devices.simulated.faults import FAULTS
    from opinfo.device import open_device

    if fault:
        os.environ["SIMULATED_FAULTS"] = fault  # for the processes that cases start
        if needed := FAULTS[fault].memory_mib:
            os.environ["SIMULATED_MEMORY_MIB"] = str(needed)
    device = open_device(replace(registry.get("simulated"), **dict.fromkeys(without)))
    failed: Counter[str] = Counter()
    with planted(*filter(None, [fault])):
        for cell in cells:
            row: list[Any] = [list(cell), None, 0, "", "", []]
            if enough is None or failed[cell.clause] < enough:
                case = suites.case_of(cell.clause, cell.unit, cell.variant)
                record = CellRecord(cell)
                with nullcontext(set[str]()) if fault else reached() as faults:
                    run_case(case, record, device, DeviceLocator(device="simulated"))
                outcome, shown = record.outcome(), record.smallest
                failed[cell.clause] += outcome is Outcome.FAIL
                script = shown.script() if shown is not None and shown.repro is not None else ""
                message = record.to_outcome().message
                row = [list(cell), outcome.value, record.checks, message, script, sorted(faults)]
            stream.write(json.dumps(row) + "\n")
            stream.flush()


def _script(fault: str, script: str, stream: IO[str]) -> None:
    """Run a script as if nothing of ours were loaded, but for the device's own module."""
    import contextlib
    import runpy

    from devices.simulated.backend.fault_switches import planted

    os.environ["SIMULATED_FAULTS"] = fault
    os.environ["PYTHONPATH"] = str(CHECKOUT)
    with planted(*filter(None, [fault])), contextlib.redirect_stdout(stream):
        for name in list(sys.modules):
            ours = name.partition(".")[0] in ("conformance", "devices", "opinfo", "reports")
            backend = name.startswith("devices.simulated") and not name.endswith("descriptor")
            if ours and not backend and name != "devices":
                del sys.modules[name]
        runpy.run_path(script, run_name="__main__")
