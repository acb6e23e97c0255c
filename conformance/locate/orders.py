"""The orders for the process of a program: how it is run and judged. The module does not import torch."""

from __future__ import annotations

import msgspec


class Orders(msgspec.Struct, frozen=True):
    """How a program is run and judged. Paths are absolute; an empty path means that the file is not written."""

    device: str
    descriptor: str
    located: str
    journal: str
    scripts: str
    trace: str = ""
    command: str = ""
    window: int = 1
    phase: int = 0
    limit: int = 0
    seed: int = 0
    growth: bool = True
    same_random: bool = False
    default_device: bool = False
    instead_of: str = ""
