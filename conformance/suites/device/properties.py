"""Cases about the dtypes that the descriptor declares, the properties that the device reports, and copies
between devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import failure_of
from devices.descriptor import DTYPES
from devices.errors import in_a_line
from devices.failure import Kind

cases = Cases(Kind.STATE)


def _values(dtype: torch.dtype) -> torch.Tensor:
    """Returns a CPU tensor of ones and, if the dtype can represent zero, also zeros. The values are exact in the
    dtype."""
    ones = torch.tensor([1.0, 1.0, 1.0, 1.0])
    if dtype == torch.float8_e8m0fnu:  # represents only powers of two
        return ones
    return ones * torch.tensor([0.0, 1.0, 0.0, 1.0])


def _each(
    context: CaseContext, dtypes: Iterable[torch.dtype], wrong: Callable[[torch.dtype], str | None]
) -> Iterator[tuple[str, str | None, Exception | None]]:
    """Calls ``wrong`` for each dtype. Yields the name of the dtype, the problem that ``wrong`` returned (or None), and
    the exception that ``wrong`` raised (or None)."""
    for dtype in dtypes:
        problem, raised = None, None
        try:
            with warnings.catch_warnings():
                # the dtype is experimental, or the imaginary part is discarded
                warnings.simplefilter("ignore")
                problem = wrong(dtype)
                context.settle()
        except Exception as error:  # the caller judges exceptions of every type
            raised = error
            with suppress(Exception):  # errors of other queued work
                context.settle()
        context.checks += 1
        yield str(dtype).removeprefix("torch."), problem, raised


def _each_declared(
    context: CaseContext, text: str, wrong: Callable[[torch.dtype], str | None]
) -> None:
    """Checks every declared dtype with ``wrong``, which returns a problem or None. ``text`` is the message of
    the failure if problems were found."""
    declared = (getattr(torch, name) for name in sorted(context.descriptor.dtypes))
    found = {
        name: failure_of(raised).detail if raised else problem
        for name, problem, raised in _each(context, declared, wrong)
        if problem or raised
    }
    context.check(not found, text, found=found)


def _converted(context: CaseContext, dtype: torch.dtype) -> str | None:
    """Converts values from float32 to a dtype and back on the device. Returns a description of the problem, or
    None."""
    want = _values(dtype)
    there = context.to_device(want).to(dtype)
    back = context.from_device(there.to(torch.float32))
    if there.dtype != dtype:
        return f"to({dtype}) gave {there.dtype}"
    return None if torch.equal(back, want) else f"{want.tolist()} became {back.tolist()}"


@cases("device.capability")
def allocates(context: CaseContext) -> None:
    """torch.empty works on the device for each dtype that the descriptor declares."""

    def wrong(dtype: torch.dtype) -> str | None:
        made = torch.empty(2, 3, dtype=dtype, device=context.device)
        form = (made.dtype, tuple(made.shape), made.device.type)
        return None if form == (dtype, (2, 3), context.kind) else f"torch.empty gave {form}"

    _each_declared(context, "torch.empty failed for declared dtypes", wrong)


@cases("device.capability")
def moves(context: CaseContext) -> None:
    """For each declared dtype, a tensor is copied to the device and back. The bytes of the copy equal those of
    the tensor."""

    def wrong(dtype: torch.dtype) -> str | None:
        host = _values(dtype).to(dtype)
        back = context.from_device(context.to_device(host))
        same = back.dtype == dtype and torch.equal(back.view(torch.uint8), host.view(torch.uint8))
        return None if same else "the bytes changed"

    _each_declared(context, "a copy to the device and back failed for declared dtypes", wrong)


@cases("device.capability")
def converts(context: CaseContext) -> None:
    """For each declared dtype, values are converted from float32 to the dtype and back on the device. The
    values are unchanged."""
    text = "conversion from float32 and back failed for declared dtypes"
    _each_declared(context, text, partial(_converted, context))


@cases("device.capability")
def says_so(context: CaseContext) -> None:
    """torch.accelerator.get_device_capability reports every declared dtype in its supported_dtypes. If it reports others,
    they work as well."""
    declared = {getattr(torch, name) for name in context.descriptor.dtypes}
    if not context.accelerated:
        context.check(declared, "the descriptor declares no dtypes")
        return
    for index in context.indices:
        try:
            said = torch.accelerator.get_device_capability(context.at(index))["supported_dtypes"]
        except RuntimeError as error:  # torch raises it if the backend does not implement this hook
            context.note(f"get_device_capability is not available: {in_a_line(error)}")
            said = declared
        missing = sorted(map(str, declared - set(said)))
        context.same(missing, [], "supported_dtypes lacks declared dtypes")
        more = sorted(set(said) - declared, key=str)
        unusable = {
            name: failure_of(raised).detail if raised else problem
            for name, problem, raised in _each(context, more, partial(_converted, context))
            if problem or raised
        }
        text = "supported_dtypes has dtypes to which float32 cannot be converted on the device"
        context.same(unusable, {}, text)


@cases("device.capability")
def waits(context: CaseContext) -> None:
    """The ``synchronize`` function of the device's module returns without an error, if the module has such a
    function."""
    wait = getattr(getattr(torch, context.descriptor.torch_type, None), "synchronize", None)
    raised = ""
    try:
        if wait is not None:
            wait()
    except Exception as error:
        raised = failure_of(error).detail
    context.check(
        not raised, "synchronize of the device's module raised an exception", found=raised
    )


@cases("device.capability")
def undeclared(context: CaseContext) -> None:
    """Converting to a dtype that the descriptor does not declare raises an error or gives the right values.
    Undeclared dtypes that work are reported."""
    others = sorted(DTYPES - context.descriptor.dtypes)
    known = (getattr(torch, name) for name in others if hasattr(torch, name))  # older torch
    found = {
        name: problem
        for name, problem, raised in _each(context, known, partial(_converted, context))
        if raised is None
    }
    wrong = {name: problem for name, problem in found.items() if problem}
    context.check(
        not wrong,
        "conversion to an undeclared dtype gave wrong values instead of an exception",
        found=wrong,
    )
    if found:
        context.note(f"dtypes that work although they are not declared: {', '.join(found)}")


_BLOCK = 8 * 2**20


def _uuid(properties: Any) -> bytes:
    """Returns the 16 bytes of the uuid in a device's properties. The uuid may be an object with an attribute
    ``bytes``, a sequence of bytes, or a string."""
    value = properties.uuid
    raw = getattr(value, "bytes", value)
    if isinstance(raw, str):
        return bytes.fromhex(raw.removeprefix("GPU-").replace("-", ""))
    return bytes(raw)


@cases("device.properties")
def name(context: CaseContext) -> None:
    """The name in the device's properties is a non-empty string and the same at every call."""
    for index in context.indices:
        first, second = (context.own("properties")(index).name for _ in range(2))
        context.check(
            isinstance(first, str) and first.strip(),
            "the name is not a non-empty string",
            found=first,
        )
        context.same(second, first, "the name differs between two calls")


