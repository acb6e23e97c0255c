"""The options that ``conform locate`` passes to the process in which the program runs. The module does not import
torch."""

from __future__ import annotations

import msgspec


class Orders(msgspec.Struct, frozen=True):
    """The options with which a program is run and judged. ``located``, ``journal`` and ``trace`` are absolute paths of
    files to write, ``scripts`` that of a folder; for an empty path nothing is written."""

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
