"""How many public models call an overload of aten or a function of torch in a training step, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from devices.cell import CellKey, Use

WEIGHTS_FILE: Final = Path(__file__).with_name("weights.json")


class Weight(msgspec.Struct, frozen=True, array_like=True):
    """How much an op or overload is used: the number of models that call it, and the number of its calls in one
    training step of each of these models, added up."""

    models: int
    calls: int


NEVER: Final = Weight(0, 0)


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An installed package that defines public models."""

    version: str
    licence: str


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of weights, with its source. ``overloads`` has the dispatcher's names of overloads, ``functions``
    the names in torch's database of ops. ``left_out`` has the models that were listed but could not be recorded, so
    their calls are not counted."""

    source: str
    torch: str
    packages: Mapping[str, Package]
    models: tuple[str, ...]
    left_out: tuple[str, ...]
    overloads: Mapping[str, Weight]
    functions: Mapping[str, Weight]

    def of_overload(self, name: str) -> Weight:
        """Returns the weight of an overload, such as ``aten::add.Tensor``."""
        return self.overloads.get(name, NEVER)

    def of_op(self, op: str) -> Weight:
        """Returns the weight of an op. ``op`` is the name of an op of torch's database, such as
        ``nn.functional.pad.constant``, of an overload in the notation of ``torch.ops``, such as
        ``aten.bucketize.Scalar``, or of a recorded call, such as ``addmm.default~3fa2c1``."""
        overload, tilde, _ = op.partition("~")
        if tilde or op.startswith("aten."):
            return self.of_overload(
                "aten::" + overload.removeprefix("aten.").removesuffix(".default")
            )
        name = op.strip("_")
        while not (found := self._of_function(name)).models and "." in name:
            name = name.rpartition(".")[0]  # the variant of the op
        return found

    def _of_function(self, name: str) -> Weight:
        """Returns the weight of a function by its name in torch's database of ops. The function may have a name in
        ``torch``, in ``torch.nn.functional``, or in both."""
        short = name.removeprefix("nn.functional.")
        found = (self.functions.get(f"{s}{short}") for s in ("", "nn.functional.", "functional."))
        return max((each for each in found if each is not None), default=NEVER, key=_models)


def _models(weight: Weight) -> int:
    return weight.models


@cache
def weights() -> Weights:
    """Returns the table of weights that is part of this package."""
    return msgspec.json.decode(WEIGHTS_FILE.read_bytes(), type=Weights)


def use_of(cell: CellKey) -> Use | None:
    """Returns how many public models call the op of a cell; None if no model calls it, and for the cell of a case."""
    found = weights().of_op(cell.unit) if cell.dtype else NEVER
    return Use(found.models, len(weights().models)) if found.models else None
