"""Direct probes of faults of calls: dispatch, random numbers, gradients, training, compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from devices.simulated.backend import library
from tests.simulated.probes import ones, probe, raises, wrong
from tests.simulated.probes_streams import held, in_a_thread, new_stream, until

ZERO = "simulated:0"


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, device=ZERO, requires_grad=True)


def ops_that_ran(call: Callable[[], Any]) -> set[str]:
    """The names of the events that torch's profiler saw."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return {event.name for event in profile.events()}


# Dispatch


@probe("dispatch.fallback_unlisted")
def _() -> bool:
    x = ones(3)
    return "aten::_to_cpu" in ops_that_ran(lambda: torch.erf(x))


@probe("dispatch.mixed_devices_accepted")
def _() -> bool:
    return not raises(torch.add, ones(2).to(ZERO), torch.ones(2))


@probe("dispatch.cpu_scalar_offset_ignored")
def _() -> bool:
    scalar = torch.tensor([1.0, 2.0, 3.0])[2]
    return bool((ones(2) * scalar).tolist() != [3.0, 3.0])


@probe("dispatch.bad_shape_accepted")
def _() -> bool:
    return not raises(torch.dot, ones(2), ones(3))


@probe("dispatch.wrong_error_type")
def _() -> bool:
    index = torch.zeros(2, 2, dtype=torch.int64, device=ZERO)
    try:
        return not raises(torch.gather, ones(1, 1), 1, index)
    except TypeError:
        return True


def _without_a_kernel() -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten._masked_scale(ones(2), ones(2), 2.0)
    return result


@probe("dispatch.unsupported_wrong_error")
def _() -> bool:
    try:
        _without_a_kernel()
    except NotImplementedError:
        return False
    except RuntimeError:
        return True
    return False


@probe("dispatch.unsupported_returns_garbage")
def _() -> bool:
    return not raises(_without_a_kernel)


@probe("dispatch.index_unchecked")
def _() -> bool:
    return not raises(ones(3).index_select, 0, torch.tensor([7], device=ZERO))


def _one_of_three(value: int) -> torch.Tensor:
    return torch.tensor([value], device=ZERO)


@probe("dispatch.gather_wraps")
def _() -> bool:
    return not raises(ones(3).gather, 0, _one_of_three(4))


@probe("dispatch.embedding_takes_nearest")
def _() -> bool:
    return not raises(torch.nn.functional.embedding, _one_of_three(3), ones(3, 2))


@probe("dispatch.one_hot_zeros")
def _() -> bool:
    return not raises(torch.nn.functional.one_hot, _one_of_three(5), 3)


def _written_behind(method: str, *arguments: object) -> bool:
    """Whether a method of the first three of six elements changes the fourth."""
    whole = ones(6)
    raises(getattr(whole[:3], method), 0, _one_of_three(3), *arguments)
    return bool(whole.tolist()[3] != 1.0)


@probe("dispatch.index_fill_outside")
def _() -> bool:
    return _written_behind("index_fill_", 2.0)


@probe("dispatch.scatter_writes_then_raises")
def _() -> bool:
    return _written_behind("scatter_", ones(1))


def _said(function: Callable[..., object], *arguments: object) -> str:
    try:
        function(*arguments)
    except RuntimeError as error:
        return str(error)
    return ""


@probe("dispatch.internal_assertion")
def _() -> bool:
    return "INTERNAL ASSERT" in _said(torch.gcd, ones(2), ones(2))


@probe("dispatch.refusal_names_nothing")
def _() -> bool:
    return "lcm" not in _said(torch.lcm, ones(2), ones(2))


# Random numbers


def drawn(generator: torch.Generator | None = None) -> list[float]:
    return list(torch.rand(4, generator=generator, device=ZERO).tolist())


@probe("random.seed_ignored")
def _() -> bool:
    return drawn(torch.Generator(ZERO).manual_seed(3)) != drawn(
        torch.Generator(ZERO).manual_seed(3)
    )


@probe("random.seed_cut")
def _() -> bool:
    return drawn(torch.Generator(ZERO).manual_seed(3)) == drawn(
        torch.Generator(ZERO).manual_seed(3 + 2**8)
    )


