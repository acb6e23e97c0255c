"""Checks of the clause nn.attention: results and gradients of attention must equal the CPU's, with every backend that
accepts the call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from conformance.checks.behaviour.guarded_tensors import GuardedTensors
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import DENSE
from conformance.suites.nn.forward_backward import (
    ROUNDINGS,
    assert_equals_cpu,
    cotangents,
    tensors_in,
)
from devices.failure import Kind
from opinfo.memory import fresh_memory

cases = Cases(Kind.VALUES)


def attention_of(*operands: torch.Tensor, **options: Any) -> torch.Tensor:
    function: Any = torch.nn.functional.scaled_dot_product_attention
    result: torch.Tensor = function(*operands, **options)
    return result


#: Backends of scaled_dot_product_attention. "default" lets torch choose.
BACKENDS = (
    "default",
    "MATH",
    "FLASH_ATTENTION",
    "EFFICIENT_ATTENTION",
    "CUDNN_ATTENTION",
    "OVERRIDEABLE",
)
#: Backends that must accept every call.
ALWAYS = ("default", "MATH")

#: Layouts of (batch, head, time, channel): with time and head exchanged in memory, and with one head expanded to all.
PERMUTED = "free:order=0.2.1.3"
OF_ONE_HEAD = "free:order=0.1.2.3,expand=1"
#: The value that a mask adds to the product with a masked key: the smallest finite number of float16.
UNSEEN = -65504.0


@contextmanager
def chosen(backend: str) -> Iterator[None]:
    kind = None if backend == "default" else getattr(SDPBackend, backend, None)
    with warnings.catch_warnings(), nullcontext() if kind is None else sdpa_kernel([kind]):
        warnings.simplefilter("ignore")  # torch warns why a backend refuses a call
        yield


def offered(backend: str) -> bool:
    """Return True if the installed version of torch has the backend."""
    return backend == "default" or hasattr(SDPBackend, backend)


def generator(context: CaseContext) -> torch.Generator:
    return torch.Generator().manual_seed(sum(map(ord, context.seed)))


def attend(
    context: CaseContext,
    query: tuple[int, ...],
    key: tuple[int, ...],
    channels: int,
    *,
    mask: torch.Tensor | None = None,
    layouts: tuple[str, str, str] = (DENSE, DENSE, DENSE),
    cotangent: str = DENSE,
    needs: str = "qkvm",
    poisoned: bool = False,
    whole: bool = False,
    at: str = "",
    **options: Any,
) -> None:
    """Compare attention with the CPU, forward and backward, for every backend and the given shapes of query and key.
    ``channels`` is the last dimension of the values. ``needs`` names the operands that require a gradient (query, key,
    value, mask) by their letters. If ``poisoned`` is true, memory that the call may allocate is filled with wrong
    numbers before.

    ``whole`` is for masks that add a large number (UNSEEN) to products of query and key. Operands are then rounded
    to integers, so that these sums are exact. Backward may start from the logarithm of a sum of exponentials, whose
    rounding error is relative to the large number, so gradients are compared with 100 times the tolerance. Rows in
    which every key is masked must be finite and are not compared, because kernels that compute with powers of two
    round such rows differently.
    """
    drawn = generator(context)
    shapes = (query, key, (*key[:-1], channels))
    values = [torch.randn(shape, generator=drawn) for shape in shapes]
    values = [each.clamp(-1, 1).round() for each in values] if whole else values
    for backend in BACKENDS:
        if offered(backend):
            rough = 100 * ROUNDINGS if whole else ROUNDINGS
            blind = (mask <= UNSEEN).all(-1, keepdim=True) if whole and mask is not None else None
            given = (values, mask, blind, layouts, cotangent, needs, options, rough)
            where = f"{at or 'attention'}, backend {backend}"
            judged(context, backend, given, drawn, poisoned, where)


def judged(
    context: CaseContext,
    backend: str,
    given: tuple[Any, ...],
    drawn: torch.Generator,
    poisoned: bool,
    at: str,
) -> None:
    values, mask, blind, layouts, cotangent, needs, options, rough = given
    laid = GuardedTensors(context)
    mine, theirs = [], []
    for name, each, layout in zip("qkv", values, layouts, strict=True):
        made = laid.put(each, layout, "an operand")
        mine.append(made.view.requires_grad_(name in needs))
        theirs.append(made.values.double().requires_grad_(name in needs))
    if mask is not None:
        floats = mask.is_floating_point()
        mine.append(laid.put(mask, DENSE, "the mask").view.requires_grad_(floats and "m" in needs))
        wide = mask.double() if floats else mask
        theirs.append(wide.detach().clone().requires_grad_(floats and "m" in needs))
    if poisoned:
        fill_free_memory(context, values)
    with chosen(backend), fill_fresh_memory(context, poisoned):
        try:
            got = attention_of(*mine, **options)
        except RuntimeError:
            if backend in ALWAYS:
                raise
            return  # the backend refuses this call with an error, which it may
        with chosen("MATH"):
            want = attention_of(*theirs, **options)
        context.same(
            got.dtype,
            mine[0].dtype,
            "the dtype of the result differs from the dtype of the query",
            Kind.DTYPE,
            at,
        )
        if blind is not None:
            numbers = bool(context.from_device(got.detach()).isfinite().all())
            text = "the result contains NaN or infinity"
            context.check(numbers, text, kind=Kind.VALUES, at=at)
            got = got.masked_fill(context.to_device(blind), 0.0)
            want = want.masked_fill(blind, 0.0)
        assert_equals_cpu(context, got, want, "the result differs from the CPU's", at)
        leaves = [each for each in mine if each.requires_grad]
        want_leaves = [each for each in theirs if each.requires_grad]
        context.same(
            got.requires_grad,
            want.requires_grad,
            "requires_grad of the result differs from the CPU's",
            Kind.STATE,
            at,
        )
        if not leaves:
            laid.check_intact(at)
            return
        given_mine, given_theirs = cotangents(laid, [want], cotangent, drawn)
        if poisoned:
            fill_free_memory(context, values)
        found = torch.autograd.grad([got], leaves, given_mine)
    right = torch.autograd.grad([want], want_leaves, given_theirs)
    # With a single key the gradient of a query is zero: a difference of terms as large as the other gradients.
    size = max((float(each.abs().max()) for each in right if each.numel()), default=0.0)
    for one, other in zip(found, right, strict=True):
        assert_equals_cpu(context, one, other, "a gradient differs from the CPU's", at, rough, size)
    laid.check_intact(at)


def fill_free_memory(context: CaseContext, values: list[torch.Tensor]) -> None:
    """Allocate tensors of the sizes that the call will need, fill them with NaN, and free them, so that the call gets
    memory that contains NaN."""
    query, key, value = values
    rows = query.numel() // max(query.shape[-1], 1)
    sizes = [query.numel(), key.numel(), value.numel(), rows, rows * value.shape[-1]]
    blocks = [
        torch.full((size,), float("nan"), device=context.device) for size in sizes for _ in range(2)
    ]
    context.settle()
    del blocks


@contextmanager
def fill_fresh_memory(context: CaseContext, poisoned: bool) -> Iterator[None]:
    """If ``poisoned`` is true, fill newly allocated CPU memory with large numbers inside a ``with`` block, provided
    that the allocator supports it."""
    with fresh_memory(context.device, 0x7F) if poisoned else nullcontext():
        yield


# -- shapes

#: Queries, keys, head_dim, channels of the values.
SIZES = {
    f"{queries}x{keys}_of_{head}_and_{channels}": (queries, keys, head, channels)
    for queries, keys, head, channels in (
        (5, 7, 8, 8),
        (64, 64, 64, 64),
        (65, 63, 64, 64),
        (33, 129, 128, 128),
        (17, 200, 64, 32),
        (40, 300, 32, 48),
        (130, 1, 64, 64),
        (200, 16, 128, 128),
        (1, 127, 80, 80),
        (3, 5, 7, 9),
    )
}


@cases("nn.attention", over=SIZES)
def sizes(context: CaseContext, queries: int, keys: int, head: int, channels: int) -> None:
    """Run attention for many lengths of sequences and sizes of heads: on contiguous operands, on permuted operands, and
    with a causal mask. Results and gradients must equal the CPU's. Before the calls on contiguous operands and with a
    causal mask, free memory is filled with NaN."""
    query, key = (2, 3, queries, head), (2, 3, keys, head)
    attend(context, query, key, channels, poisoned=True, cotangent="scalar", at="contiguous")
    attend(
        context,
        query,
        key,
        channels,
        layouts=(PERMUTED, PERMUTED, PERMUTED),
        cotangent=PERMUTED,
        at="permuted",
    )
    causal: dict[str, Any] = {"is_causal": True}
    attend(context, query, key, channels, needs="qkv", at="causal", poisoned=True, **causal)


LAYOUTS = {
    "expanded_heads": (DENSE, OF_ONE_HEAD, OF_ONE_HEAD),
    "expanded_batch": (DENSE, "contiguous+expand_first", "contiguous+expand_first"),
    "expanded_query": (OF_ONE_HEAD, DENSE, DENSE),
    "permuted_query": (PERMUTED, DENSE, DENSE),
    "permuted_key": (DENSE, PERMUTED, DENSE),
    "transposed_key": (DENSE, "transposed", DENSE),
    "stepped": ("contiguous+step_inner", "contiguous+step_inner", "contiguous+step_inner"),
    "stepped_rows": ("contiguous+step_outer+offset", PERMUTED, "contiguous+step_outer"),
    "offset": ("contiguous+offset", "contiguous+offset", "contiguous+offset"),
    "reversed": ("reversed", "reversed+offset", "reversed"),
}


@cases("nn.attention", over={**LAYOUTS})
def layouts_of_operands(context: CaseContext, query: str, key: str, value: str) -> None:
    """Run attention on permuted, strided, offset, reversed and expanded operands and cotangents: results and gradients
    must equal the CPU's."""
    for head, cotangent in ((64, "scalar"), (16, PERMUTED), (64, "contiguous+expand_first")):
        at = f"head_dim {head}"
        shapes = (2, 4, 20, head), (2, 4, 37, head), head
        attend(context, *shapes, layouts=(query, key, value), cotangent=cotangent, at=at)


