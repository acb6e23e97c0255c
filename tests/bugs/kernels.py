"""Bugs of kernels and of autocast, planted into the simulated device while the cells of an
entry run on it. Each fault strikes under the condition that was reported, and nowhere else.

An effect gets the call of an aten overload below autograd, or at the dispatch key that the fault names.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.utils.checkpoint

import devices.simulated.backend  # noqa: F401 - the kernels are there before a fault replaces them
from opinfo.compare import replace_tensors, tensors_of
from tests.planting.calls import NOT_MET, Effect, KernelCall, Refusal
from tests.planting.places import KEY, SIMULATED, on_simulated
from tests.planting.tensors import as_dense, extent, is_expanded, is_stepped, reread

AUTOCAST: Final = "AutocastPrivateUse1"


@dataclass(frozen=True)
class InKernels:
    """A fault in front of aten overloads, at a dispatch key; ``dtype`` is that of the ops whose cells are run."""

    overloads: tuple[str, ...]
    effect: Effect
    dtype: str = "float32"
    key: str = KEY


# -- Copies


def _with_the_gaps(call: KernelCall) -> Any:
    """A copy to the host between views of equal strides copies one range of bytes."""
    source, target = call.args[:2]
    to_host = on_simulated(source) and not on_simulated(target)
    alike = source.stride() == target.stride() and source.dtype == target.dtype
    if not to_host or not alike or not is_stepped(source):
        return NOT_MET
    flat = [t.as_strided((extent(t),), (1,), t.storage_offset()) for t in (source, target)]
    call.function(*flat, *call.args[2:])
    return target


def _from_the_start(call: KernelCall) -> Any:
    """A dense view of host memory is copied to the device from the start of its storage."""
    source = call.first
    if on_simulated(source) or not source.is_contiguous() or not source.storage_offset():
        return NOT_MET
    return call.function(reread(source, offset=0), *call.args[1:])


def _lost_in_steps(call: KernelCall) -> Any:
    """A copy into a stepped slice does not change it."""
    target = call.args[1]
    return target if on_simulated(target) and is_stepped(target) else NOT_MET


def _waits_for_pinned(call: KernelCall) -> Any:
    """A copy to pinned memory blocks the host until it is complete, whatever non_blocking says."""
    source, target = call.args[:2]
    if on_simulated(source) and not on_simulated(target) and target.is_pinned():
        result = call.honest()
        torch.accelerator.current_stream(source.device).synchronize()
        return result
    return NOT_MET


def _refuses_odd_offsets(call: KernelCall) -> Any:
    """A copy into a slice of host memory is refused where its offset is no multiple of 4 bytes."""
    source, target = call.args[:2]
    if on_simulated(source) and not on_simulated(target) and target.storage_offset() * target.itemsize % 4:  # fmt: skip
        raise Refusal("destination offset must be a multiple of 4")
    return NOT_MET


def _overwrites_its_source(call: KernelCall) -> Any:
    """A copy to the host that converts to a dtype of no more bytes converts in place: a source with an offset is lost."""
    source, target = call.args[:2]
    narrows = source.dtype != target.dtype and target.itemsize <= source.itemsize
    if not on_simulated(source) or on_simulated(target) or not narrows:
        return NOT_MET
    if not source.storage_offset():
        return NOT_MET
    result = call.honest()
    source.zero_()
    return result


def _takes_the_bits(call: KernelCall) -> Any:
    """A copy between host and device from float32 to int32 takes the bits, and not the number."""
    source, target = call.args[:2]
    crosses = on_simulated(source) != on_simulated(target)
    if not crosses or (source.dtype, target.dtype) != (torch.float32, torch.int32):
        return NOT_MET
    return call.function(source.view(torch.int32), *call.args[1:])


def _lost_behind_the_first(call: KernelCall) -> Any:
    """A number that is written to an element of a slice other than the first one is lost."""
    source, target = call.args[:2]
    within = on_simulated(source) and on_simulated(target)
    return target if within and not target.dim() and target.storage_offset() else NOT_MET


def _expanded_as_dense(call: KernelCall) -> Any:
    """A copy to the host reads an expanded tensor as if it were contiguous, and zeros behind its memory."""
    source, target = call.args[:2]
    if not on_simulated(source) or on_simulated(target) or not is_expanded(source):
        return NOT_MET
    memory = source.as_strided((extent(source),), (1,))
    flat = memory.new_zeros(max(source.numel(), memory.numel()))
    flat[: memory.numel()] = memory
    return call.function(flat[: source.numel()].view(source.shape), *call.args[1:])


def _refuses_nothing_to_copy(call: KernelCall) -> Any:
    """A copy of an empty tensor to the device is refused."""
    source, target = call.args[:2]
    if not on_simulated(source) and on_simulated(target) and not source.numel():
        raise Refusal("'Tensor' object has no attribute 'strides'")
    return NOT_MET


# -- Results of other strides than FakeTensor predicts


def _in_rows(holds: Callable[[KernelCall], bool]) -> Effect:
    """The result (the first one, where there are several) is contiguous where that holds of the call."""

    def effect(call: KernelCall) -> Any:
        if not holds(call):
            return NOT_MET
        result = call.honest()
        if isinstance(result, torch.Tensor):
            return result.contiguous()
        return (result[0].contiguous(), *result[1:])

    return effect


def _is_permuted(t: torch.Tensor) -> bool:
    return not t.is_contiguous() and not is_stepped(t) and not is_expanded(t)


def _is_channels_last_3d(t: torch.Tensor) -> bool:
    last = torch.channels_last_3d
    return t.dim() == 5 and not t.is_contiguous() and t.is_contiguous(memory_format=last)


# -- Special values, ties and sizes


def _floor_of_the_quotient(call: KernelCall) -> Any:
    """Floor division is the floor of the rounded quotient, for infinities and zeros too."""
    x, y = call.args[:2]
    floored = call.values.get("rounding_mode", "floor") == "floor"
    if not floored or not all(isinstance(t, torch.Tensor) and t.dtype == torch.float32 for t in (x, y)):  # fmt: skip
        return NOT_MET
    made = call.honest()
    return made.copy_((x / y).floor())


def _no_place_among_nans(call: KernelCall) -> Any:
    """topk of 512 rows and more gives an index of -1 where a row has NaN."""
    x, dim = call.first, call.values["dim"]
    values, indices = call.honest()
    if x.dim() and x.shape[dim] and x.numel() // x.shape[dim] >= 512:
        indices.masked_fill_(x.isnan().any(dim, keepdim=True), -1)
    return values, indices


def _negative_nans_first(call: KernelCall) -> Any:
    """sort puts NaNs with the sign bit first where it sorts 129 elements or more."""
    x, dim = call.first, call.values["dim"]
    values, indices = call.honest()
    if not x.is_floating_point() or not x.dim() or x.shape[dim] < 129:
        return values, indices
    there = x.isnan() & x.signbit()
    if not there.any():
        return values, indices
    least = torch.where(there, -torch.inf, x).sort(dim).indices
    return x.gather(dim, least), indices.copy_(least)


def _statistics_in_eval(call: KernelCall) -> Any:
    """native_batch_norm returns its statistics in eval mode too, where they have no elements."""
    mean, variance = call.values["running_mean"], call.values["running_var"]
    if call.values["training"] or mean is None:
        return NOT_MET
    made = call.honest()
    return made[0], mean.clone(), (variance + call.values["eps"]).rsqrt()


def _attention_with(change: Callable[[KernelCall], torch.Tensor | None]) -> Effect:
    """Attention with another mask."""

    def effect(call: KernelCall) -> Any:
        mask = change(call)
        if mask is None:
            return NOT_MET
        rest: dict[str, Any] = {n: call.values[n] for n in ("dropout_p", "scale", "enable_gqa")}
        attend = torch.nn.functional.scaled_dot_product_attention
        query, key, value = call.args[:3]
        return attend(query, key, value, attn_mask=mask, **rest)

    return effect


def _four_at_a_time(call: KernelCall) -> torch.Tensor | None:
    """The mask of causal attention, as if each of four queries were the last of them, in short floats."""
    query, key = call.args[:2]
    if not call.values["is_causal"] or query.dtype not in (torch.float16, torch.bfloat16):
        return None
    rows = torch.arange(query.shape[-2], device=query.device) // 4 * 4 + 3
    return rows[:, None] >= torch.arange(key.shape[-2], device=query.device)


def _written_without_a_gradient(call: KernelCall) -> Any:
    """The result is written to an out= tensor that requires a gradient."""
    (out,) = call.out
    if not out.requires_grad:
        return NOT_MET
    with torch.no_grad():
        call.function(*call.args, **{**call.kwargs, "out": out.detach()})
    return out


def _no_number_on_the_cpu(call: KernelCall) -> Any:
    if any(not on_simulated(t) for t in call.inputs):
        raise Refusal("Expected all tensors to be on the same device")
    return NOT_MET


def _first_of_equal_maxima(call: KernelCall) -> Any:
    """cummax gives the place of the first of several equal maxima, and not that of the last."""
    made = call.honest()
    x, values, indices, dim = call.args
    size = x.shape[dim] if x.dim() else 0
    if not 0 < size < 64 or is_expanded(indices):
        return made
    places = torch.arange(size, device=x.device).view(-1, *[1] * (x.dim() - 1 - dim % x.dim()))
    for place in range(size - 1, -1, -1):
        equal = (x.narrow(dim, place, 1) == values) & (places >= place)
        indices.masked_fill_(equal, place)
    return made


def _without_its_dimensions(call: KernelCall) -> Any:
    """argmax of all dimensions does not keep them."""
    if call.values["dim"] is not None or not call.values["keepdim"]:
        return NOT_MET
    return call.honest(keepdim=False)


def _is_another_thread(call: KernelCall) -> Any:
    """An op in another thread than the main one ends the process, for which an exception stands."""
    if threading.current_thread() is not threading.main_thread():
        raise Refusal("the process ended")
    return NOT_MET


def _twice_as_far(call: KernelCall) -> Any:
    """An element of an int64 tensor is read at twice its place, or is zero if there is none."""
    source = call.first
    if not on_simulated(source) or source.dim() or source.dtype != torch.int64 or not source.storage_offset():  # fmt: skip
        return NOT_MET
    place = 2 * source.storage_offset()
    if (place + 1) * 8 > source.untyped_storage().nbytes():
        return call.function(torch.zeros_like(source), *call.args[1:])
    return call.function(source.as_strided((), (), place), *call.args[1:])


# -- Saved tensors


def _saved_indices_as_dense(call: KernelCall) -> Any:
    """The backward reads channels_last indices as if they were contiguous."""
    cotangent, given, indices = call.args
    if not _is_channels_last_3d(indices):
        return NOT_MET
    return call.function(cotangent, given, as_dense(indices))


# -- Autocast


def _without_autocast() -> Any:
    key = getattr(torch._C.DispatchKey, AUTOCAST)
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))


def _not_promoted(call: KernelCall) -> Any:
    """index_put refuses values of another dtype, which autocast should have promoted."""
    if call.first.dtype != call.args[2].dtype and torch.bfloat16 in (call.first.dtype, call.args[2].dtype):  # fmt: skip
        raise Refusal("Index put requires the source and destination dtypes match")
    return NOT_MET


def _mask_not_cast(call: KernelCall) -> Any:
    """Attention casts query, key and value, but not its mask, and refuses the mask."""
    mask = call.values["attn_mask"]
    if mask is not None and mask.dtype == torch.float32:
        raise Refusal("Expected attn_mask dtype to be bool or to match query dtype")
    return NOT_MET


def _first_decides(call: KernelCall) -> Any:
    """cat gives the dtype of its first tensor, and does not promote it."""
    tensors = call.first
    if {t.dtype for t in tensors} != {torch.float32, torch.bfloat16}:
        return NOT_MET
    with _without_autocast():
        return call.function([t.to(tensors[0].dtype) for t in tensors], *call.args[1:])


def _bfloat16_instead(call: KernelCall) -> Any:
    """In a region of float16 the op runs in bfloat16."""
    if torch.get_autocast_dtype("simulated") != torch.float16:
        return NOT_MET

    def cast(t: torch.Tensor) -> torch.Tensor:
        return t.bfloat16() if t.dtype in (torch.float32, torch.float16) else t

    with _without_autocast():
        args, kwargs = replace_tensors((call.args, call.kwargs), cast)
        return call.function(*args, **kwargs)


def _no_bfloat16_gradients(call: KernelCall) -> Any:
    if any(t.dtype == torch.bfloat16 for t in call.first):
        raise Refusal("no kernel for 'BFloat16'")
    return NOT_MET


def _attention_not_cast(call: KernelCall) -> Any:
    """Autocast has no rule for attention: operands of two dtypes stay as they are."""
    with _without_autocast():
        return call.honest()


# -- Optimizers


def _scale_ignored(call: KernelCall) -> Any:
    if call.values["grad_scale"] is None:
        return NOT_MET
    return call.honest(grad_scale=None)


def _scaler_ignored(call: KernelCall) -> Any:
    if call.values["grad_scale"] is None and call.values["found_inf"] is None:
        return NOT_MET
    return call.honest(grad_scale=None, found_inf=None)


def _rate_on_the_cpu(call: KernelCall) -> Any:
    if not on_simulated(call.values["lr"]) and call.values["lr"].dim():
        raise Refusal("Passed CPU tensor to MPS op")
    return NOT_MET


def _many_are_empty(call: KernelCall) -> Any:
    """A list with more than 20 empty tensors is written past the end of the launch table: its last tensor is lost."""
    if sum(t.numel() == 0 for t in call.first) <= 20:
        return NOT_MET
    result = call.honest()
    for made in result if result is not None else call.first:
        last = made
    if last.numel():
        last.zero_()
    return result


def _constant_ignored(call: KernelCall) -> Any:
    """_foreach_add of one number returns copies of its input."""
    return [t.clone() for t in call.first]


def _no_infinity_norm_of_nothing(call: KernelCall) -> Any:
    """The infinity norm of a list with a tensor without elements is 0, where the CPU raises."""
    if call.values["ord"] != float("inf") or all(t.numel() for t in call.first):
        return NOT_MET
    return [t.abs().max() if t.numel() else t.new_zeros(()) for t in call.first]


# -- Random numbers


def _zero_of_seed_0(call: KernelCall) -> Any:
    """Numbers of seed 0 are all zero."""
    generator = call.values["generator"]
    if generator is None:
        generators = getattr(torch, SIMULATED).default_generators()
        generator = generators[call.first.device.index or 0]
    if generator.initial_seed() != 0:
        return NOT_MET
    return call.honest().zero_()


def _no_whole_numbers(call: KernelCall) -> Any:
    """bernoulli_ of an int64 tensor ends the process, for which an exception stands."""
    if call.first.dtype == torch.int64:
        raise Refusal("the process ended")
    return NOT_MET


def _starts_again_for_each_object() -> Effect:
    """The first exponential_ of a generator begins with the first numbers of its seed, whatever state it has."""
    seen: weakref.WeakSet[torch.Generator] = weakref.WeakSet()

    def effect(call: KernelCall) -> Any:
        generator = call.values["generator"]
        if generator is None or generator in seen:
            return NOT_MET
        seen.add(generator)
        fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
        if torch.equal(fresh.get_state(), generator.get_state()):
            return NOT_MET
        return call.honest(generator=fresh)

    return effect


# -- Gradients and indices


def _repeated_index_counts_once(call: KernelCall) -> Any:
    """What is added at an index that is repeated overwrites what was added before."""
    target, dim, index, source = call.args
    return target.scatter_(dim, index, source)


def _overwrites_another(call: KernelCall) -> Any:
    """The backward of embedding, for 264 indices and more, writes past its result: here, over the cotangent."""
    if call.args[1].numel() < 264:
        return NOT_MET
    result = call.honest()
    call.first.zero_()
    return result


def _synchronizes(call: KernelCall) -> Any:
    """The op waits for its stream, which a capture does not permit."""
    try:
        torch.accelerator.current_stream(call.first.device).synchronize()
    except RuntimeError as error:
        raise Refusal(str(error)) from error
    return NOT_MET


def _on_the_cpu(call: KernelCall) -> Any:
    """The op runs on the CPU, as the boxed fallback runs it."""
    tensors = tensors_of((call.args, call.kwargs))
    there = iter(torch.ops.aten._to_cpu(tensors))
    args, kwargs = replace_tensors((call.args, call.kwargs), lambda _: next(there))
    device = tensors[0].device
    try:
        result = call.function(*args, **kwargs)
    except RuntimeError as error:
        raise Refusal(str(error)) from error
    return replace_tensors(result, lambda t: t.to(device))


# -- Memory

#: What leaks keep, until the trial of a fault has ended.
leaked: list[Any] = []


def _keeps(bytes_per_call: int) -> Effect:
    """Each call keeps host memory."""
    kept: list[bytearray] = []

    def effect(call: KernelCall) -> Any:
        kept.append(bytearray(bytes_per_call))
        return NOT_MET

    return effect


def _keeps_where_strided(call: KernelCall) -> Any:
    """A call with a strided tensor keeps 4 KiB of host memory."""
    if all(t.is_contiguous() for t in call.inputs):
        return NOT_MET
    leaked.append(bytearray(4096))
    return NOT_MET


def _keeps_for_each_shape() -> Effect:
    """Each new shape keeps 16 KiB of host memory."""
    seen: set[Any] = set()

    def effect(call: KernelCall) -> Any:
        shapes = tuple(t.shape for t in call.inputs)
        if shapes not in seen:
            seen.add(shapes)
            leaked.append(bytearray(16384))
        return NOT_MET

    return effect


#: By name: the fault. The cells of the ops that the entry names are run on the simulated device.
KERNELS: Final[dict[str, InKernels]] = {
    "floor_division_is_the_floor_of_a_quotient": InKernels(
        ("floor_divide", "div.Tensor_mode"), _floor_of_the_quotient
    ),
    "topk_has_no_index_of_a_nan": InKernels(("topk",), _no_place_among_nans, "bfloat16"),
    "sort_puts_negative_nans_first": InKernels(("sort.stable", "sort"), _negative_nans_first),
    "batch_norm_returns_statistics_in_eval": InKernels(("native_batch_norm",), _statistics_in_eval),
    "causal_attention_takes_four_queries_for_one": InKernels(
        ("scaled_dot_product_attention",),
        _attention_with(_four_at_a_time),
        "float16",
        "AutogradPrivateUse1",
    ),
    "tensordot_takes_an_out_with_a_gradient": InKernels(
        ("tensordot.out",), _written_without_a_gradient, key="AutogradPrivateUse1"
    ),
    "hypot_refuses_a_number_on_the_cpu": InKernels(("hypot",), _no_number_on_the_cpu),
    "cummax_names_the_first_of_equal_maxima": InKernels(
        ("_cummax_helper",), _first_of_equal_maxima, "int64"
    ),
    "argmax_of_all_dimensions_keeps_none": InKernels(("argmax", "argmin"), _without_its_dimensions),
    "ops_of_another_thread_end_the_process": InKernels(
        ("arange.start_out", "sum.dim_IntList", "sum", "linspace.out"), _is_another_thread
    ),
    "elements_of_int64_are_read_twice_as_far": InKernels(
        ("_copy_from", "_local_scalar_dense"), _twice_as_far, "int64"
    ),
    "copy_of_an_expanded_tensor_as_dense": InKernels(("_copy_from",), _expanded_as_dense),
    "copy_of_an_empty_tensor_is_refused": InKernels(("_copy_from",), _refuses_nothing_to_copy),
    "autocast_attention_not_cast": InKernels(
        ("scaled_dot_product_attention",), _attention_not_cast, key=AUTOCAST
    ),
    "fused_adam_ignores_the_scaler": InKernels(("_fused_adam_",), _scaler_ignored),
    "fused_sgd_refuses_a_rate_on_the_cpu": InKernels(("_fused_sgd_.tensor_lr",), _rate_on_the_cpu),
    "exponential_starts_again_for_each_generator": InKernels(
        ("exponential_",), _starts_again_for_each_object()
    ),
    "products_keep_host_memory_for_each_shape": InKernels(("mm", "addmm"), _keeps_for_each_shape()),
    "copy_to_the_host_takes_the_gaps": InKernels(("_copy_from",), _with_the_gaps),
    "copy_to_the_device_from_the_start": InKernels(("_copy_from",), _from_the_start),
    "copy_into_steps_is_lost": InKernels(("_copy_from",), _lost_in_steps),
    "copy_to_pinned_memory_waits": InKernels(("_copy_from",), _waits_for_pinned),
    "copy_to_odd_offsets_is_refused": InKernels(("_copy_from",), _refuses_odd_offsets),
    "converting_copy_overwrites_its_source": InKernels(("_copy_from",), _overwrites_its_source),
    "converting_copy_takes_the_bits": InKernels(("_copy_from",), _takes_the_bits),
    "numbers_written_to_elements_are_lost": InKernels(("_copy_from",), _lost_behind_the_first),
    "bernoulli_of_int64_ends_the_process": InKernels(
        ("bernoulli_.float", "bernoulli_.Tensor"), _no_whole_numbers
    ),
    "uniform_of_seed_0_is_zero": InKernels(("uniform_",), _zero_of_seed_0),
    "nonzero_in_rows": InKernels(("nonzero",), _in_rows(lambda call: True)),
    "conj_physical_in_rows": InKernels(
        ("conj_physical", "_conj_physical"),
        _in_rows(lambda call: _is_permuted(call.first)),
        "complex64",
    ),
    "index_of_a_permuted_tensor_in_rows": InKernels(
        ("index.Tensor",), _in_rows(lambda call: _is_permuted(call.first))
    ),
    "gradient_of_batch_norm_in_rows": InKernels(
        ("native_batch_norm_backward",), _in_rows(lambda call: _is_channels_last_3d(call.args[1]))
    ),
    "strided_indices_of_pooling_as_dense": InKernels(
        ("adaptive_max_pool3d_backward",), _saved_indices_as_dense
    ),
    "autocast_cat_first_decides": InKernels(("cat",), _first_decides, key=AUTOCAST),
    "autocast_attention_mask_not_cast": InKernels(
        ("scaled_dot_product_attention",), _mask_not_cast, key=AUTOCAST
    ),
    "autocast_index_put_not_promoted": InKernels(("index_put",), _not_promoted, key=AUTOCAST),
    "autocast_bfloat16_for_float16": InKernels(
        ("linear", "mm", "conv2d"), _bfloat16_instead, key=AUTOCAST
    ),
    "scaler_refuses_bfloat16": InKernels(
        ("_amp_foreach_non_finite_check_and_unscale_",), _no_bfloat16_gradients
    ),
    "fused_adam_ignores_grad_scale": InKernels(("_fused_adam_",), _scale_ignored),
    "fused_adamw_ignores_grad_scale": InKernels(("_fused_adamw_",), _scale_ignored),
    "foreach_loses_a_tensor_of_many_empty": InKernels(
        ("_foreach_add.List", "_foreach_mul.List", "_foreach_add.Scalar"), _many_are_empty
    ),
    "foreach_add_ignores_a_constant": InKernels(("_foreach_add.Scalar",), _constant_ignored),
    "foreach_norm_of_an_empty_tensor_is_0": InKernels(
        ("_foreach_norm.Scalar",), _no_infinity_norm_of_nothing
    ),
    "gather_gradient_counts_once": InKernels(
        ("scatter_add_", "scatter_add"), _repeated_index_counts_once
    ),
    "embedding_backward_overwrites": InKernels(("embedding_dense_backward",), _overwrites_another),
    "multinomial_synchronizes": InKernels(
        ("multinomial",), _synchronizes, key="AutogradPrivateUse1"
    ),
    "multinomial_on_the_cpu": InKernels(("multinomial",), _on_the_cpu),
    "dropout_on_the_cpu": InKernels(("native_dropout",), _on_the_cpu),
    "binary_cross_entropy_keeps_host_memory": InKernels(("binary_cross_entropy",), _keeps(256)),
    "strided_calls_keep_host_memory": InKernels(
        ("clone", "copy_", "add.Tensor", "mul.Tensor", "sum", "exp"), _keeps_where_strided
    ),
}
