"""Directed checks: plain functions that make a whole check by themselves, with tensors of their own or those of a
sample.

Such a function takes the op, ``move`` (copies a CPU tensor to the device) and ``back`` (copies a device tensor to the
CPU). If it uses a sample, it also takes the sample's ``tensors`` on the CPU and ``arguments`` (a function from tensors
to the call's arguments). Its other parameters are literals. It returns None, a description of what is wrong, or a
measurement, and raises NotApplicable if the check does not apply. It uses only names that a repro script can contain.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch

from conformance.checks.cells import Unread
from conformance.checks.ops.context import NotPlaced, OpContext
from conformance.checks.ops.failures import failed
from conformance.checks.ops.script import (
    NotApplicable,
    NotForThisDevice,
    NotReturned,
    WrongAlready,
    dense,
    function_source,
    inputs_source,
    literal,
    public_name,
    report_check,
    report_end,
    written,
)
from conformance.checks.ops.snippet import list_source, tensor_source
from conformance.checks.repro.script import headed
from devices.cell import CallKey
from devices.failure import Failure
from opinfo.compare import Measured, Wrong, raised
from opinfo.guarded import identity
from opinfo.layouts import known_names
from opinfo.samples import Sample

Check = Callable[..., Wrong | Measured | None]


def run(
    ctx: OpContext,
    clause: str,
    layout: str,
    check: Check,
    number: int = 0,
    *,
    sample: Sample | None = None,
    inplace: bool = False,
    cpu_first: bool = False,
    **parameters: Any,
) -> bool:
    """Makes one directed check (a function that makes a whole check by itself) of a clause, if the clause is selected,
    and records the result under the layout name ``layout``. ``number`` distinguishes checks of the same layout. Returns
    True if the check was made.

    With ``cpu_first``, a call that ended a process is tried on the CPU before it is repeated: the arguments are invented by
    the check, and a device is not to blame for the end of the process if the CPU dies of the same arguments. The check
    must not name a device itself.

    With ``inplace``, the check receives the in-place variant as its op. If the check raises NotImplementedError, the
    device does not implement the op and the cell becomes unsupported.
    """
    assert not layout or layout in known_names(), (
        f"{layout!r} is not a layout name that a manifest may contain"
    )
    record = ctx.recorder.get(clause)
    if record is None:
        return False
    made = DirectedScript(
        ctx, clause, layout, check, number, sample, inplace, parameters, cpu_first
    )
    if not made.may_run():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = check(*made.given(), **parameters)
    except NotApplicable as reason:
        left = isinstance(reason, NotReturned | WrongAlready)
        if left and sample and (why := ctx.asks_undeclared(sample)):
            record.pass_over(why)
        elif isinstance(reason, NotReturned) and (error := reason.__cause__) is not None:
            record.unread = record.unread or Unread.of(error)
        elif isinstance(reason, WrongAlready):
            record.unread = record.unread or Unread(str(reason))
        elif isinstance(reason, NotForThisDevice) and not record.checks:
            record.pass_over(str(reason))
        return False
    except NotImplementedError as exc:
        if layout:
            record.check(number, layout)
        record.refuse(exc)
        return False
    except NotPlaced:
        raise
    except Exception as exc:  # a failure: a check that expects an exception catches it itself
        found = raised(exc)
    finally:
        if sample is not None or not layout:
            # No late exception is lost here, because these checks read their results back.
            ctx.device.let_go()
    if isinstance(found, Measured):
        record.measure(found.ulps, found.at)
        found = found.wrong
    made.found(found)
    return True


@dataclass(frozen=True, slots=True)
class DirectedScript:
    """One directed check of an op (see the module's docstring). Calling the object returns the text of its repro
    script."""

    ctx: OpContext
    clause: str
    layout: str
    check: Check
    number: int = 0
    sample: Sample | None = None
    inplace: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    cpu_first: bool = False  # the arguments are invented, so that the CPU may die of them

    def given(self) -> tuple[Any, ...]:
        """Returns the first arguments of the check: the op, ``move``, ``back``, and the sample's tensors and arguments."""
        device = self.ctx.device
        shared = (self.function, self._move, device.from_device)
        return (*shared, *self._of_sample(device.torch_device))

    def _of_sample(self, device: torch.device) -> tuple[Any, ...]:
        """Returns the sample's tensors and arguments for a device; nothing if the check uses no sample."""
        if (sample := self.sample) is None:
            return ()
        arguments = partial(sample.call.on, device=device)
        return ([tensor.clone() for tensor in sample.tensors], arguments)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copies a tensor to the device. Raises NotPlaced if the copy fails for a dtype that the descriptor does not
        declare."""
        device = self.ctx.device
        try:
            return device.to_device(tensor)
        except Exception as exc:
            placed = NotPlaced(exc, tensor.dtype)
            if placed.dtype in device.descriptor.dtypes:
                raise
            raise placed from exc

    def may_run(self) -> bool:
        """Announces the check to the guard, and returns True if the check may run. Returns False if the check ended its
        process in an earlier attempt, if only the script of the check is wanted, or if the function under test runs
        only on the device, because the check also calls it on the CPU."""
        if not self.ctx.subject.runs_on_cpu:
            self.ctx.recorder.cells[self.clause].pass_over(
                f"{self.check.__name__}() also calls the function under test on the CPU, but the function runs only on the device"
            )
            return False
        number = self.number if self.sample is None else self.sample.index
        call = CallKey(number, f"{self.layout or self.check.__name__}({self.arguments()})")
        guard, clauses = self.ctx.guard, (self.clause,)
        tried = self.cpu_first and self.ctx.makes and self.ctx.device.torch_device.type != "cpu"
        if tried and guard.first_on_cpu(call, clauses):
            self._try_on_cpu()
        if not guard.call(call, clauses):
            return False
        if not self.ctx.makes and self.ctx.scripts is not None:
            self.ctx.scripts.setdefault(self.clause, self)
        return self.ctx.makes

    def _try_on_cpu(self) -> None:
        """Makes the check on the CPU, whatever it finds: it is only seen whether the process survives."""
        given = (self.function, identity, identity, *self._of_sample(torch.device("cpu")))
        with suppress(Exception):
            self.check(*given, **self.parameters)

    def found(self, wrong: Wrong | None) -> None:
        record, sample = self.ctx.recorder.cells[self.clause], self.sample
        if self.layout:
            record.check(self.number, self.layout)
        else:
            record.count(1)
            if sample is not None:
                record.samples.add(sample.index)
        if self.ctx.scripts is not None:
            self.ctx.scripts.setdefault(self.clause, self)
        if wrong is not None:
            size = sample.numel if sample is not None else self.number
            name = self.layout or self.check.__name__
            record.fail(failed(wrong, self.layout, size, self, self.complete, name))

    def until_it_ends(
        self, seconds: float, *, judged: bool = False, failure: Failure | None = None
    ) -> str:
        """Returns the script for a check that did not finish. The script makes the check in a subprocess and reports
        how the process ended. ``seconds`` is the time limit of the subprocess."""
        start = f"main() if sys.argv[1:] else report_end({seconds!r})"
        return self._script([report_end], start, failure)

    def __call__(self, failure: Failure | None = None) -> str:
        """Returns the text of the script. Its first lines show the failure, if it is given."""
        return self._script([], "main()", failure)

    def _script(self, more_functions: list[Any], start: str, failure: Failure | None = None) -> str:
        ctx, op = self.ctx, self.ctx.subject
        functions: list[Any] = [self.check, NotApplicable, report_check, *more_functions]
        lines, more = [f"op = {function_source(op, self.function, functions)}"], ""
        if self.sample is not None:
            functions.append(dense)
            lines += ["", "# The inputs", *inputs_source(self.sample.call, self.sample.tensors)]
            more = "values, lambda t: arguments(t, torch.device(DEVICE)), "
        check = self.check.__name__
        lines += ["", f"report_check({check}, op, move, back, {more}{self.arguments()})"]
        layout = f", layout {self.layout}" if self.layout else ""
        title = f"{self.clause}: {op.id}[{ctx.dtype}]{layout}"
        head = headed(title, self.snippet(), failure)
        return written(ctx, head, lines, functions, start=start)

    def snippet(self) -> list[str]:
        """Returns lines about the check: the tensors of its sample, what it does, and its call."""
        device, lines = str(self.ctx.device.torch_device), []
        if self.sample is not None:
            made = (tensor_source(each, None, device) for each in self.sample.tensors)
            lines += list_source("t", made)
        return [*lines, f"{self.call()}  # see {self.check.__name__}() below"]

    @property
    def function(self) -> Callable[..., Any]:
        """The function that the check receives as the op: the op's function or its in-place variant."""
        function = self.ctx.subject.inplace if self.inplace else self.ctx.subject.function
        assert function is not None
        return function

    def complete(self, failure: Failure) -> Failure:
        sample = self.sample.index if self.sample is not None else None
        return msgspec.structs.replace(failure, sample=sample, call=self.call())

    def arguments(self) -> str:
        return ", ".join(f"{k}={literal(v)}" for k, v in self.parameters.items())

    def call(self) -> str:
        """Returns the check as one line of text, such as ``ignores_input(torch.addmm, shapes=…, poison=…)``."""
        subject = self.ctx.subject
        name = public_name(self.function) or subject.shown_as or subject.id
        return f"{self.check.__name__}({', '.join(filter(None, (name, self.arguments())))})"
