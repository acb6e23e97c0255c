"""Seeded samples of an op: drawn on the CPU, classified, and a few chosen for a plan."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opinfo.catalog import Op
from opinfo.seeding import direct_seeding, seed_everything
from opinfo.structure import Call, tensors_of

#: Part of the plan's hash: a change in how samples are drawn or chosen changes what a cell means.
RECIPE = (
    "2: op_db sample_inputs_func on cpu, seed 0 per op and dtype, greedy cover of shape classes, "
    "of equals one with at most 2^20 elements"
)
SEED = 0

#: Drawing stops here: a few ops (max_pool2d: 1,440) offer thousands that differ in one argument.
DRAW_LIMIT = 200

#: Elements of an ordinary sample. A larger one costs seconds in every layout, so it is chosen for what only it
#: has (grid_sampler_3d alone has any: volumes of five million elements).
ORDINARY = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an op: its place among upstream's samples and its arguments as contiguous CPU tensors."""

    index: int
    call: Call
    process: Any  # upstream's map from outputs to what is unique about them (signs, phases)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self.call.tensors

    @property
    def rank(self) -> int:
        return max((t.dim() for t in self.tensors), default=0)

    @property
    def numel(self) -> int:
        return sum(t.numel() for t in self.tensors)


def draw(op: Op, dtype: str, limit: int = DRAW_LIMIT, seed: int = SEED) -> list[Sample]:
    """Up to ``limit`` samples of an op, the same whenever they are drawn with this seed."""
    seed_everything(seed)
    samples: list[Sample] = []
    with warnings.catch_warnings(), torch.no_grad(), direct_seeding():
        warnings.simplefilter("ignore")
        for index, raw in enumerate(op.raw_samples(getattr(torch, dtype))):
            if index >= limit:
                break
            call = Call((raw.input, *raw.args), dict(raw.kwargs))
            samples.append(Sample(index, _plain(call), raw.output_process_fn_grad))
    return samples


def choose(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most ``count`` of the samples: the largest rank first, then whatever adds most that is new.

    What counts as new: the rank and size class (0-d, size 0, size 1, small, odd) of each tensor, and the
    other arguments. Ties go to a sample of ordinary size, then to the earlier one, so the choice depends on the
    samples alone.
    """
    if len(samples) <= count:
        return list(samples)
    features = {s.index: _features(s) for s in samples}
    first = max(samples, key=lambda s: (s.rank, s.numel > 0, -s.index))
    chosen, seen, rest = [first], set(features[first.index]), [s for s in samples if s is not first]
    while len(chosen) < count:
        best = max(
            rest, key=lambda s: (len(features[s.index] - seen), s.numel <= ORDINARY, -s.index)
        )
        chosen.append(best)
        rest.remove(best)
        seen |= features[best.index]
    return sorted(chosen, key=lambda s: s.index)


def size_class(shape: Sequence[int]) -> str:
    """The size class of a shape: ``0-d``, ``size 0``, ``size 1``, ``odd`` or ``small`` (all sizes even)."""
    if not shape:
        return "0-d"
    if 0 in shape:
        return "size 0"
    if all(n == 1 for n in shape):
        return "size 1"
    return "odd" if any(n % 2 for n in shape) else "small"


def _features(sample: Sample) -> set[str]:
    found = {f"tensors {len(sample.tensors)}", f"rank {sample.rank}"}
    for place, tensor in enumerate(sample.tensors):
        where = min(place, 2)
        found.add(f"{where} rank {tensor.dim()} {size_class(tensor.shape)}")
    for place, value in enumerate(_scalars(sample.call.args)):
        found.add(f"arg {place} {type(value).__name__} {value!r:.40}")
    for name, value in sample.call.kwargs.items():
        if not isinstance(value, torch.Tensor):
            found.add(f"{name}={value!r:.40}" if not tensors_of(value) else name)
    return found


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _scalars(item)
    elif not isinstance(value, torch.Tensor):
        yield value


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout != torch.strided or (
        tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _plain(call: Call) -> Call:
    """The call with dense tensors contiguous and unconjugated. Nothing writes to them: see ``value_answer``."""
    if all(_is_plain(t) for t in call.tensors):
        return call
    copies = []
    for tensor in call.tensors:
        if tensor.layout == torch.strided:
            tensor = tensor.detach().resolve_conj().resolve_neg()
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        copies.append(tensor)
    args, kwargs = call.bind(copies)
    return Call(args, dict(kwargs))
