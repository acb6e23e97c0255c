"""Writes the repro script of one judged call of an op. The script contains the inputs, the call and the judgement, in
this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import msgspec
import torch

import devices.failure
from conformance.checks.ops.calls import Invocation, Judge, Laid, laid_out, repeated
from conformance.checks.ops.evidence import called
from conformance.checks.ops.modes import Mode
from conformance.checks.ops.script import (
    dense,
    function_source,
    inputs_source,
    literal,
    public_name,
    report,
    report_end,
    with_names,
    written,
)
from conformance.checks.ops.snippet import list_source, target_source, tensor_source
from conformance.checks.repro.bundle import Bundle
from conformance.checks.repro.modules import Import
from conformance.checks.repro.script import headed
from devices.failure import Failure
from opinfo.device import Device
from opinfo.guarded import Guarded
from opinfo.layouts import Geometry
from opinfo.subject import Subject


class Setting(Protocol):
    """The attributes of the OpContext that this module uses: the op and its dtype. The function ``written``, which
    receives the same object, uses them too."""

    subject: Subject
    dtype: str
    device: Device


class Expected(Protocol):
    """The attributes of a Reference (the expected result of a call, in named parts) that a script needs: the call's
    inputs, and a method that returns the source code of a part."""

    @property
    def laid(self) -> Laid: ...

    def source(self, name: str) -> tuple[str, tuple[Any, ...]]: ...


@dataclass(frozen=True, slots=True)
class CallScript:
    """One judged call of an op. Calling the object returns the text of the call's repro script."""

    setting: Setting
    clause: str
    judge: Judge
    made: Invocation
    mode: Mode
    procedure: Callable[..., Any]
    given: tuple[Any, ...]  # the procedure's arguments after the call
    reference: Expected
    layout: str

    @property
    def laid(self) -> Laid:
        return self.reference.laid

    @property
    def function(self) -> Callable[..., Any]:
        """The function that is called, without the mode (such as compiled) in which it is executed."""
        return self.made.eager or self.made.function

    def __call__(self, failure: Failure | None = None) -> str:
        """Returns the text of the script. Its first lines show the failure, if it is given."""
        return self._judged([], "main()", failure)

    def _judged(self, functions: list[Any], start: str, failure: Failure | None = None) -> str:
        bundle = Bundle().take([self.judge])
        lines = [*self._call(functions), "", "# The judgement", "reference = SimpleNamespace("]
        for name in sorted(bundle.reads("reference")):
            text, used = self.reference.source(name)
            lines.append(f"    {name}={text},")
            functions += used
        lines += [")", f"report({self.judge.__name__}(evidence, reference))"]
        bundle.add([Import("types", "SimpleNamespace", "SimpleNamespace")])
        head, functions = self._head(failure), [*functions, report]
        return written(self.setting, head, lines, functions, bundle=bundle, start=start)

    def until_it_ends(
        self, seconds: float, *, judged: bool = False, failure: Failure | None = None
    ) -> str:
        """Returns the script for a call that did not finish. The script makes the call in a subprocess, also judges the
        result if ``judged``, and reports how the process ended. ``seconds`` is the time limit of the subprocess."""
        start = f"main() if sys.argv[1:] else report_end({seconds!r})"
        if judged:
            return self._judged([report_end], start, failure)
        functions: list[Any] = []
        lines = self._call(functions)
        head = self._head(failure)
        return written(self.setting, head, lines, [*functions, report_end], start=start)

    def _head(self, failure: Failure | None = None) -> str:
        title = (
            f"{self.clause}: {self.setting.subject.id}[{self.setting.dtype}], layout {self.layout}"
        )
        return headed(title, self.snippet(), failure)

    def snippet(self) -> list[str]:
        """Returns the lines of Python that make the tensors and the call, to be pasted into a bug report."""
        device, laid = str(self.made.device), self.laid
        needed = self.setting.device.descriptor.module
        lines = ["import torch", *([f"import {needed}"] if needed else []), ""]
        values = repeated(laid.sample.tensors, laid.geometries)
        laid_out = zip(values, laid.geometries, laid.inputs, strict=True)
        lines += list_source(
            "t",
            (
                tensor_source(tensor, geometry if isinstance(each, Guarded) else None, device)
                for tensor, geometry, each in laid_out
            ),
        )
        call = self.call().partition(", as ")[0].replace("torch.device(DEVICE)", repr(device))
        call = call.replace("device=device", f'device="{device}"')
        targets = [target_source(dtype, each, device) for dtype, each in self._targets()]
        if targets and "out=…" in call:
            several = len(targets) > 1
            lines.append(f"out = ({', '.join(targets)})" if several else f"out = {targets[0]}")
            call = call.replace("out=…", "out=out")
        comments = []
        if self.mode.wrap is not None:
            comments.append(f"executed as {self.mode.source('op')[0]}")
        if self.procedure.__module__ != called.__module__:  # it does more than one call
            comments.append(f"the check makes more calls: see {self.procedure.__name__}() below")
        return [*lines, f"{call}  # {', '.join(comments)}" if comments else call]

    def _targets(self) -> list[tuple[torch.dtype, Geometry]]:
        """Returns the dtype and geometry of each ``out=`` target."""
        return [
            (dtype, each)
            for specs in self.given
            for dtype, each in (specs if isinstance(specs, list) else ())
            if isinstance(each, Geometry)
        ]

    def _call(self, functions: list[Any]) -> list[str]:
        """Returns the lines of the script that create the inputs and make the call. Adds the functions that these lines
        use to the list ``functions``."""
        functions += [self.procedure, Invocation, laid_out, dense]
        laid = self.laid
        geometries = [
            geometry if isinstance(each, Guarded) else None
            for geometry, each in zip(laid.geometries, laid.inputs, strict=True)
        ]
        functions += [Geometry] if any(geometries) else []
        functions += classes_in(self.given)
        op = function_source(self.setting.subject, self.setting.subject.function, functions)
        function = "op"
        if self.function is not self.setting.subject.function:
            function = function_source(self.setting.subject, self.function, functions)
        executed, used = self.mode.source(function)
        functions += used
        given = "".join(f", {literal(each)}" for each in self.given)
        declared, inputs = "", "laid_out(values, geometries, move)"
        if self.made.guarded is not Guarded:
            functions.append(self.made.guarded)
            declared = f" {self.made.guarded.__name__},"
            inputs = f"laid_out(values, geometries, move,{declared[:-1]})"
        for name in ("storage", "pointers", "strides"):
            declared += "" if getattr(self.made, name) else f" {name}=False,"
        declared += "" if self.made.eager is None else f" eager={function},"
        lines = [f"op = {op}"]
        if (reference := self.setting.subject.reference) is not self.setting.subject.function:
            source = function_source(self.setting.subject, reference, functions)
            lines.append(f"reference_op = {source}")
        return [
            *lines,
            "",
            "# The inputs",
            *inputs_source(laid.sample.call, laid.sample.tensors),
            "geometries = [",
            *(f"    {each!r}," for each in geometries),
            "]",
            "",
            "# The call",
            "call = Invocation(",
            f"    {executed}, arguments, values, {inputs},",
            f"    torch.device(DEVICE), move, back, settle,{declared}",
            ")",
            f"evidence = {self.procedure.__name__}(call{given})",
        ]

    def complete(self, failure: Failure) -> Failure:
        """Returns the failure with its call added, and with the geometries (shape, strides and offset) of the call's
        inputs and ``out=`` targets."""
        laid = self.laid
        inputs = zip(laid.sample.tensors, laid.geometries, strict=True)
        return msgspec.structs.replace(
            failure,
            sample=laid.sample.index,
            call=self.call(),
            inputs=tuple(_geometry_of(tensor.dtype, each) for tensor, each in inputs),
            targets=tuple(_geometry_of(dtype, each) for dtype, each in self._targets()),
        )

    def call(self) -> str:
        """Returns the call as one line of text, such as ``torch.median(t[0], 0, out=…)``."""
        args, kwargs = with_names(self.laid.sample.call)
        parts = [literal(each) for each in args]
        parts += [f"{name}={literal(value)}" for name, value in kwargs.items()]
        if self.layout.startswith("out="):
            parts.append("out=…")
        variant = getattr(self.reference, "variant", "")
        of = f", as {variant}" if variant else ""
        subject = self.setting.subject
        name = public_name(self.function) or subject.shown_as or subject.id
        return f"{name}({', '.join(parts)}){of}"


def classes_in(given: Any) -> list[type]:
    """Returns this project's dataclasses whose instances appear in ``given``, because a script must define these
    classes."""
    if isinstance(given, (tuple, list)):
        return [found for each in given for found in classes_in(each)]
    if not is_dataclass(given) or isinstance(given, type):
        return []
    inner = [getattr(given, each.name) for each in fields(given)]
    return [*classes_in(inner), type(given)]


def _geometry_of(dtype: torch.dtype, each: Geometry) -> devices.failure.Geometry:
    return devices.failure.Geometry(str(dtype)[6:], each.shape, each.stride, each.offset)
