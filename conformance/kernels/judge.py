"""Judges one kernel in other processes."""

from __future__ import annotations

import os
import runpy
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from conformance.checks.child import Ended
from conformance.kernels.calls_file import (
    ANSWERS,
    CALLS,
    ENDED,
    FINDINGS,
    FINISHING,
    LOADED,
    MEMORY,
    OPCHECKING,
    PROGRESS,
    REFUSAL,
    REQUEST,
    ROUNDS,
    STEP_BYTES,
    VERDICT,
    Answer,
    Loaded,
    PlannedCall,
    Refusal,
    packed,
    read,
    write,
)
from conformance.kernels.discovery import Found
from conformance.kernels.findings_cache import FindingsCache
from conformance.kernels.forms import CUSTOM_OP
from conformance.kernels.judgement import Judgement
from conformance.kernels.request import FUNCTION, NotLoadable, Request, Source
from conformance.kernels.zygote import Zygote, is_fork, zygote
from devices.errors import ConformError
from devices.failure import Kind

#: The most calls that may end the kernel's process, and the most that may not return; after that, no further call is
#: made.
_ENDINGS, _HANGS = 12, 3
#: Seconds for planning or judging, and for all calls of a round.
_JUDGING, _KERNEL = 600.0, 1800.0

_lock = threading.Lock()  # a zygote runs one process at a time


def judge(
    function: Callable[..., Any],
    replaces: str = "",
    *,
    reference: Callable[..., Any] | None = None,
    samples: Callable[[], Any] | None = None,
    device: str = "cpu",
    dtypes: Sequence[str] = ("float32",),
    seconds: float = 10.0,
    strides: bool | None = None,
    layouts: bool = True,
    shapes: bool = True,
    guard_pages: bool = True,
    speed: bool = False,
) -> Judgement:
    """Judges a kernel and returns its judgement. Prints nothing, and changes nothing in this process.

    ``function`` must be defined at module level of a Python file, because another process imports it. ``replaces`` is
    the op that the kernel replaces: an overload such as "aten::softmax.int", or the id of an op in torch's op database,
    such as "softmax". Without ``replaces``, ``reference`` must be a function that computes the right results on the
    CPU, and ``samples`` a function that yields arguments: tuples, or pairs (args, kwargs).

    The kernel is called in each of the ``dtypes`` on ``device``, the name of one of the suite's devices. Each call may
    take ``seconds``. If ``strides`` is True, the strides of the results must be those of the op's results; the default
    is True for a kernel that replaces an op. With ``layouts=False``, all inputs are contiguous. With ``shapes=False``,
    no samples of other shapes are added to the given ones. ``guard_pages`` adds calls with tensors next to inaccessible
    pages. ``speed`` measures the time of a right kernel.

    Raises ConformError if torch does not have the op, or if the function cannot be imported by another process.
    """
    if bool(replaces) == (reference is not None):
        raise ConformError(
            "expected either replaces=, the op that the kernel replaces, or reference="
        )
    request = Request(
        kernel=Source.of(function),
        form=CUSTOM_OP if hasattr(function, "_opoverload") else FUNCTION,
        target=replaces,
        reference=None if reference is None else Source.of(reference),
        samples=None if samples is None else Source.of(samples),
        device=device,
        dtypes=tuple(dtypes),
        seconds=seconds,
        strides=bool(replaces) if strides is None else strides,
        layouts=layouts,
        shapes=shapes,
        guard_pages=guard_pages,
        speed=speed,
    )
    return judged(request)


def judged(request: Request) -> Judgement:
    """Judges the kernel of a request. Raises ConformError if it cannot be judged."""
    if is_fork():
        raise JudgedOnImport
    began = time.monotonic()
    with _lock:
        server = zygote()
        folder = Path(tempfile.mkdtemp(dir=server.folder))
        try:
            (folder / REQUEST).write_bytes(msgspec.json.encode(request))
            found = _Rounds(request, folder, server).run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return msgspec.structs.replace(found, seconds=round(time.monotonic() - began, 3))


def overrides_of(source: Source, wanted: Any) -> tuple[str, ...]:
    """Returns the aten overloads that a module overrides for a device, such as "aten::softmax.int". The device is that
    of ``wanted``. Raises ConformError if the module cannot be imported."""
    request = Request(kernel=source, device=wanted.device, descriptor=wanted.descriptor)
    with _lock:
        server = zygote()
        folder = Path(tempfile.mkdtemp(dir=server.folder))
        try:
            (folder / REQUEST).write_bytes(msgspec.json.encode(request))
            target = "conformance.kernels.discovery:main"
            ended = server.run(target, [str(folder)], folder / "printed.txt", _is_slow)
            if not ended.well:
                raise NotLoadable(f"{source.path}: the process that imports the file {ended}")
            found = read(folder / VERDICT, Found)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if found.error:
        raise NotLoadable(f"{source.path}: importing the file raised {found.error}")
    return tuple(found.targets)


