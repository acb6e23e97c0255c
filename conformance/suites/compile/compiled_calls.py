"""Calls an op twice on equal inputs, eagerly and compiled, forward and backward, and records the results as evidence
for the judge. Repro scripts contain these functions, which need only torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch

from conformance.checks.behaviour.compiler import Compiler, compiling
from conformance.checks.ops.calls import Invocation, laid_out, strided, views
from conformance.checks.ops.evidence import OutputFacts, output_facts
from opinfo.compare import Arguments, replace_tensors
from opinfo.guarded import Guarded
from opinfo.layouts import Geometry
from opinfo.shared_memory import have_common_element
from opinfo.torch_private import storage_id, version_of

#: The seed that is set before each call, so that an eager and a compiled call draw the same random numbers.
SEED = 42


@dataclass(slots=True)
class Gradient:
    """The gradient of an input: its values on the CPU, the strides of the dimensions longer than 1, and the index of the
    first other gradient of the call with an element in the same memory; None if there is none."""

    values: torch.Tensor
    stride: tuple[int, ...]
    shares: int | None = None


@dataclass(slots=True)
class Answer:
    """The result of a call and its effects on the inputs.

    ``form`` is the structure of the result with its numbers, as a string. For each strided tensor of the result,
    ``same`` is the index of the input that is the same object, and ``shares`` the index of the first other output with
    the same storage; both are None if there is no such tensor. For each input, ``after`` has the elements of its whole
    storage after the call, and ``wrote`` is True if its version counter rose. ``gradients`` has one entry for each
    input that requires a gradient. ``later`` has the values of the outputs, read again after a further call of the same
    function.
    """

    raised: Exception | None = None
    during: str = ""  # "backward" if backward raised
    form: str = ""
    values: list[torch.Tensor] = field(default_factory=list)
    outputs: list[OutputFacts] = field(default_factory=list)
    same: list[int | None] = field(default_factory=list)
    shares: list[int | None] = field(default_factory=list)
    requires_grad: list[bool] = field(default_factory=list)
    after: list[torch.Tensor | None] = field(default_factory=list)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    wrote: list[bool] = field(default_factory=list)
    gradients: list[Gradient | None] = field(default_factory=list)
    later: list[torch.Tensor] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(
        default_factory=list
    )  # the outputs, until they are read later

    def read_later(self, call: Invocation) -> None:
        """Reads the values of the outputs again, and then drops the references to the outputs."""
        self.later = [copied(call, *each) for each in zip(self.tensors, self.outputs)]
        self.tensors = []


@dataclass(slots=True)
class Pair:
    """The answers of an eager and of a compiled call on equal inputs. ``graphs`` is the number of graphs that torch
    compiled during the compiled call. ``repeated`` is True if the function had already been compiled for inputs of
    these shapes and strides. ``row_major`` is True if all inputs were contiguous and the cotangents (the gradients
    passed to backward) had the strides of the outputs."""

    eager: Answer
    made: Answer
    graphs: int
    repeated: bool = False
    row_major: bool = False


@dataclass(slots=True)
class Compared:
    """The evidence of an op that was compiled: one ``Pair`` for each call, in order. ``raised`` is the exception of the
    first eager call; if it is set, nothing is compared."""

    pairs: list[Pair] = field(default_factory=list)
    raised: Exception | None = None
    unjudged: Exception | None = None

    def forget_tensors(self) -> Compared:
        """Drops the references to tensors of the device, so that only data on the host is left."""
        for pair in self.pairs:
            pair.eager.tensors = pair.made.tensors = []
        return self

    @property
    def ended(self) -> bool:
        """True if a call raised an exception, eagerly or compiled."""
        return self.raised is not None or any(each.made.raised is not None for each in self.pairs)


# -- modes


def compiled(function: Any, backend: Any, dynamic: Any = False) -> Any:
    """Returns the function compiled by ``torch.compile`` with ``fullgraph=True``, so that a graph break raises an
    exception."""
    return torch.compile(unseeded(function), backend=backend, dynamic=dynamic, fullgraph=True)


def unseeded(function: Any) -> Any:
    """Returns a function without the wrapper with which torch's op database seeds random ops. The compiler cannot trace
    this wrapper, because it sets the state of the generator."""
    if "wrapper_set_seed" not in getattr(getattr(function, "__code__", None), "co_names", ()):
        return function
    names = {**function.__globals__, "wrapper_set_seed": called_as_it_is}
    made = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def called_as_it_is(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


# -- calls


def compared(call: Invocation, backend: str, places: Sequence[int], again: bool) -> Compared:
    """Makes the call eagerly and compiled, each time on new buffers, and computes the gradients of the inputs at the
    positions ``places``. If ``again``, both calls are repeated with other values of the same shapes and strides, and
    with other strides of the cotangents (the gradients passed to backward). Returns the evidence of all calls."""
    found = Compared()
    with compiling(backend) as compiler:
        compare(found, compiler, call, call.values, places)
        if again and not found.ended:
            others = list(map(varied, call.values))
            compare(found, compiler, call, others, places, repeated=True)
            if found.raised is not None:  # these values are not valid for the op
                found.raised = None
                compare(found, compiler, call, call.values, places, repeated=True)
    return found.forget_tensors()


def compared_in_turn(
    call: Invocation, backend: str, places: Sequence[int], others: Sequence[tuple[Any, Any, Any]]
) -> Compared:
    """Makes the call, then the calls ``others`` of the same function, then the first call again; each eagerly and
    compiled for symbolic shapes. ``places`` are the positions of the inputs whose gradients are computed. Each of the
    ``others`` is a triple: positional arguments, keyword arguments (both with contiguous CPU tensors), and the strides
    and offsets that the tensors get on the device."""
    found = Compared()
    with compiling(backend, fake_cache=False) as compiler:
        compare(found, compiler, call, call.values, places)
        for args, kwargs, geometries in others:
            if not found.ended:
                bound = Arguments(args, kwargs)
                other = other_call(call, bound, geometries)
                compare(
                    found, compiler, other, bound.tensors, differentiable(bound.tensors, places)
                )
                found.raised = None  # the op may refuse another layout or size
        if not found.ended:
            others_again = list(map(varied, call.values))
            compare(found, compiler, call, others_again, places, repeated=True)
            found.raised = None
    return found.forget_tensors()


def differentiable(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> list[int]:
    """Returns those of the ``places`` at which there is a floating-point or complex tensor: a call may have fewer tensors
    than another call of the same op, or tensors of other dtypes at these places."""
    return [
        place
        for place in places
        if place < len(tensors)
        and (tensors[place].is_floating_point() or tensors[place].is_complex())
    ]


def other_call(call: Invocation, given: Arguments, geometries: Any) -> Invocation:
    """Returns a call of the same function with the arguments ``given``, whose tensors get the strides and offsets
    ``geometries`` on the device."""
    values = given.tensors
    inputs = laid_out(values, geometries, call.move, call.guarded)
    return replace(call, arguments=given.on, values=values, inputs=inputs)


def compare(
    found: Compared,
    compiler: Compiler,
    call: Invocation,
    values: Sequence[torch.Tensor],
    places: Sequence[int],
    repeated: bool = False,
) -> None:
    """Makes the call eagerly and compiled with the tensor values ``values``, and appends the pair of answers to
    ``found``. If the eager call raises, stores its exception in ``found`` instead. ``places`` are the positions of
    the inputs whose gradients are computed; ``repeated`` is that of ``Pair``."""
    want = answered(call, eager_of(call), values, places, repeated)
    restrided = repeated and not want.during
    if want.during and repeated:  # the op refuses cotangents of these strides
        want = answered(call, eager_of(call), values, places, restrided)
    if want.during:  # the op refuses these gradients, so none are compared
        # Without gradients there is another graph, unless the first call had none either.
        repeated = repeated and not any(each.eager.gradients for each in found.pairs)
        places = ()
        want = answered(call, eager_of(call), values, places, restrided)
    if want.raised is not None:
        found.raised = want.raised
        return
    before = compiler.graphs
    got = answered(call, call.function, values, places, restrided)
    made = compiler.graphs - before
    for pair in found.pairs[-1:]:
        pair.made.read_later(call)
    found.pairs.append(Pair(want, got, made, repeated, row_major=not repeated and in_rows(call)))


def in_rows(call: Invocation) -> bool:
    """Returns True if all inputs of a call are contiguous."""
    return all(each.is_contiguous() for each in views(call.inputs) if each.layout == torch.strided)


def eager_of(call: Invocation) -> Any:
    return unseeded(call.eager or call.function)


class Prepared:
    """Copies of a call's inputs in new buffers. The inputs at the positions ``places`` require gradients."""

    def __init__(
        self, call: Invocation, values: Sequence[torch.Tensor], places: Sequence[int]
    ) -> None:
        self.call = call
        geometries = [each.geometry if isinstance(each, Guarded) else None for each in call.inputs]
        self.held = laid_out(values, geometries, call.move, call.guarded)
        # Not views of a base: those would be inputs of another kind to a compiler.
        self.inputs = [each.data for each in views(self.held)]
        self.versions = [version_of(each) for each in self.inputs]
        self.leaves = [self.inputs[place].requires_grad_() for place in places]
        self.arguments = call.arguments(list(self.inputs), call.device)

    def finish(self, answer: Answer) -> None:
        """Stores in the answer how the call and its backward changed the inputs."""
        call = self.call
        answer.after = [
            storage_of(each, call) if isinstance(each, Guarded) else None for each in self.held
        ]
        answer.shapes = [(tuple(each.shape), strides_of(call, each)) for each in self.inputs]
        grew = zip(self.inputs, self.versions)
        answer.wrote = [version_of(now) > before for now, before in grew]