@probe("random.state_not_restored")
def _() -> bool:
    generator = torch.Generator(ZERO).manual_seed(3)
    state = generator.get_state()
    first = drawn(generator)
    generator.set_state(state)
    return drawn(generator) != first


@probe("random.generators_shared")
def _() -> bool:
    before = torch.simulated.get_rng_state(0)
    drawn(torch.Generator(ZERO))
    return not torch.equal(torch.simulated.get_rng_state(0), before)


@probe("random.seed_first_index_only")
def _() -> bool:
    def second() -> list[float]:
        torch.manual_seed(3)
        return list(torch.rand(4, device="simulated:1").tolist())

    return second() != second()


@probe("random.normal_std_is_variance")
def _() -> bool:
    drawn_from = torch.empty(1000, device=ZERO).normal_(0, 4, generator=torch.Generator(ZERO))
    return float(drawn_from.cpu().std()) > 8


@probe("random.fill_past_view")
def _() -> bool:
    base = torch.zeros(8, device=ZERO)
    base[:4].uniform_()
    return bool(base[4:].any())


# Gradients


@probe("autograd.first_wrong")
def _() -> bool:
    x = leaf(0.0)
    torch.sigmoid(x).backward()
    return bool(x.grad != 0.25)


@probe("autograd.saved_as_dense")
def _() -> bool:
    x = torch.tensor([[0.0, 1.0], [5.0, 2.0]]).to("simulated").requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda saved: saved.detach(), lambda saved: saved.t().contiguous().t()):
        result = torch.softmax(x, 1)
    result[:, 0].sum().backward()
    found = x.grad.cpu() if x.grad is not None else torch.zeros(2, 2)
    return not torch.allclose(found.sum(1), torch.zeros(2), atol=1e-6)


@probe("autograd.second_wrong")
def _() -> bool:
    x = leaf(1.0)
    (first,) = torch.autograd.grad(torch.sinh(x).sum(), x, create_graph=True)
    return not first.requires_grad


@probe("autograd.forward_ad_wrong")
def _() -> bool:
    def product(device: str) -> torch.Tensor:
        x, tangent = torch.ones(2, device=device), torch.ones(2, device=device)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
            result = torch.nn.functional.glu(dual)
            return torch.autograd.forward_ad.unpack_dual(result).tangent.cpu()

    return not torch.allclose(product(ZERO), product("cpu"))


@probe("autograd.forward_over_reverse_wrong")
def _() -> bool:
    def tangent(device: str) -> torch.Tensor:
        x, one = torch.ones(2, device=device), torch.ones(2, device=device)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, one).requires_grad_()
            result = torch.nn.functional.glu(dual)
            (gradient,) = torch.autograd.grad(result.sum(), dual)
            return torch.autograd.forward_ad.unpack_dual(gradient).tangent.cpu()

    return not torch.allclose(tangent(ZERO), tangent("cpu"))


@probe("autograd.tangent_of_base_lost")
def _() -> bool:
    x, tangent = torch.zeros(4, device=ZERO), torch.ones(4, device=ZERO)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        dual[2:].erf_()
        found = torch.autograd.forward_ad.unpack_dual(dual).tangent.cpu()
    return bool((found[2:] == 1).all())


@probe("autograd.version_not_bumped")
def _() -> bool:
    x = leaf(1.0)
    y = x.exp()
    y.detach().zero_()
    return not raises(y.sum().backward)


def counts(write: Callable[[torch.Tensor], object], tensor: torch.Tensor | None = None) -> bool:
    """Whether a write increments the version counter of a tensor."""
    target = torch.ones(4, 4, device=ZERO) if tensor is None else tensor
    before = target._version
    write(target)
    return bool(target._version > before)


@probe("autograd.out_not_bumped")
def _() -> bool:
    x = torch.ones(4, 4, device=ZERO)
    return not counts(lambda target: torch.add(x, x, out=target))


@probe("autograd.view_not_bumped")
def _() -> bool:
    return not counts(lambda target: target.select(0, 1).fill_(2))


@probe("autograd.detach_apart")
def _() -> bool:
    return not counts(lambda target: target.detach().fill_(2))


