"""Runs a program eagerly and compiled, on equal inputs, and compares everything that a caller can see: the outputs,
which tensors share memory, the inputs after the call, and the gradients.

The reference is eager execution on the same device, which the other suites check.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from conformance.checks.behaviour.compiler import AOT_EAGER, Compiler, compiling
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind
from opinfo.torch_private import storage_id, version_of

#: Compiled code may fuse a product with a sum, and add in another order. Programs add at most some thousand numbers of
#: about 1.
RTOL, ATOL = 1e-5, 1e-5
#: The same for dtypes that round more: some units in the last place.
_ROUNDS = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Inputs:
    """Creates the inputs of a program on the device. Two ``Inputs`` of the same case create equal tensors."""

    def __init__(self, context: CaseContext) -> None:
        self.context = context
        self.random = torch.Generator().manual_seed(sum(map(ord, context.seed)))

    def __call__(
        self,
        *shape: int,
        dtype: torch.dtype = torch.float32,
        layout: str = "contiguous",
        grad: bool = False,
    ) -> torch.Tensor:
        """Returns a tensor of normally distributed numbers, or of integers from 0 to 9 for an integer dtype. ``layout``
        is the name of a layout, such as "transposed+offset"."""
        if dtype.is_floating_point or dtype.is_complex:
            wide = dtype if dtype.itemsize >= 4 else torch.float32
            values = torch.randn(shape, generator=self.random, dtype=wide).to(dtype)
        else:
            values = torch.randint(
                0, 2 if dtype == torch.bool else 10, shape, generator=self.random
            )
            values = values.to(dtype)
        return self.of(values, layout, grad=grad)

    def of(
        self, values: torch.Tensor, layout: str = "contiguous", *, grad: bool = False
    ) -> torch.Tensor:
        """Returns a copy of a CPU tensor on the device, in the given layout. The memory between and around the elements
        of the copy is filled with NaN."""
        if layout == "contiguous":
            made = self.context.to_device(values.clone())  # the CPU's own copy is no copy
        else:
            made = self.context.lay(values, layout)
        return made.requires_grad_(grad)

    def index(self, *shape: int, below: int) -> torch.Tensor:
        """Returns a tensor of this shape with indices from 0 to ``below`` - 1, some of which are equal."""
        return self.of(torch.randint(0, below, shape, generator=self.random))


@dataclass(slots=True)
class Ran:
    """The tensors and the exception that one run of a program left: its inputs after the call, its outputs, the
    gradients of the inputs, and the exception that it raised, if any."""

    inputs: list[torch.Tensor]
    leaves: list[Any]  # the outputs, and what else is in the result
    spec: Any  # how they are nested
    rose: list[bool]  # by input: its version counter rose
    gradients_on: bool = True  # after the run: whether autograd records
    error: Exception | None = None
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [each for each in self.leaves if isinstance(each, torch.Tensor)]


Make = Callable[[Inputs], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Collected:
    """The arguments of a case's call of ``compare``: the program, the functions that create the inputs of its calls,
    and the options."""

    program: Callable[..., Any]
    calls: tuple[Make, ...]
    options: dict[str, Any]


#: Set while cases are asked for their programs.
_collected: list[Collected] | None = None


@contextmanager
def collecting() -> Iterator[list[Collected]]:
    """Yields a list. Within the block, each call of ``compare`` appends its program to this list and compares
    nothing."""
    global _collected
    _collected = []
    try:
        yield _collected
    finally:
        _collected = None


def compare(
    context: CaseContext,
    program: Callable[..., Any],
    *calls: Make,
    backend: str | None = None,
    **options: Any,
) -> None:
    """Compiles a program once, and calls it with the inputs that each of the ``calls`` creates. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call. The options are those of ``compare_with``."""
    if _collected is not None:
        _collected.append(Collected(program, calls, options))
        return
    if not context.where.script and (checks := _passed_together(context)):
        context.checks += checks
        return
    with compiling(backend or backend_of(context)) as compiler:
        compare_with(context, compiler, program, *calls, **options)


def _passed_together(context: CaseContext) -> int:
    """Returns the number of checks that the case's program passed in a graph with other programs. (A repro script
    contains no other programs and never calls this function.)"""
    module: Any = importlib.import_module("conformance.suites.compile.common_graph")
    return int(module.passed_together(context))


def backend_of(context: CaseContext) -> str:
    """Returns the name of the torch.compile backend that compiles for the device; ``aot_eager`` if the descriptor names
    none."""
    return context.descriptor.compiler or AOT_EAGER


def compare_with(
    context: CaseContext,
    compiler: Compiler,
    program: Callable[..., Any],
    *calls: Make,
    dynamic: bool | None = None,
    fullgraph: bool = True,
    tangents: str = "contiguous",
    rtol: float = RTOL,
    atol: float = ATOL,
    size_one: bool = False,
    may_raise: bool = False,
    graphs: int | None = None,
) -> None:
    """Does what ``compare`` does, with a ``compiler`` that the caller has created.

    ``dynamic`` and ``fullgraph`` are those of torch.compile. ``tangents`` is the layout of the gradients of the
    outputs. With ``size_one``, the strides of dimensions of size 1 are compared, too. With ``may_raise``, the
    program may raise an exception; the compiled program must then raise it, too. ``graphs`` is the largest number of
    graphs that all calls together may need.
    """
    compiled = compiler(program, dynamic=dynamic, fullgraph=fullgraph)
    before = compiler.graphs
    for number, make in enumerate(calls):
        at = f"call {number}" if len(calls) > 1 else ""
        eager = run(context, program, make(Inputs(context)), tangents)
        made = run(context, compiled, make(Inputs(context)), tangents)
        Comparison(context, at, rtol, atol, size_one, may_raise).judge(eager, made)
    count = compiler.graphs - before
    context.check(
        count > 0, "no graph was compiled", expected="at least 1", found=count, kind=Kind.COUNT
    )
    if graphs is not None:
        text = "the calls needed more graphs than expected"
        context.check(
            count <= graphs, text, expected=f"{graphs} graphs", found=count, kind=Kind.COUNT
        )


def run(
    context: CaseContext, program: Callable[..., Any], given: Sequence[Any], tangents: str
) -> Ran:
    """Calls a program with the inputs ``given``, and computes the gradients of its outputs that require one.
    ``tangents`` is the layout of the gradients that backward receives. Returns what the run left."""
    try:
        [made] = run_all(context, lambda each: [program(*each[0])], [given], tangents)
    except Exception as error:  # compared with that of the other run
        return Ran(_tensors(given), [], None, [], error=error)
    return made


def run_all(
    context: CaseContext,
    programs: Callable[[Sequence[Sequence[Any]]], Sequence[Any]],
    given: Sequence[Sequence[Any]],
    tangents: str = "contiguous",
) -> list[Ran]:
    """Calls ``programs``, which runs several programs: it takes a list with the inputs of each program, and returns
    a list with the result of each. Then computes the gradients of all results in one backward pass. Returns what the
    run of each program left."""
    inputs = [_tensors(each) for each in given]
    leaves_of = [_leaves_behind(each) for each in inputs]
    versions = [[version_of(each) for each in of_one] for of_one in inputs]
    torch.manual_seed(17)
    with torch.set_grad_enabled(
        torch.is_grad_enabled()
    ):  # restored if a program leaves another mode
        results = programs(given)
        gradients_on = torch.is_grad_enabled()
    context.opened.settle(results)
    context.settle()
    made = []
    for of_one, before, result in zip(inputs, versions, results):
        leaves, spec = pytree.tree_flatten(result)
        rose = [version_of(each) > old for each, old in zip(of_one, before)]
        made.append(Ran(of_one, leaves, spec, rose, gradients_on))
    _backward(context, made, leaves_of, tangents)
    return made


def _tensors(given: Sequence[Any]) -> list[torch.Tensor]:
    leaves, _ = pytree.tree_flatten(list(given))
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def _leaves_behind(inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the leaves that the inputs of a program were computed from, or are, each with the name of its gradient. The
    inputs change when the program writes to them, so they are asked before it runs."""
    found = {}
    for number, each in enumerate(inputs):
        if each.requires_grad and each.is_leaf:
            found[f"the gradient of input {number}"] = each
        waiting = [each.grad_fn] if each.grad_fn is not None else []
        while waiting:
            node: Any = waiting.pop()
            waiting.extend(following for following, _ in node.next_functions if following)
            if hasattr(node, "variable"):
                found[f"the gradient of the leaf behind input {number}"] = node.variable
    return found


