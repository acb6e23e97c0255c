"""Simpler arguments of a call: what each may be exchanged for, and the call with some exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from opinfo.structure import tensors_of


class _Drop:
    """Stands for an argument that is left out."""

    def __repr__(self) -> str:
        return "left out"


DROP: Final = _Drop()

#: Lists of numbers up to this length are simplified number by number.
_SHORT = 6


@dataclass(frozen=True, slots=True)
class Slot:
    """One place among the arguments: keys from the outside in, and what may stand there, simplest first."""

    path: tuple[int | str, ...]
    options: tuple[Any, ...]


def slots(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Slot]:
    """The places that have something simpler, keywords first: without them a call is easiest to read."""
    found: list[Slot] = []
    for name, value in kwargs.items():
        found.append(Slot(("kwargs", name), (DROP, *_options(value))))
        found += _inside(("kwargs", name), value)
    for place, value in reversed(list(enumerate(args))):
        droppable = (DROP,) if place == len(args) - 1 and place > 0 else ()
        options = (*droppable, *_options(value))
        if options:
            found.append(Slot(("args", place), options))
        found += _inside(("args", place), value)
    return found


def _options(value: Any) -> tuple[Any, ...]:
    """Simpler values than this one."""
    if isinstance(value, bool):
        return (False,) if value else ()
    if isinstance(value, int):
        return tuple(n for n in (0, 1, 2) if n < abs(value))
    if isinstance(value, float):
        return tuple(n for n in (0.0, 1.0, 2.0) if n != value and not n > abs(value))
    if isinstance(value, complex):
        return tuple(n for n in (0j, 1 + 0j) if n != value and abs(n) <= abs(value))
    if type(value) in (list, tuple) and len(value) > 1 and _only_tensors(value):
        return tuple(value[:count] for count in range(1, len(value)))
    return ()


def _only_tensors(value: Sequence[Any]) -> bool:
    return all(isinstance(v, torch.Tensor) for v in value)


def _inside(path: tuple[int | str, ...], value: Any) -> list[Slot]:
    if type(value) not in (list, tuple) or len(value) > _SHORT or tensors_of(value):
        return []
    return [Slot((*path, i), options) for i, v in enumerate(value) if (options := _options(v))]


def with_choices(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Slot], vector: Sequence[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with option ``vector[n]`` at place ``n``; past the last option it stays as it is."""
    new_args, new_kwargs = list(args), dict(kwargs)
    dropped = False
    for slot, choice in sorted(
        zip(places, vector, strict=True), key=lambda pair: len(pair[0].path)
    ):
        if choice >= len(slot.options):
            continue
        option, (side, key, *inner) = slot.options[choice], slot.path
        if side == "kwargs":
            if key not in new_kwargs:
                continue
            if option is DROP:
                del new_kwargs[str(key)]
            else:
                new_kwargs[str(key)] = _exchanged(new_kwargs[str(key)], inner, option)
        elif option is DROP:
            dropped = True
        else:
            place = int(key)
            new_args[place] = _exchanged(new_args[place], inner, option)
    if dropped:
        new_args.pop()
    return tuple(new_args), new_kwargs


def _exchanged(value: Any, path: Sequence[int | str], option: Any) -> Any:
    if not path:
        return option
    place = int(path[0])
    items = list(value)
    items[place] = _exchanged(items[place], path[1:], option)
    return type(value)(items)
