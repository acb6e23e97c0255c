"""A device that reports everything it does on stdout and stderr, and leaves lines open."""

import os
import sys
from typing import Any

import strange


def before(op: Any, args: Any, kwargs: Any) -> None:
    os.write(1, f"[chatty] launch {op.name()} ".encode())


print("chatty runtime 0.1: 1 device(s) found", end="")
print("W1122 chatty: cannot read /etc/chatty.conf", file=sys.stderr)
strange.register("chatty", before=before)
