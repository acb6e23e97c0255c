"""What a process that runs items is told by the controller."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from conformance.items import Item


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """What a worker needs to run items."""

    device: str
    descriptor: str | None
    results: str
    samples: int
    manifest: str | None  # its text: the machine that a worker runs on need not have the file
    reference_cache: bool
    torch_build: str
    deadline: float | None  # time.time() after which no item starts
    items: list[Item]  # in the order in which to run them
    last: list[Item]  # expected to crash or hang: they run last, alone
    plan: str
    cell_timeout: float | None  # seconds that any cell may take, instead of the plan's limits
    machine: dict[str, str]  # what every worker's must be: see conformance/machine.py

    def text(self) -> str:
        """As JSON: what a worker is sent, wherever it runs."""
        return msgspec.json.encode({f: getattr(self, f) for f in self.__slots__}).decode()

    @classmethod
    def read(cls, text: str) -> WorkerOrders:
        data = msgspec.json.decode(text)
        for name in ("items", "last"):
            data[name] = [Item(*each) for each in data[name]]
        return cls(**data)
