"""A device whose module starts threads when it is imported. Each holds, a twentieth of the time, a lock that calls take."""

import threading
import time
from typing import Any

import strange

_lock = threading.Lock()


def _serve() -> None:
    while True:
        with _lock:
            time.sleep(0.001)
        time.sleep(0.02)


def before(op: Any, args: Any, kwargs: Any) -> None:
    with _lock:
        pass


for _ in range(4):
    threading.Thread(target=_serve, daemon=True).start()
strange.register("busy", before=before)