@cases("device.properties")
def total_memory(context: CaseContext) -> None:
    """The total memory in the device's properties is positive, and stays the same when a block is allocated and
    freed."""
    for index in context.indices:
        before = context.own("properties")(index).total_memory
        context.check(
            isinstance(before, int) and before > 0,
            "the total memory is not a positive integer",
            found=before,
        )
        block = context.bytes_of(_BLOCK, index)
        context.must(block.numel() == _BLOCK, "the block does not have the requested size")
        taken = context.own("properties")(index).total_memory
        context.same(taken, before, f"the total memory changed while {_BLOCK} bytes were allocated")
        del block
        context.same(
            context.own("properties")(index).total_memory,
            before,
            "the total memory changed after the block was freed",
        )


@cases("device.properties", requires={"allocator_memory_info"})
def total_is_one(context: CaseContext) -> None:
    """The total memory in the device's properties equals the total of
    torch.accelerator.memory.get_memory_info."""
    for index in context.indices:
        _, total = torch.accelerator.memory.get_memory_info(context.at(index))
        own = context.own("properties")(index).total_memory
        context.same(
            own, total, "total_memory of the properties differs from the total of get_memory_info"
        )


@cases("device.properties")
def uuid(context: CaseContext) -> None:
    """The uuid in the device's properties has 16 bytes, is not zero, and is the same at every call."""
    for index in context.indices:
        first, second = (_uuid(context.own("properties")(index)) for _ in range(2))
        context.same(len(first), 16, "the uuid does not have 16 bytes")
        context.check(any(first), "the uuid is zero")
        context.same(second, first, "the uuid differs between two calls")


