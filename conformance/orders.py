"""What a process that runs items is told: written once by the controller, read by every worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from conformance.items import Item


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """What a worker needs to run items."""

    device: str
    descriptor: str | None
    results: str
    samples: int
    expectations: str | None
    reference_cache: bool
    torch_build: str
    deadline: float | None  # time.time() after which no item starts
    items: list[Item]  # in the order in which to run them

    FILE = ".orders.json"

    def write(self) -> Path:
        path = Path(self.results) / self.FILE
        path.write_bytes(msgspec.json.encode({f: getattr(self, f) for f in self.__slots__}))
        return path

    @classmethod
    def read(cls, path: Path) -> WorkerOrders:
        data = msgspec.json.decode(path.read_bytes())
        data["items"] = [Item(*each) for each in data["items"]]
        return cls(**data)
