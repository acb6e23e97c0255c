"""dispatch.error_inputs: the error inputs of torch's database raise the documented type, or a subclass.

Whether the message is the documented one is reported, and not judged. Assertions on the device are not judged here:
a device that declares them is not given an error which says that an index or a value is out of its range, and which
meta tensors, that have no values, do not meet.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from conformance.dispatch import calls
from conformance.layout.context import ItemContext
from opinfo.catalog import catalogue
from opinfo.structure import replace_tensors
from opinfo.traits import Traits

CLAUSE = "dispatch.error_inputs"


def applies(traits: Traits) -> bool:
    """Ops with error inputs, once: these have dtypes of their own."""
    return catalogue()[traits.op].has_error_inputs and calls.once(traits)


def check(ctx: ItemContext) -> None:
    """Every error input, generated for this device."""
    with ctx.running(CLAUSE) as (record,):
        if record is None:
            return
        device, left_out, unlike = str(ctx.device.torch_device), 0, []
        asserts = "device_assert" in ctx.device.descriptor.capabilities
        for number, given in enumerate(ctx.op.error_inputs(device)):
            if asserts and is_assertion(ctx.op.function, given):
                left_out += 1
                continue
            try:
                problem, said = told(ctx.op.function, given)
            except NotImplementedError as exc:
                record.refuse(exc)
                continue
            where: dict[str, Any] = {"id": ctx.op.id, "number": number, "device": device}
            calls.told(ctx, record, raises, None, problem, **where)
            if said:
                unlike.append(said)
        if unlike:
            record.note(f"{len(unlike)} messages are not the documented ones: {unlike[0]}")
        if left_out:
            record.note(
                f"{left_out} errors depend on values, and are left to assertions on the device"
            )


def raises(op: Any, move: Any, back: Any, id: Any, number: Any, device: Any) -> str | None:
    problem: str | None = told(op, list(error_inputs(id, device))[number])[0]
    return problem


def error_inputs(id: Any, device: Any) -> Any:
    """The error inputs of an op, in order."""
    return catalogue()[id].error_inputs(device)


#: The same in a script, which has no catalogue.
_ERROR_INPUTS = '''\
# The error inputs come from torch's database, which needs the package expecttest.
from torch.testing._internal.common_methods_invocations import op_db


def error_inputs(id, device):
    """The error inputs of an op, in order."""
    info = next(each for each in op_db if each.full_name == id)
    return info.error_inputs_func(info, device)

'''


def told(op: Any, given: Any) -> Any:
    """What is wrong with how a call is refused, or None; and a message that is not the documented one."""
    import re

    call = given.sample_input
    try:
        result = op(call.input, *call.args, **call.kwargs)
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor):
                each.cpu()  # a device that works later raises here at the latest
    except Exception as error:
        like = re.search(given.error_regex, str(error)) is not None
        if isinstance(error, NotImplementedError) and not like:
            raise  # the device has not the op, or the dtype
        if isinstance(error, given.error_type):
            line = (str(error).strip().splitlines() or [""])[0][:150]
            return None, "" if like else f"{line!r}, documented is {given.error_regex[:150]!r}"
        line = (str(error).strip().splitlines() or [""])[0][:200]
        return f"documented is {given.error_type.__name__}, got {type(error).__name__}: {line}", ""
    if result is NotImplemented:
        return None, ""  # the operator that called it raises TypeError
    return (
        f"nothing was raised; documented is {given.error_type.__name__}: {given.error_regex[:150]}",
        "",
    )


calls.HELPERS[raises] = (_ERROR_INPUTS, told)


#: What errors say of values, in torch's database.
_OF_VALUES = re.compile(r"\bind(ex|ices)\b.*(out of|range|bound)|between 0 and 1|probabilit|target")


def is_assertion(op: Any, given: Any) -> bool:
    """Whether an error depends on values: meta tensors in the places of the device's do not meet it."""
    if not _OF_VALUES.search(given.error_regex):
        return False
    call = given.sample_input

    def without_values(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.device.type == "cpu" else tensor.to("meta")

    try:
        args = replace_tensors((call.input, *call.args), without_values)
        op(*args, **replace_tensors(call.kwargs, without_values))
    except NotImplementedError:
        return True
    except Exception as error:
        return "meta" in str(error).lower()
    return True