@cases("device.properties", indices=2)
def uuids_differ(context: CaseContext) -> None:
    """Different device indices have different uuids."""
    found = [_uuid(context.own("properties")(index)) for index in context.indices]
    context.same(
        len(set(found)),
        len(found),
        "some device indices have the same uuid: fewer uuids are distinct than there are indices",
    )


@cases("device.peers", indices=2)
def answers(context: CaseContext) -> None:
    """can_access_peer for two device indices returns a bool, and the same bool at every call."""
    can = context.own("can_access_peer")
    for here, there in ((0, 1), (1, 0)):
        answer = can(here, there)
        context.check(
            isinstance(answer, bool), "can_access_peer did not return a bool", found=answer
        )
        context.same(
            can(here, there), answer, "can_access_peer returned different values in two calls"
        )


@cases("device.peers", indices=2, over={"up": (0, 1), "down": (1, 0)})
def copies(context: CaseContext, here: int, there: int) -> None:
    """Tensors of several layouts, dtypes and sizes are copied from one device index to another with to() and
    copy_(). The copied values are right, whatever can_access_peer returns, and the source is unchanged."""
    numbers = torch.arange(24, dtype=torch.float32)
    sources = {
        "contiguous": numbers,
        "integers": torch.arange(-5, 5),
        "no elements": torch.empty(0),
        "a scalar": torch.tensor(7.5),
        "many elements": torch.arange(300_000),
    }
    if context.has("strides"):
        sources["transposed"], sources["stepped"] = numbers.view(4, 6).t(), numbers[3::5]
        sources["expanded"] = numbers[:3].view(3, 1).expand(3, 4)
    for text, host in sources.items():
        base = host.to(context.at(here))
        context.equal(
            base.to(context.at(there)), host, f"to() to another index gave wrong values ({text})"
        )
        target = torch.zeros(host.shape, dtype=host.dtype, device=context.at(there))
        context.equal(
            target.copy_(base), host, f"copy_() from another index gave wrong values ({text})"
        )
        context.equal(base, host, f"a copy to another index changed its source ({text})")


@cases("device.peers", indices=2, requires={"strides"})
def into_a_view(context: CaseContext) -> None:
    """A tensor is copied into a view of another dtype on another device index. The values are converted, and
    only the elements of the view change."""
    target = torch.zeros(12, device=context.at(1))
    source = torch.arange(1, 5, device=context.at(0))
    target[1::3].copy_(source)
    want = torch.zeros(12)
    want[1::3] = torch.arange(1.0, 5.0)
    context.equal(
        target,
        want,
        "a copy of int64 values into a float32 view on another index left wrong values",
    )


@cases("device.peers", indices=2)
def there_and_back(context: CaseContext) -> None:
    """A tensor is computed on one device index, moved to the other index, computed there and moved back. The
    result is right."""
    host = torch.arange(1000, dtype=torch.float32)
    x = (host.to(context.at(0)) + 1).to(context.at(1))
    x = (x * 2).to(context.at(0)) - 3
    context.equal(
        x, (host + 1) * 2 - 3, "computing on two device indices in turn gave a wrong result"
    )