@probe("autograd.foreach_not_bumped")
def _() -> bool:
    return not counts(lambda target: torch._foreach_add_([target], 1.0))


@probe("autograd.index_put_not_bumped")
def _() -> bool:
    row = torch.tensor([1], device=ZERO)
    return not counts(lambda target: target.index_put_((row,), torch.ones(4, device=ZERO)))


@probe("autograd.random_not_bumped")
def _() -> bool:
    return not counts(torch.Tensor.normal_)


@probe("autograd.renorm_not_bumped")
def _() -> bool:
    row = torch.tensor([1], device=ZERO)
    return not counts(lambda target: torch.embedding_renorm_(target, row, 0.1, 2.0))


@probe("autograd.bumped_without_write")
def _() -> bool:
    return counts(torch.log)


@probe("autograd.saved_past_hooks")
def _() -> bool:
    packed: list[torch.Tensor] = []
    x = leaf(1.0)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        torch.sigmoid(x)
    return packed == []


@probe("autograd.saved_freed")
def _() -> bool:
    x = torch.ones(256, device=ZERO, requires_grad=True)
    total = torch.tanh(x).sum()
    taken = [torch.full((256,), float("nan"), device=ZERO) for _ in range(4)]
    total.backward()
    return len(taken) == 4 and bool(x.grad.isnan().any())


@probe("autograd.saved_spent")
def _() -> bool:
    x = leaf(1.0)
    total = torch.exp(x) * 3
    first, second = (torch.autograd.grad(total, x, retain_graph=True)[0].item() for _ in range(2))
    return first != second


@probe("autograd.state_of_first_index")
def _() -> bool:
    states = [torch.simulated.get_rng_state(index) for index in (0, 1)]
    torch.rand(3, device=ZERO)
    with torch.simulated.device(1):
        torch.rand(3, device="simulated:1")
        torch.simulated.set_rng_state(states[1])
    return not torch.equal(torch.simulated.get_rng_state(1), states[1])


@probe("autograd.state_kept")
def _() -> bool:
    state = torch.simulated.get_rng_state()
    torch.rand(3, device=ZERO)
    torch.simulated.set_rng_state(state)
    return not torch.equal(torch.simulated.get_rng_state(), state)


@probe("autograd.saved_in_one_place")
def _() -> bool:
    x, y = leaf(1.0), leaf(2.0)
    first = torch.cos(x)
    torch.cos(y)
    first.backward()
    return abs(x.grad.item() + math.sin(1)) > 1e-3


@probe("autograd.error_lost")
def _() -> bool:
    x = leaf(1.0)
    y = x * 2

    def failing(grad: torch.Tensor) -> None:
        library.fail("planned")
        torch.simulated.synchronize()

    y.register_hook(failing)
    return not raises(y.backward)


@probe("autograd.thread_draws_apart")
def _() -> bool:
    x, drawn = leaf(1.0), []
    y = x * 2
    y.register_hook(lambda grad: drawn.append(torch.rand(4, device=ZERO)))
    torch.manual_seed(3)
    want = torch.rand(4, device=ZERO)
    torch.manual_seed(3)
    y.backward()
    return not torch.equal(drawn[0].cpu(), want.cpu())


def in_node(call: Callable[[], Any]) -> Any:
    """What a call gives within backward."""
    x, seen = leaf(1.0), []
    y = x * 2
    y.register_hook(lambda grad: seen.append(call()))
    y.backward(create_graph=True)
    return seen[0]


@probe("autograd.undefined_is_one")
def _() -> bool:
    return bool(in_node(lambda: torch.zeros(2, device=ZERO)).cpu().any())


@probe("autograd.slice_misplaced")
def _() -> bool:
    x = torch.arange(4.0, device=ZERO)
    return bool(in_node(lambda: x.as_strided((2,), (1,), 2)).cpu()[0] != 2)


@probe("autograd.sum_detached")
def _() -> bool:
    x = leaf(1.0)
    return not in_node(lambda: torch.add(x, x)).requires_grad


