"""What the descriptor declares of a device, and what a device says of itself and of its neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import failure_of
from devices.descriptor import DTYPES
from devices.errors import in_a_line
from devices.failure import Kind

cases = Cases(Kind.STATE)


def _values(dtype: torch.dtype) -> torch.Tensor:
    """Ones, and zeros if the dtype has one: every dtype holds them exactly."""
    ones = torch.tensor([1.0, 1.0, 1.0, 1.0])
    if dtype == torch.float8_e8m0fnu:  # only powers of two
        return ones
    return ones * torch.tensor([0.0, 1.0, 0.0, 1.0])


def _each(
    context: Context, dtypes: Iterable[torch.dtype], wrong: Callable[[torch.dtype], str | None]
) -> Iterator[tuple[str, str | None, Exception | None]]:
    """For each dtype: its name, what is wrong with it by ``wrong``, or what was raised."""
    for dtype in dtypes:
        problem, raised = None, None
        try:
            with warnings.catch_warnings():
                # that a dtype is experimental, or its imaginary part goes
                warnings.simplefilter("ignore")
                problem = wrong(dtype)
                context.settle()
        except Exception as error:  # judged by the caller, of whatever type
            raised = error
            with suppress(Exception):  # what else was queued, and fails later
                context.settle()
        context.checks += 1
        yield str(dtype).removeprefix("torch."), problem, raised


def _each_declared(context: Context, text: str, wrong: Callable[[torch.dtype], str | None]) -> None:
    """Check every declared dtype with ``wrong``, which returns what is wrong with it."""
    declared = (getattr(torch, name) for name in sorted(context.descriptor.dtypes))
    found = {
        name: failure_of(raised).detail if raised else problem
        for name, problem, raised in _each(context, declared, wrong)
        if problem or raised
    }
    context.check(not found, text, found=found)


def _converted(context: Context, dtype: torch.dtype) -> str | None:
    """What is wrong with values that are converted from float32 to a dtype and back, on the device; also with the
    dtype between."""
    want = _values(dtype)
    there = context.to_device(want).to(dtype)
    back = context.from_device(there.to(torch.float32))
    if there.dtype != dtype:
        return f"to({dtype}) gave {there.dtype}"
    return None if torch.equal(back, want) else f"{want.tolist()} became {back.tolist()}"


@cases("device.capability")
def allocates(context: Context) -> None:
    """Each declared dtype allocates."""

    def wrong(dtype: torch.dtype) -> str | None:
        made = torch.empty(2, 3, dtype=dtype, device=context.device)
        form = (made.dtype, tuple(made.shape), made.device.type)
        return None if form == (dtype, (2, 3), context.kind) else f"torch.empty gave {form}"

    _each_declared(context, "each declared dtype allocates", wrong)


@cases("device.capability")
def moves(context: Context) -> None:
    """Each declared dtype goes to the device and back, bit for bit."""

    def wrong(dtype: torch.dtype) -> str | None:
        host = _values(dtype).to(dtype)
        back = context.from_device(context.to_device(host))
        same = back.dtype == dtype and torch.equal(back.view(torch.uint8), host.view(torch.uint8))
        return None if same else "different bytes came back"

    _each_declared(context, "each declared dtype goes to the device and back", wrong)


@cases("device.capability")
def converts(context: Context) -> None:
    """Each declared dtype converts from float32 and to it, on the device."""
    text = "each declared dtype converts from float32 and back"
    _each_declared(context, text, partial(_converted, context))


@cases("device.capability")
def says_so(context: Context) -> None:
    """What torch.accelerator says of the device's dtypes has those that are declared."""
    declared = {getattr(torch, name) for name in context.descriptor.dtypes}
    if not context.accelerated:
        context.check(declared, "dtypes are declared")
        return
    for index in context.indices:
        try:
            said = torch.accelerator.get_device_capability(context.at(index))["supported_dtypes"]
        except RuntimeError as error:  # torch's, where a backend does not implement this hook
            context.note(f"torch.accelerator does not know its dtypes: {in_a_line(error)}")
            said = declared
        missing = sorted(map(str, declared - set(said)))
        context.same(missing, [], "every declared dtype is in supported_dtypes")


@cases("device.capability")
def waits(context: Context) -> None:
    """``synchronize`` of the device's module returns, if the module has it."""
    wait = getattr(getattr(torch, context.descriptor.torch_type, None), "synchronize", None)
    raised = ""
    try:
        if wait is not None:
            wait()
    except Exception as error:
        raised = f"it {failure_of(error).detail}"
    context.check(not raised, "synchronize of the device's module returns", found=raised)


