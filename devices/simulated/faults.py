"""The planted faults of the simulated device: what each breaks, the clauses it must trip, and how to switch it.

    SIMULATED_FAULTS=values.ignore_strides,out.restride pytest --device simulated

or ``with planted("values.ignore_strides"): ...``. What a fault does is in ``csrc/``; off, it costs one load.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

from devices._text import listing, suggestion
from devices.errors import ConformError
from devices.simulated import faults_calls, faults_graphs, faults_runtime
from devices.simulated.fault_radius import RADIUS

ENVIRONMENT: Final = "SIMULATED_FAULTS"


class UnknownFault(ConformError):
    """No fault of the simulated device has this name. The text names those that there are."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break the device.

    ``clauses`` must fail with the fault on. Where ``ops`` of torch's database are named, each clause fails at
    one of them at least, and cells of other clauses and ops stay as they are but for ``radius``: globs over
    ``clause::op``. Where none are named, the clauses' suite is not written yet; the fault has a probe. A fault
    without clauses ends the process, or the device: it fails whatever cell it strikes.
    """

    name: str
    clauses: tuple[str, ...]
    statement: str
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    radius: tuple[str, ...] = ()

    def allows(self, clause: str, op: str) -> bool:
        """Whether a cell of this clause and op may differ from the clean run."""
        if clause in self.clauses and op in self.ops:
            return True
        return any(fnmatchcase(f"{clause}::{op}", pattern) for pattern in self.radius)


def _layout(
    name: str,
    clauses: tuple[str, ...],
    ops: tuple[str, ...],
    statement: str,
    *,
    dtypes: tuple[str, ...] = ("float32",),
    radius: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        name,
        tuple(f"layout.{clause}" for clause in clauses),
        statement,
        ops,
        dtypes,
        tuple(f"layout.{cell}" for cell in radius),
    )


_ALL: Final = (
    _layout(
        "values.ignore_strides",
        ("values",),
        ("exp",),
        "A stepped input is read as if its elements lay in a row.",
        dtypes=("float32", "int64"),
    ),
    _layout(
        "values.ignore_storage_offset",
        ("values", "expanded_read"),
        ("neg",),
        "A view is read from the start of its storage.",
    ),
    _layout(
        "expand.read_as_dense",
        ("expanded_read",),
        ("mul",),
        "An operand of stride 0 is read as if its elements lay in a row.",
        dtypes=("float32", "int64"),
    ),
    _layout(
        "stride.ignore_channels_last",
        ("output_strides",),
        ("nn.functional.avg_pool2d",),
        "The output for a channels_last input is contiguous.",
    ),
    _layout(
        "stride.always_contiguous",
        ("output_strides",),
        ("sub",),
        "The output for a transposed input is contiguous.",
    ),
    _layout(
        "storage.output_past_end",
        ("output_fresh",),
        ("cat",),
        "The output's storage is one element too short.",
        radius=("values::cat", "expanded_read::cat", "variants::cat", "determinism::cat"),
    ),
    _layout(
        "inputs.overwritten",
        ("inputs_intact",),
        ("atan2",),
        "The result is also written over the first input.",
        radius=("determinism::atan2",),
    ),
    _layout(
        "bounds.write_past_end",
        ("bounds",),
        ("maximum",),
        "Three elements behind the end of out= are overwritten.",
    ),
    _layout(
        "bounds.write_between_elements",
        ("bounds",),
        ("fmax",),
        "The bytes between the elements of a stepped out= are overwritten.",
    ),
    _layout(
        "bounds.vectorised_tail_overrun",
        ("bounds",),
        ("add",),
        "A contiguous in-place op writes whole vectors of eight elements.",
        dtypes=("float32", "int64"),
    ),
    _layout(
        "out.restride",
        ("out_kept",),
        ("add",),
        "out= becomes contiguous.",
        dtypes=("float32", "int64"),
        radius=("bounds::add",),
    ),
    _layout(
        "out.reallocate",
        ("out_kept",),
        ("mul",),
        "out= is given memory of its own.",
        dtypes=("float32", "int64"),
        radius=("bounds::mul",),
    ),
    _layout(
        "out.ignore_strides",
        ("out_kept", "bounds"),
        ("exp",),
        "The result is written in a row, whatever the strides of out= are.",
        dtypes=("float32", "int64"),
    ),
    _layout(
        "out.accumulate_into_old_values",
        ("out_kept",),
        ("atan2",),
        "The result is added to what out= held.",
        radius=("variants::atan2", "overlap_raises::atan2"),
    ),
    _layout(
        "out.resize_silently",
        ("out_resize",),
        ("copysign",),
        "out= of a wrong shape is resized without a warning.",
    ),
    _layout(
        "inplace.write_to_copy",
        ("inplace",),
        ("neg",),
        "An in-place op writes to a copy of self.",
        radius=("variants::neg", "overlap_raises::neg"),
    ),
    _layout(
        "inplace.reallocate",
        ("inplace",),
        ("mul",),
        "An in-place op gives self memory of its own.",
        dtypes=("float32", "int64"),
        radius=("bounds::mul",),
    ),
    _layout(
        "variants.out_differs",
        ("variants", "out_kept", "out_resize"),
        ("bmm",),
        "The out variant is one too large.",
    ),
    _layout(
        "overlap.skip_internal_check",
        ("overlap_raises",),
        ("sub",),
        "An expanded out= is written to without a word.",
    ),
    _layout(
        "promotion.scalar_through_float",
        ("type_promotion",),
        ("mul",),
        "An integer scalar is rounded to float32's 24 bits.",
        dtypes=("int64",),
    ),
    _layout(
        "special.max_drops_nan",
        ("special_values",),
        ("maximum",),
        "maximum gives the number where the other operand is NaN.",
    ),
    _layout(
        "beta_zero.multiply_input",
        ("beta_zero",),
        ("addmm",),
        "With beta = 0 the input is multiplied by 0, so that its NaN stays.",
    ),
    _layout(
        "reduce.empty_sum_one",
        ("empty_reduce",),
        ("sum",),
        "The sum over nothing is 1.",
    ),
    _layout(
        "precision.truncate_mantissa",
        ("fp32_precision",),
        ("mm",),
        "A float32 product is computed from operands rounded to bfloat16.",
        radius=("values::mm", "expanded_read::mm", "out_kept::mm", "variants::mm"),
    ),
    _layout(
        "determinism.varying_reduction_order",
        ("determinism",),
        ("bmm",),
        "Every second result differs from the others in its last bit.",
    ),
    _layout(
        "views.copy_instead_of_alias",
        ("views",),
        ("unfold",),
        "unfold returns a copy where it should return a view.",
        radius=("output_strides::unfold",),
    ),
    _layout(
        "views.wrong_offset",
        ("views",),
        ("unfold",),
        "unfold of a view starts one element too early.",
        radius=("values::unfold", "expanded_read::unfold"),
    ),
    _layout(
        "views.forget_conj_bit",
        ("views",),
        ("transpose",),
        "A copy of a conjugate view has the values of what it is a view of.",
        dtypes=("complex64",),
    ),
    _layout(
        "as_strided.set_ignores_offset",
        ("as_strided",),
        ("as_strided",),
        "set_ puts a tensor at the start of its storage.",
    ),
    _layout(
        "memory_format.ignore_requested",
        ("memory_format",),
        ("clone", "contiguous", "empty_like"),
        "A tensor that is asked for in channels_last is contiguous.",
    ),
    *(
        Fault(name, (clause,) if clause else (), statement, radius=RADIUS.get(name, ()))
        for name, clause, statement in (
            *faults_runtime.ROWS,
            *faults_calls.ROWS,
            *faults_graphs.ROWS,
        )
    ),
)

#: Every fault by name.
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({fault.name: fault for fault in _ALL})


def _library() -> Any:
    return importlib.import_module("devices.simulated.backend").library


def switch(name: str, on: bool) -> None:
    """Switch one fault. Raises UnknownFault."""
    if name not in FAULTS:
        raise UnknownFault(
            f"the simulated device has no fault '{name}'{suggestion(name, FAULTS)} (known: {listing(FAULTS)})"
        )
    _library().switch_fault(name, on)
    importlib.import_module("devices.simulated.backend.installed").switch(name, on)


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """Switch faults on for a block. Raises UnknownFault."""
    before = set(_library().faults_that_are_on())
    try:
        for name in names:
            switch(name, True)
        yield
    finally:
        for name in before.symmetric_difference(_library().faults_that_are_on()):
            switch(name, name in before)


def switch_on_from_environment() -> None:
    """Switch on what ``SIMULATED_FAULTS`` names, for the life of the process. Raises UnknownFault."""
    for name in os.environ.get(ENVIRONMENT, "").split(","):
        if name.strip():
            switch(name.strip(), True)
