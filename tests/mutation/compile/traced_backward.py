"""Mutants of compiled autograd: of what it puts into the graph of a backward pass, of the order of its calls, and of what it
hands to a graph that it uses again.

The name of a mutant describes it completely: ``subject|effect|condition``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock

import torch

from conformance.checks.behaviour.compiler import compiled_backward, compiling
from conformance.checks.cases.cases import BehaviourCase
from tests.mutation import compilers
from tests.mutation.compile.op_cells import laid
from tests.mutation.compile.reach_table import reaching
from tests.mutation.compile.trial import Counted, Plant, attempt
from tests.mutation.compiled_probe import Answer
from tests.mutation.kernels import Result

FAMILY: Final = "compiled_autograd"
_CLAUSE: Final = "compile.autograd"
_MODULE: Final = "torch._dynamo.compiled_autograd"
#: A mutant counts as equivalent after this many backward passes that run its code, of at most this many.
_REACHING: Final = 6
_PROGRAMS: Final = 12

#: A method of torch's tracer with a mutant: takes the right method, the tracer, and the arguments.
Wrong = Callable[..., Any]


def _skipped_hook(right: Any, tracer: Any, given: Any, *rest: Any) -> Any:
    return given


def _lost_result(right: Any, tracer: Any, given: Any, *rest: Any) -> Any:
    """Runs a hook and takes the gradients that it was given for those that it returned."""
    before = list(given)
    right(tracer, given, *rest)
    return before


def _accumulated(change: Callable[[Any, Any], tuple[Any, Any]]) -> Wrong:
    def wrong(right: Any, tracer: Any, variable: Any, old: Any, new: Any, *rest: Any) -> Any:
        return right(tracer, variable, *change(old, new), *rest)

    return wrong


def _summed(take: Callable[[Any, Any], Any]) -> Wrong:
    return lambda right, tracer, old, new: take(old, new)


def reordered(right: Any, tracer: Any, *, undo: bool) -> bool:
    """Puts the nodes of a graph into another order, and returns whether it changed. With ``undo`` they get their order back."""
    before = [*tracer.fx_tracer.graph.nodes]
    right(tracer)
    changed = before != [*tracer.fx_tracer.graph.nodes]
    if changed and undo:
        for last, node in pairwise(before):
            last.append(node)
    return changed


def _not_reordered(right: Any, tracer: Any) -> None:
    reordered(right, tracer, undo=True)


def _other_order(right: Any, tracer: Any, name: str, gradients: Any, *rest: Any) -> Any:
    found = list(right(tracer, name, gradients, *rest))
    return [*found[1::-1], *found[2:]] if len(found) > 1 else found


def _repeated(right: Any, tracer: Any, name: str, gradients: Any, *rest: Any) -> Any:
    found = list(right(tracer, name, gradients, *rest))
    return [found[0]] * len(found) if found else found


def _negated(right: Any, tracer: Any, outputs: Any, *rest: Any) -> Any:
    found = right(tracer, outputs, *rest)
    for each in found:
        if isinstance(each, torch.Tensor):
            proxy = tracer.fx_tracer.create_proxy(
                "call_function", torch.neg, (tracer.to_proxy(each),), {}
            )
            tracer.bind_objects_to_proxies([each], [proxy])
    return found


def _not_validated(right: Any, tracer: Any, mode: Any, outputs: Any, *rest: Any) -> Any:
    return outputs


def _unpacked(right: Any, tracer: Any, hook_id: int, data_id: int) -> Any:
    return right(tracer, hook_id, 0 if data_id else data_id)


def _other_sizes(change: Callable[[list[int]], list[int]]) -> Wrong:
    """A graph receives other sizes than those of its backward pass."""

    def wrong(right: Any, tracer: Any, outputs: Any) -> Any:
        run, compiled = right(tracer, outputs)

        def changed(graph: Any, inputs: Any, sizes: Any, *rest: Any) -> Any:
            return run(graph, inputs, change(list(sizes)), *rest)

        return changed, compiled

    return wrong


class _First:
    """The sizes of the first backward pass."""

    def __init__(self) -> None:
        self.sizes: dict[int, list[int]] = {}

    def __call__(self, sizes: list[int]) -> list[int]:
        return self.sizes.setdefault(len(sizes), sizes)


_HOOKS: Final = ("tensor_pre_hook", "pre_hook", "post_hook")
_ORDERS: Final = (
    "reorder_tensor_pre_hook_nodes",
    "reorder_pre_hook_nodes_to_schedule_asap",
    "reorder_accumulate_grad_nodes",
    "reorder_pre_hook_nodes_to_mimic_eager",
    "reorder_post_acc_grad_hook_nodes",
    "reorder_post_hook_nodes",
    "delay_unpack_hook_nodes",
)
#: The mutants of each method: what is wrong, and how.
SUBJECTS: Final[dict[str, dict[str, Callable[[], Wrong]]]] = {
    **{name: {"is skipped": lambda: _skipped_hook} for name in _HOOKS},
    "post_acc_grad_hook": {
        "is skipped": lambda: lambda right, tracer, given, hook: [given],
        "its result is lost": lambda: (
            lambda right, tracer, given, hook: right(tracer, given, hook) and [given]
        ),
    },
    **{name: {"is not done": lambda: _not_reordered} for name in _ORDERS},
    "accumulate_grad": {
        "loses the earlier gradient": lambda: _accumulated(lambda old, new: (None, new)),
        "keeps the earlier gradient": lambda: _accumulated(
            lambda old, new: (old, new if old is None else old)
        ),
        "is skipped": lambda: lambda right, tracer, variable, old, *rest: old,
    },
    "accumulate": {
        "keeps the first of two gradients": lambda: _summed(lambda old, new: old),
        "keeps the second of two gradients": lambda: _summed(lambda old, new: new),
    },
    "apply_functional": {
        "exchanges two gradients": lambda: _other_order,
        "repeats its first gradient": lambda: _repeated,
    },
    "call_copy_slices_epilogue": {
        "exchanges two gradients": lambda: lambda right, tracer, *rest: right(tracer, *rest)[::-1],
    },
    "validate_outputs": {
        "is skipped": lambda: _not_validated,
        "negates gradients": lambda: _negated,
    },
    "unpack_hook": {"unpacks the first saved tensor": lambda: _unpacked},
    "end_capture": {
        "sizes are those of the first pass": lambda: _other_sizes(_First()),
        "sizes are one too large": lambda: _other_sizes(lambda sizes: [n + 1 for n in sizes]),
        "sizes are reversed": lambda: _other_sizes(lambda sizes: sizes[::-1]),
    },
}
SUBJECTS["pre_hook"]["its result is lost"] = lambda: _lost_result
SUBJECTS["post_hook"]["its result is lost"] = lambda: _lost_result
SUBJECTS["tensor_pre_hook"]["its result is lost"] = lambda: _lost_result
#: Which calls of the method while one backward pass is traced are wrong.
CONDITIONS: Final = ("always", "the first call of a pass", "all but the first call of a pass")


class Spec(NamedTuple):
    """A mutant."""

    subject: str
    effect: str
    condition: str


def names(seed: int, count: int) -> list[str]:
    """Mutants 0 to count - 1: of methods in turn, none of them twice."""
    rng, found = Random(f"{FAMILY} {seed}"), list[str]()
    while len(found) < count:
        for subject in rng.sample(sorted(SUBJECTS), len(SUBJECTS)):
            once = subject in (*_ORDERS, "end_capture")  # one call in each pass
            condition = "always" if once or rng.random() < 0.5 else rng.choice(CONDITIONS)
            name = "|".join((subject, rng.choice(list(SUBJECTS[subject])), condition))
            if name not in found:
                found.append(name)
    return found[:count]


def _tracer() -> Any:
    return importlib.import_module(_MODULE).AutogradCompilerInstance


@contextmanager
def planted(spec: Spec, sham: bool) -> Iterator[Counted]:
    """Plants a mutant for a block."""
    tracer, state = _tracer(), Counted(sham)
    right, wrong = getattr(tracer, spec.subject), SUBJECTS[spec.subject][spec.effect]()

    def method(self: Any, *args: Any) -> Any:
        calls = self.__dict__.setdefault("_calls_with_a_mutant", 0)
        self._calls_with_a_mutant = calls + 1
        strikes = {"always": True, CONDITIONS[1]: calls == 0, CONDITIONS[2]: calls > 0}
        if not strikes[spec.condition]:
            return right(self, *args)
        state.ran += 1
        if spec.subject in _ORDERS:
            state.reached += reordered(right, self, undo=not sham)
            return None
        state.reached += 1
        return right(self, *args) if sham else wrong(right, self, *args)

    with mock.patch.object(tracer, spec.subject, method):
        yield state


@contextmanager
def noting() -> Iterator[set[str]]:
    """Notes the methods whose mutants would change something in a block: those that are called, and those that put the nodes of a
    graph into another order. Nothing is changed."""
    tracer, notes = _tracer(), set[str]()

    def noted(subject: str) -> Callable[..., Any]:
        right = getattr(tracer, subject)

        def method(self: Any, *args: Any) -> Any:
            if subject in _ORDERS:
                made, changed = None, reordered(right, self, undo=False)
            else:
                made, changed = right(self, *args), True
            if changed:
                notes.add(f"{FAMILY}|{subject}")
            return made

        return method

    with mock.patch.multiple(tracer, **{subject: noted(subject) for subject in SUBJECTS}):
        yield notes


@cache
def cases() -> tuple[BehaviourCase, ...]:
    """The cases of compiled autograd."""
    return tuple(each for each in compilers.cases() if each.clause == _CLAUSE)


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    spec = Spec(*name.split("|"))
    found = Result(f"c{number:04d}", FAMILY, spec.subject, spec.condition, spec.effect, "")
    tell(found)
    rng = Random(f"probe {seed} {number}")
    return attempt(
        found,
        reaching({f"{FAMILY}|{spec.subject}"}, cases()),
        lambda sham: planted(spec, sham),
        compilers.outcome,
        lambda plant: probe(plant, rng),
        tell,
    )


# -- equivalent or not


def probe(plant: Plant, rng: Random) -> Answer:
    """Whether drawn programs with a backward pass tell a mutant from compiled autograd."""
    compilers.register()
    reached = 0
    for number in range(_PROGRAMS):
        seed = rng.randrange(2**32)
        with plant(True):
            sound = _left(seed)
        with plant(False) as state:
            try:
                wrong = _left(seed)
            except Exception as error:
                return Answer(f"backward pass {number} raises {type(error).__name__}", reached + 1)
        reached += state.reached > 0
        if sound != wrong:
            return Answer(f"backward pass {number} tells it apart", reached)
        if reached == _REACHING:
            break
    return Answer("", reached)


#: Steps of a drawn program: each makes a tensor with the shape of the first operand.
_STEPS: Final[tuple[Callable[..., torch.Tensor], ...]] = (
    lambda y, x, weight, bias: y @ weight,
    lambda y, x, weight, bias: y + bias,
    lambda y, x, weight, bias: torch.tanh(y) * bias,
    lambda y, x, weight, bias: torch.cat([y, x])[1 : 1 + len(y)],
    lambda y, x, weight, bias: torch.where(y > 0, y, bias * y),
    lambda y, x, weight, bias: y.expand(2, *y.shape).sum(0) / (bias.exp() + 1),
)


def _left(seed: int) -> str:
    """What three backward passes of a drawn program leave: the gradients, and the order of its hooks."""
    rng, told = Random(seed), list[object]()
    steps = [rng.randrange(len(_STEPS)) for _ in range(rng.randint(2, 5))]
    hooked, scaled, saved = (rng.random() < 0.6 for _ in range(3))
    written = rng.random() < 0.4
    kinds = [rng.randrange(4) for _ in range(3)]
    kept = rng.random() < 0.5
    torch.manual_seed(seed % 1000)

    def note(name: str, factor: float) -> Callable[..., Any]:
        def hook(*given: Any) -> Any:
            told.append(name)
            return given[0] * factor if scaled and isinstance(given[0], torch.Tensor) else None

        return hook

    def forward(leaves: list[torch.Tensor]) -> torch.Tensor:
        y = leaves[0] * 1
        if written:
            y[::2].mul_(leaves[2].sum())
        for step in steps:
            y = _STEPS[step](y, *leaves)
            if hooked:
                y.register_hook(note("result", 2.0))
        if hooked and y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda grads: told.append("before"))  # type: ignore[no-untyped-call]
            y.grad_fn.register_hook(lambda *given: told.append("after"))  # type: ignore[no-untyped-call]
        return y

    leaves: list[torch.Tensor] = []
    with compiling(compilers.NAME) as compiler, compiled_backward(compiler):
        for rows in (4, 4, 6):
            if len(leaves) == 0 or not kept or rows != len(leaves[0]):
                shapes = ((rows, 3), (3, 3), (3,))
                leaves = [
                    laid(torch.randn(shape), kind).requires_grad_()
                    for shape, kind in zip(shapes, kinds)
                ]
                for place, each in enumerate(leaves) if hooked else ():
                    each.register_hook(note(f"leaf {place}", 0.5))
                    each.register_post_accumulate_grad_hook(
                        lambda leaf, place=place: told.append(f"accumulated {place}")
                    )
            if saved:
                with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
                    made = forward(leaves)
            else:
                made = forward(leaves)
            made.square().sum().backward()
            told.append([_shown(each.grad) for each in leaves])
    return repr(told)


def _shown(gradient: torch.Tensor | None) -> object:
    return None if gradient is None else (gradient.tolist(), gradient.stride())
