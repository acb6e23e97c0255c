"""Finds the op that a kernel replaces by its name, and the calls of an aten overload that the samples of torch's op
database make."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.suites.layout.writes import prefill
from devices.errors import ConformError, suggestion
from opinfo.compare import Arguments, tensors_of
from opinfo.database import DATABASE
from opinfo.samples import Sample
from opinfo.subject import Function, Source, Subject, names_of_packet
from opinfo.torch_private import has_kernel, op_names

#: The most ops of torch's database whose samples are taken, and the most calls that are taken of one sample.
_SOURCES, _OF_A_CALL = 3, 2
#: The number of letters in which the names of an overload and of the ops that it serves agree.
_STEM = 4


class UnknownTarget(ConformError):
    """The error for a name that is neither an aten op nor an op of torch's op database."""

    exit_code = 4


def overload_named(target: str) -> Any:
    """Returns the overload with a name such as ``aten::softmax.int`` or ``aten::_softmax``. A name without overload
    stands for the overload ``default`` or, if there is none, for the first overload. Returns None if the name does not
    begin with ``aten::``. Raises UnknownTarget if aten has no such op."""
    space, colons, name = target.partition("::")
    if not colons:
        return None
    name, _, overload = name.partition(".")
    packet = getattr(getattr(torch.ops, space), name, None)
    names = [] if packet is None else packet.overloads()
    wanted = overload or ("default" if "default" in names else next(iter(names), ""))
    if wanted not in names:
        near = suggestion(f"{space}::{name}", op_names(space) or op_names("aten"))
        known = f"; its overloads are {', '.join(names)}" if names else near
        raise UnknownTarget(f"'{target}': torch has no such op{known}")
    return getattr(packet, wanted)


def named_function(target: str) -> Callable[..., Any]:
    """Returns the function of a target: an aten overload, or the function of an op in torch's op database."""
    found = overload_named(target)
    if found is None:
        return subject_named(target).function
    return found  # type: ignore[no-any-return]


def subject_named(target: str) -> Subject:
    """Returns the op in torch's op database with this id. Raises UnknownTarget if there is none."""
    subjects = DATABASE.subjects()
    found = subjects.get(target) or subjects.get(f"nn.functional.{target}")
    if found is None:
        short = (each.removeprefix("nn.functional.") for each in subjects)
        near = suggestion(target, {*subjects, *short})
        raise UnknownTarget(
            f"'{target}': expected an aten op such as aten::softmax.int, or the id of an op in "
            f"torch's op database{near}"
        )
    return found


class OverloadSubject(Subject):
    """An aten overload, with the samples of those ops in torch's op database that call it."""

    def __init__(self, overload: Any) -> None:
        self.overload = overload
        self.function = self.reference = overload
        self.schema = overload._schema
        self.packet = self.schema.name
        self.plain = plain_overload(overload)
        written = DATABASE.subjects().get(str(overload).removesuffix(".default"))  # by hand
        self.sources = named_sources(self.plain or overload)
        if not self.sources and written is not None:
            self.plain, self.sources = None, [written]
        self.sources = self.sources or sources_of(self.plain or overload)
        self.main = self.sources[0]
        self.id, self.takes_conj_view = self.main.id, self.main.takes_conj_view
        self.direct = self.packet in self.main.packets
        self.writes = bool(written_arguments(self.schema))

    runs_on_cpu = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which ``exceptions.toml`` may list exceptions for the op."""
        return (self.main.id, *names_of_packet(self.packet.partition("::")[2]))

    @property
    def schemas(self) -> tuple[Any, ...]:
        return (self.schema,)

    @property
    def own_families(self) -> frozenset[str]:
        """The families of ``exceptions.toml`` that follow from the overload's schema."""
        found = super().own_families
        return found | {"mutates.arguments"} if self.writes else found

    def written_tensors(self, call: Any) -> frozenset[int]:
        """Returns the positions of the call's tensors to which the overload writes according to its schema."""
        given = dict(zip((each.name for each in self.schema.arguments), call.args)) | call.kwargs
        written = {
            id(tensor)
            for each in written_arguments(self.schema)
            for tensor in tensors_of(given.get(each.name))
        }
        return frozenset(n for n, each in enumerate(call.tensors) if id(each) in written)

    @property
    def ufunc(self) -> str:
        return self.main.ufunc if self.direct else ""

    @property
    def restrides_in_place(self) -> bool:
        return torch.Tag.inplace_view in self.overload.tags

    @property
    def pointwise(self) -> bool:
        return torch.Tag.pointwise in self.overload.tags

    @property
    def declares_view(self) -> bool:
        aliases = [each.alias_info for each in self.schema.returns]
        return any(each is not None and not each.is_write for each in aliases)

    @property
    def dtypes(self) -> frozenset[str]:
        return self.main.dtypes

    def tolerance(self, dtype: str, torch_type: str) -> tuple[float, float] | None:
        return self.main.tolerance(dtype, torch_type)

    def process_of(self, dtype: str, index: int) -> Function:
        return self.main.process_of(dtype, index)

    def source_of_process(self, dtype: str, index: int) -> Source:
        return self.main.source_of_process(dtype, index)

    def calls_in(self, sample: Sample, source: Subject) -> list[Arguments]:
        """Returns the calls of the overload that a sample's call of the op ``source`` makes. A composite overload is
        not visible below the dispatcher; for it, the sample's own arguments are returned if the overload accepts
        them.

        The calls of an overload that writes to its arguments are made from the calls of the overload that returns its
        results, because the samples call only the latter."""
        if self.plain is None:
            return calls_of(self.overload, source, sample)[:_OF_A_CALL]
        given = calls_of(self.plain, source, sample)[:_OF_A_CALL]
        return [made for each in given if (made := self._writing(each)) is not None]

    def _writing(self, call: Arguments) -> Arguments | None:
        """Returns the call of this overload that corresponds to a call of ``plain``, which returns its results. Targets
        such as ``out`` are tensors of the results' shapes, filled with a value that results rarely have. Returns None if
        the overload rejects the call, for example because the result does not fit into the first argument."""
        copies = [each.clone() for each in call.tensors]
        targets = [each for each in written_arguments(self.schema) if each.kwarg_only]
        assert self.plain is not None
        # polygamma has its arguments in another order than polygamma_
        given = dict(zip((each.name for each in self.plain._schema.arguments), call.args))
        first = [each.name for each in self.schema.arguments if not each.kwarg_only]
        count = next((n for n, name in enumerate(first) if name not in given), len(first))
        names = {each.name for each in self.schema.arguments} - {*first[:count]}
        values = tuple(given[name] for name in first[:count])
        kwargs = {k: v for k, v in {**given, **call.kwargs}.items() if k in names}
        made = Arguments(values, kwargs)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if targets:
                    args, named = call.bind(copies)
                    results = tensors_of(self.plain(*args, **named))
                    filled = [torch.full_like(t, prefill(t.dtype)) for t in results]
                    kwargs |= {each.name: t for each, t in zip(targets, filled, strict=True)}
                    made = Arguments(values, kwargs)
                args, named = made.bind([each.clone() for each in made.tensors])
                self.overload(*args, **named)
            except Exception:  # whatever it raises, the overload does not take this call
                return None
        return made


