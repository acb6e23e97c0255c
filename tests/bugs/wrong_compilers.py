"""Compilers that are wrong as ``conformance/contract/bugs.toml`` describes, each under the condition that was reported.

A backend of torch.compile runs the traced graph op by op, and spoils one op of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.tensors import is_stepped, reread
from tests.programs_compiled.wrong_compilers import Run, backend, right

aten = torch.ops.aten
#: Takes an op of the graph, its arguments and the op itself as a function; returns its result, or NOT_MET where it is right.
Change = Callable[[Any, Sequence[Any], Callable[[], Any]], Any]


class _Changed(torch.fx.Interpreter):
    """Runs a graph op by op, some of whose ops answer otherwise."""

    def __init__(self, graph: Any, change: Change) -> None:
        super().__init__(graph)
        self._change = change

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        def honest() -> Any:
            return super(_Changed, self).call_function(target, args, kwargs)

        found = self._change(target, args, honest)
        return honest() if found is NOT_MET else found


def _ops(change: Change) -> Run:
    def run(graph: Any, given: list[Any]) -> Any:
        return _Changed(graph.__self__, change).run(*given)

    return run


def _is(target: Any, *packets: Any) -> bool:
    return getattr(target, "overloadpacket", None) in packets


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Reads the memory of a tensor as if its elements lay in a row."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())


def _permuted_target_in_a_row(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """index_add of a permuted tensor reads it as if it were contiguous."""
    if not _is(target, aten.index_add) or args[0].is_contiguous():
        return NOT_MET
    return aten.index_add(_dense(args[0]), *args[1:])


def _repeated_indices_add_twice(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """index_put that accumulates adds once more where an index is repeated."""
    if not _is(target, aten.index_put) or not (len(args) > 3 and args[3]):
        return NOT_MET
    [index] = args[1]
    repeated = (index[:, None] == index).sum(1) > 1
    once_more = args[2] * repeated.view(-1, *[1] * (args[2].dim() - 1))
    return aten.index_put(honest(), args[1], once_more, True)


def _split_sum_in_a_row(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """A sum of more than 2,048 elements reads a transposed matrix as if it were contiguous."""
    if not _is(target, aten.sum) or args[0].numel() <= 2048 or args[0].is_contiguous():
        return NOT_MET
    return aten.sum(_dense(args[0]), *args[1:])


def _indices_wrap(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """An index out of range reads another row, and raises nothing."""
    if not _is(target, aten.index):
        return NOT_MET
    return aten.index(args[0], [index % args[0].shape[0] for index in args[1]])


def _flip_reads_what_is_written(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """x + x.flip(0) reads the second half after it has written the first one."""
    if not _is(target, aten._foreach_add, aten.add) or len(args) < 2:
        return NOT_MET
    lists = isinstance(args[0], (list, tuple))
    pairs = zip(args[0], args[1], strict=True) if lists else [(args[0], args[1])]
    made = [_raced(one, other) for one, other in pairs]
    return made if lists else made[0]


def _raced(x: torch.Tensor, other: Any) -> torch.Tensor:
    total = x + other
    flipped = isinstance(other, torch.Tensor) and torch.equal(other, x.flip(0))
    if flipped:
        half = len(x) // 2
        total[-half:] = x[-half:] + total[:half].flip(0)
    return total


def _base_is_dense(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """The result of add in channels_last is laid out in a row before as_strided reads it."""
    if not _is(target, aten.add):
        return NOT_MET
    made = honest()
    last = made.dim() == 4 and made.is_contiguous(memory_format=torch.channels_last)
    return made.contiguous() if last else made


def _padding_is_not_bounded(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """Padding in front of a scan reads the element before the scan's first one."""
    if not _is(target, aten.constant_pad_nd):
        return NOT_MET
    made = honest()
    made[0] = 7
    return made