@cases("device.capability")
def undeclared(context: Context) -> None:
    """An undeclared dtype raises, or converts rightly; what works is reported."""
    others = sorted(DTYPES - context.descriptor.dtypes)
    known = (getattr(torch, name) for name in others if hasattr(torch, name))  # not a newer torch's
    found = {
        name: problem
        for name, problem, raised in _each(context, known, partial(_converted, context))
        if raised is None
    }
    wrong = {name: problem for name, problem in found.items() if problem}
    context.check(not wrong, "an undeclared dtype raises, or converts correctly", found=wrong)
    if found:
        context.note(f"works undeclared: {', '.join(found)}")


_BLOCK = 8 * 2**20


def _uuid(properties: Any) -> bytes:
    """The 16 bytes of a uuid, from any class: with ``bytes`` of its own, or text."""
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
        context.check(isinstance(first, str) and first.strip(), "the name is a string", found=first)
        context.same(second, first, "the name is the same at every call")


@cases("device.properties")
def total_memory(context: Context) -> None:
    """The total memory is positive, and stays while memory is taken."""
    for index in context.indices:
        before = context.own("properties")(index).total_memory
        context.check(isinstance(before, int) and before > 0, "it is positive", found=before)
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
        own = context.own("properties")(index).total_memory
        context.same(own, total, "the properties and get_memory_info give one total")


@cases("device.properties")
def uuid(context: Context) -> None:
    """The uuid has 16 bytes, not all of them zero, and is the same at every call."""
    for index in context.indices:
        first, second = (_uuid(context.own("properties")(index)) for _ in range(2))
        context.same(len(first), 16, "a uuid has 16 bytes")
        context.check(any(first), "a uuid is not zero")
        context.same(second, first, "a uuid is the same at every call")


@cases("device.properties", indices=2)
def uuids_differ(context: Context) -> None:
    """No two indices have one uuid."""
    found = [_uuid(context.own("properties")(index)) for index in context.indices]
    context.same(len(set(found)), len(found), "each index has a different uuid")


@cases("device.peers", indices=2)
def answers(context: Context) -> None:
    """Whether an index reads another's memory is answered by True or False, and stays."""
    can = context.own("can_access_peer")
    for here, there in ((0, 1), (1, 0)):
        answer = can(here, there)
        context.check(isinstance(answer, bool), "the answer is a bool", found=answer)
        context.same(can(here, there), answer, "the answer is unchanged")


@cases("device.peers", indices=2, over={"up": (0, 1), "down": (1, 0)})
def copies(context: Context, here: int, there: int) -> None:
    """Copies from one index to another are right, whatever can_access_peer answers."""
    numbers = torch.arange(24, dtype=torch.float32)
    sources = {
        "contiguous": numbers,
        "integers": torch.arange(-5, 5),
        "nothing": torch.empty(0),
        "a scalar": torch.tensor(7.5),
        "many": torch.arange(300_000),
    }
    if context.has("strides"):
        sources["transposed"], sources["stepped"] = numbers.view(4, 6).t(), numbers[3::5]
        sources["expanded"] = numbers[:3].view(3, 1).expand(3, 4)
    for text, host in sources.items():
        base = host.to(context.at(here))
        context.equal(base.to(context.at(there)), host, f"to(), {text}")
        target = torch.zeros(host.shape, dtype=host.dtype, device=context.at(there))
        context.equal(target.copy_(base), host, f"copy_, {text}")
        context.equal(base, host, f"the source is as before, {text}")


@cases("device.peers", indices=2, requires={"strides"})
def into_a_view(context: Context) -> None:
    """A copy from another index into a view writes only that view, and converts."""
    target = torch.zeros(12, device=context.at(1))
    source = torch.arange(1, 5, device=context.at(0))
    target[1::3].copy_(source)
    want = torch.zeros(12)
    want[1::3] = torch.arange(1.0, 5.0)
    context.equal(target, want, "a copy into a view, int64 to float32")


@cases("device.peers", indices=2)
def there_and_back(context: Context) -> None:
    """A round trip over both indices gives the same, with work before and after it."""
    host = torch.arange(1000, dtype=torch.float32)
    x = (host.to(context.at(0)) + 1).to(context.at(1))
    x = (x * 2).to(context.at(0)) - 3
    context.equal(x, (host + 1) * 2 - 3, "a round trip")
