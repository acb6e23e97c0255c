"""Which device, and which cells of its plan, a run takes."""

from __future__ import annotations

import torch

from conformance.items import is_case
from conformance.options import Request, matching
from conformance.scale.shard import BadShard, Shard, cells_of
from devices import registry
from devices.cell import CellKey
from devices.descriptor import Descriptor
from devices.errors import ConformError
from opinfo.plan import Plan
from reports.run import load_run


class NothingSelected(ConformError):
    """The selection leaves no cell of the plan."""

    exit_code = 5


def find_descriptor(request: Request) -> Descriptor:
    """The device that was asked for, or the machine's own. Raises UnknownDevice, DescriptorError."""
    if request.descriptor is not None:
        found = registry.load_file(request.descriptor)
        if request.device is not None and request.device != found.name:
            raise ConformError(
                f"--device {request.device} and --descriptor {request.descriptor} disagree: the file "
                f"describes {found.name!r}. Give one of them."
            )
        return found
    if request.device is not None:
        return registry.get(request.device)
    return machines_own()


def machines_own() -> Descriptor:
    """The machine's accelerator, else ``simulated``, else ``cpu``."""
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return registry.default_device(accelerator.type if accelerator else None)


def shard_of(cells: list[CellKey], request: Request) -> list[CellKey]:
    """The cells of the shard that was asked for; all where none was. Raises BadShard, RunError."""
    if request.shard is None:
        if request.shard_times is not None:
            raise BadShard("--shard-times says how to divide the plan: give --shard I/N too")
        return cells
    shard = Shard.parse(request.shard)
    seconds: dict[CellKey, float] = {}
    if request.shard_times is not None:
        seconds = {key: r.seconds for key, r in load_run(request.shard_times).results.items()}
    return cells_of(shard, cells, seconds)


def select(plan: Plan, request: Request, clauses: frozenset[str] | None) -> list[CellKey]:
    """The cells of the plan that the options leave. ``--ops`` and ``--dtypes`` leave cells of ops alone:
    cases are of no op. Raises NothingSelected, BadOption."""
    ops = dtypes = None
    if request.ops is not None:
        ops = matching("--ops", request.ops, {c.op for c in plan.cells if not is_case(c)})
    if request.dtypes is not None:
        dtypes = matching("--dtypes", request.dtypes, {c.dtype for c in plan.cells} - {""})
    selected = [
        c
        for c in plan.cells
        if (ops is None or c.op in ops)
        and (dtypes is None or c.dtype in dtypes)
        and (clauses is None or c.clause in clauses)
    ]
    if not selected:
        chosen = ", ".join(f"{k} {v}" for k, v in request.selection.items()) or "the whole plan"
        raise NothingSelected(
            f"nothing selected: {chosen} leaves no cell of plan {plan.spec.name!r}"
        )
    return selected
