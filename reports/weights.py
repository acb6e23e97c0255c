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
    """The number of models that call something, and the number of its calls in one training step of each."""

    models: int
    calls: int


NEVER: Final = Weight(0, 0)


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package that defines models."""

    version: str
    licence: str


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of weights, with its source. ``overloads`` are named as the dispatcher does, ``functions`` as torch's
    database of ops does. ``left_out`` has the models that were listed and could not be recorded: what they call is not
    counted."""

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
        """Returns the weight of an op of torch's database, such as ``nn.functional.pad.constant``, of an overload in the
        notation of ``torch.ops``, such as ``aten.bucketize.Scalar``, or of a recorded call, such as
        ``addmm.default~3fa2c1``."""
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
        """Returns the weight of a function that has a name in ``torch``, in ``torch.nn.functional``, or in both."""
        short = name.removeprefix("nn.functional.")
        found = (self.functions.get(f"{s}{short}") for s in ("", "nn.functional.", "functional."))
        return max((each for each in found if each is not None), default=NEVER, key=_models)


def _models(weight: Weight) -> int:
    return weight.models


@cache
def weights() -> Weights:
    """Returns the table that comes with this package."""
    return msgspec.json.decode(WEIGHTS_FILE.read_bytes(), type=Weights)


def use_of(cell: CellKey) -> Use | None:
    """Returns how many public models call the op of a cell; None if none does, and for a case."""
    found = weights().of_op(cell.unit) if cell.dtype else NEVER
    return Use(found.models, len(weights().models)) if found.models else None
