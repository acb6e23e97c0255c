"""A device whose runtime ends the process when it is asked for its properties or a generator."""

import os
import signal
from typing import Any

import strange


def before(op: Any, args: Any, kwargs: Any) -> None:
    if op.name() == "aten::frexp.Tensor":
        os.kill(os.getpid(), signal.SIGSEGV)


class Module(strange.Module):
    def get_device_properties(self, device: Any = None) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)

    def get_device_name(self, device: Any = None) -> str:
        os._exit(3)


strange.register("fatal", Module(), before)
