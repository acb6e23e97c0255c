"""A device whose compiler warms up when the module is imported, and again at the first call of each op."""

import os
import time
from typing import Any

import strange

#: Seconds. A minute on the vendor's machine.
IMPORT = float(os.environ.get("STRANGE_IMPORT_SECONDS", "60"))
FIRST = float(os.environ.get("STRANGE_FIRST_SECONDS", "0.5"))

_compiled: set[str] = set()


def before(op: Any, args: Any, kwargs: Any) -> None:
    if op.name() not in _compiled:
        _compiled.add(op.name())
        time.sleep(FIRST)


time.sleep(IMPORT)
strange.register("sleepy", before=before)
