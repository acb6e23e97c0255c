"""A device with opaque tensors: no storage, no address, and always the strides of a contiguous tensor at offset 0.

Its views are true: what is written to one arrives in its base. ``manner`` names what it does wrong.
"""

from typing import Any

import strange
import torch

manner = ""

#: What it can do wrong.
MANNERS = {
    "loses_writes_to_views": "Only copies into a view arrive in its base.",
    "loses_copies_to_views": "Copies into a view are lost.",
    "copies_resize": "A copy gives its target the shape of the source.",
    "changes_inputs": "neg adds 1 to its input.",
    "gives_inputs": "A clone is the memory of its input.",
    "keeps_out": "An out= that must grow keeps its shape.",
    "copies_for_views": "transpose returns a copy.",
}


class _Call:
    """What the call in progress writes to, and what that held before."""

    target: strange.Tensor | None = None
    held: torch.Tensor | None = None
    was: torch.Tensor | None = None
    first: Any = None


def before(op: Any, args: Any, kwargs: Any) -> None:
    target = kwargs.get("out")
    if target is None and op._schema.name.endswith("_") and args:
        target = args[0]
    _Call.target = target if isinstance(target, strange.Tensor) else None
    _Call.held = held = _Call.target.held if _Call.target is not None else None
    _Call.was = None if held is None else held.clone()
    _Call.first = args[0] if args else None
    if manner == "changes_inputs" and op is torch.ops.aten.neg.default:
        args[0].held.add_(1)
    ours = op is torch.ops.aten.copy_.default and isinstance(args[1], strange.Tensor)
    if manner == "copies_resize" and ours and args[1].shape != args[0].shape:
        args[0].held = torch.empty_like(args[1].held)
    if manner == "keeps_out" and "out" in kwargs and held is not None and held.numel() < 2:
        kwargs["out"].held = held.clone()  # the result is put elsewhere


def after(op: Any, result: Any) -> Any:
    held, was = _Call.held, _Call.was
    copies = op is torch.ops.aten.copy_.default
    lost = (manner == "loses_copies_to_views" and copies) or (
        manner == "loses_writes_to_views" and not copies
    )
    of_view = held is not None and held.untyped_storage().nbytes() > held.nbytes
    if lost and of_view and held is not None and was is not None:
        held.copy_(was)
    if manner == "keeps_out" and _Call.target is not None and held is not _Call.target.held:
        _Call.target.held = held
    if manner == "gives_inputs" and op is torch.ops.aten.clone.default:
        return _Call.first.held.view_as(_Call.first.held)
    if manner == "copies_for_views" and op is torch.ops.aten.transpose.int:
        return result.clone()
    return result


strange.Tensor.opaque = True
strange.register("opaque", before=before, after=after)