def written_arguments(schema: Any) -> list[Any]:
    """Returns the arguments of a schema to which the overload writes."""
    return [
        each
        for each in schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
    ]


#: Arguments of functions that create a tensor, which are given by the target in the overload that has one.
_OF_TARGET = frozenset({"dtype", "layout", "device", "pin_memory"})


def plain_overload(overload: Any) -> Any:
    """Returns the overload that returns the results that ``overload`` writes to its arguments: ``relu`` for ``relu_``,
    ``sum.dim_IntList`` for ``sum.IntList_out``. Returns None if ``overload`` writes to no argument, or if torch has no
    such overload."""
    schema = overload._schema
    written = written_arguments(schema)
    if not written:
        return None
    targets = {each.name for each in written if each.kwarg_only}
    wanted = sorted(_form(each) for each in schema.arguments if each.name not in targets)
    space, _, name = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name if targets else name.removesuffix("_"), None)
    for each in () if packet is None else packet.overloads():
        found = getattr(packet, each)
        arguments = found._schema.arguments
        extra = _OF_TARGET - {name for name, _ in wanted}
        same = sorted(_form(a) for a in arguments if a.name not in extra) == wanted
        if same and not written_arguments(found._schema):
            return found
    return None


def _form(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


def calls_of(overload: Any, source: Subject, sample: Sample) -> list[Arguments]:
    """Returns the calls of an overload that a sample of the op ``source`` makes. If there are none, although the overload
    belongs to the op, returns the sample's own arguments, if the overload accepts them."""
    found = recorded_calls(overload, source.function, sample)
    if found or overload._schema.name not in source.packets:
        return found
    bound = _bound(overload, sample.call)
    return [] if bound is None else [bound]


def _bound(overload: Any, call: Arguments) -> Arguments | None:
    """Returns the call with the arguments that an overload accepts: a number in place of a tensor where the overload takes
    only numbers, or the other way round. Returns None if the overload rejects the call."""
    positional = [each for each in overload._schema.arguments if not each.kwarg_only]
    names = {each.name for each in overload._schema.arguments}
    if len(call.args) > len(positional) or not call.kwargs.keys() <= names:
        return None
    args = tuple(_converted(each, value) for each, value in zip(positional, call.args))
    bound = Arguments(args, dict(call.kwargs))
    given, kwargs = bound.bind([each.clone() for each in bound.tensors])
    try:
        with torch.no_grad():
            overload(*given, **kwargs)
    except Exception:  # another overload of the op takes these arguments
        return None
    return bound


def _converted(argument: Any, value: Any) -> Any:
    """Returns the first element of a tensor for an argument that takes only numbers, and a tensor without dimensions for
    a number where the argument takes only tensors; any other value is returned unchanged."""
    kind = str(argument.type)
    if kind in ("number", "Optional[number]") and isinstance(value, torch.Tensor) and value.numel():
        return value.reshape(-1)[0].item()
    if kind == "Tensor" and isinstance(value, (int, float)):
        return torch.tensor(value)
    return value


class _Recording(TorchDispatchMode):
    def __init__(self, overload: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.overload, self.calls = overload, list[Arguments]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is self.overload:
            call = Arguments(tuple(args), dict(kwargs or {}))
            values = [t.detach().clone(memory_format=torch.contiguous_format) for t in call.tensors]
            self.calls.append(Arguments(*call.bind(values)))
        return function(*args, **(kwargs or {}))


def recorded_calls(overload: Any, function: Callable[..., Any], sample: Sample) -> list[Arguments]:
    """Returns the calls of an overload that ``function`` makes when it is called with a sample. Their tensors are
    contiguous copies."""
    args, kwargs = sample.call.bind([t.clone() for t in sample.tensors])
    with torch.no_grad(), _Recording(overload) as recorded:
        try:
            function(*args, **kwargs)
        except Exception:  # a sample that the CPU refuses
            return []
    calls: list[Arguments] = recorded.calls
    return calls


def named_sources(overload: Any) -> list[Subject]:
    """Returns the ops in torch's op database that have the name of an overload and whose samples call it. If the overload
    serves several ops of similar names, such as ``aten::convolution``, those are taken whose calls differ most."""
    packet, subjects = overload._schema.name, DATABASE.subjects()
    short = packet.partition("::")[2].strip("_").removeprefix("native_")
    named = [
        each
        for each in subjects.values()
        if packet in each.packets or short in (each.id, each.id.rpartition(".")[2])
    ]
    found = [each for each in named if calls_overload(each, overload)]
    own = [each for each in found if short in (each.id, each.id.rpartition(".")[2])]
    if not own:  # the overload may serve several ops, and each of them uses a part of it: conv2d of aten::convolution
        alike = [s for s in subjects.values() if s not in named]
        near = (s for s in alike if s.id.rpartition(".")[2].startswith(short[:_STEM]))
        found = differing([*found, *(s for s in near if calls_overload(s, overload))], overload)
    return found[:_SOURCES]


def sources_of(overload: Any) -> list[Subject]:
    """Returns the ops in torch's op database whose samples call an overload. Ops with the overload's name are tried
    first; only if none of them calls it, all other ops are tried. Raises UnknownTarget if no op calls the overload."""
    found = named_sources(overload)
    if not found:
        calling = (s for s in DATABASE.subjects().values() if calls_overload(s, overload))
        found = list(islice(calling, _SOURCES))
    if not found:
        raise UnknownTarget(
            f"{overload}: no sample in torch's op database calls this op: name a reference and "
            "samples"
        )
    return found


def differing(subjects: list[Subject], overload: Any) -> list[Subject]:
    """Returns the ops in another order: at each place comes the op whose calls of the overload differ most, in their
    flags and in the numbers of dimensions, from the calls of the ops before it."""
    kinds = {each.id: _kinds(each, overload) for each in subjects}
    left, seen, found = list(subjects), set[Any](), []
    while left:
        best = max(left, key=lambda each: (len(kinds[each.id] - seen), -left.index(each)))
        left.remove(best)
        seen |= kinds[best.id]
        found.append(best)
    return found


def _usual(subject: Subject) -> str:
    """Returns the dtype in which the samples of an op are tried; empty if the op has none of the usual dtypes."""
    return next((each for each in ("float32", "int64", "bool") if each in subject.dtypes), "")


def _kinds(subject: Subject, overload: Any) -> set[Any]:
    """Returns the flags, and the numbers of dimensions of tensors, with which the first samples of an op call the
    overload, each together with the position of the argument."""
    found = set[Any]()
    for sample in DATABASE.samples(subject, _usual(subject))[:3]:
        for call in recorded_calls(overload, subject.function, sample):
            for place, each in enumerate(call.args):
                if isinstance(each, torch.Tensor):
                    found.add((place, each.dim()))
                elif each is None or isinstance(each, bool):
                    found.add((place, each))
    return found


def calls_overload(subject: Subject, overload: Any) -> bool:
    """Returns True if a sample of the op calls the overload, in float32 or, if the op has no float32, in integers. If
    the overload has another name than the op, only the first samples are tried."""
    dtype = _usual(subject)
    if not dtype:
        return False
    samples = DATABASE.samples(subject, dtype)
    direct = overload._schema.name in subject.packets
    samples = samples if direct else samples[:3]
    return any(calls_of(overload, subject, each) for each in samples)


def is_composed(overload: Any) -> bool:
    """Returns True for an overload that torch implements by calling other ops, on every device."""
    return has_kernel(overload.name(), "CompositeImplicitAutograd")