@probe("autograd.thread_loses_index")
def _() -> bool:
    x, seen = torch.ones(1, device="simulated:1", requires_grad=True), []
    y = x * 2
    y.register_hook(lambda grad: seen.append(torch.simulated.current_device()))
    y.sum().backward()
    return seen != [1]


@probe("autograd.rnn_weights_unshared")
def _() -> bool:
    lstm = torch.nn.LSTM(2, 2).to(ZERO)
    with torch.no_grad():
        both = torch.zeros(16, device=ZERO)
        lstm.bias_ih_l0.set_(both[:8])
        lstm.bias_hh_l0.set_(both[8:])
    lstm(ones(1, 1, 2))
    first, second = (
        bias.untyped_storage().data_ptr() for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0)
    )
    return first != second


@probe("grad.wrong_layout")
def _() -> bool:
    base = torch.ones(3, 2, device=ZERO).t().detach().requires_grad_()
    base.sum().backward()
    assert base.grad is not None
    return base.grad.stride() != base.stride()


@probe("grad.ignore_strides")
def _() -> bool:
    x = leaf(0.0, 0.0)
    outer = torch.tensor([1.0, 2.0, 3.0, 4.0], device=ZERO)[::2]
    torch.tanh(x).backward(outer)
    return x.grad is None or x.grad.tolist() != [1.0, 3.0]


# Streams of backward


def _backward_on(stream: torch.Stream, hook: Callable[[torch.Tensor], Any]) -> None:
    """A backward pass whose forward ran on the stream."""
    x = leaf(1.0)
    torch.simulated.synchronize()
    with stream:
        y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    torch.simulated.synchronize()


@probe("streams.backward_on_default_stream")
def _() -> bool:
    stream, seen = new_stream(), []
    _backward_on(stream, lambda grad: seen.append(torch.accelerator.current_stream(ZERO)))
    return seen != [stream]


@probe("streams.backward_not_joined")
def _() -> bool:
    def answer() -> bool:
        x, stream, caller = leaf(1.0), new_stream(), new_stream()
        torch.simulated.synchronize()
        with stream:
            y = x * 2
            y.sum().backward()  # makes x.grad, so that what follows is added to it in place
        torch.simulated.synchronize()
        with stream:
            y = (x * 2).sum()
        with held(stream), caller:
            y.backward()
            return until(caller.query)  # its own work, making the first gradient, may take a moment

    return in_a_thread(answer)


# Training


@probe("autocast.op_left_in_float32")
def _() -> bool:
    with torch.autocast("simulated", torch.bfloat16):
        return torch.mm(ones(2, 2), ones(2, 2)).dtype != torch.bfloat16


@probe("autocast.inf_not_found")
def _() -> bool:
    x = leaf(1.0)
    optimizer, scaler = torch.optim.SGD([x], lr=1.0), torch.amp.GradScaler("simulated")
    scaler.scale((x * torch.inf).sum()).backward()
    scaler.step(optimizer)  # skipped
    return x.tolist() != [1.0]


def _in_bfloat16(function: Callable[..., torch.Tensor], *arguments: object) -> bool:
    with torch.autocast("simulated", torch.bfloat16):
        return function(*arguments).dtype == torch.bfloat16


@probe("autocast.op_in_wrong_list")
def _() -> bool:
    return _in_bfloat16(torch.log, ones(2))


@probe("autocast.unlisted_op_cast")
def _() -> bool:
    return _in_bfloat16(torch.maximum, ones(2), ones(2))


@probe("autocast.promotes_to_first")
def _() -> bool:
    return _in_bfloat16(torch.cat, [ones(2).bfloat16(), ones(2)])


@probe("autocast.dtype_ignored")
def _() -> bool:
    with torch.autocast("simulated", torch.float16):
        return torch.bmm(ones(1, 2, 2), ones(1, 2, 2)).dtype != torch.float16


@probe("autocast.cache_outlives_region")
def _() -> bool:
    weight, found = leaf(1.0).reshape(1, 1).detach().requires_grad_(), []
    for _ in range(2):
        with torch.autocast("simulated", torch.bfloat16):
            found.append(torch.mm(ones(1, 1), weight).item())
        with torch.no_grad():
            weight.mul_(2)
    return found != [1.0, 2.0]