# -- masks

MASKS = (
    (6, 9),
    (1, 9),
    (6, 1),
    (1, 1),
    (2, 1, 6, 9),
    (1, 3, 6, 9),
    (2, 3, 6, 9),
    (2, 1, 1, 9),
    (2, 3, 6, 1),
    (3, 6, 9),
)


@cases("nn.attention", over={"x".join(map(str, shape)): (shape,) for shape in MASKS})
def masks(context: CaseContext, shape: tuple[int, ...]) -> None:
    """Run attention with boolean masks and float masks of shapes that broadcast: results and gradients, including the
    gradient of a float mask, must equal the CPU's."""
    drawn = generator(context)
    floats = torch.randn(shape, generator=drawn)
    bools = torch.rand(shape, generator=drawn) > 0.3
    bools[..., 0] = True  # every row has a key; rows_without_keys checks the others
    query, key = (2, 3, 6, 16), (2, 3, 9, 16)
    attend(context, query, key, 16, mask=floats, at="a float mask")
    attend(context, query, key, 16, mask=bools, at="a boolean mask", cotangent="scalar")
    attend(
        context,
        query,
        key,
        16,
        mask=floats,
        needs="m",
        at="a float mask, the only operand that requires a gradient",
    )
    attend(
        context,
        query,
        key,
        16,
        mask=floats,
        needs="q",
        at="a float mask that does not require a gradient",
    )
    hidden = torch.zeros(shape).masked_fill(~bools, -torch.inf)
    attend(context, query, key, 16, mask=hidden, needs="qkv", at="a mask of -inf")


