"""Directed checks: made on tensors of their own, each a plain function whose source is its repro.

Such a function takes the op, ``move`` (CPU tensor to device), ``back`` (device tensor to CPU) and literal
parameters; it returns what is wrong, or None. It may name nothing but torch and builtins, so that its
source text runs on its own.
"""

from __future__ import annotations

import inspect
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.cells import CellRecord, Failure
from conformance.layout import repro
from conformance.layout.context import ItemContext

Check = Callable[..., str | None]


#: What a check returns when its premise does not hold for this op or dtype: nothing was checked.
NOT_APPLICABLE = "not applicable"


def run(
    ctx: ItemContext,
    record: CellRecord,
    layout: str,
    check: Check,
    number: int = 0,
    *,
    inplace: bool = False,
    **parameters: Any,
) -> None:
    """Run one directed check under the layout name ``layout``; ``number`` tells its cases apart.

    With ``inplace`` the check is given the in-place variant as its op.
    """
    function = ctx.op.inplace if inplace else ctx.op.function
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = check(function, ctx.device.to_device, ctx.device.from_device, **parameters)
        raises = None
    except NotImplementedError as exc:
        record.check(number, layout)
        record.refuse(exc)
        return
    except Exception as exc:  # judged: a check that expects an exception catches it itself
        line = (str(exc).strip().splitlines() or [""])[0][:300]
        problem, raises = f"raised {type(exc).__name__}: {line}", type(exc).__name__
    if problem == NOT_APPLICABLE:
        return
    record.check(number, layout)
    if problem is not None:
        record.fail(
            Failure(
                layout,
                problem,
                raises=raises,
                size=number,
                repro=DirectedScript(ctx, record.key.clause, layout, check, inplace, parameters),
            )
        )


@dataclass(frozen=True, slots=True)
class DirectedScript:
    """Writes the script of one failing directed check when it is called; says which one that was."""

    ctx: ItemContext
    clause: str
    layout: str
    check: Check
    inplace: bool
    parameters: dict[str, Any]

    def __call__(self) -> str:
        source = textwrap.dedent(inspect.getsource(self.check)).replace(": Any", "")
        source = source.replace(" -> str | None", "")
        arguments = self.arguments()
        body = f"{repro.method_source(self.ctx)}\nop = method\n\n\n" if self.inplace else ""
        body += (
            "def move(tensor):\n    return tensor.to(DEVICE)\n\n\n"
            "def back(tensor):\n    return tensor.cpu()\n\n\n"
            f"{source}\n\n"
            f"CHECK = lambda: {self.check.__name__}(op, move, back, {arguments})\n"
        )
        return repro.script(
            self.ctx, self.layout, "directed", body.splitlines(), clause=self.clause
        )

    def arguments(self) -> str:
        return ", ".join(f"{k}={repro.literal(v, self.ctx)}" for k, v in self.parameters.items())

    def call(self) -> str:
        """The check in one line: ``ignores_input(torch.addmm, shapes=…, poison=…)``."""
        function = self.ctx.op.inplace if self.inplace else self.ctx.op.function
        name = (repro.public_name(function) if function else None) or self.ctx.op.id
        return f"{self.check.__name__}({', '.join(filter(None, (name, self.arguments())))})"