def _is_slow(seconds: float) -> str:
    return f"had not ended after {_JUDGING:g} s" if seconds > _JUDGING else ""


class CannotJudge(ConformError):
    """The error for a request that cannot be judged, for example because the op is unknown or there are no samples."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.exit_code = refusal.exit_code


class JudgedOnImport(ConformError):
    """The error for a kernel's file that calls ``judge`` when it is imported."""

    exit_code = 4

    def __init__(self) -> None:
        super().__init__(
            "judge() was called by the import of the kernel's file in another process: call it only "
            'in a function or below `if __name__ == "__main__":`'
        )


class _Rounds:
    """Runs the processes of one judgement in turn: the judge's process plans calls, the kernel's process makes them,
    and the judge's process compares the results or plans further calls."""

    def __init__(self, request: Request, folder: Path, server: Zygote) -> None:
        self.request, self.folder, self.server = request, folder, server
        self.careful = False  # a call of the reference may have ended the judge's process

    def run(self) -> Judgement:
        kept = FindingsCache(self.request)
        kept.load(self.folder / FINDINGS)
        for number in range(ROUNDS + 1):
            self._judging(number)
            if (self.folder / VERDICT).exists():
                kept.save(self.folder / FINDINGS)
                return self._with_working_scripts(read(self.folder / VERDICT, Judgement))
            if (self.folder / REFUSAL).exists():
                raise CannotJudge(read(self.folder / REFUSAL, Refusal))
            self._kernel(self.folder / f"round-{number}")
        raise ConformError("expected a judgement after the last round of calls, found none")

    def _with_working_scripts(self, found: Judgement) -> Judgement:
        """Returns a judgement without the repro scripts that pass. A script makes a single call, so it passes if the
        kernel is wrong only after earlier calls; and the script of a check that calls the op on the CPU, too, compares
        the kernel with itself."""
        faults = []
        for fault in found.faults:
            ends = fault.failure is not None and fault.failure.kind is Kind.ENDED
            if fault.script and not ends:  # a script for a call that does not return takes long
                path = self.folder / "script.py"
                path.write_text(fault.script, encoding="utf-8")
                target = "conformance.kernels.judge:run_script"
                ended = self.server.run(target, [str(path)], self.folder / "script.txt", _is_slow)
                if ended.well:
                    message = (
                        f"{fault.message} (no script: made alone in a new process, this call "
                        "does not fail)"
                    )
                    fault = msgspec.structs.replace(fault, script="", message=message)
            faults.append(fault)
        return msgspec.structs.replace(found, faults=tuple(faults))

    def _judging(self, number: int) -> None:
        """Runs the judge's process. If a call of the reference ends it, runs it once more, and from then on each call of the
        reference is made in a fork of it first."""
        ended = self._judging_process(number)
        if not self._has_come_to_its_end(ended, number) and not self.careful:
            self.careful = True
            shutil.rmtree(self.folder / f"round-{number}", ignore_errors=True)
            ended = self._judging_process(number)
        if not self._has_come_to_its_end(ended, number):
            raise ConformError(f"the process that judges the kernel {ended}{_advice(ended)}")

    def _judging_process(self, number: int) -> Ended:
        given = [str(self.folder), str(number), *(["careful"] if self.careful else [])]
        target = "conformance.kernels.judging:main"
        return self.server.run(target, given, self.folder / f"judging-{number}.txt", _is_slow)

    def _has_come_to_its_end(self, ended: Ended, number: int) -> bool:
        """Returns True if the judge's process wrote a judgement, a refusal, or calls. A reference that exits with status 0
        ends the process before."""
        files = (VERDICT, REFUSAL, f"round-{number}/{MEMORY}")
        return ended.well and any((self.folder / each).exists() for each in files)

    def _kernel(self, folder: Path) -> None:
        """Runs the kernel's process until all calls of a round are made. If a call ends the process or does not return,
        a new process continues with the next call.

        The kernel could change every file of the round. The files that the judge had written are therefore written
        again.
        """
        (folder / REQUEST).write_bytes(msgspec.json.encode(self.request))
        planned = (folder / CALLS).read_bytes()
        findings = _contents(self.folder / FINDINGS)
        try:
            self._calls(folder, len(read(folder / CALLS, list[PlannedCall])))
        finally:
            (folder / CALLS).write_bytes(planned)
            _restore(self.folder / FINDINGS, findings)
            (self.folder / REQUEST).write_bytes(msgspec.json.encode(self.request))
            for forged in (VERDICT, REFUSAL):
                (self.folder / forged).unlink(missing_ok=True)

    def _calls(self, folder: Path, count: int) -> None:
        first = endings = hangs = 0
        while endings < _ENDINGS and hangs < _HANGS and first < count:
            ended, step = self._process(folder, first, count)
            if step > count:  # all calls were made
                self._note_extras(folder, step - count, ended)
                return
            if (folder / LOADED).exists():  # no call can be made
                return
            if step == 0:
                self._check_device(folder)
                write(folder / LOADED, Loaded(f"loading the kernel: the process {ended}"))
                return
            self._note(folder, Answer(step - 1, ended=_how(ended, self.request.seconds)))
            first, endings, hangs = step, endings + 1, hangs + (ended.status is None)

    def _check_device(self, folder: Path) -> None:
        """Raises CannotJudge if the device cannot be used, for which the kernel's process ended before it loaded the
        kernel. A process without the kernel finds out."""
        (folder / REFUSAL).unlink(missing_ok=True)
        (folder / REQUEST).write_bytes(msgspec.json.encode(self.request))
        target = "conformance.kernels.kernel_process:check_device"
        self.server.run(target, [str(folder)], folder / "device.txt", _is_slow)
        if (folder / REFUSAL).exists():
            raise CannotJudge(read(folder / REFUSAL, Refusal))

    def _note_extras(self, folder: Path, step: int, ended: Ended) -> None:
        """Records how the kernel's process ended, if it did not finish the work that follows the calls, such as opcheck
        and the measurement of times. ``step`` is the number of the piece of work that it began last."""
        if step >= ENDED and ended.well:
            return
        why = _how(ended, self._limit(step))
        found = read(folder / LOADED, Loaded) if (folder / LOADED).exists() else Loaded()
        lost = {"opcheck": {"opcheck": why}} if step == OPCHECKING else {"untimed": why}
        if step == FINISHING:
            lost = {"error": f"after the last call: {why}"}
        write(folder / LOADED, msgspec.structs.replace(found, **lost))

    def _limit(self, step: int) -> float:
        """Returns the time limit in seconds of a step that follows the calls of the kernel's process. The limit is
        longer for opcheck, which compiles, and for the measurement of times, which makes many calls."""
        return self.request.load_seconds if step > FINISHING else self.request.seconds

    def _process(self, folder: Path, first: int, count: int) -> tuple[Ended, int]:
        seen, since = -1, 0.0

        def is_late(now: float) -> str:
            nonlocal seen, since
            step = _step(folder)
            if step != seen:
                seen, since = step, now
            if now > _KERNEL:
                return f"had not made its calls after {_KERNEL:g} s"
            limit = self._limit(step - count) if step > 0 else self.request.load_seconds
            return f"did not return within {limit:g} s" if now - since > limit else ""

        (folder / PROGRESS).unlink(missing_ok=True)
        target = "conformance.kernels.kernel_process:main"
        given = [str(folder), str(first)]
        ended = self.server.run(target, given, folder / f"kernel-{first}.txt", is_late)
        return ended, _step(folder)

    def _note(self, folder: Path, answer: Answer) -> None:
        with (folder / ANSWERS).open("ab") as file:
            file.write(packed(answer, []))


