"""Interpreters that have a second thread from their start on, as a device's driver might give them."""

from __future__ import annotations

import os
from pathlib import Path


def with_thread(folder: Path) -> str:
    """The PYTHONPATH that does it; ``folder`` takes the module that starts the thread."""
    (folder / "sitecustomize.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
