"""Converts calls and programs to plain JSON data and back, for pinned examples.

Arguments of other types than ``opinfo.encoding.ARGUMENTS`` cannot be pinned and raise NotEncodable.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.programs.trials import Program
from conformance.search.minimise.candidates import Candidate
from devices.errors import ConformError
from opinfo.compare import Arguments
from opinfo.encoding import (
    ARGUMENTS,
    NotEncodable,
    read_tensor,
    read_value,
    write_tensor,
    write_value,
)
from opinfo.layouts import parse_layout
from opinfo.samples import Sample

#: The parts of a call that have a layout.
_PLACES = ("first", "rest", "target")


class NotRebuilt(ConformError):
    """The exception raised if the data is not a valid call or program, because another version wrote it or somebody edited it."""


def encode(candidate: Candidate) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns a call and the layouts of its tensors as plain JSON data. Raises NotEncodable if an argument cannot be
    written."""
    sample = candidate.sample
    numbers = {id(t): n for n, t in enumerate(sample.tensors)}
    write = partial(write_value, codecs=ARGUMENTS, tensor=lambda t: numbers[id(t)])
    call = {
        "sample": sample.drawn,
        "args": [write(each) for each in sample.call.args],
        "kwargs": {name: write(each) for name, each in sample.call.kwargs.items()},
        "tensors": [write_tensor(each) for each in sample.tensors],
    }
    return call, {place: getattr(candidate, place).id for place in _PLACES}


def decode(
    call: dict[str, Any], layouts: dict[str, str], drawn: Sequence[Sample] = ()
) -> Candidate:
    """Returns the call that a pinned example describes as JSON data. Raises NotRebuilt if the data is not valid.

    ``drawn`` are the samples of the database. The function that removes the arbitrary parts (signs, phases) of the op's
    outputs cannot be stored as data. It is therefore taken from the sample from which the example was made.
    """
    try:
        tensors = [read_tensor(each) for each in call["tensors"]]
        read = partial(read_value, codecs=ARGUMENTS, tensor=tensors.__getitem__)
        args = tuple(read(each) for each in call["args"])
        kwargs = {str(name): read(each) for name, each in call["kwargs"].items()}
        index = int(call["sample"])
        process = next((s.process for s in drawn if s.index == index), lambda result: result)
        sample = Sample(index, Arguments(args, kwargs), process)
        return Candidate(sample, *(parse_layout(layouts[place]) for place in _PLACES))
    except (
        *(KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError),
        *(zlib.error, RecursionError),
    ) as error:
        raise NotRebuilt(f"{type(error).__name__}: {error}") from None


# -- programs


def encode_program(program: Sequence[Any]) -> list[Any]:
    """Returns a program as plain JSON data. Raises NotEncodable if a part cannot be written."""
    return [_encode_part(each) for each in program]


def _encode_part(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return encode_program(value)
    if type(value) in (int, bool, str):
        return value
    raise NotEncodable(f"a {type(value).__name__} in a program cannot be pinned: {value!r}")


def decode_program(case: BehaviourCase, program: Sequence[Any]) -> Program:
    """Returns the program that encoded data describes. Raises NotRebuilt if it is not a valid program of the case."""
    if case.drawn is None:
        raise NotRebuilt(f"the case {case.clause}::{case.name} no longer runs random programs")
    found: Program = _literal(list(program))
    try:
        case.drawn.validate(*found)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise NotRebuilt(f"{type(error).__name__}: {error}") from None
    return found


def _literal(value: Any) -> Any:
    return tuple(map(_literal, value)) if isinstance(value, list) else value
