"""Mutants of gradients: the derivative of an op is wrong for one input, always or for some layouts, sizes or subsets.

A derivative is wrong on the simulated device alone, and only where gradients are recorded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import torch

from opinfo.catalog import Op, catalogue
from opinfo.compare import tensors_of
from opinfo.exceptions import exceptions
from opinfo.samples import Sample, draw, seed_everything
from tests.mutation.items import device, subject
from tests.mutation.kernels import Result
from tests.planting.derivatives import Backward, wrong_derivative
from tests.planting.places import on_simulated, replaced
from tests.planting.tensors import is_expanded

DTYPE = "float32"
_NOT = {"values.free", "mutates.self", "values.not_unique", "gradients.of_storage"}


def _long(tensor: torch.Tensor) -> int:
    return sum(n > 1 for n in tensor.shape)


def _stepped(tensor: torch.Tensor) -> bool:
    return not tensor.is_contiguous() and not is_expanded(tensor)


#: When a gradient is wrong.
CONDITIONS: dict[str, Callable[[Backward], bool]] = {
    "always": lambda way: True,
    "a cotangent is expanded": lambda way: any(map(is_expanded, way.cotangents)),
    "a cotangent is not contiguous": lambda way: any(map(_stepped, way.cotangents)),
    "every cotangent is contiguous": lambda way: all(c.is_contiguous() for c in way.cotangents),
    "a cotangent has an offset": lambda way: any(c.storage_offset() for c in way.cotangents),
    "an input is expanded": lambda way: any(map(is_expanded, way.inputs)),
    "an input is not contiguous": lambda way: any(map(_stepped, way.inputs)),
    "the first input is not contiguous": lambda way: _stepped(way.inputs[0]),
    "input and cotangent are not contiguous": lambda way: (
        any(map(_stepped, way.inputs)) and any(map(_stepped, way.cotangents))
    ),
    "one input alone requires a gradient": lambda way: way.wanted == 1 < len(way.inputs),
    "not every input requires a gradient": lambda way: way.wanted < len(way.inputs),
    "not every output has a cotangent": lambda way: len(way.cotangents) < way.outputs,
    "three dimensions or more": lambda way: any(_long(each) > 2 for each in way.inputs),
    "two dimensions": lambda way: any(_long(each) == 2 for each in way.inputs),
    "a vector or less": lambda way: all(_long(each) < 2 for each in way.inputs),
    "more than 256 elements": lambda way: any(each.numel() > 256 for each in way.inputs),
    "more than 4,096 elements": lambda way: any(each.numel() > 4096 for each in way.inputs),
    "a tensor of more than 32,767 elements": lambda way: any(
        each.numel() > 32767 for each in (*way.inputs, *way.cotangents)
    ),
    "a row longer than 32": lambda way: any(n > 32 for i in way.inputs for n in i.shape[-1:]),
    "a cotangent above 100": lambda way: any(
        float(c.abs().max()) > 100 for c in way.cotangents if c.numel()
    ),
}


def _each(gradient: torch.Tensor, change: Callable[[torch.Tensor], None]) -> torch.Tensor:
    copy = gradient.clone(memory_format=torch.contiguous_format)
    if copy.numel():
        change(copy.view(-1))
    return copy


def _put(flat: torch.Tensor, place: slice, value: Callable[[torch.Tensor], torch.Tensor]) -> None:
    flat[place] = value(flat[place])


def _along_wrong(gradient: torch.Tensor) -> torch.Tensor:
    """Summed over a dimension that it should keep."""
    long = [d for d, n in enumerate(gradient.shape) if n > 1]
    return gradient.mean(long[-1], keepdim=True).expand_as(gradient) if long else gradient * 2


def _turned(gradient: torch.Tensor) -> torch.Tensor:
    long = [d for d, n in enumerate(gradient.shape) if n > 1]
    if len(long) < 2:
        return gradient.flip(long) if long else -gradient
    return gradient.flip(long[-1])


def _as_a_row(gradient: torch.Tensor) -> torch.Tensor:
    """The elements of the transposed gradient, in the order of its memory."""
    return (
        gradient.transpose(0, -1).reshape(gradient.shape)
        if gradient.dim() > 1
        else gradient.flip(0)
        if gradient.dim()
        else -gradient
    )


#: How a gradient is wrong.
EFFECTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "doubled": lambda g: g * 2,
    "halved": lambda g: g / 2,
    "off by a thousandth": lambda g: g * 1.001,
    "negated": lambda g: -g,
    "zeros": torch.zeros_like,
    "none": lambda g: None,
    "flipped": _turned,
    "read in a row": _as_a_row,
    "summed over a dimension": _along_wrong,
    "rolled by one": lambda g: g.roll(1),
    "the first element lost": lambda g: _each(g, lambda f: _put(f, slice(0, 1), torch.zeros_like)),
    "the last element lost": lambda g: _each(
        g, lambda f: _put(f, slice(-1, None), torch.zeros_like)
    ),
    "the tail lost": lambda g: _each(
        g, lambda f: _put(f, slice(len(f) // 4 * 4, None), torch.zeros_like)
    ),
    "a block of 16 repeated": lambda g: _each(
        g, lambda f: _put(f, slice(-16, None), lambda b: f[: len(b)].clone())
    ),
    "NaN in the middle": lambda g: _each(
        g, lambda f: _put(f, slice(len(f) // 2, len(f) // 2 + 1), lambda b: b * float("nan"))
    ),
    "through bfloat16": lambda g: g.to(torch.bfloat16).to(g.dtype),
    "one too much": lambda g: g + 1,
}
#: Those that are made of the cotangent, of an input or of an earlier gradient.
OTHERS = (
    *(
        "the cotangent read in a row",
        "the gradient of the call before",
        "the cotangent is written to",
    ),
    *("an input is written to", "the cotangent is ignored"),
)


@dataclass
class Mutant:
    """A wrong derivative of an op: for one of the inputs that require a gradient, or for all of them if ``place`` is None."""

    op: Op
    when: str
    what: str
    place: int | None
    reached: int = 0
    _before: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def applies(self, way: Backward) -> bool:
        with torch.no_grad():
            return CONDITIONS[self.when](way)

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of an input, as the mutant returns it."""
        if self.place not in (None, place) or not self.applies(way):
            return gradient
        if self.what == "the gradient of the call before":
            shape = tuple(gradient.shape)
            found = self._before.get(shape, gradient)
            self.reached += shape in self._before
            self._before[shape] = gradient.detach().clone()
            return found
        if self.what == "an input is written to":
            self.reached += 1
            with torch.no_grad():
                way.inputs[place].detach().view_as(way.inputs[place]).add_(1)
            return gradient
        if self.what not in EFFECTS:
            return gradient
        self.reached += 1
        return EFFECTS[self.what](gradient)

    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        """A cotangent, as the mutant passes it on."""
        if not self.applies(way):
            return cotangent
        if self.what == "the cotangent read in a row" and not cotangent.is_contiguous():
            self.reached += 1
            size = cotangent.numel()
            held = cotangent.detach()
            reach = sum((n - 1) * s for n, s in zip(held.shape, held.stride())) + 1 if size else 0
            flat = held.as_strided((reach,), (1,), held.storage_offset())
            return flat.repeat(size // max(reach, 1) + 1)[:size].view(cotangent.shape)
        if self.what == "the cotangent is written to":
            self.reached += 1
            with torch.no_grad():
                cotangent.detach().add_(1) if not is_expanded(cotangent) else None
        if self.what == "the cotangent is ignored":
            self.reached += 1
            return torch.ones_like(cotangent)
        return cotangent


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Put the mutant in front of its op's function, for tensors of the simulated device."""
    mutant.reached = 0
    mutant._before.clear()
    with replaced(mutant.op, "function", wrong_derivative(mutant), on_simulated):
        yield


def ops() -> list[str]:
    """The ops whose gradients are well defined."""
    known = exceptions()
    return [
        op.id
        for op in catalogue().values()
        if DTYPE in op.gradient_dtypes
        and not known.families_of(op.id) & _NOT
        and DTYPE in device().descriptor.dtypes_of(op.id)
    ]


def names(seed: int, count: int) -> list[str]:
    """The ops of the mutants. Each op comes once, in an order drawn from the seed, before any comes again."""
    rng, found, known = Random(f"gradients {seed}"), [], ops()
    while len(found) < count:
        found += rng.sample(known, len(known))
    return found[:count]


def breed(seed: int, number: int, name: str) -> Mutant:
    rng, op = Random(f"gradients {seed} {number}"), catalogue()[name]
    what = rng.choice([*EFFECTS, *OTHERS])
    when = "always" if rng.random() < 0.15 else rng.choice([c for c in CONDITIONS if c != "always"])
    sizes = [sum(t.is_floating_point() for t in s.tensors) for s in draw(op, DTYPE, limit=8)]
    place = rng.choice([None, *range(max(sizes, default=1))])
    return Mutant(op, when, what, place)


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    mutant = breed(seed, number, name)
    where = "all inputs" if mutant.place is None else f"input {mutant.place}"
    found = Result(f"g{number:04d}", "gradients", name, mutant.when, f"{where}: {mutant.what}", "")
    tell(found)
    item = subject(name, DTYPE)
    with planted(mutant):
        clauses = item.noticed()
        found.reached = mutant.reached
    if found.credit(clauses) or found.not_gating:
        return found
    found.note = observable(breed(seed, number, name), Random(f"probe {seed} {number}"))
    if not found.note:
        found.result = "equivalent"
    else:
        found.result = "survived" if found.reached else "not_reached"
    return found


# -- whether there is anything to be noticed


def _layouts(rng: Random) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    def transposed(t: torch.Tensor) -> torch.Tensor:
        return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t

    def stepped(t: torch.Tensor) -> torch.Tensor:
        wide = t.new_zeros((*t.shape, 2)) if t.dim() else t
        return wide.select(-1, 1).copy_(t) if t.dim() else t

    def expanded(t: torch.Tensor) -> torch.Tensor:
        return t.narrow(0, 0, 1).expand(t.shape) if t.dim() and t.shape[0] > 1 else t

    found = [torch.Tensor.clone, transposed, stepped, expanded]
    rng.shuffle(found)
    return found


def observable(mutant: Mutant, rng: Random) -> str:
    """A call that shows the mutant, and what differs in it; empty if no call of the probe shows it."""
    samples = [s for s in draw(mutant.op, DTYPE, limit=60, seed=rng.randrange(2**31)) if _usable(s)]
    for sample in rng.sample(samples, min(len(samples), 24)):
        for lay in _layouts(rng):
            for send in _layouts(rng):
                for subset in (True, False):
                    sound = _gradients(None, mutant.op, sample, lay, send, subset)
                    with planted(mutant):
                        wrong = _gradients(mutant, mutant.op, sample, lay, send, subset)
                        wrong = (
                            _gradients(mutant, mutant.op, sample, lay, send, subset)
                            if mutant.what.endswith("before")
                            else wrong
                        )
                    if sound is not None and wrong is not None and _differ(sound, wrong):
                        return f"sample {sample.index} tells it apart"
    return ""


def _usable(sample: Sample) -> bool:
    return sample.numel < 2**16 and all(t.layout == torch.strided for t in sample.tensors)


def _gradients(
    mutant: Mutant | None,
    op: Op,
    sample: Sample,
    lay: Callable[[torch.Tensor], torch.Tensor],
    send: Callable[[torch.Tensor], torch.Tensor],
    subset: bool,
) -> list[torch.Tensor] | None:
    """All that a program sees: the gradients, and the inputs and cotangents afterwards."""
    seed_everything(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            given = [
                lay(t.to("simulated")).detach() if t.is_floating_point() else t.to("simulated")
                for t in sample.tensors
            ]
            starts = [t.requires_grad_() for t in given if t.is_floating_point()]
            starts = starts[:1] if subset else starts
            for each in given:
                if each.is_floating_point() and not any(each is s for s in starts):
                    each.requires_grad_(False)
            args, kwargs = sample.call.on(given, torch.device("simulated", 0))
            with torch.enable_grad():
                ends = [t for t in tensors_of(op.function(*args, **kwargs)) if t.requires_grad]
                source = torch.Generator().manual_seed(5)
                sent = [
                    send(
                        (torch.randn(e.shape, generator=source) * (200 if lay is send else 1)).to(
                            "simulated"
                        )
                    )
                    for e in ends
                ]
                found = torch.autograd.grad(ends, starts, sent, allow_unused=True)
        except Exception:  # a call that is none: the next one may be
            return None
        shown = [torch.zeros(()) if g is None else g.cpu() for g in found]
        return [*shown, *(t.detach().cpu() for t in (*given, *sent))]


def _differ(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return any(
        a.shape != b.shape or not torch.allclose(a.double(), b.double(), 1e-5, 1e-6, equal_nan=True)
        for a, b in zip(one, other)
    )