def _contents(folder: Path) -> dict[Path, bytes]:
    """Returns the content of the files in a folder, by their paths."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _restore(folder: Path, files: dict[Path, bytes]) -> None:
    """Makes a folder have these files and no others, whatever is there now."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def run_script(path: str) -> None:
    """Runs a repro script in this process, and ends the process with the script's exit status."""
    status = 0
    tempfile.tempdir = str(Path(path).parent)  # removed after the judgement
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    os._exit(status)


def _how(ended: Ended, seconds: float) -> str:
    if ended.status is None:
        return f"the call did not return within {seconds:g} s"
    return f"the process {ended.how}"


def _advice(ended: Ended) -> str:
    """Returns what to do about the end of the judge's process, as the rest of a sentence."""
    if ended.signal != "SIGKILL":
        return ""
    return (
        ". The system kills a process when memory runs out: judge with smaller samples, and with "
        "shapes=False if you use judge(), so that no larger ones are added"
    )


def _step(folder: Path) -> int:
    """Returns the step that a kernel's process began last: 0 while it loads the kernel, n for call n - 1."""
    try:
        return int((folder / PROGRESS).read_bytes()[:STEP_BYTES])
    except (OSError, ValueError):  # not yet written, or overwritten by the kernel
        return 0


def process_count() -> int:
    """Returns the number of live child processes of this process's zygote. Used by tests."""
    server = zygote()
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return len(path.read_text().split()) if os.path.exists(path) else 0
