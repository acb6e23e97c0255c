"""Which tensors a call writes to."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence

import torch

from opinfo.compare import Arguments
from opinfo.subject import Subject

_STATISTICS = "running_mean", "running_var"
#: The arguments that say whether a normalization updates its statistics, with their defaults. An op without such an
#: argument, such as _batch_norm_with_update, always does.
_IN_TRAINING = {"training": False, "use_input_stats": True}


def written_tensors(subject: Subject, families: Collection[str], call: Arguments) -> frozenset[int]:
    """Returns the positions of the tensors that a call may write to: those that its schema marks; the first argument of an
    in-place op; the running statistics of a normalization in training; the weight of an embedding with ``max_norm``.
    ``families`` are those of the subject in ``exceptions.toml``."""
    if written := subject.written_tensors(call):
        return written
    if "mutates.self" in families:
        return frozenset({0})
    if "mutates.running_stats" in families:
        return _updated_statistics(_parameters(subject), call)
    if "mutates.max_norm" in families and call.kwargs.get("max_norm") is not None:
        return frozenset({0})
    return frozenset()


def _updated_statistics(parameters: Sequence[str], call: Arguments) -> frozenset[int]:
    given = dict(zip(parameters, call.args)) | call.kwargs
    switch = next((name for name in _IN_TRAINING if name in parameters), None)
    if switch is not None and not given.get(switch, _IN_TRAINING[switch]):
        return frozenset()
    written = {id(t) for name in _STATISTICS if isinstance(t := given.get(name), torch.Tensor)}
    return frozenset(n for n, each in enumerate(call.tensors) if id(each) in written)


def _parameters(subject: Subject) -> Sequence[str]:
    """Returns the names of the parameters of a normalization, from its signature in Python or from its schema."""
    try:
        names = list(inspect.signature(subject.reference).parameters)
    except ValueError:  # a function that is written in C++
        names = []
    if _STATISTICS[0] in names:
        return names
    schemas = ([each.name for each in schema.arguments] for schema in subject.schemas)
    return next((each for each in schemas if _STATISTICS[0] in each), names)
