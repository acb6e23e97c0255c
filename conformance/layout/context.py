"""What the checks of one item share: its op, dtype, samples, device, references and recorder."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from conformance.cells import CellRecord, Recorder
from conformance.isolation.guard import UNWATCHED, Guard
from opinfo.catalog import Op
from opinfo.compare import DEFAULT_TOLERANCES, SUM_ROUNDINGS, Difference, difference
from opinfo.device import Device
from opinfo.exceptions import Exceptions
from opinfo.guarded import Guarded, identity
from opinfo.layouts import CONTIGUOUS, AnyLayout, Case, Geometry, covering_set, interned
from opinfo.reference import StrideAnswer, StrideReference, ValueAnswer, on_device, value_answer
from opinfo.samples import Sample
from opinfo.structure import replace_tensors
from opinfo.traits import Traits, expand_rule, may_expand, mutates

#: Samples up to this size keep their buffers and references for all clauses of an item.
_KEPT_BYTES = 2**18
#: Buffers of larger samples are dropped between two cases once they hold this many bytes: some devices have
#: little memory.
_MOST_BYTES = 2**23
_OURS = str(Path(__file__).resolve().parents[1])


class NotPlaced(Exception):
    """A tensor could not be put on the device: nothing can be said of the clauses that need it."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"putting an input on the device raised {type(cause).__name__}: {cause}")
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Laid:
    """The tensors of one sample laid out on the device by one case."""

    sample: Sample
    case: Case
    geometries: tuple[Geometry, ...]
    guarded: tuple[Guarded | None, ...]  # None where not strided, or the device lays nothing out
    tensors: list[torch.Tensor]
    expanded: tuple[int | None, ...]

    @property
    def expands(self) -> bool:
        return any(e is not None for e in self.expanded)