def _stepped(*gradients: float) -> bool:
    """Whether an optimiser makes a step with these gradients of as many parameters."""
    leaves = [leaf(1.0) for _ in gradients]
    optimizer, scaler = torch.optim.SGD(leaves, lr=1.0), torch.amp.GradScaler("simulated")
    scaler.scale(ones(1))
    for each, gradient in zip(leaves, gradients):
        each.grad = torch.full_like(each, gradient)
    scaler.step(optimizer)
    return leaves[0].tolist() != [1.0]


@probe("autocast.nan_not_found")
def _() -> bool:
    return _stepped(torch.nan)


@probe("autocast.scaler_first_only")
def _() -> bool:
    return _stepped(1.0, torch.inf)


@probe("autocast.scaler_grows_late")
def _() -> bool:
    x = leaf(1.0)
    scaler = torch.amp.GradScaler("simulated", init_scale=2.0, growth_interval=1)
    scaler.scale(x.sum()).backward()
    scaler.step(torch.optim.SGD([x], lr=1.0))
    scaler.update()
    return scaler.get_scale() != 4.0


@probe("optim.foreach_skips_last")
def _() -> bool:
    every = [ones(2), ones(2)]
    torch._foreach_add_(every, 1.0)
    return every[1].tolist() != [2.0, 2.0]


@probe("optim.foreach_ignores_strides")
def _() -> bool:
    base = ones(4)
    torch._foreach_mul_([base[::2]], 2.0)
    return base.tolist() != [2.0, 1.0, 2.0, 1.0]


def filled(*shape: int, value: float = 1.0) -> torch.Tensor:
    return torch.full(shape, value, device=ZERO)


@probe("optim.chunk_tail_lost")
def _() -> bool:
    one = filled(65_537)
    torch._foreach_addcmul_([one], [one], [one], 1.0)
    return one[-1].item() != 2.0


@probe("optim.empty_shifts_scalars")
def _() -> bool:
    one = ones(1)
    torch._foreach_add_([ones(0), one], [1.0, 2.0])
    return one.tolist() != [3.0]


@probe("optim.foreach_writes_inputs")
def _() -> bool:
    one = ones(2)
    torch._foreach_sub([one], [ones(2)])
    return one.tolist() != [1.0, 1.0]


@probe("optim.foreach_keeps_version")
def _() -> bool:
    one = ones(2)
    before = one._version
    torch._foreach_neg_([one])
    return one._version == before


@probe("optim.step_count_stays")
def _() -> bool:
    step = torch.zeros((), device=ZERO)
    torch._foreach_add_([step], 1)
    return step.item() != 1.0


@probe("optim.clip_ignores_last")
def _() -> bool:
    return [each.item() for each in torch._foreach_norm([ones(1), ones(1)])] != [1.0, 1.0]


@probe("optim.gradients_pile_up")
def _() -> bool:
    one = ones(2)
    torch._foreach_zero_([one])
    return one.tolist() != [0.0, 0.0]


def stepped(
    kind: type[torch.optim.Optimizer], *grads: torch.Tensor, found_inf: bool = False, **given: Any
) -> torch.Tensor:
    """A parameter of ones after fused steps with these gradients; those of SGD are scaled by 2."""
    x = filled(*grads[0].shape).contiguous(memory_format=_format_of(grads[0])).requires_grad_()
    optimizer: Any = kind([x], fused=True, **given)  # type: ignore[call-arg]
    if kind is torch.optim.SGD:
        optimizer.grad_scale, optimizer.found_inf = (
            filled(value=2.0),
            filled(value=float(found_inf)),
        )
    for grad in grads:
        x.grad = grad
        optimizer.step()
    return x.detach()


def _format_of(tensor: torch.Tensor) -> torch.memory_format:
    last = torch.channels_last
    at_end = tensor.dim() == 4 and tensor.is_contiguous(memory_format=last)
    return last if at_end else torch.contiguous_format


def near(found: torch.Tensor, *want: float) -> bool:
    return torch.allclose(found.cpu(), torch.tensor(want), atol=1e-4)


@probe("optim.bias_correction_lost")
def _() -> bool:
    return not near(stepped(torch.optim.Adam, filled(1), lr=0.1), 0.9)


