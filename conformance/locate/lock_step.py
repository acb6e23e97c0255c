"""Runs a program in lock-step with the CPU: a dispatch mode that sees each aten call of the program and judges it, and
the context manager ``locate``, which enters this mode."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.locate.journal import Journal
from conformance.locate.locate_script import call_text, check_folder, write_repro
from conformance.locate.makers import Makers
from conformance.locate.shadow import Errors, Shadow
from conformance.locate.step_judge import Verdict, judge_steps
from conformance.locate.steps import (
    Numbering,
    Step,
    bytes_on_device,
    read_bytes,
    without_generators,
    written_arguments,
)
from conformance.locate.trace import traced_tensor
from conformance.locate.traces import TracedCall
from conformance.locate.traits import Bounds, traits_of
from conformance.locate.wire import (
    Fault,
    Growth,
    Located,
    LocatedCall,
    growth_of,
    write_located,
)
from conformance.recordings.operand_kinds import (
    COMPUTE_NOTHING,
    answering_class,
    not_strided,
    without_elements,
)
from conformance.recordings.places import Found, Places
from conformance.recordings.program_threads import ProgramThreads
from conformance.recordings.wire import Place
from devices.errors import in_a_line
from opinfo.compare import Wrong, tensors_of
from opinfo.device import Device
from opinfo.torch_private import (
    call_kernel,
    composite_kernel,
    schema_of,
    with_tensors,
    without_modes,
)

#: The most ops that are listed with the number of their wrong calls.
_LISTED: Final = 10


@dataclass
class Options:
    """How a program is judged. The results of the calls are read back from the device only after every ``window``
    calls; the first window begins after ``phase`` calls. After ``limit`` calls (0: no limit) the program is no longer
    judged. With ``growth``, the error against float64 is measured before and after each call; with ``trace``, the
    results of each call are summarised for a comparison with another run; with ``same_random``, the CPU draws the
    program's random numbers."""

    window: int = 1
    phase: int = 0
    limit: int = 0
    growth: bool = True
    trace: bool = False
    same_random: bool = False
    scripts: Path | None = None  # the folder for the repro script
    journal: Path | None = None  # the file that names the call that is being made
    located: Path | None = None  # the file for what was found, written when a call is wrong


@dataclass
class _Made:
    """A call that the program has made on the device, and that is not judged yet."""

    step: Step
    number: int
    found: Found
    phase: str
    held: int = 0  # an earlier call with an alive result, in whose memory a new result is
    made_by: tuple[int, ...] = ()  # the calls that have written the inputs


@dataclass
class _Window:
    numbering: Numbering = field(default_factory=Numbering)
    calls: list[_Made] = field(default_factory=list)
    before: dict[int, torch.Tensor] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)


