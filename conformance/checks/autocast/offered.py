"""The dtypes in which a device offers autocast: a device may hold tensors of a dtype in which it has no autocast."""

from __future__ import annotations

import warnings

import torch

from conformance.checks.autocast.asking import lower_dtypes
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from opinfo.device import Device


def is_offered(device: Device, lower: torch.dtype) -> bool:
    """Returns True if autocast is enabled in a region of the dtype ``lower``. Otherwise torch disables the region with a
    warning, because ``get_amp_supported_dtype()`` of the device's module does not list the dtype, or says in a RuntimeError
    that the device does not support it, as for bfloat16 on an old CUDA device (torch.amp.autocast_mode). Every other
    error is raised."""
    kind = device.torch_device.type
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.autocast(kind, lower):
                return torch.is_autocast_enabled(kind)
        except RuntimeError as error:
            if "does not support" in str(error):
                return False
            raise


def offered_dtypes(context: CaseContext) -> list[torch.dtype]:
    """Returns those of bfloat16 and float16 that the descriptor declares and in which the device offers autocast. The
    report of a passing case names the declared ones in which it does not. The case fails if autocast is offered in none
    of the declared dtypes. Raises NotDeclared if the descriptor declares neither bfloat16 nor float16."""
    declared = lower_dtypes(context.opened)
    if not declared:
        raise NotDeclared("the descriptor declares neither bfloat16 nor float16")
    offered = [lower for lower in declared if is_offered(context.opened, lower)]
    names = " and ".join(str(lower)[6:] for lower in declared if lower not in offered)
    context.must(
        offered,
        f"autocast is declared, but regions of {names} are disabled (get_amp_supported_dtype)",
    )
    if names:
        context.note(f"autocast is not offered in {names}, by get_amp_supported_dtype()")
    return offered