@dataclass
class ItemContext:
    """Everything that a check of one (op, dtype) needs. One sample's tensors are built once and shared."""

    op: Op
    dtype: str
    traits: Traits
    samples: list[Sample]
    device: Device
    strides: StrideReference
    recorder: Recorder
    known: Exceptions
    guard: Guard = UNWATCHED
    cases: tuple[Case, ...] = field(default_factory=lambda: covering_set().cases)
    targets: tuple[AnyLayout, ...] = field(default_factory=lambda: covering_set().targets)
    _built: dict[tuple[int, int, int], Guarded] = field(default_factory=dict)
    _held: int = 0  # bytes in them, at most
    _values: dict[tuple[int, tuple[int | None, ...]], ValueAnswer] = field(default_factory=dict)
    _tolerances: dict[str, tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        self._rule = expand_rule(self.traits.families)
        self._mutates = mutates(self.traits.families)

    # -- recording

    @contextmanager
    def running(self, *clauses: str) -> Iterator[list[CellRecord | None]]:
        """Run clauses that share their calls: watched, and with the time shared among them.

        What cannot be put on the device ends them: unsupported where the device says that it is not
        implemented, an error otherwise. Any other exception, such as a result that cannot be read back,
        is an error of these cells, and not the end of the item.
        """
        records = [self.recorder.get(c) for c in clauses]
        wanted = [r for r in records if r is not None]
        if wanted:
            self.guard.begin(clauses, wanted)
        start = time.perf_counter()
        try:
            yield records
            if wanted:
                self.device.synchronise()  # what fails late is these clauses' failure
        except NotPlaced as exc:
            for record in wanted:
                if isinstance(exc.cause, NotImplementedError):
                    record.refuse(exc.cause)
                else:
                    record.error(str(exc))
        except Exception as exc:  # from the device, or a fault of ours: red either way
            for record in wanted:
                record.error(_where(exc))
        finally:
            share = (time.perf_counter() - start) / max(len(wanted), 1)
            for record in wanted:
                record.seconds += share
            if wanted:
                self.guard.done()

    def wants(self, *clauses: str) -> bool:
        return any(c in self.recorder for c in clauses)

    # -- inputs

    def laid_out(self, sample: Sample, only: frozenset[str] | None = None) -> Iterator[Laid]:
        """The sample in every case of the covering set that gives it a layout of its own; of those, the
        ones named by ``only``."""
        seen: set[tuple[int, ...]] = set()
        for case in self.cases:
            geometries = self.geometries(sample, case)
            key = tuple(map(id, geometries))
            if key in seen:
                continue
            seen.add(key)
            if only is not None and case.id not in only:
                continue
            if not self.device.lays_out and not _is_plain(sample, geometries):
                continue  # by declaration, as the plan says
            if not self.guard.call(f"{sample.index}/{case.id}"):
                continue  # it ended a process before, and counts there
            yield self.lay(sample, case, geometries)

    def mutable_inputs(self, sample: Sample) -> frozenset[int]:
        """Places of the tensors whose elements the call may change: self of an in-place op, running
        statistics in training, and weights with ``max_norm`` (which embedding renormalises)."""
        families = self.traits.families
        if not self._mutates:
            return frozenset()
        if "mutates.self" in families:
            return frozenset({0})
        if "mutates.running_stats" in families:
            return frozenset(i for i, t in enumerate(sample.tensors) if i and t.dim() == 1)
        if "mutates.max_norm" in families and sample.call.kwargs.get("max_norm") is not None:
            return frozenset(range(len(sample.tensors)))
        return frozenset()

    def geometries(self, sample: Sample, case: Case) -> tuple[Geometry, ...]:
        """Where each tensor's elements lie in this case. What the call may write to is never expanded."""
        mutable, found = self.mutable_inputs(sample), []
        for place, tensor in enumerate(sample.tensors):
            if tensor.layout != torch.strided:
                found.append(interned(Geometry(tuple(tensor.shape), (), 0, 0)))
                continue
            layout = case.first if place == 0 else case.rest
            geometry = layout.geometry(tensor.shape)
            if geometry.expanded is not None and (
                place in mutable or not may_expand(self._rule, geometry.expanded, tensor.dim())
            ):
                geometry = layout.geometry(tensor.shape, may_expand=False)
            found.append(geometry)
        return tuple(found)

    def lay(self, sample: Sample, case: Case, geometries: tuple[Geometry, ...]) -> Laid:
        if self._held > _MOST_BYTES:
            self._built.clear()
            self._held = 0
        guarded: list[Guarded | None] = []
        tensors: list[torch.Tensor] = []
        for place, (tensor, geometry) in enumerate(zip(sample.tensors, geometries, strict=True)):
            if tensor.layout != torch.strided or not self.device.lays_out:
                guarded.append(None)
                tensors.append(self.place(tensor))
                continue
            key = (sample.index, place, id(geometry))
            buffer = self._built.get(key)
            if buffer is None:
                buffer = self._built[key] = Guarded(tensor, geometry, self.place)
                self._held += len(buffer.before)  # of samples that are released, too: a bound
            guarded.append(buffer)
            tensors.append(buffer.view)
        return Laid(
            sample,
            case,
            geometries,
            tuple(guarded),
            tensors,
            tuple(g.expanded for g in geometries),
        )

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor on the device. Raises NotPlaced."""
        try:
            return self.device.to_device(tensor)
        except Exception as exc:  # a vendor's copy may raise anything
            raise NotPlaced(exc) from exc

    def release(self, sample: Sample) -> None:
        """Drop the buffers of a sample that are too large to keep for the next clause: fresh pages cost
        more than copying into used ones."""
        if sum(t.numel() * t.element_size() for t in sample.tensors) > _KEPT_BYTES:
            self.rebuild(sample)
            for key in [k for k in self._values if k[0] == sample.index]:
                del self._values[key]

    def rebuild(self, sample: Sample) -> None:
        """Drop the buffers of a sample whose tensors a call may have resized."""
        for key in [k for k in self._built if k[0] == sample.index]:
            del self._built[key]

    def run(self, function: Callable[..., Any], laid: Laid, **extra: Any) -> Any:
        args, kwargs = laid.sample.call.bind(laid.tensors)
        result = function(*args, **on_device(kwargs, self.device.torch_device), **extra)
        self.device.settle(result)
        return result

    # -- references

    def expected(self, laid: Laid) -> ValueAnswer:
        """The CPU's result for the values that this case reads (an expanded input repeats some)."""
        key = (laid.sample.index, laid.expanded)
        if key not in self._values:
            self._values[key] = value_answer(
                self.op.function,
                laid.sample.call,
                expanded_values(laid),
                mutates=self._mutates,
            )
        return self._values[key]

    def stride_answer(
        self, laid: Laid, function: Callable[..., Any] | None = None, variant: str = ""
    ) -> StrideAnswer:
        return self.strides.answer(
            f"{self.op.id}{variant}",
            function or self.op.function,
            laid.sample.call,
            laid.geometries,
            with_offset=self.traits.declares_view,
        )

    @property
    def tolerances(self) -> dict[str, tuple[float, float]]:
        """dtype defaults, then the database's, then the descriptor's: the later one wins where it is set."""
        if self._tolerances is None:
            found = dict(DEFAULT_TOLERANCES)
            own = self.op.tolerance(self.dtype)
            if own is not None:
                found[self.dtype] = own
                component = {"complex64": "float32", "complex128": "float64"}.get(self.dtype)
                if component is not None:
                    found[component] = own
            for name, tolerance in self.device.descriptor.tolerances.items():
                found[name] = (tolerance.rtol, tolerance.atol)
            self._tolerances = found
        return self._tolerances

    @property
    def roundings(self) -> float:
        """Roundings at the size of the largest element that the result may be off by (``compare``)."""
        return SUM_ROUNDINGS if "values.sums" in self.traits.families else 0.0

    def differs(self, actual: Any, expected: Any, sample: Sample) -> Difference | None:
        """Compare a device's result with its reference. Where the answer is unique only up to signs or
        phases, compare what upstream's sample says is unique about it."""
        return self.differs_there(self.fetch(actual), expected, sample)

    def differs_there(self, there: Any, expected: Any, sample: Sample) -> Difference | None:
        """The same of a result that has been fetched."""
        found = difference(there, expected, self.tolerances, roundings=self.roundings)
        if found is not None and "values.not_unique" in self.traits.families:
            return difference(sample.process(there), sample.process(expected), self.tolerances)
        return found

    def fetch(self, result: Any) -> Any:
        """The result on the CPU."""
        if self.device.from_device is identity:
            return result
        return replace_tensors(result, self.device.from_device)


def _where(exc: Exception) -> str:
    """What a check raised, and where: the line of ours that it came through last."""
    ours = [f for f in traceback.extract_tb(exc.__traceback__) if f.filename.startswith(_OURS)]
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    line = (str(exc).strip().splitlines() or [""])[0][:300]
    return f"the check itself raised {type(exc).__name__}{place}: {line}"


def _is_plain(sample: Sample, geometries: tuple[Geometry, ...]) -> bool:
    """Whether every strided tensor is contiguous from the start of its storage on."""
    return all(
        geometry is CONTIGUOUS.geometry(tensor.shape)
        for tensor, geometry in zip(sample.tensors, geometries, strict=True)
        if tensor.layout == torch.strided
    )


def expanded_values(laid: Laid) -> list[torch.Tensor]:
    """The contiguous values that the case's views hold."""
    values = []
    for tensor, dim in zip(laid.sample.tensors, laid.expanded, strict=True):
        if dim is not None:
            tensor = tensor.narrow(dim, 0, 1).expand(tensor.shape).contiguous()
        values.append(tensor)
    return values


def other_arguments(ctx: ItemContext) -> tuple[Any, ...]:
    """What a unary op takes behind its input (the order of ``polygamma``, the value of ``fill``), from the
    first sample that holds no other tensor."""
    for sample in ctx.samples:
        if len(sample.tensors) == 1 and sample.call.args[0] is sample.tensors[0]:
            return tuple(sample.call.args[1:])
    return ()
