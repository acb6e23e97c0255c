"""What planning has to know of a device, asked in a copy of the fork server's process: the process that plans, judges and
reports never imports the device's module."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from conformance.checks.child import Ended
from conformance.run.fork_client import ForkServer
from devices import registry
from devices.errors import ConformError
from opinfo.device import DeviceUnusable, Survey, open_device

#: Seconds for importing the device's module and a first addition. Some compile as they are imported.
_PATIENCE: Final = 600.0


@cache
def surveyed(server: ForkServer, name: str, path: Path | None) -> Survey:
    """Ask the device of this name, or of the descriptor at this path, once. Raises ConformError, ServerGone."""
    with tempfile.TemporaryDirectory(prefix="conform-") as folder:
        answer, printed = Path(folder, "answer"), Path(folder, "printed")
        code = f"from {__name__} import answer; answer({name!r}, {path and str(path)!r}, {str(answer)!r})"
        reader, writer = os.pipe()
        with printed.open("wb") as output:
            os.write(writer, f"{code!r}\n".encode())
            os.close(writer)
            try:
                process = server.start(reader, output.fileno(), output.fileno())
            finally:
                os.close(reader)
            try:
                ended = Ended(process.wait(_PATIENCE))
            except subprocess.TimeoutExpired:
                process.kill()
                ended = Ended(None, f"had not ended after {_PATIENCE:g} s")
        if not answer.exists():
            ended = Ended(ended.status, ended.late, printed.read_text(errors="replace"))
            raise DeviceUnusable(f"device {name!r}: opening it ended the process, which {ended}")
        found = msgspec.json.decode(answer.read_bytes(), type=Survey)
    if found.error:
        error = DeviceUnusable(found.error)
        error.exit_code = found.exit_code
        raise error
    return found


def answer(name: str, path: str | None, file: str) -> None:
    """In the other process: open the device, and write the survey to a file."""
    try:
        found = Survey.of(open_device(registry.find(name, path)))
    except ConformError as error:
        found = Survey({}, error=str(error), exit_code=error.exit_code)
    Path(file).write_bytes(msgspec.json.encode(found))