@cases("nn.attention")
def rows_without_keys(context: CaseContext) -> None:
    """Mask all keys of one query: the result and the gradient of the query must be zero, and all other rows must equal
    the CPU's."""
    for shape in ((6, 9), (2, 1, 6, 9)):
        mask = torch.rand(shape, generator=generator(context)) > 0.4
        mask[..., 2, :] = False
        mask[..., 0] |= torch.arange(6) != 2
        for queries in (DENSE, PERMUTED):
            attend(
                context,
                query=(2, 3, 6, 64),
                key=(2, 3, 9, 64),
                channels=64,
                mask=mask,
                layouts=(queries, DENSE, DENSE),
                at="a row whose keys are all masked",
            )


@cases("nn.attention")
def left_padding(context: CaseContext) -> None:
    """Mask keys by adding a large negative number, as for left-padded sequences: results must be finite, and rows with
    an unmasked key must equal the CPU's."""
    mask = torch.zeros(2, 1, 7, 7)
    mask.masked_fill_(torch.ones(7, 7).triu(1).bool(), UNSEEN)
    mask[1, :, :, :3] = UNSEEN
    for head in (16, 64, 128):
        shapes = (2, 4, 7, head), (2, 4, 7, head), head
        given: dict[str, Any] = {"mask": mask, "needs": "qkv", "whole": True, "scale": 0.25}
        attend(context, *shapes, at=f"head_dim {head}", **given)


