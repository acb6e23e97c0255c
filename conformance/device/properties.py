"""device.properties and device.peers: what a device says of itself and of its neighbours."""

from __future__ import annotations

from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()

_BLOCK = 8 * 2**20


def _uuid(properties: Any) -> bytes:
    """The 16 bytes of a uuid, in whichever class it comes: ``bytes`` of its own, or text."""
    value = properties.uuid
    raw = getattr(value, "bytes", value)
    if isinstance(raw, str):
        return bytes.fromhex(raw.removeprefix("GPU-").replace("-", ""))
    return bytes(raw)


@cases("device.properties")
def name(context: Context) -> None:
    """The name is a text, the same at every call."""
    for index in context.indices:
        first, second = (context.own("properties")(index).name for _ in range(2))
        context.check(isinstance(first, str) and first.strip(), "the name is a text", got=first)
        context.same(second, first, "the name is the same at every call")


@cases("device.properties")
def total_memory(context: Context) -> None:
    """The total memory is positive, and stays while memory is taken."""
    for index in context.indices:
        before = context.own("properties")(index).total_memory
        context.check(isinstance(before, int) and before > 0, "it is positive", got=before)
        block = context.bytes_of(_BLOCK, index)
        context.must(block.numel() == _BLOCK, "the block was there")
        taken = context.own("properties")(index).total_memory
        context.same(taken, before, f"the total memory stays while {_BLOCK} bytes are taken")
        del block
        context.same(
            context.own("properties")(index).total_memory, before, "and when they are free"
        )


@cases("device.properties", requires={"allocator_memory_info"})
def total_is_one(context: Context) -> None:
    """The total memory of the properties is that of get_memory_info."""
    for index in context.indices:
        _, total = torch.accelerator.memory.get_memory_info(context.at(index))
        context.same(
            context.own("properties")(index).total_memory,
            total,
            "the properties and get_memory_info give one total",
        )


@cases("device.properties")
def uuid(context: Context) -> None:
    """The uuid has 16 bytes, not all nought, and is the same at every call."""
    for index in context.indices:
        first, second = (_uuid(context.own("properties")(index)) for _ in range(2))
        context.same(len(first), 16, "a uuid has 16 bytes")
        context.check(any(first), "a uuid is not nought")
        context.same(second, first, "a uuid is the same at every call")


@cases("device.properties", indices=2)
def uuids_differ(context: Context) -> None:
    """No two indices have one uuid."""
    found = [_uuid(context.own("properties")(index)) for index in context.indices]
    context.same(len(set(found)), len(found), "each index has a uuid of its own")


@cases("device.peers", indices=2)
def answers(context: Context) -> None:
    """Whether an index reads another's memory is answered by True or False, and stays."""
    can = context.own("can_access_peer")
    for here, there in ((0, 1), (1, 0)):
        answer = can(here, there)
        context.check(isinstance(answer, bool), "the answer is a bool", got=answer)
        context.same(can(here, there), answer, "the answer stays")


def _sources(context: Context) -> dict[str, torch.Tensor]:
    numbers = torch.arange(24, dtype=torch.float32)
    found = {
        "contiguous": numbers,
        "integers": torch.arange(-5, 5),
        "nothing": torch.empty(0),
        "a scalar": torch.tensor(7.5),
        "many": torch.arange(300_000),
    }
    if context.has("strides"):
        found |= {
            "transposed": numbers.view(4, 6).t(),
            "stepped": numbers[3::5],
            "expanded": numbers[:3].view(3, 1).expand(3, 4),
        }
    return found


@cases("device.peers", indices=2, over={"up": (0, 1), "down": (1, 0)})
def copies(context: Context, here: int, there: int) -> None:
    """Copies from one index to another are right, whatever can_access_peer answers."""
    for text, host in _sources(context).items():
        base = host.to(context.at(here))
        context.equal(base.to(context.at(there)), host, f"to(), {text}")
        target = torch.zeros(host.shape, dtype=host.dtype, device=context.at(there))
        context.equal(target.copy_(base), host, f"copy_, {text}")
        context.equal(base, host, f"the source is as before, {text}")


@cases("device.peers", indices=2, requires={"strides"})
def into_a_view(context: Context) -> None:
    """A copy from another index into a view writes that view alone, and converts."""
    target = torch.zeros(12, device=context.at(1))
    source = torch.arange(1, 5, device=context.at(0))
    target[1::3].copy_(source)
    want = torch.zeros(12)
    want[1::3] = torch.arange(1.0, 5.0)
    context.equal(target, want, "a copy into a view, int64 to float32")


@cases("device.peers", indices=2)
def there_and_back(context: Context) -> None:
    """A round trip over both indices gives the same, with work before and behind it."""
    host = torch.arange(1000, dtype=torch.float32)
    x = (host.to(context.at(0)) + 1).to(context.at(1))
    x = (x * 2).to(context.at(0)) - 3
    context.equal(x, (host + 1) * 2 - 3, "a round trip")
