"""Runs a Python program and judges its aten calls: ``python -m conformance.locate.launch ORDERS PROGRAM …``, where
ORDERS is a JSON file with an ``Orders`` structure. ``conform locate`` starts this module in place of the program."""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from conformance.locate.orders import Orders


def launch(orders: Orders, program: list[str]) -> None:
    """Runs a program in this process and judges its aten calls. ``program`` is its command line without ``python``.
    When the program ends, also with an exception, writes the located fault to the file that ``orders`` names."""
    import torch

    from conformance.locate.lock_step import LockStep, Options
    from conformance.locate.redirect import Redirected
    from conformance.locate.traces import Trace, write_trace
    from conformance.locate.wire import write_located
    from conformance.plan.selection import find_descriptor
    from conformance.recordings.launch import run_to_end
    from opinfo.device import open_device

    given = Path(orders.descriptor) if orders.descriptor else None
    device = open_device(find_descriptor(None if given else orders.device, given))
    mode = LockStep(
        device,
        Options(
            window=orders.window,
            phase=orders.phase,
            limit=orders.limit,
            growth=orders.growth,
            trace=bool(orders.trace),
            same_random=orders.same_random,
            scripts=Path(orders.scripts),
            journal=Path(orders.journal),
            located=Path(orders.located),
        ),
    )
    torch.manual_seed(orders.seed)
    random.seed(orders.seed)
    if (numpy := sys.modules.get("numpy")) is not None:  # torch has imported it, if it is installed
        numpy.random.seed(orders.seed % 2**32)

    def finish(ended: str) -> None:
        mode.finish()
        write_located(Path(orders.located), mode.located(ended))
        if orders.trace:
            made = Trace(device.name, str(torch.__version__), orders.command, tuple(mode.trace))
            write_trace(Path(orders.trace), made)

    with ExitStack() as stack:
        if orders.default_device:
            stack.enter_context(torch.device(device.torch_device))
        if orders.instead_of:
            stack.enter_context(Redirected(orders.instead_of, device.torch_device))
        run_to_end(program, mode.judging_program(), finish)


if __name__ == "__main__":
    # The current folder, which python -m adds, is not in the path of a script.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    from devices.errors import ConformError

    try:
        launch(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Orders), sys.argv[2:])
    except ConformError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