@cases(
    "nn.attention",
    over={f"{q}_of_{k}": (q, k) for q, k in ((3, 8), (8, 3), (1, 5), (5, 1), (65, 130), (130, 65))},
)
def causal_of_unequal_lengths(context: CaseContext, queries: int, keys: int) -> None:
    """Run causal attention with different numbers of queries and keys: query n must attend to the first n keys only,
    and an equivalent boolean mask must give the same results. Both are compared with the CPU."""
    shapes = (2, 2, queries, 16), (2, 2, keys, 16), 16
    attend(context, *shapes, at="causal", is_causal=True)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril()
    attend(context, *shapes, mask=mask, at="an equivalent boolean mask")


@cases("nn.attention", over={f"{q}_of_{k}_heads": (q, k) for q, k in ((4, 2), (6, 1), (4, 4))})
def grouped_queries(context: CaseContext, heads: int, of_keys: int) -> None:
    """Run attention with enable_gqa=True, where several query heads share a key head: results and gradients must equal
    the CPU's."""
    for head, causal in ((16, False), (64, True)):
        attend(
            context,
            query=(2, heads, 12, head),
            key=(2, of_keys, 19, head),
            channels=head,
            at=f"head_dim {head}",
            is_causal=causal,
            enable_gqa=True,
        )


@cases("nn.attention")
def scales_and_ranks(context: CaseContext) -> None:
    """Run attention with explicit scales and with operands of rank 3 and 5: results and gradients must equal the
    CPU's."""
    for scale in (0.3, 1.0, 2.5):
        attend(context, (2, 3, 6, 16), (2, 3, 9, 16), 16, at=f"scale {scale}", scale=scale)
    attend(context, (3, 6, 16), (3, 9, 16), 16, at="rank 3")
    attend(context, (2, 2, 3, 6, 16), (2, 2, 3, 9, 16), 16, at="rank 5")
    attend(context, (1, 1, 1, 8), (1, 1, 1, 8), 8, at="one element")


@cases(
    "nn.attention",
    over={
        "dropout": ("",),
        **{f"dropout_{each}": (each,) for each in ("boolean_mask", "float_mask", "causal")},
    },
)
def dropout(context: CaseContext, kind: str) -> None:
    """Run attention with dropout, without and with a mask, on values that form an identity matrix, so that the result is
    the matrix of weights: about the given share of the weights must be 0, all others must be the CPU's weights divided
    by the probability of keeping them, and weights of masked keys must be 0."""
    drawn, share = generator(context), 0.4
    shape = (4, 4, 33, 16)
    query, key = (torch.randn(shape, generator=drawn) for _ in range(2))
    value = torch.eye(33).expand(4, 4, 33, 33).contiguous()
    options: dict[str, Any] = {"is_causal": True} if kind == "causal" else {}
    mask = torch.rand(4, 1, 33, 33, generator=drawn) > 0.3
    mask[..., 0] = True
    hidden = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    given = {"boolean_mask": [mask], "float_mask": [hidden]}.get(kind, [])
    with chosen("MATH"):
        want = attention_of(
            *(each.double() for each in (query, key, value)),
            *(m.double() if m.is_floating_point() else m for m in given),
            **options,
        )
    for backend in filter(offered, BACKENDS):
        there = [context.to_device(each) for each in (query, key, value, *given)]
        with chosen(backend):
            try:
                got = attention_of(*there, dropout_p=share, **options)
            except RuntimeError:
                if backend in ALWAYS:
                    raise
                continue
        found = context.from_device(got)
        dropped = (found == 0) & (want > 0)
        lost = float(dropped.sum() / (want > 0).sum())
        text = "the share of dropped weights differs from dropout_p"
        context.check(abs(lost - share) < 0.05, text, expected=share, found=lost, at=backend)
        text = "kept weights are not the CPU's divided by the probability of keeping them"
        assert_equals_cpu(context, got, (want / (1 - share)).masked_fill(dropped, 0), text, backend)


@cases("nn.attention")
def large_inputs(context: CaseContext) -> None:
    """Run attention on inputs whose elements are all 1000: the elements of the result must be 1000, and the gradients
    must be finite."""
    for backend in filter(offered, BACKENDS):
        for queries, keys, head in ((16, 16, 64), (33, 40, 16)):
            given = [
                torch.full((2, 2, length, head), 1000.0).to(context.device).requires_grad_()
                for length in (queries, keys, keys)
            ]
            with chosen(backend):
                try:
                    got = attention_of(*given)
                except RuntimeError:
                    if backend in ALWAYS:
                        raise
                    continue
                text = (
                    "the result differs from the elements of the value tensor, which are all equal"
                )
                assert_equals_cpu(
                    context, got, torch.full(got.shape, 1000.0).double(), text, backend
                )
                found = torch.autograd.grad(got.sum(), given)
            for each in found:
                finite = bool(context.from_device(each).isfinite().all())
                context.check(finite, "a gradient for large inputs is not finite", at=backend)