class LockStep(TorchDispatchMode):
    """A dispatch mode that judges the calls that a program makes on a device while the mode is active."""

    def __init__(self, device: Device, options: Options | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.options = device, options or Options()
        self.kind = device.torch_device.type
        self.calls = self.elsewhere = self.judged = 0
        self.fault: Fault | None = None
        self.wrong: Counter[str] = Counter()
        self.unjudged: Counter[str] = Counter()
        self.growth: Growth | None = None
        self.error: float | None = None
        self.trace: list[TracedCall] = []
        self._places = Places()
        self._bounds = Bounds(device.descriptor)
        self._shadow = Shadow() if self.options.growth and self.options.window == 1 else None
        self._makers = Makers()
        self._window, self._lock = _Window(), threading.RLock()
        self._thread, self._threads = threading.local(), ProgramThreads(self)
        self._composite: dict[Any, str] = {}
        self._streams: dict[Any, int] = {}
        self._process, self._is_finished = os.getpid(), False
        path = self.options.journal
        self._journal = None if path is None else Journal(path)

    # -- the calls

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in COMPUTE_NOTHING or self._is_over or os.getpid() != self._process:
            return func(*args, **kwargs)
        if getattr(self._thread, "place", None) is not None:
            with _own_work():
                args = with_tensors(func, args)
        tensors = tensors_of((args, kwargs))
        with self._lock:
            here = self._is_here(tensors, (*args, *kwargs.values()))
            if whose := answering_class(tensors):
                if here:
                    self._pass_by(
                        f"a tensor of class {whose}; the calls that it makes of plain tensors are judged"
                    )
                return NotImplemented  # torch asks the class next
            if not here:
                result = func(*args, **kwargs)
                if any(each.device.type == self.kind for each in tensors_of(result)):
                    self.unjudged["a call that makes a tensor of the device names no device"] += 1
                else:
                    self.elsewhere += bool(tensors)
                return result
            if why := _no_reading(tensors):
                self._pass_by(why)
                return func(*args, **kwargs)
            if key := self._composite_key(func, args, kwargs):
                return self._call_composite(key, func, args, kwargs)
            return self._make(func, args, kwargs, tensors)

    def _is_here(self, tensors: list[torch.Tensor], values: tuple[Any, ...]) -> bool:
        """Returns True if a call has an input tensor on the device, or creates a tensor there. ``values`` are all its
        arguments."""
        if any(each.device.type == self.kind for each in tensors):
            return True
        named = [each for each in values if isinstance(each, torch.device)]
        if self.kind == "cpu" and not named:  # a factory without a device makes a tensor on the CPU
            return not tensors
        return any(each.type == self.kind for each in named)

    def _pass_by(self, why: str) -> None:
        """Counts a call as not judged, for the reason ``why``. The earlier calls of the window are judged first,
        because this call may overwrite their tensors."""
        with _own_work():
            self.close_window()
        self.calls += 1
        self.unjudged[why] += 1

    def _composite_key(self, func: Any, args: Any, kwargs: Any) -> str:
        """Returns the dispatch key under which torch's own kernel of ``func`` is registered, if this kernel only calls
        other ops that the device implements; otherwise an empty text. Those inner calls are then judged instead of the
        outer call, so that the report names the kernel that is wrong. An op that returns a view or writes to its inputs
        is judged as one call if its kernel is of the explicit kind (CompositeExplicitAutograd)."""
        if func not in self._composite:
            key = composite_kernel(func, self.kind)
            whole = schema_of(func).is_mutable or traits_of(func, args, kwargs)
            self._composite[func] = "" if whole and "Explicit" in key else key
        return self._composite[func]

    def _call_composite(self, key: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls torch's own kernel of ``func``, which is registered under ``key``. The calls that it makes come back to
        this mode, and are reported with the source line of the outer call."""
        outer = getattr(self._thread, "place", None)
        self._thread.place = outer or self._places.find()
        try:
            with self:
                return call_kernel(func, key, args, kwargs)
        finally:
            self._thread.place = outer

    @property
    def _is_over(self) -> bool:
        limit = self.options.limit
        return self._is_finished or (limit > 0 and self.calls >= limit)

    def _make(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Any:
        """Makes a call on the device and returns its result. Judges all calls of the window if this call is its last
        one."""
        self.calls += 1
        found, backward = getattr(self._thread, "place", None) or self._places.find()
        phase = "backward" if backward else self._threads.phase
        traits = traits_of(func, args, kwargs)
        window = self._window
        with _own_work():
            described = [window.numbering.describe(each) for each in (args, kwargs)]
            self._capture(func, args, kwargs, tensors)
            stream = self._stream()
        call = LocatedCall(self.calls, str(func), self._places.place(found), phase)
        self._write_journal(call)
        result, error = None, None
        try:
            if self.options.same_random and "random" in traits:
                with without_modes():
                    result = self._drawn_on_cpu(func, args, kwargs)
            else:
                result = func(*args, **kwargs)
        except Exception as raised:
            error = raised
        with _own_work():
            returned = tensors_of(result)
            if why := answering_class(returned) or _no_reading(returned):
                self.unjudged[f"the result is {why}"] += 1
                self.close_window()
            else:
                line = "" if error is None else in_a_line(error)
                step = self._step(func, (args, kwargs), described, traits, stream, result, line)
                known = self._makers.remember(step, window.numbering.storages, self.calls)
                window.calls.append(_Made(step, self.calls, found, phase, *known))
                window.changed |= step.changed
            is_last = (self.calls - self.options.phase) % self.options.window == 0
            if error is not None or is_last or self._is_over:
                self.close_window()
        if not self._window.calls:
            self._write_journal(call, is_done=True)
        if error is not None:
            raise error
        return result

    def _step(
        self,
        func: Any,
        given: Any,
        described: Any,
        traits: frozenset[str],
        stream: int,
        result: Any,
        raised: str,
    ) -> Step:
        """Returns the record of a call. ``described`` are its arguments, described before the call changed them;
        ``given`` are the arguments themselves. ``raised`` is the message of the exception that the call raised, or
        empty."""
        numbering = self._window.numbering
        positional, named = map(without_generators, described)
        targets = numbering.describe(written_arguments(func, *given))
        results, bounds = numbering.describe(result), self._bounds.of(func)
        return Step(str(func), positional, named, traits, bounds, stream, results, raised, targets)

    def _write_journal(self, call: LocatedCall, *, is_done: bool = False) -> None:
        if self._journal is not None:
            self._journal.write(call, is_done=is_done)

    def _capture(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> None:
        """Copies the bytes of a call's input storages before the call. In a window of several calls, copies only the
        storages that the call writes to, and on the device, because reading them back would wait for the earlier
        calls."""
        window = self._window
        if self.options.window == 1:
            for each in tensors:
                number = window.numbering.number(each)
                if number not in window.before:
                    window.before[number] = read_bytes(window.numbering.storages[number])
            return
        for each in tensors_of(written_arguments(func, args, kwargs)):
            number = window.numbering.number(each)
            if number not in window.before and number not in window.changed:
                storage = window.numbering.storages[number]
                window.before[number] = bytes_on_device(storage).clone()

    def _stream(self) -> int:
        """Returns the number of the current stream; 0 if the device has no streams or calls are judged one by one."""
        if self.options.window == 1 or "streams" not in self.device.descriptor.capabilities:
            return 0
        stream = getattr(torch, self.kind).current_stream()
        return self._streams.setdefault(stream, len(self._streams))

    def _drawn_on_cpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Makes a call that draws random numbers on the CPU instead, and copies the result to the device."""
        from conformance.locate.random_numbers import drawn_on_cpu

        return drawn_on_cpu(func, args, kwargs, self.device.torch_device)

    # -- the judgement

    def close_window(self) -> None:
        """Reads back from the device what the calls of the window have written, judges these calls, and begins a new
        window."""
        if os.getpid() != self._process:
            return
        window, self._window = self._window, _Window()
        if not window.calls:
            return
        self.device.synchronise()
        after = {
            number: read_bytes(storage) for number, storage in enumerate(window.numbering.storages)
        }
        before = {n: each.cpu() for n, each in window.before.items()}
        steps = [each.step for each in window.calls]
        verdicts = judge_steps(steps, before, after)
        for made, verdict in zip(window.calls, verdicts, strict=True):
            self._note(made, verdict, window, before)
        if len(window.calls) == 1:
            self._follow(window, {**after, **before}, after)

    def _note(
        self, made: _Made, verdict: Verdict, window: _Window, before: dict[int, torch.Tensor]
    ) -> None:
        wrong = verdict.wrong
        if wrong is None and made.held:
            memory = f"the memory of a result of call {made.held}, which is alive"
            wrong = Wrong("alias", "a result with memory of its own", memory)
        if wrong is None and verdict.unjudged:
            self.unjudged[verdict.unjudged] += 1
            return
        self.judged += not made.step.traits & {"random", "uninitialized"}
        if wrong is None:
            return
        self.wrong[made.step.op] += 1
        if self.fault is None:
            calls = [self._call(each) for each in window.calls]
            call = calls[window.calls.index(made)]
            message, script = str(wrong), ""
            if self.options.scripts is not None:
                steps = [each.step for each in window.calls]
                known = {**self._inputs(window), **before}
                script = write_repro(self.options.scripts, self.device, call, message, steps, known)
            others = tuple(calls) if len(calls) > 1 else ()
            self.fault = Fault(call, message, script, others)
            if self.options.located is not None:
                write_located(self.options.located, self.located())

    def _inputs(self, window: _Window) -> dict[int, torch.Tensor]:
        """Returns the current bytes of the storages that the calls of a window read and did not write, by storage
        number."""
        return {
            number: read_bytes(storage)
            for number, storage in enumerate(window.numbering.storages)
            if number not in window.changed
        }

    def _follow(
        self, window: _Window, before: dict[int, torch.Tensor], after: dict[int, torch.Tensor]
    ) -> None:
        """Measures the error of a judged call against float64, and adds the call to the trace, as far as the options
        ask for it. ``before`` and ``after`` have the bytes of the storages before and after the call."""
        (made,) = window.calls
        storages = window.numbering.storages
        if self._shadow is not None:
            errors = self._shadow.follow(made.step, storages, before, after)
            self._measure(made, errors)
        if self.options.trace:
            self.trace.append(self._traced(made, before, after))

    def _measure(self, made: _Made, errors: Errors) -> None:
        if errors.after is None:
            return
        self.error = errors.after
        best = self.growth
        if errors.growth > (0.0 if best is None else growth_of(best)):
            self.growth = Growth(self._call(made), errors.before, errors.after)

    def _traced(
        self,
        made: _Made,
        before: dict[int, torch.Tensor],
        after: dict[int, torch.Tensor],
    ) -> TracedCall:
        step = made.step
        outputs = dict.fromkeys(each for each in step.outputs if each.storage in step.changed)
        floats = [e for e in step.inputs if e.dtype.is_floating_point or e.dtype.is_complex]
        undefined = "uninitialized" in step.traits
        return TracedCall(
            self._call(made),
            () if undefined else tuple(traced_tensor(e, after[e.storage]) for e in outputs),
            made.made_by,
            max((traced_tensor(e, before[e.storage]).rms for e in floats), default=0.0),
            "random" in step.traits,
        )

    # -- the end

    def _call(self, made: _Made) -> LocatedCall:
        step = made.step
        place: Place = self._places.place(made.found)
        return LocatedCall(
            made.number, step.op, place, made.phase, tuple(map(str, step.inputs)), call_text(step)
        )

    def located(self, ended: str = "") -> Located:
        """Returns the result of the judgement so far: the first wrong call and the counts. ``ended`` is the message
        with which the program ended, if it failed."""
        return Located(
            device=self.device.name,
            calls=self.calls,
            judged=self.judged,
            window=self.options.window,
            fault=self.fault,
            wrong=self.wrong.total(),
            wrong_ops=tuple(self.wrong.most_common(_LISTED)),
            growth=self.growth,
            error=self.error,
            unjudged=tuple(self.unjudged.most_common()),
            ended=ended,
            elsewhere=self.elsewhere,
        )

    @contextmanager
    def judging_program(self) -> Iterator[None]:
        """Judges the calls on the device that this thread makes within the context, and those of all threads started
        within it."""
        try:
            with self._threads.following(), self._places.following(), self:
                yield
        finally:
            self.finish()

    def finish(self) -> None:
        """Judges the calls of the window that is still open, and stops judging. If a thread of the program goes on, its
        further calls are not judged."""
        # a dispatch mode runs below autocast; this does not
        with self._lock, _own_work(), torch.autocast("cpu", enabled=False):
            self.close_window()
            self._is_finished = True


@contextmanager
def locate(
    device: Device | str,
    *,
    window: int = 1,
    phase: int = 0,
    results: str | Path | None = None,
    growth: bool = True,
) -> Iterator[Callable[[], Located]]:
    """Judges each call on a device within the context, in lock-step with the CPU.

    ``device`` is a device, or the name of a registered one. Yields a function that returns the result so far, a
    ``Located``: the first wrong call, and the call that adds most to the error against float64 (measured only with
    ``growth`` and a ``window`` of 1). If ``results`` names a folder, the repro script of the wrong call is written
    there. Results are read back from the device only after every ``window`` calls; the first window begins after
    ``phase`` calls. With a window of 1, each call is judged before the next one is made.
    """
    if isinstance(device, str):
        from conformance.plan.selection import find_descriptor
        from opinfo.device import open_device

        device = open_device(find_descriptor(device, None))
    folder = Path(results).absolute() if results is not None else None
    if folder is not None:
        check_folder(folder)
    mode = LockStep(device, Options(window, phase, growth=growth, scripts=folder))
    with mode.judging_program():
        yield mode.located


@contextmanager
def _own_work() -> Iterator[None]:
    """Within the context, this module can make calls of its own: the program's dispatch modes, inference mode and
    autograd do not apply to them."""
    with without_modes(), torch.inference_mode(False), torch.no_grad():
        yield


def _no_reading(tensors: list[torch.Tensor]) -> str:
    """Returns the reason why the elements of one of the tensors cannot be read from its storage; an empty text if all
    can be read."""
    kind = without_elements(tensors)
    return f"a {kind} tensor, which has no elements" if kind else not_strided(tensors)