def _backward(
    context: CaseContext,
    made: Sequence[Ran],
    leaves_of: Sequence[dict[str, torch.Tensor]],
    tangents: str,
) -> None:
    """Runs backward from all outputs that require a gradient, and stores in ``made`` the gradients of the leaves that each
    program got."""
    wanted, given = [], []
    for of_one in made:
        random = torch.Generator().manual_seed(3)
        for each in of_one.tensors:
            if each.requires_grad:
                kind = each.dtype if each.dtype.itemsize >= 4 else torch.float32
                weight = torch.randn(each.shape, generator=random, dtype=kind).to(each.dtype)
                wanted.append(each)
                given.append(context.lay(weight, tangents, around=0.0))
    if wanted:
        torch.autograd.backward(wanted, given)
    for of_one, leaves in zip(made, leaves_of):
        of_one.gradients = {name: leaf.grad for name, leaf in leaves.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a compiled run with an eager run; differences fail the check. ``at`` is a text for the failure
    that says which call of the program is compared."""

    context: CaseContext
    at: str
    rtol: float
    atol: float
    size_one: bool = False
    may_raise: bool = False

    def judge(self, eager: Ran, made: Ran) -> None:
        """Compares the exceptions, outputs, inputs and gradients of both runs. The check fails at the first
        difference."""
        if eager.error is not None:
            if not self.may_raise:
                raise eager.error
            self._error(eager.error, made.error)
            return
        if made.error is not None:
            raise made.error
        text = "gradients are switched on or off after the compiled program, unlike after eager execution"
        self._same(made.gradients_on, eager.gradients_on, text)
        self._nested(eager, made)
        for number, (want, found) in enumerate(zip(eager.tensors, made.tensors)):
            self._output(want, found, f"output {number}")
        self._shared(eager, made)
        for number, (want, found) in enumerate(zip(eager.inputs, made.inputs)):
            self._input(want, found, f"input {number}")
        # Compiled code may count a write that an op does not count: batch_norm's to its statistics, for example.
        missing = [number for number, rose in enumerate(eager.rose) if rose > made.rose[number]]
        text = "the compiled program wrote to an input without raising its version counter"
        self._same(missing, [], text)
        for name, gradient in eager.gradients.items():
            self._gradient(gradient, made.gradients.get(name), name)

    def _place(self, what: str = "") -> str:
        return ", ".join(filter(None, (what, self.at)))

    def _same(
        self, found: Any, want: Any, text: str, kind: Kind = Kind.STATE, what: str = ""
    ) -> None:
        self.context.same(found, want, text, kind, self._place(what))

    def _error(self, want: Exception, found: Exception | None) -> None:
        text = "the compiled program did not raise the exception that eager execution raises"
        name = type(want).__name__
        if found is None:
            self.context.check(
                False, text, expected=name, found="no exception", kind=Kind.NOT_RAISED
            )
        # A compiler may raise a subclass, or a RuntimeError of its own in place of a check on the host.
        taken = isinstance(found, (type(want), RuntimeError, AssertionError))
        self.context.check(taken, text, expected=name, found=found, kind=Kind.RAISED)

    def _nested(self, eager: Ran, made: Ran) -> None:
        text = "the structure of the compiled program's result differs from eager execution"
        self._same(str(made.spec), str(eager.spec), text, Kind.COUNT)
        kinds = [isinstance(each, torch.Tensor) for each in eager.leaves]
        self._same(
            [isinstance(each, torch.Tensor) for each in made.leaves], kinds, text, Kind.COUNT
        )
        for want, found in zip(eager.leaves, made.leaves):
            if not isinstance(want, torch.Tensor):
                self._same(
                    found,
                    want,
                    ("a value in the result that is not a tensor differs from eager execution"),
                    Kind.VALUES,
                )

    def _strides(self, tensor: torch.Tensor) -> tuple[int | None, ...]:
        if not tensor.numel():
            return ()
        return tuple(
            None if size == 1 and not self.size_one else stride
            for size, stride in zip(tensor.shape, tensor.stride())
        )

    def _output(self, want: torch.Tensor, found: torch.Tensor, what: str) -> None:
        self._same(
            found.device,
            want.device,
            ("an output is not on the device of the eager output"),
            Kind.DEVICE,
            what,
        )
        self._close(found, want, "the values of an output differ from eager execution", what)
        text = "the strides of an output differ from eager execution"
        if self.context.has("strides"):
            self._same(self._strides(found), self._strides(want), text, Kind.STRIDES, what)
        if self.context.has("storage"):
            offsets = found.storage_offset(), want.storage_offset()
            text = "the storage offset of an output differs from eager execution"
            self._same(*offsets, text, Kind.OFFSET, what)
        mine, theirs = ((each.is_conj(), each.is_neg()) for each in (found, want))
        self._same(
            mine,
            theirs,
            ("the conjugate or negative bit of an output differs from eager execution"),
            Kind.BITS,
            what,
        )
        text = "an output differs from eager execution in whether it requires a gradient"
        self._same(found.requires_grad, want.requires_grad, text, what=what)

    def _shared(self, eager: Ran, made: Ran) -> None:
        """Fails the check if, in the two runs, different outputs are the same object as an input, or different
        tensors share memory."""
        text = "an output is an input itself only in one of compiled and eager execution"
        self._same(_objects(made), _objects(eager), text, Kind.ALIAS)
        if self.context.has("storage"):
            text = "which outputs and inputs share memory differs from eager execution"
            self._same(_sharing(made), _sharing(eager), text, Kind.ALIAS)

    def _input(self, want: torch.Tensor, found: torch.Tensor, what: str) -> None:
        text = "the values of an input after the call differ from eager execution"
        self._close(found, want, text, what)
        text = "the strides of an input after the call differ from eager execution"
        self._same(found.stride(), want.stride(), text, Kind.STRIDES, what)
        if self.context.has("storage"):
            text = "the memory around an input after the call differs from eager execution"
            self._close(_whole(found), _whole(want), text, what)

    def _gradient(self, want: torch.Tensor | None, found: torch.Tensor | None, what: str) -> None:
        text = "an input has a gradient only in one of compiled and eager execution"
        self._same(found is None, want is None, text, Kind.COUNT, what)
        if want is not None and found is not None:
            text = "the values of a gradient differ from eager execution"
            self._close(found, want, text, what, widen=4.0)
            text = "the strides of a gradient differ from eager execution"
            if self.context.has("strides"):
                self._same(self._strides(found), self._strides(want), text, Kind.STRIDES, what)

    def _close(
        self,
        found: torch.Tensor,
        want: torch.Tensor,
        text: str,
        what: str,
        widen: float = 1.0,
    ) -> None:
        rounds = _ROUNDS.get(want.dtype, 0.0)
        if not (want.dtype.is_floating_point or want.dtype.is_complex):
            self.context.equal(found.detach(), want.detach(), text, self._place(what))
            return
        self.context.assert_close(
            found.detach().resolve_conj().resolve_neg(),
            want.detach().resolve_conj().resolve_neg(),
            text,
            self._place(what),
            rtol=max(self.rtol, rounds) * widen,
            atol=max(self.atol, rounds) * widen,
            equal_nan=True,
        )


def _objects(made: Ran) -> list[int | None]:
    """Returns, for each output, the index of the input that is the same object; None if it is none of the inputs."""
    return [
        next((number for number, each in enumerate(made.inputs) if each is output), None)
        for output in made.tensors
    ]


def _sharing(made: Ran) -> list[int]:
    """Returns, for each input and then each output, the index of the first of these tensors that has the same
    storage."""
    storages = [storage_id(each) for each in (*made.inputs, *made.tensors)]
    empty = [each.untyped_storage().nbytes() == 0 for each in (*made.inputs, *made.tensors)]
    return [
        place if none else storages.index(storage)
        for place, (storage, none) in enumerate(zip(storages, empty))
    ]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of all elements that fit into the tensor's storage."""
    plain = tensor.detach()
    count = plain.untyped_storage().nbytes() // plain.itemsize
    return plain.as_strided((count,), (1,), 0)