# -- modules

Made = tuple[torch.nn.Module, torch.nn.Module]


def twice(context: CaseContext, module: torch.nn.Module) -> Made:
    """Add random numbers to the parameters of a module. Returns the module on the device and a float64 copy on the
    CPU."""
    drawn = generator(context)
    with torch.no_grad():
        for each in module.parameters():
            each.add_(0.3 * torch.randn(each.shape, generator=drawn))
    reference = copy.deepcopy(module).double()
    return module.to(context.device), reference


MULTIHEAD: dict[str, dict[str, Any]] = {
    "multihead": {},
    "multihead_batch_first": {"batch_first": True},
    "multihead_other_widths": {"kdim": 5, "vdim": 6, "batch_first": True},
    "multihead_extra_keys": {"add_bias_kv": True, "add_zero_attn": True},
    "multihead_no_bias": {"bias": False, "batch_first": True},
}


@cases(
    "nn.attention", over={name: (tuple(options.items()),) for name, options in MULTIHEAD.items()}
)
def multihead(context: CaseContext, chosen_options: tuple[tuple[str, Any], ...]) -> None:
    """Run MultiheadAttention with padding masks and attention masks, with and without returned attention weights, in
    training and eval mode: results and gradients must equal the CPU's."""
    options = dict(chosen_options)
    layer, reference = twice(context, torch.nn.MultiheadAttention(8, 2, **options))
    drawn = generator(context)
    first = options.get("batch_first", False)

    def drawn_of(times: int, width: int) -> torch.Tensor:
        shape = (3, times, width) if first else (times, 3, width)
        return torch.randn(shape, generator=drawn)

    given = [
        drawn_of(5, 8),
        drawn_of(7, options.get("kdim", 8)),
        drawn_of(7, options.get("vdim", 8)),
    ]
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True
    pairs = torch.rand(5, 7, generator=drawn) > 0.7
    pairs[:, 0] = False
    by_head = torch.randn(6, 5, 7, generator=drawn)
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"need_weights": False},
        {"key_padding_mask": padding},
        {"attn_mask": pairs, "need_weights": False},
        {"attn_mask": by_head, "average_attn_weights": False},
        {"key_padding_mask": padding, "attn_mask": pairs, "need_weights": False},
    )
    for training in (True, False):
        for module in (layer, reference):
            module.train(training)
        for way in ways:
            called(context, (layer, reference), given, way, gradients=True)
            if not training:
                called(context, (layer, reference), given, way, gradients=False)


@cases(
    "nn.attention",
    over={
        "self_attention": (8, 2),
        "self_attention_wide": (128, 2),
        "self_attention_of_3_heads": (9, 3),
    },
)
def self_attention(context: CaseContext, width: int, heads: int) -> None:
    """Run MultiheadAttention on its fast path (eval mode, no gradients, one tensor as query, key and value), with masks
    of each kind, among them one mask for each head: results must equal the CPU's."""
    made = twice(context, torch.nn.MultiheadAttention(width, heads, batch_first=True))
    for module in made:
        module.eval()
    x = torch.randn(3, 6, width, generator=generator(context))
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[0, 4:] = True
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"need_weights": False},
        {"key_padding_mask": padding, "need_weights": False},
    )
    for way in (*ways, *_masked(context, 3, heads, 6, padding)):
        called(context, made, [x], way, gradients=False, repeated=3)


def _masked(
    context: CaseContext, batch: int, heads: int, times: int, padding: torch.Tensor
) -> tuple[dict[str, Any], ...]:
    """Return ways to call MultiheadAttention with a mask for all heads and a mask for each head, without and with a
    padding mask. No row is masked as a whole."""
    drawn = torch.rand(batch * heads, times, times, generator=generator(context)) > 0.6
    drawn[:, :, 0] = False
    of_all, by_head = drawn[0], drawn
    return (
        {"attn_mask": of_all},
        {"attn_mask": by_head, "need_weights": False},
        {"attn_mask": by_head, "key_padding_mask": padding, "average_attn_weights": False},
    )