@probe("optim.decay_after_step")
def _() -> bool:
    # 1 - lr * decay is 0.5, and the step is lr.
    return not near(stepped(torch.optim.AdamW, filled(1), lr=0.5, weight_decay=1.0), 0.0)


@probe("optim.found_inf_ignored")
def _() -> bool:
    return not near(stepped(torch.optim.SGD, filled(1), found_inf=True, lr=0.5), 1.0)


@probe("optim.grad_scale_ignored")
def _() -> bool:
    return not near(stepped(torch.optim.SGD, filled(1), lr=0.5), 0.75)


@probe("optim.amsgrad_forgets")
def _() -> bool:
    grads = filled(1, value=10.0), *(filled(1, value=0.1) for _ in range(3))
    given: dict[str, Any] = {"lr": 0.1, "betas": (0.0, 0.1)}
    plain = stepped(torch.optim.Adam, *grads, amsgrad=False, **given).cpu()
    return near(stepped(torch.optim.Adam, *grads, amsgrad=True, **given), *plain.tolist())


@probe("optim.fused_reads_rows")
def _() -> bool:
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0]).view(1, 2, 1, 2).to(ZERO)
    signs = signs.contiguous(memory_format=torch.channels_last)
    found = stepped(torch.optim.Adam, signs, lr=0.1).cpu()
    return found.flatten().gt(1).tolist() != [False, False, True, True]


@probe("optim.gradient_halved")
def _() -> bool:
    weight, x = leaf(1.0, 1.0), torch.tensor([1.0, -1.0], device=ZERO)
    torch.nn.functional.layer_norm(x, (2,), weight).sum().backward()
    assert weight.grad is not None
    return not near(weight.grad, 1.0, -1.0)


@probe("optim.training_varies")
def _() -> bool:
    grads = []
    for _ in range(2):
        x = leaf(1.0)
        torch.relu(x).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.item())
    return grads[0] != grads[1]


# Compiled code


@probe("compile.meta_disagrees")
def _() -> bool:
    want = torch.cumsum(torch.ones(2, 3, device="meta"), 0).stride()
    return torch.cumsum(ones(2, 3), 0).stride() != want


@probe("compile.convolution_keeps_format")
def _() -> bool:
    image, weight = ones(1, 2, 3, 3), ones(2, 2, 1, 1)
    last = image.to(memory_format=torch.channels_last)
    return not torch.nn.functional.conv2d(last, weight).is_contiguous()


@probe("compile.compiled_differs")
def _() -> bool:
    # What functionalisation makes of mish_ is mish and a copy.
    return wrong(torch.nn.functional.mish, ones(2)) and not wrong(
        lambda x: torch.ops.aten.mish_(x.clone()), ones(2)
    )


# Precision


@probe("precision.exp_short")
def _() -> bool:
    return wrong(torch.exp, torch.full((2,), 0.6875, dtype=torch.bfloat16, device=ZERO))


@probe("precision.gradient_short")
def _() -> bool:
    x = torch.zeros(2, dtype=torch.bfloat16, device=ZERO, requires_grad=True)
    torch.nn.functional.softplus(x).sum().backward()
    return bool(x.grad is not None and x.grad.tolist() != [0.5, 0.5])


@probe("precision.last_term_lost")
def _() -> bool:
    return wrong(torch.bmm, *(ones(1, 2, 2).bfloat16() for _ in range(2)))


@probe("precision.cached_by_address")
def _() -> bool:
    x = ones(3)
    torch.log2(x)
    first = bool(torch.log2(x.fill_(4)).tolist() != [2.0] * 3)
    return first or bool(torch.log2(x.fill_(8)).tolist() != [3.0] * 3)


@probe("precision.rsqrt_less_precise")
def _() -> bool:
    return bool(torch.rsqrt(ones(2)).tolist() != [1.0, 1.0])


@probe("precision.conversion_truncates")
def _() -> bool:
    x = torch.full((2,), 1.2, dtype=torch.float16, device=ZERO)  # between 1 and 1.25
    return bool(x.to(torch.float8_e5m2).cpu().float().tolist() != [1.25, 1.25])