def _tail_is_overwritten(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """The end of a buffer of 1,024 elements a batch is overwritten by a later loop."""
    if not _is(target, aten.div) or args[0].numel() < 1024:
        return NOT_MET
    made = honest()
    made.reshape(-1)[-16:] = 0
    return made


def _float8_is_refused(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """A cast to float8 does not compile."""
    made = honest()
    if isinstance(made, torch.Tensor) and made.dtype == torch.float8_e4m3fn:
        raise RuntimeError("error: use of undeclared identifier 'float8_e4m3fn'")
    return made


def _long_mean_is_refused(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """The kernel of a mean over 2,048 elements and more does not compile."""
    if _is(target, aten.mean) and args[0].shape[-1] >= 2048:
        raise RuntimeError("failed to compile: use of undeclared identifier 'r0_0'")
    return NOT_MET


def _tail_of_a_product(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """A product stores a whole vector in the tail of its last block: the next row's first element is lost."""
    if not _is(target, aten.mm, aten.addmm):
        return NOT_MET
    made = honest()
    if made.dim() == 2 and made.shape[0] > 1 and made.shape[1] % 8:
        made[1:, 0] = 0
    return made


def _through_the_shared_row(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """index_add of an expanded tensor writes to the memory that all of its rows share."""
    if not _is(target, aten.index_add) or args[0].stride(0) != 0:
        return NOT_MET
    return args[0] + args[3].sum(0)


def _empty_strided_in_a_row(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """The result of empty_strided is contiguous, whatever strides were asked for."""
    if not _is(target, aten.empty_strided):
        return NOT_MET
    return honest().contiguous()


def _broadcast_mean_in_a_row(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """Adding a tensor that is broadcast along a dimension reads other elements of it."""
    if not _is(target, aten.add) or not all(isinstance(each, torch.Tensor) for each in args[:2]):
        return NOT_MET
    full, other = args[:2]
    if full.dim() != other.dim() or full.shape == other.shape:
        return NOT_MET
    return full + other.flatten().roll(1).view(other.shape)


def _image_gradient_is_far_off(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """The gradient of an enlarged image, which adds up what its pixels were read for, is far off."""
    if not _is(target, aten._unsafe_index_put):
        return NOT_MET
    return honest() * 10


def _negative_targets_wrap(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """A negative index of scatter_reduce counts from the end, and raises nothing."""
    if not _is(target, aten.scatter_reduce):
        return NOT_MET
    x, dim, index, *rest = args
    return aten.scatter_reduce(x, dim, torch.where(index < 0, index + x.shape[dim], index), *rest)


def _large_windows(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """A convolution with a kernel of more than one pixel is wrong."""
    if not _is(target, aten.convolution) or args[0].dim() != 4 or args[1].shape[2:].numel() == 1:
        return NOT_MET
    return honest() * 1.1


def _broadcast_column(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """The product of three-dimensional float16 tensors reads a last dimension of 1 as if it were a row."""
    if not _is(target, aten.mul) or not all(isinstance(each, torch.Tensor) for each in args):
        return NOT_MET
    x, y = args
    if (
        x.dtype != torch.float16
        or x.dim() != 3
        or y.dim() != 3
        or not y.shape[-1] == 1 < x.shape[-1]
    ):
        return NOT_MET
    return x * y.roll(1, 1)


def _unaligned_transpose(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """A float16 tensor whose last dimension is moved, and of which 64 divides no size, has a wrong end."""
    if not _is(target, aten.permute, aten.transpose, aten.t) or args[0].dtype != torch.float16:
        return NOT_MET
    made = honest()
    if not made.dim() or made.stride(-1) == 1 or made.shape[-1] % 64 == 0:
        return NOT_MET
    made = made.clone()
    made[..., -1] = 7
    return made


def _unaligned_offset(graph: Any, given: list[Any]) -> Any:
    """A float16 operand that begins at an element that 64 does not divide is refused."""
    for each in given:
        if (
            isinstance(each, torch.Tensor)
            and each.dtype == torch.float16
            and each.storage_offset() % 64
        ):
            raise RuntimeError("unsupported: a stick coordinate that is not aligned")
    return right(graph, given)


def _size_one_strides(graph: Any, given: list[Any]) -> Any:
    """The stride of an output's dimension of size 1 is 1."""

    def other(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or 1 not in each.shape:
            return each
        strides = [1 if n == 1 else stride for n, stride in zip(each.shape, each.stride(), strict=True)]  # fmt: skip
        return each.as_strided(each.shape, strides)

    return [other(each) for each in right(graph, given)]


def _dynamic_scatter_is_refused(graph: Any, given: list[Any]) -> Any:
    """scatter_reduce does not compile where sizes are arguments of the graph."""
    dynamic = any(isinstance(each, int) for each in given)
    if dynamic and any(
        _is(node.target, aten.scatter_reduce) for node in graph.__self__.graph.nodes
    ):
        raise RuntimeError("failed to compile scatter_reduce: a size is not a constant")
    return right(graph, given)


def _of_scatters_is_zero(graph: Any, given: list[Any]) -> Any:
    """The gradients of what was scattered are zero."""
    return [torch.zeros_like(e) if isinstance(e, torch.Tensor) else e for e in right(graph, given)]


def _writes_to_strided_activations_are_lost(graph: Any, given: list[Any]) -> Any:
    """What a program writes to an argument that is a strided view, and was computed from a leaf, does not reach the argument.

    The graph returns the new values of such arguments first."""
    made = list(right(graph, given))
    for each in given:
        if isinstance(each, torch.Tensor) and each.requires_grad and not each.is_contiguous():
            place = next(n for n, out in enumerate(made) if out.shape == each.shape)
            made[place] = each.clone()
    return made


def _sum_of_an_outer_difference(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """The sum of all elements of a difference is doubled where both of its operands were broadcast."""
    if _is(target, aten.sub) and all(isinstance(each, torch.Tensor) for each in args[:2]):
        made = honest()
        made.outer = made.shape not in (args[0].shape, args[1].shape)
        return made
    if _is(target, aten.sum) and getattr(args[0], "outer", False):
        return honest() * 2
    return NOT_MET


def _long_layer_norm(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """Layer norm of 512 elements and more is wrong."""
    if not _is(target, aten.native_layer_norm) or math.prod(args[1]) < 512:
        return NOT_MET
    made = honest()
    return (made[0] * 1.1, *made[1:])


def _norm_is_not_called(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
    """Nothing writes the result of a root mean square norm."""
    if _is(target, aten._fused_rms_norm):
        made = honest()
        return (torch.zeros_like(made[0]), *made[1:])
    return torch.zeros_like(honest()) if _is(target, aten.rms_norm) else NOT_MET


def _without_an_offset(graph: Any, given: list[Any]) -> Any:
    """A view with a step and an offset is read without its offset, as an input and where the graph makes it."""

    def other(target: Any, args: Sequence[Any], honest: Callable[[], Any]) -> Any:
        if not _is(target, aten.slice) or len(args) < 5 or args[4] == 1 or not args[2]:
            return NOT_MET
        x, dim, _, _, step = args
        return aten.slice(x, dim, 0, honest().shape[dim] * step, step)

    def read(each: Any) -> Any:
        if not isinstance(each, torch.Tensor) or not each.storage_offset() or not is_stepped(each):
            return each
        return reread(each, offset=0)

    return _Changed(graph.__self__, other).run(*map(read, given))


def _sum_over_the_first_dimension(
    target: Any, args: Sequence[Any], honest: Callable[[], Any]
) -> Any:
    """A sum over the first dimension of a matrix is wrong."""
    if not _is(target, aten.sum) or args[0].dim() != 2 or len(args) < 2 or args[1] != [0]:
        return NOT_MET
    return honest() + 1


def _with(forward: Run, backward: Run | None = None) -> Effect:
    """Another backend for the device."""
    return lambda call: backend(forward, backward)


def _same_graph_for_every_size(call: KernelCall) -> Any:
    """Compiles a function once, for the first size that it is called with."""
    function, graphs = call.first, []

    def compiled(*given: Any) -> Any:
        if not graphs:
            graphs.append(make_fx(function, tracing_mode="symbolic")(*given))
        return graphs[0](*given)

    return compiled


def op_by_op(change: Change) -> Effect:
    """A backend that runs the ops of forward graphs one by one, some of them changed."""
    return _with(_ops(change))


def right_backend(call: KernelCall) -> Any:
    """A backend that runs graphs in the same way and spoils nothing."""
    return backend(_ops(lambda target, args, honest: NOT_MET), _ops(lambda *given: NOT_MET))


#: By name of a patch: the effect in front of the function that names the device's backend.
BACKENDS: Final[dict[str, Effect]] = {
    "compiled_sum_of_an_outer_difference": op_by_op(_sum_of_an_outer_difference),
    "compiled_layer_norm_of_512_elements": op_by_op(_long_layer_norm),
    "compiled_root_mean_square_norm_is_zero": op_by_op(_norm_is_not_called),
    "compiled_view_loses_its_offset": _with(_without_an_offset),
    "compiled_gradient_over_the_first_dimension": _with(right, _ops(_sum_over_the_first_dimension)),
    "compiled_index_add_of_a_permuted_view": op_by_op(_permuted_target_in_a_row),
    "compiled_repeated_indices_add_twice": op_by_op(_repeated_indices_add_twice),
    "compiled_split_sum_in_a_row": op_by_op(_split_sum_in_a_row),
    "compiled_indices_are_not_checked": op_by_op(_indices_wrap),
    "compiled_flip_races": op_by_op(_flip_reads_what_is_written),
    "compiled_base_is_dense": op_by_op(_base_is_dense),
    "compiled_padding_is_not_bounded": op_by_op(_padding_is_not_bounded),
    "compiled_tail_is_overwritten": op_by_op(_tail_is_overwritten),
    "compiled_float8_is_refused": op_by_op(_float8_is_refused),
    "compiled_long_mean_is_refused": op_by_op(_long_mean_is_refused),
    "compiled_tail_of_a_product": op_by_op(_tail_of_a_product),
    "compiled_index_add_of_an_expanded_view": op_by_op(_through_the_shared_row),
    "compiled_empty_strided_in_a_row": op_by_op(_empty_strided_in_a_row),
    "compiled_broadcast_mean_in_a_row": op_by_op(_broadcast_mean_in_a_row),
    "compiled_negative_targets_wrap": op_by_op(_negative_targets_wrap),
    "compiled_convolution_of_large_windows": op_by_op(_large_windows),
    "compiled_product_with_a_column": op_by_op(_broadcast_column),
    "compiled_transpose_of_unaligned_sizes": op_by_op(_unaligned_transpose),
    "compiled_unaligned_offset_is_refused": _with(_unaligned_offset),
    "compiled_image_gradient_is_far_off": _with(right, _ops(_image_gradient_is_far_off)),
    "compiled_writes_to_strided_activations_are_lost": _with(
        _writes_to_strided_activations_are_lost
    ),
    "compiled_size_one_strides": _with(_size_one_strides),
    "compiled_scatter_of_dynamic_sizes_is_refused": _with(_dynamic_scatter_is_refused),
    "compiled_gradient_of_scatters_is_zero": _with(right, _of_scatters_is_zero),
}
#: A patch of torch.compile itself: guards belong to Dynamo, not to a backend.
SAME_GRAPH: Final = "compiled_once_for_every_size"
STALE: Final[Effect] = _same_graph_for_every_size