def answered(
    call: Invocation,
    function: Callable[..., Any],
    values: Sequence[torch.Tensor],
    places: Sequence[int],
    restrided: bool,
) -> Answer:
    """Calls the function on new buffers with the tensor values ``values``, and computes the gradients of the inputs
    at the positions ``places``. If ``restrided``, the strides of the cotangents (the gradients passed to backward)
    differ from those of the outputs. Returns the results and effects of the call."""
    answer, given = Answer(), Prepared(call, values, places)
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(bool(places)):
        try:
            args, kwargs = given.arguments
            result = function(*args, **kwargs)
            call.settle(result)
        except Exception as error:  # a compiler may raise any type; the judge judges it
            answer.raised = error
            return answer
    describe(call, answer, result, given)
    ends = ends_of(result) if places else []
    try:
        if ends:
            cotangents = [cotangent(call, each, restrided) for each in ends]
            read(call, answer, gradients(ends, given.leaves, cotangents))
    except Exception as error:
        answer.raised, answer.during = error, "backward"
    given.finish(answer)
    return answer


def together(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a function that takes a list with the arguments of each of the functions, calls all of them, and returns
    their results."""

    def run(given: Any) -> Any:
        results = []
        for function, (args, kwargs) in zip(functions, given):
            results.append(function(*args, **kwargs))
        return results

    return run


def answered_together(
    parts: Sequence[tuple[Invocation, Sequence[torch.Tensor], Sequence[int], bool]],
    function: Callable[..., Any],
) -> list[Answer]:
    """Makes several calls through one function (see ``together``), and computes all gradients in one backward pass.
    Raises the exception of the function or of backward. Each part is a tuple: the call, the values of its inputs, the
    inputs whose gradients are computed, and whether the strides of the cotangents differ from those of the outputs."""
    given = [Prepared(call, values, places) for call, values, places, _ in parts]
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(any(places for _, _, places, _ in parts)):
        results = function([each.arguments for each in given])
        given[0].call.settle(results)
    answers, ends, cotangents, leaves = [], [], [], []
    for each, result, (call, _, places, restrided) in zip(given, results, parts):
        answers.append(answer := Answer())
        describe(call, answer, result, each)
        own = ends_of(result) if places else []
        if own:
            ends += own
            cotangents += [cotangent(call, end, restrided) for end in own]
            leaves.append((call, answer, each.leaves))
    if ends:
        found = gradients(ends, [leaf for _, _, own in leaves for leaf in own], cotangents)
        for call, answer, own in leaves:
            read(call, answer, found[: len(own)])
            found = found[len(own) :]
    for each, answer in zip(given, answers):
        each.finish(answer)
    return answers


def describe(call: Invocation, answer: Answer, result: Any, given: Prepared) -> None:
    """Stores in ``answer`` the values, strides and storages of the tensors in ``result``, the result of the call on
    the inputs ``given``."""
    outputs = strided(result)
    answer.form = repr(replace_tensors(result, lambda each: Shown(str(each.layout))))
    call = replace(call, inputs=given.held)
    answer.outputs = [output_facts(call, each) for each in outputs]
    answer.tensors = [each.detach() for each in outputs]
    answer.values = [copied(call, *each) for each in zip(answer.tensors, answer.outputs)]
    answer.same = [
        next((n for n, its in enumerate(given.inputs) if its is each), None) for each in outputs
    ]
    ids = [storage_id(each) for each in outputs] if call.storage else []
    firsts = [ids.index(each) for each in ids]
    answer.shares = [first if first < n else None for n, first in enumerate(firsts)]
    answer.requires_grad = [each.requires_grad for each in outputs]


def copied(call: Invocation, tensor: torch.Tensor, facts: OutputFacts) -> torch.Tensor:
    """Returns a CPU copy of a tensor of the device. Returns an empty tensor if ``facts`` say that the tensor extends
    past the end of its storage, because reading it could crash the process."""
    return torch.empty(0) if facts.missing_bytes else call.back(tensor).clone()


class Shown:
    """The placeholder of a tensor in ``form``, the string that describes the structure of a result."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def ends_of(result: Any) -> list[torch.Tensor]:
    """Returns the tensors of a result that require a gradient."""
    return [each for each in strided(result) if each.requires_grad]


def gradients(
    ends: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    return torch.autograd.grad(ends, leaves, given, allow_unused=True)


def read(call: Invocation, answer: Answer, found: Sequence[torch.Tensor | None]) -> None:
    """Waits until the gradients ``found`` of a call's inputs are computed, and stores their values and strides in
    the answer."""
    call.settle(found)
    for place, each in enumerate(found):
        if each is None:
            answer.gradients.append(None)
            continue
        dense = each.to_dense()
        shape, stride = tuple(dense.shape), strides_of(call, dense)
        own = tuple(s for n, s in zip(shape, stride) if n > 1) if 0 not in shape else ()
        answer.gradients.append(
            Gradient(call.back(dense).clone(), own, shared_with(call, found[:place], each))
        )


def shared_with(
    call: Invocation, others: Sequence[torch.Tensor | None], gradient: torch.Tensor
) -> int | None:
    """Returns the index of the first of the ``others`` that has an element in the memory of ``gradient``; None if there is
    none, or if the device's storages cannot be told apart."""
    if not call.storage or gradient.layout != torch.strided or not gradient.numel():
        return None
    for place, other in enumerate(others):
        if other is None or other.layout != torch.strided or not other.numel():
            continue
        shared = other.dtype == gradient.dtype and storage_id(other) == storage_id(gradient)
        if shared and have_common_element(geometry_of(other), geometry_of(gradient)):
            return place
    return None


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """Returns the shape, strides and offset of a tensor, and where its elements end in the storage."""
    shape, stride, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    end = offset + sum((size - 1) * step for size, step in zip(shape, stride)) + 1
    return Geometry(shape, stride, offset, end)


def cotangent(call: Invocation, output: torch.Tensor, restrided: bool) -> torch.Tensor:
    """Returns a cotangent with fixed values for an output. It has the strides of the output or, if ``restrided``, its
    dimensions are in reverse order in memory."""
    count = output.numel()
    steps = torch.arange(count, dtype=torch.float64) + 1
    flat = (steps * 0.7548776662466927) % 1 * 4 - 2
    if output.dtype.is_complex:
        flat = torch.complex(flat, (steps * 0.5698402909980532) % 1 * 4 - 2)
    values = flat.reshape(output.shape).to(output.dtype)
    if restrided:
        order = tuple(reversed(range(values.dim())))
        return moved(call, values.permute(order).contiguous(), output).permute(order)
    made = torch.empty_like(output.detach())
    return made.copy_(moved(call, values, output))


def moved(call: Invocation, values: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the given values on the device of the output: the tested device or, for ops such as ``to``,
    the CPU."""
    return values if output.device == values.device else call.move(values)


def storage_of(held: Guarded, call: Invocation) -> torch.Tensor:
    """Returns the elements of the whole storage of an input, as a CPU tensor; the bytes of the storage if the dtype
    has no NaN."""
    found, dtype = held.bytes_now(call.back), held.view.dtype
    return found.view(dtype) if dtype.is_floating_point or dtype.is_complex else found


def strides_of(call: Invocation, tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if call.strides and tensor.layout == torch.strided else ()


def varied(value: torch.Tensor) -> torch.Tensor:
    """Returns a floating-point or complex tensor with its elements rotated by one position, so that it has other
    values of the same range. Returns any other tensor as it is, because it may contain indices."""
    floats = value.is_floating_point() or value.is_complex()
    if not floats or value.layout != torch.strided or value.numel() < 2:
        return value
    return value.reshape(-1).roll(1).reshape(value.shape)