def called(
    context: CaseContext,
    made: Made,
    given: list[torch.Tensor],
    way: dict[str, Any],
    *,
    gradients: bool,
    repeated: int = 1,
) -> None:
    """Call a module with the given inputs and keyword arguments ``way``: results and, if ``gradients`` is true,
    gradients must equal those of the copy on the CPU."""
    at = f"{', '.join(way) or 'no masks'}, {'with' if gradients else 'without'} gradients"
    layer, reference = made
    mine = [context.to_device(each).requires_grad_(gradients) for each in given]
    theirs = [each.double().requires_grad_(gradients) for each in given]
    here = {k: v.double() if _floats(v) else v for k, v in way.items()}
    there = {k: context.to_device(v) if isinstance(v, torch.Tensor) else v for k, v in way.items()}
    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("ignore")  # nested tensors warn that they are a prototype
        got = layer(*mine * repeated, **there)
        want = reference(*theirs * repeated, **here)
    results, expected = list(tensors_in(got)), list(tensors_in(want))
    context.same(
        len(results), len(expected), "the number of outputs differs from the CPU's", Kind.COUNT, at
    )
    for one, other in zip(results, expected, strict=True):
        assert_equals_cpu(context, one, other, "the result differs from the CPU's", at)
    if not gradients:
        return
    leaves = [*mine, *layer.parameters()]
    want_leaves = [*theirs, *reference.parameters()]
    found = torch.autograd.grad(results[0].sum(), leaves, allow_unused=True)
    right = torch.autograd.grad(expected[0].sum(), want_leaves, allow_unused=True)
    for one_grad, other_grad in zip(found, right, strict=True):
        context.same(
            one_grad is None,
            other_grad is None,
            "the gradient is None on the device or on the CPU, but not on both",
            at=at,
        )
        if one_grad is not None and other_grad is not None:
            assert_equals_cpu(
                context, one_grad, other_grad, "a gradient differs from the CPU's", at
            )


def _floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


ENCODERS: dict[str, dict[str, Any]] = {
    "encoder": {},
    "encoder_norm_first": {"norm_first": True},
    "encoder_gelu": {"activation": "gelu"},
    "encoder_of_3_heads": {"d_model": 15, "nhead": 3},
}


@cases("nn.attention", over={name: (tuple(options.items()),) for name, options in ENCODERS.items()})
def encoder(context: CaseContext, chosen_options: tuple[tuple[str, Any], ...]) -> None:
    """Run TransformerEncoderLayer without a mask, with a padding mask, a causal mask, a mask for each head, and padding
    and causal masks together, in training mode, in eval mode, and on its fast path (eval mode without gradients):
    results and gradients must equal the CPU's."""
    options = {"d_model": 16, "nhead": 2, **dict(chosen_options)}
    layer = torch.nn.TransformerEncoderLayer(
        dim_feedforward=24, dropout=0.0, batch_first=True, **options
    )
    made = twice(context, layer)
    x = torch.randn(3, 6, options["d_model"], generator=generator(context))
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[2, 3:] = True
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    by_head = _masked(context, 3, options["nhead"], 6, padding)[1]["attn_mask"]
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"src_key_padding_mask": padding},
        {"src_mask": causal},
        {"src_mask": by_head},
        {"src_mask": causal, "src_key_padding_mask": padding},
    )
    for training in (True, False):
        for module in made:
            module.train(training)
        for way in ways:
            called(context, made, [x], way, gradients=True)
            if not training:
                called(context, made, [x], way, gradients=False)


@cases("nn.attention")
def encoder_of_layers(context: CaseContext) -> None:
    """Run TransformerEncoder in eval mode without gradients, with and without padding: results must equal the CPU's."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True)
    made = twice(context, torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x = torch.randn(3, 6, 16, generator=generator(context))
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[2, 3:] = True
    for module in made:
        module.eval()
    for way in ({}, {"src_key_padding_mask": padding}):
        called(context, made, [x], way, gradients=False)


@cases("nn.attention")
def trained_on_constants(context: CaseContext) -> None:
    """Train a TransformerEncoderLayer for three steps on inputs whose elements are all 1000: every gradient must be
    finite."""
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True).to(context.device)
    x = torch.full((2, 5, 16), 1000.0).to(context.device)
    for _ in range(3):
        for each in layer.parameters():
            each.grad = None
        layer(x).pow(2).mean().backward()
        for each in layer.parameters():
            assert each.grad is not None
            finite = bool(context.from_device(each.grad).isfinite().all())
            context.check(finite, "a gradient for large inputs is not finite")
            with torch.no_grad():
                each.sub_(each.grad, alpha=0.01)
