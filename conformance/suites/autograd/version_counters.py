"""Checks of the clause autograd.version_counter: after any kind of in-place write to a tensor that backward needs,
backward must raise RuntimeError."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter, itemgetter, methodcaller
from typing import Any

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.NOT_RAISED)

#: Part of torch's error for a saved tensor that was changed in place.
STALE = "modified by an inplace operation"
RAISES = "backward does not raise the documented exception after a write to a tensor that it needs"
RUNS = "backward raises although no tensor that it needs was changed"


def numbers(context: CaseContext, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a device tensor of the given shape with values in the domain of all functions that the checks call:
    numbers from 0.1 to 0.9 or, for integer dtypes, 1 to 3."""
    count = 1
    for extent in shape:
        count *= extent
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.linspace(0.1, 0.9, count).to(dtype)
    else:
        made = (torch.arange(count) % 3 + 1).to(dtype)
    return context.to_device(made.reshape(shape))


def leaf(context: CaseContext, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return numbers(context, *shape, dtype=dtype).requires_grad_()


def product_with(context: CaseContext, saved: torch.Tensor) -> torch.Tensor:
    """Return a sum whose backward needs the tensor ``saved``."""
    factor = numbers(context, *saved.shape).to(saved.device).requires_grad_()
    return (factor * saved).abs().sum()


def goes_stale(
    context: CaseContext, saved: torch.Tensor, write: Callable[[], object], what: str
) -> None:
    """Check that backward does not raise before the call of ``write``, which changes a saved tensor, but raises after
    the call."""
    result = product_with(context, saved)
    result.backward(retain_graph=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # index_reduce_ warns that it is in beta
            write()
    except (NotImplementedError, RuntimeError) as error:
        # Other clauses judge missing ops. Nothing was written, so backward need not raise.
        context.note(
            f"{what} raised {type(error).__name__}, so nothing was written and the check was skipped"
        )
        return
    try:
        result.backward()
    except RuntimeError as error:
        context.check(STALE in str(error), RAISES, expected=STALE, found=error, at=what)
    else:
        context.check(False, RAISES, expected="RuntimeError", found="no exception", at=what)


def tried(context: CaseContext, what: str, function: Callable[[], Any]) -> Any:
    """Return the result of a call. If the call raises, add a note to the report and return None; other clauses judge
    missing ops."""
    try:
        return function()
    except (NotImplementedError, RuntimeError) as error:
        context.note(f"{what} raised {type(error).__name__}, so it was not checked")
        return None


def still_runs(context: CaseContext, result: torch.Tensor, text: str, at: str) -> None:
    """Check that backward, called with retain_graph=True, does not raise."""
    try:
        result.backward(retain_graph=True)
    except RuntimeError as error:
        context.check(False, text, expected="no exception", found=error, at=at)
    context.check(True, text)


# -- in-place methods and out=

#: Names in the tables below that stand for a tensor built for the call; other arguments are passed unchanged.
_MADE: Mapping[str, Callable[[CaseContext, torch.Tensor], torch.Tensor]] = {
    "other": lambda context, target: numbers(context, *target.shape, dtype=target.dtype),
    "mask": lambda context, target: numbers(context, *target.shape) > 0.4,
    "wide": lambda context, _: numbers(context, 4, 4),
    "vector": lambda context, _: numbers(context, 4),
    "batch": lambda context, _: numbers(context, 2, 4, 4),
    "index": lambda context, _: context.to_device(torch.tensor([0, 2])),
    "places": lambda context, _: context.to_device(torch.tensor([[0, 1, 2, 0]])),
    "rows": lambda context, _: numbers(context, 2, 4),
    "row": lambda context, _: numbers(context, 1, 4),
    "one": lambda context, _: context.to_device(torch.tensor(1.0)),
    "two": lambda context, _: numbers(context, 2),
    "square": lambda context, _: numbers(context, 4, 4) + 4 * context.to_device(torch.eye(4)),
}


def _given(context: CaseContext, target: torch.Tensor, argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(_given(context, target, each) for each in argument)
    made = _MADE.get(argument) if isinstance(argument, str) else None
    return argument if made is None else made(context, target)


def _each(names: str, *arguments: Any) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(names.split(), arguments)


#: Functions of one tensor that have an in-place method and out=.
_UNARY = _each(
    "abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil conj_physical "
    "cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix floor frac i0 lgamma log log10 log1p log2 logit "
    "nan_to_num neg negative rad2deg reciprocal round rsqrt sgn sigmoid sign sin sinc sinh sqrt square tan tanh trunc "
    "logical_not"
)
#: The same for functions of two tensors of one shape.
_BINARY = _each(
    "add arctan2 atan2 copysign div divide eq float_power floor_divide fmod ge greater greater_equal gt heaviside "
    "hypot igamma igammac ldexp le less less_equal logical_and logical_or logical_xor lt mul multiply ne nextafter "
    "not_equal pow remainder sub subtract true_divide xlogy",
    "other",
)
_MORE = (
    _each("addcdiv addcmul", "other", "other")
    | _each("lerp", "other", 0.5)
    | _each("clamp clip", 0.2, 0.8)
    | _each("clamp_max clamp_min", 0.5)
    | _each("cumprod cumsum tril triu", 1)
    | _each("mvlgamma", 1)
    | _each("renorm", 2, 0, 0.5)
)
_WHOLE = _each("bitwise_not") | _each(
    "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm", "other"
)
_MATRICES = {
    "addbmm": ("batch", "batch"),
    "addmm": ("wide", "wide"),
    "addr": ("vector", "vector"),
}
_INDEXED = {
    "index_add": (0, "index", "rows"),
    "index_copy": (0, "index", "rows"),
    "index_fill": (0, "index", 2.0),
    "index_reduce": (0, "index", "rows", "prod"),
    "scatter": (0, "places", "row"),
    "scatter_add": (0, "places", "row"),
    "scatter_reduce": (0, "places", "row", "sum"),
}
#: In-place methods whose function has no out= variant.
_FILLED = {
    "fill": (2.0,),
    "zero": (),
    "copy": ("other",),
    "fill_diagonal": (2.0,),
    "masked_fill": ("mask", 2.0),
    "masked_scatter": ("mask", "other"),
    "index_put": (("index",), "rows"),
    "put": ("index", "two"),
    "relu": (),
}
_RANDOM = _each("bernoulli cauchy exponential log_normal normal random uniform") | {
    "geometric": (0.5,)
}


def _named(forms: Mapping[str, tuple[Any, ...]], suffix: str = "") -> dict[str, tuple[Any, ...]]:
    return {name + suffix: arguments for name, arguments in forms.items()}


#: The in-place methods of tensors with their arguments, by group.
IN_PLACE: dict[str, dict[str, tuple[Any, ...]]] = {
    "unary": _named(_UNARY, "_"),
    "binary": _named(
        {name: given for name, given in _BINARY.items() if name != "float_power"} | _MORE, "_"
    ),
    "integers": _named(_WHOLE, "_"),
    "matrices": _named(_MATRICES, "_")
    | {"addmv_": ("wide", "vector"), "baddbmm_": ("batch", "batch")},
    "indexed": _named(_INDEXED, "_"),
    "filled": _named(_FILLED, "_"),
    "random": _named(_RANDOM, "_"),
}
_SHAPES = {"addmv_": (4,), "baddbmm_": (2, 4, 4)}


def _target(context: CaseContext, name: str, group: str) -> torch.Tensor:
    dtype = torch.int64 if group == "integers" else torch.float32
    return numbers(context, *_SHAPES.get(name, (4, 4)), dtype=dtype)


@cases("autograd.version_counter", over={f"in_place_{group}": (group,) for group in IN_PLACE})
def in_place(context: CaseContext, group: str) -> None:
    """Change a saved tensor with each in-place method of torch.Tensor: backward must raise RuntimeError."""
    for name, arguments in IN_PLACE[group].items():
        target = _target(context, name, group)
        given = [_given(context, target, each) for each in arguments]
        goes_stale(context, target, partial(getattr(target, name), *given), f"Tensor.{name}")


_REDUCED = "amax amin mean prod sum std var argmax argmin logsumexp nansum nanmean all any"

#: Functions with out=, and the arguments before it, by group.
OUT: dict[str, dict[str, tuple[Any, ...]]] = {
    "unary": _named(_UNARY, "")
    | _each("special.entr special.erfcx special.i0e special.i1 special.i1e special.ndtr special.log_ndtr"),
    "binary": _BINARY
    | _MORE
    | _each("fmax fmin maximum minimum logaddexp logaddexp2 special.xlog1py special.zeta", "other"),
    "integers": _WHOLE,
    "matrices": _MATRICES
    | {"mm": ("wide",), "matmul": ("wide",), "mv": ("vector",), "inner": ("wide",)}
    | _each("linalg.inv linalg.cholesky linalg.det cholesky_inverse")
    | {"linalg.solve": ("square",), "linalg.matrix_power": (2,), "linalg.vector_norm": (2,)},
    "indexed": {name: given for name, given in _INDEXED.items() if name != "index_fill"}
    | {"gather": (0, "places"), "index_select": (0, "index"), "take": ("index",)},
    "reductions": _each(_REDUCED, 1),
    "moved": {"diag": (), "permute_copy": ((1, 0),), "narrow_copy": (0, 0, 2), "msort": (), "cumsum": (0,)},
}  # fmt: skip


def _first_operand(context: CaseContext, name: str, group: str) -> torch.Tensor:
    """Return the tensor that is passed as the first operand to a function that takes ``out=``, for example a symmetric
    matrix for ``linalg.cholesky``."""
    positive = name in {"linalg.inv", "linalg.cholesky", "linalg.solve", "cholesky_inverse"}
    return (
        _given(context, context.bytes_of(0), "square")
        if positive
        else _target(context, name, group)
    )


@cases("autograd.version_counter", over={f"out_{group}": (group,) for group in OUT})
def out(context: CaseContext, group: str) -> None:
    """Write to a saved tensor by passing it as out= to each function that takes out=: backward must raise
    RuntimeError."""
    for name, arguments in OUT[group].items():
        first = _first_operand(context, name, group)
        given = [_given(context, first, each) for each in arguments]
        function = partial(attrgetter(name)(torch), first, *given)
        result = tried(context, f"torch.{name}", function)
        if result is None:
            continue
        target = torch.ones_like(result)
        goes_stale(context, target, partial(function, out=target), f"torch.{name}, out=")


@cases("autograd.version_counter")
def several_outs(context: CaseContext) -> None:
    """Write to a saved tensor by passing it as one of two out= tensors: backward must raise RuntimeError, whether
    the saved tensor is the first or the second of them."""
    x = numbers(context, 4, 4)
    of_two: dict[str, Callable[..., Any]] = {
        "max": partial(torch.max, x, 1),
        "sort": partial(torch.sort, x, 1),
        "topk": partial(torch.topk, x, 2),
        "kthvalue": partial(torch.kthvalue, x, 2),
        "frexp": partial(torch.frexp, x),
        "aminmax": partial(torch.aminmax, x, dim=1),
    }

    for name, function in of_two.items():
        for place in (0, 1):
            targets = tuple(map(torch.ones_like, function()))
            write = partial(function, out=targets)
            goes_stale(context, targets[place], write, f"torch.{name}, tensor {place} of out=")


# -- other ways to write


def _assigned(key: Any) -> Callable[[torch.Tensor], None]:
    return lambda target: target.__setitem__(key, 2.0)


def _added(target: torch.Tensor) -> None:
    target[1:, ::2] += 1


#: Writes by assignment and augmented assignment.
ASSIGNED: dict[str, Callable[[torch.Tensor], object]] = {
    "t[0] =": _assigned(0),
    "t[..., 1:] =": _assigned((..., slice(1, None))),
    "t[None] =": _assigned(None),
    "t[[0, 2]] =": _assigned([0, 2]),
    "t[True] =": _assigned(True),
    "t[mask] =": lambda target: target.__setitem__(target > 0.4, 2.0),
    "t[...] +=": _added,
    "t *=": methodcaller("__imul__", 2),
    "t /=": methodcaller("__itruediv__", 2),
    "t **=": methodcaller("__ipow__", 2),
    "t -=": methodcaller("__isub__", 2),
}

#: Functions of torch.nn.functional with inplace=True, or named with an underscore.
MODULES: dict[str, Callable[[torch.Tensor], object]] = {
    **{
        name: partial(getattr(functional, name), inplace=True)
        for name in ["relu", "relu6", "elu", "celu", "selu", "silu", "mish", "hardtanh", "hardsigmoid", "hardswish", "leaky_relu", "dropout"]
    },
    "alpha_dropout": partial(functional.alpha_dropout, training=True, inplace=True),
    "feature_alpha_dropout": partial(functional.feature_alpha_dropout, training=True, inplace=True),
    "threshold": partial(functional.threshold, threshold=0.5, value=1.0, inplace=True),
    "rrelu_": functional.rrelu_,
    "init.uniform_": torch.nn.init.uniform_,
    "init.trunc_normal_": torch.nn.init.trunc_normal_,
    "init.orthogonal_": torch.nn.init.orthogonal_,
    "init.eye_": torch.nn.init.eye_,
}  # fmt: skip


@cases("autograd.version_counter", over={"assigned": ("ASSIGNED",), "modules": ("MODULES",)})
def functions(context: CaseContext, table: str) -> None:
    """Change a saved tensor by an assignment, or by an in-place function of torch.nn.functional or torch.nn.init:
    backward must raise RuntimeError."""
    for name, write in {"ASSIGNED": ASSIGNED, "MODULES": MODULES}[table].items():
        target = numbers(context, 4, 4)
        goes_stale(context, target, partial(write, target), name)


@cases("autograd.version_counter")
def embedding_max_norm(context: CaseContext) -> None:
    """Call embedding and embedding_bag with max_norm, which change their weight in place: a backward that needs the
    weight must raise RuntimeError."""
    weight, index = numbers(context, 4, 4), context.to_device(torch.tensor([0, 2]))
    for name, write in {
        "embedding": lambda: functional.embedding(index, weight, max_norm=0.1),
        "embedding_bag": lambda: functional.embedding_bag(index[None], weight, max_norm=0.05),
        "embedding_renorm_": lambda: torch.embedding_renorm_(weight, index, 0.01, 2.0),
    }.items():
        goes_stale(context, weight, write, name)


@cases("autograd.version_counter")
def running_statistics(context: CaseContext) -> None:
    """Change the running mean or variance after batch_norm in evaluation mode: backward must raise RuntimeError."""
    # A forward pass in training mode changes them too, but torch does not count it (native_batch_norm declares no write).
    for place in (0, 1):
        statistics = [numbers(context, 4), numbers(context, 4)]
        mean, var = statistics
        evaluated = functional.batch_norm(leaf(context, 3, 4), mean, var).sum()
        still_runs(context, evaluated, RUNS, "batch_norm in evaluation mode")
        statistics[place].mul_(2)
        context.raises(RuntimeError, evaluated.backward, text=RAISES, match=STALE)


#: In-place foreach ops with the arguments after the list; "list" is a list of tensors like the targets.
FOREACH: dict[str, tuple[Any, ...]] = (
    _each(
        "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal "
        "round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc zero"
    )
    | _each("add sub mul div pow maximum minimum clamp_max clamp_min", 2.0)
    | _each("copy", "list")
    | _each("addcdiv addcmul", "list", "list")
    | _each("lerp", "list", 0.5)
)
#: Foreach ops of FOREACH that take a list as well as a number.
_LISTS = ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_max", "clamp_min"]


@cases(
    "autograd.version_counter",
    over={"foreach_numbers": (False,), "foreach_lists": (True,)},
)
def foreach(context: CaseContext, lists: bool) -> None:
    """Change a list of tensors with each in-place foreach op: a backward that needs a tensor of the list must raise
    RuntimeError."""
    for name, arguments in FOREACH.items():
        if lists and name not in _LISTS:
            continue
        for place in (0, 2):
            targets = [numbers(context, 3, 4) for _ in range(3)]
            others = [numbers(context, 3, 4) for _ in range(3)]
            given = [others if each == "list" or lists else each for each in arguments]
            write = partial(getattr(torch, f"_foreach_{name}_"), targets, *given)
            goes_stale(context, targets[place], write, f"_foreach_{name}_, tensor {place}")


_OPTIMISERS = ("SGD", "Adam", "AdamW", "Adagrad")


@cases("autograd.version_counter", over={"optimisers_foreach": (True,), "optimisers": (False,)})
def optimisers(context: CaseContext, foreach: bool) -> None:
    """Compute a result that saves a parameter for backward, then run the step of an optimiser, which changes the
    parameter: backward of the result must raise RuntimeError."""
    # Fused optimisers are left out: torch does not count their writes.
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop"):
        for place in (0, 1):
            parameters = [leaf(context, 3, 4) for _ in range(2)]
            for each in parameters:
                each.grad = numbers(context, 3, 4)
            made = getattr(torch.optim, name)(parameters, lr=0.1, foreach=foreach)
            saved = parameters[place].detach()
            goes_stale(context, saved, made.step, f"{name}, parameter {place}")


@cases("autograd.version_counter", requires={"multi_device"}, indices=2)
def from_another_index(context: CaseContext) -> None:
    """Copy between two device indices: a backward that needs the old values of the target must raise RuntimeError."""
    there = context.to_device(torch.ones(4, 4), 1)
    target = numbers(context, 4, 4)
    goes_stale(context, target, lambda: target.copy_(there), "copy_ from another index")
    target = numbers(context, 4, 4)
    goes_stale(context, there, lambda: there.copy_(target), "copy_ to another index")


@cases("autograd.version_counter")
def from_the_host(context: CaseContext) -> None:
    """Overwrite a saved tensor by copy_ from the CPU, copy_ from pinned memory, or load_state_dict: backward must raise
    RuntimeError."""
    target, ones = numbers(context, 4, 4), torch.ones(4, 4)
    goes_stale(context, target, lambda: target.copy_(ones), "copy_ from the CPU")
    if context.has("pinned_memory"):
        pinned = ones.pin_memory()
        write = lambda: target.copy_(pinned, non_blocking=True)  # noqa: E731
        goes_stale(context, target, write, "copy_ from pinned memory")
    linear = torch.nn.Linear(4, 4, bias=False).to(context.device)
    state = {"weight": ones}
    write_state = lambda: linear.load_state_dict(state)  # noqa: E731
    goes_stale(context, linear.weight.detach(), write_state, "load_state_dict")


# -- views

#: Functions that return a view of a tensor of shape (4, 4).
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": methodcaller("select", 0, 1),
    "slice": itemgetter((slice(1, 3), slice(None, None, 2))),
    "the whole": itemgetter(...),
    "narrow": methodcaller("narrow", 1, 1, 2),
    "t": methodcaller("t"),
    "transpose": methodcaller("transpose", 0, 1),
    "permute": methodcaller("permute", 1, 0),
    "movedim": methodcaller("movedim", 0, 1),
    "mT": attrgetter("mT"),
    "view": methodcaller("view", 2, 8),
    "reshape": methodcaller("reshape", 16),
    "flatten": methodcaller("flatten"),
    "unflatten": methodcaller("unflatten", 0, (2, 2)),
    "view_as": lambda x: x.view_as(x),
    "expand": methodcaller("expand", 2, 4, 4),
    "expand_as": lambda x: x.expand_as(x),
    "unsqueeze": methodcaller("unsqueeze", 1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "diagonal": methodcaller("diagonal"),
    "unfold": methodcaller("unfold", 0, 2, 2),
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(2, 1)[0],
    "tensor_split": lambda x: x.tensor_split(2)[1],
    "unbind": lambda x: x.unbind()[2],
    "hsplit": lambda x: x.hsplit(2)[0],
    "detach": methodcaller("detach"),
    "view of a view": lambda x: x[1:].t()[:, 0],
    "view_as_complex": lambda x: torch.view_as_complex(x.view(4, 2, 2)),
}
_STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as_strided": methodcaller("as_strided", (2, 2), (4, 2), 1),
    "view of another dtype": methodcaller("view", torch.int32),
    "real": lambda x: torch.view_as_complex(x.view(4, 2, 2)).real,
    "imag": lambda x: torch.view_as_complex(x.view(4, 2, 2)).imag,
}
_ALL_VIEWS = {"views": VIEWS, "strided_views": _STRIDED}


def _zeroed(view: Callable[[torch.Tensor], torch.Tensor], base: torch.Tensor) -> None:
    view(base)[0].zero_()


@cases("autograd.version_counter", over={"to_the_base": ("views",)})
@cases("autograd.version_counter", requires={"strides"}, over={"strided_to_the_base": ("strided_views",)})  # fmt: skip
def to_the_base(context: CaseContext, table: str) -> None:
    """Write to a view: a backward that needs the base, or another view of the base, must raise RuntimeError."""
    for name, view in _ALL_VIEWS[table].items():
        base = numbers(context, 4, 4)
        goes_stale(
            context,
            base,
            partial(_zeroed, view, base),
            f"a write to the view {name!r}, whose base was saved",
        )
        base = numbers(context, 4, 4)
        goes_stale(
            context,
            base.t(),
            partial(_zeroed, view, base),
            f"a write to the view {name!r} when another view was saved",
        )


@cases("autograd.version_counter", over={"to_a_view": ("views",)})
@cases("autograd.version_counter", requires={"strides"}, over={"strided_to_a_view": ("strided_views",)})  # fmt: skip
def to_a_view(context: CaseContext, table: str) -> None:
    """Write to a base tensor: a backward that needs a view of this tensor must raise RuntimeError."""
    for name, view in _ALL_VIEWS[table].items():
        base = numbers(context, 4, 4)
        shown = tried(context, name, partial(view, base))
        if shown is not None:
            goes_stale(
                context, shown, base.zero_, f"a write to the base after the view {name!r} was saved"
            )


@cases("autograd.version_counter")
def out_of_a_view(context: CaseContext) -> None:
    """Pass a view as out=: a backward that needs the view's base must raise RuntimeError."""
    base, x = numbers(context, 4, 4), numbers(context, 4)
    for name, write in {
        "neg": lambda: torch.neg(x, out=base[1]),
        "add": lambda: torch.add(x, x, out=base.t()[0]),
        "mv": lambda: torch.mv(numbers(context, 4, 4), x, out=base[2]),
    }.items():
        goes_stale(context, base, write, f"torch.{name} with a view as out=")


@cases("autograd.version_counter")
def made_without_gradients(context: CaseContext) -> None:
    """Write under no_grad to a parameter or a view of the parameter, or write to the result of detach(): a backward
    that needs the parameter must raise RuntimeError."""
    base = leaf(context, 4, 4)
    with torch.no_grad():
        view = base[0]

    def written(target: torch.Tensor) -> None:
        with torch.no_grad():
            target.mul_(2)

    goes_stale(context, base, lambda: written(view), "a write to a view made under no_grad")
    goes_stale(context, base, lambda: written(base), "a write to a parameter under no_grad")
    goes_stale(context, base, lambda: base.detach().mul_(2), "a write to the result of detach()")


# -- operations that do not count as writes


@cases("autograd.version_counter", over={f"reads_{group}": (group,) for group in ("unary", "binary", "integers")})  # fmt: skip
def reads(context: CaseContext, group: str) -> None:
    """Call functions that return a new tensor: a backward that needs the operands of these functions must still run."""
    for name, arguments in OUT[group].items():
        operand = _first_operand(context, name, group)
        given = [_given(context, operand, each) for each in arguments]
        needs = [each for each in (operand, *given) if isinstance(each, torch.Tensor)]
        results = [product_with(context, each) for each in needs]
        tried(context, f"torch.{name}", partial(attrgetter(name)(torch), operand, *given))
        for result in results:
            still_runs(context, result, RUNS, name)


@cases("autograd.version_counter")
def of_what_is_not_needed(context: CaseContext) -> None:
    """Write to tensors that backward does not need, and copy from tensors that backward needs: backward must not
    raise."""
    x, other = leaf(context, 4, 4), numbers(context, 4, 4)
    result = (x + other).sum()
    other.zero_()
    still_runs(
        context, result, RUNS, "a write to an operand of a sum, which backward does not need"
    )
    y = x * 2
    result = y.sum()
    y.zero_()
    still_runs(context, result, RUNS, "a result that no op saved")
    factor = numbers(context, 4, 4)
    factor.mul_(2)
    result = (x * factor).sum()
    still_runs(context, result, RUNS, "a write before the tensor is saved")
    numbers(context, 4, 4).zero_()
    factor.clone().zero_()
    factor.abs().zero_()
    still_runs(context, result, RUNS, "a copy of a saved tensor")
    context.to_device(torch.zeros(4, 4)).copy_(factor)
    factor.to(torch.float64 if "float64" in context.descriptor.dtypes else torch.bfloat16)
    factor.to(torch.float32, copy=True).add_(1)
    still_runs(context, result, RUNS, "a copy from a saved tensor")
    saved_result = x.exp()
    result = saved_result.sum()
    (saved_result * 2).zero_()
    still_runs(context, result, RUNS, "a product of a saved tensor")


@cases("autograd.version_counter")
def data(context: CaseContext) -> None:
    """Write to the tensor that `.data` returns, then assign `.data`: neither may increase the version of the original
    tensor, and backward must still run after the write."""
    factor = numbers(context, 4, 4)
    result = product_with(context, factor)
    before = factor._version
    factor.data.add_(1)
    still_runs(context, result, "a write to .data was counted as a write to the tensor", "backward")
    context.same(
        factor._version, before, "a write to .data was counted as a write to the tensor", Kind.COUNT
    )
    factor.data = numbers(context, 4, 4)
    context.same(
        factor._version, before, "assigning .data increased the tensor's version", Kind.COUNT
    )


@cases("autograd.version_counter")
def inference(context: CaseContext) -> None:
    """Read the version of an inference tensor, or save such a tensor for backward: RuntimeError must be raised. A write
    to a view made in inference mode must count as a write to the base of the view."""
    with torch.inference_mode():
        made = numbers(context, 4, 4) * 2
    context.check(
        made.is_inference(), "is_inference() is false for a tensor made in inference mode"
    )
    for text, function in {
        "reading the version of an inference tensor does not raise the documented exception": lambda: (
            made._version
        ),
        "saving an inference tensor for backward does not raise the documented exception": lambda: (
            product_with(context, made)
        ),
    }.items():
        context.raises(RuntimeError, function, text=text, match="nference")
    still_runs(context, product_with(context, made.clone()), RUNS, "a copy of an inference tensor")
    plain = numbers(context, 4, 4)
    with torch.inference_mode():
        other = plain.view(16)
        write = other.zero_
    goes_stale(context, plain, write, "a write to a view made in inference mode")


@cases("autograd.version_counter")
def counts(context: CaseContext) -> None:
    """Write to a tensor, to a view of the tensor, and to the result of detach(): all three tensors must share one
    version counter, which must rise with each write."""
    base = numbers(context, 4, 4)
    view, detached = base[1:], base.detach()
    seen = [base._version]
    for write in (
        base.zero_,
        view.zero_,
        detached.zero_,
        lambda: base.add_(1),
        lambda: view.fill_(2),
    ):
        write()
        seen.append(base._version)
        same = [each._version for each in (view, detached)]
        context.same(
            same,
            [seen[-1]] * 2,
            "the version of a view or of a detached tensor differs from the version of the base",
            Kind.COUNT,
        )
    rises = seen == sorted(set(seen))
    context.check(rises, "the version did not rise with each write", found=seen, kind=Kind.COUNT)
