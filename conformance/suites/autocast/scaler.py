"""Checks of the clause autocast.grad_scaler: torch.amp.GradScaler must scale losses, unscale gradients, and skip steps
with infinities or NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.checks.autocast.asking import lower_dtypes
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.STATE)

_INIT = 8.0
_SPECIAL = {"inf": float("inf"), "minus_inf": -float("inf"), "nan": float("nan")}


def _scaler(context: CaseContext, **options: Any) -> torch.amp.GradScaler:
    given: dict[str, Any] = {"init_scale": _INIT, "growth_interval": 3} | options
    return torch.amp.GradScaler(context.kind, **given)


def _parameters(context: CaseContext, *shapes: Sequence[int], index: int = 0) -> list[torch.Tensor]:
    return [
        context.to_device(torch.ones(tuple(shape)), index).detach().requires_grad_()
        for shape in shapes
    ]


def _values(context: CaseContext, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [context.from_device(each.detach()).clone() for each in tensors]


def _begin(context: CaseContext, scaler: torch.amp.GradScaler, index: int = 0) -> torch.Tensor:
    """Scale a tensor, because a scaler creates its state at the first call of scale. Returns the scaled tensor."""
    found: torch.Tensor = scaler.scale(context.to_device(torch.ones(1), index))
    return found


def _stepped(
    context: CaseContext,
    parameters: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    text: str,
) -> tuple[bool, float]:
    """Run step and update of a new scaler with the given gradients of a scaled loss. Returns a tuple (True if the
    parameters changed, the scale afterwards). The check fails with the message ``text`` if only some of the
    parameters changed."""
    scaler, before = _scaler(context), _values(context, parameters)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    _begin(context, scaler)
    for parameter, grad in zip(parameters, grads):
        parameter.grad = None if grad is None else grad.to(parameter.device)
    scaler.step(optimizer)
    scaler.update()
    moved = [
        not torch.equal(old, new)
        for old, new, parameter in zip(before, _values(context, parameters), parameters)
        if parameter.grad is not None and parameter.numel()
    ]
    context.check(len({*moved}) < 2, f"{text}: the step changed some parameters and not others")
    return any(moved), scaler.get_scale()


def _skips(
    context: CaseContext,
    parameters: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    what: str,
) -> None:
    stepped, scale = _stepped(context, parameters, grads, what)
    context.same(stepped, False, f"{what}: the step was not skipped")
    context.same(scale, _INIT / 2, f"{what}: the scale was not reduced")


def _steps(
    context: CaseContext,
    parameters: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    what: str,
) -> None:
    stepped, scale = _stepped(context, parameters, grads, what)
    context.same(stepped, True, f"{what}: the step was skipped")
    context.same(scale, _INIT, f"{what}: the scale changed")


@cases("autocast.grad_scaler")
def scales(context: CaseContext) -> None:
    """Call GradScaler.scale on a loss, on a list of losses, and on lower-precision tensors: each must be multiplied by
    the scale, and backward must give scaled gradients."""
    scaler = _scaler(context)
    (x,) = _parameters(context, (3,))
    scaled = scaler.scale((2 * x).sum())
    context.same(scaler.get_scale(), _INIT, "get_scale() differs from init_scale")
    context.same(float(context.from_device(scaled.detach())), 6 * _INIT, "the scaled loss is wrong")
    scaled.backward()
    assert x.grad is not None
    context.same(
        context.from_device(x.grad).tolist(),
        [2 * _INIT] * 3,
        "the gradient of the scaled loss is wrong",
    )
    several: Any = scaler.scale([x.detach(), (x.detach() + 1,)])  # type: ignore[list-item]
    found = [context.from_device(each).tolist() for each in (several[0], several[1][0])]
    context.same(found, [[_INIT] * 3, [2 * _INIT] * 3], "a scaled tensor of a list is wrong")
    for lower in lower_dtypes(context.opened):
        made = scaler.scale(context.to_device(torch.ones(2, dtype=lower)))
        context.same(
            context.from_device(made).float().tolist(),
            [_INIT] * 2,
            f"the scaled tensor of {lower} is wrong",
        )


@cases("autocast.grad_scaler")
def steps(context: CaseContext) -> None:
    """Run GradScaler.step after backward of a scaled loss: the parameters must change as if the optimiser had made
    its step with the unscaled gradients."""
    scaler, parameters = _scaler(context), _parameters(context, (3,), (2, 2))
    optimizer = torch.optim.SGD(parameters, lr=0.25)
    loss = 2 * parameters[0].sum() + (parameters[1] * 4).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    context.same(
        context.from_device(parameters[0].detach()).tolist(),
        [0.5] * 3,
        "the first parameter after the step is wrong",
    )
    context.same(
        context.from_device(parameters[1].detach()).tolist(),
        [[0.0] * 2] * 2,
        "the second parameter after the step is wrong",
    )


_PLACES = (0, 1, 500, 1022, 1023, 1024)


@cases(
    "autocast.grad_scaler",
    over={
        name: (value,)
        for name, value in {"inf": "inf", "minus_inf": "minus_inf", "nan": "nan"}.items()
    },
)
def anywhere(context: CaseContext, value: str) -> None:
    """Put an infinity or NaN at several places of a gradient of 1025 elements: the step must be skipped and the scale
    must be reduced. With large finite numbers instead, the step must be made."""
    for place in _PLACES:
        (x,) = _parameters(context, (1025,))
        grad = torch.ones(1025)
        grad[place] = _SPECIAL[value]
        _skips(context, [x], [grad], f"{value} in element {place} of 1025")
    (x,) = _parameters(context, (1025,))
    _steps(context, [x], [torch.full((1025,), 1e30)], "large numbers")


@cases("autocast.grad_scaler")
def any_parameter(context: CaseContext) -> None:
    """Put an infinity or NaN into the gradient of each of seven parameters of different shapes in turn: the step must
    be skipped. With finite gradients, the step must be made. Empty parameters and parameters without a gradient must
    not make a difference."""
    shapes = [(3,), (2, 5), (1,), (), (0,), (4, 1, 3), (7,)]
    for place in [None, *range(len(shapes))]:
        if place == 4:
            continue  # the parameter has no elements
        parameters = _parameters(context, *shapes)
        grads = [torch.ones(shape) for shape in shapes]
        if place is None:
            _steps(context, parameters, grads, "seven parameters with finite gradients")
            continue
        grads[place].view(-1)[-1] = float("inf" if place % 2 else "nan")
        _skips(context, parameters, grads, f"inf or NaN in a gradient of shape {shapes[place]}")
    parameters = _parameters(context, (3,), (3,))
    _steps(context, parameters, [None, torch.ones(3)], "a parameter without a gradient")


@cases("autocast.grad_scaler")
def many_parameters(context: CaseContext) -> None:
    """Put an infinity into the gradient of one of 300 parameters, which are too many for a single launch of a
    multi-tensor kernel: the step must be skipped. With finite gradients, the step must be made."""
    for place in (None, 0, 64, 109, 150, 255, 299):
        parameters = _parameters(context, *[(3,)] * 300)
        grads = [torch.ones(3) for _ in parameters]
        if place is None:
            _steps(context, parameters, grads, "300 parameters with finite gradients")
        else:
            grads[place][1] = float("inf")
            _skips(context, parameters, grads, f"inf in the gradient of parameter {place} of 300")


@cases("autocast.grad_scaler", requires={"strides"})
def strided(context: CaseContext) -> None:
    """Put an infinity into gradients that are transposed, strided or at a storage offset: the step must be skipped. If
    an infinity lies only between or around the elements in the storage, the step must be made."""
    inf = float("inf")
    for bad in (False, True):
        given = torch.ones(4, 6)
        given[3, 2] = inf if bad else 1.0
        forms: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "transposed": lambda t: context.to_device(t.t().contiguous()).t(),
            "strided": lambda t: context.to_device(
                torch.stack([t, torch.full_like(t, inf)], -1).contiguous()
            )[..., 0],
            "offset": lambda t: context.to_device(
                torch.cat([torch.full((2, 6), inf), t, torch.full((2, 6), inf)])
            )[2:6],
        }
        for name, make in forms.items():
            (x,) = _parameters(context, (4, 6))
            (_skips if bad else _steps)(context, [x], [make(given)], f"{name} gradient")


@cases(
    "autocast.grad_scaler",
    requires={"multi_device"},
    indices=2,
    over={f"on_index_{n}": (n,) for n in (0, 1)},
)
def on_each_index(context: CaseContext, bad: int) -> None:
    """Use parameters on two device indices: an infinity or NaN in a gradient on either index must skip the step of all
    parameters."""
    for value in (1.0, float("inf"), float("nan")):
        parameters = [
            *_parameters(context, (3,), (2,), index=0),
            *_parameters(context, (3,), (2,), index=1),
        ]
        grads = [torch.ones(each.shape) for each in parameters]
        grads[2 * bad + 1][1] = value
        judge = _steps if value == 1.0 else _skips
        judge(context, parameters, grads, f"{value} on index {bad}")


@cases("autocast.grad_scaler", over={name: (name,) for name in ("float16", "bfloat16", "float64")})
def in_dtype(context: CaseContext, name: str) -> None:
    """Use gradients of bfloat16 or float64: unscale_ must unscale them, and an infinity or NaN must skip the step. For
    float16 gradients, unscale_ must raise ValueError."""
    if name not in context.descriptor.dtypes:
        context.note(f"the device declares no {name}")
        context.same(name in context.descriptor.dtypes, False, f"the descriptor declares {name}")
        return
    dtype = getattr(torch, name)
    for value in (1.0, float("inf"), float("nan")):
        x = context.to_device(torch.ones(5, dtype=dtype)).requires_grad_()
        y = context.to_device(torch.ones(5)).requires_grad_()
        scaler, optimizer = _scaler(context), torch.optim.SGD([x, y], lr=1.0)
        _begin(context, scaler)
        x.grad = context.to_device(
            torch.tensor([_INIT, _INIT, _INIT, _INIT, _INIT * value]).to(dtype)
        )
        y.grad = context.to_device(torch.ones(5) * _INIT)
        if name == "float16":
            text = "unscale_ does not raise ValueError for float16 gradients"
            context.raises(ValueError, scaler.unscale_, optimizer, text=text)
            continue
        scaler.unscale_(optimizer)
        got = context.from_device(x.grad).double()
        context.same(
            got[:4].tolist(), [1.0] * 4, f"unscale_ gives wrong values for a gradient of {name}"
        )
        scaler.step(optimizer)
        scaler.update()
        moved = float(context.from_device(y.detach())[0]) != 1.0
        context.same(
            moved,
            value == 1.0,
            f"{value} in a gradient of {name}: the step was wrongly made or wrongly skipped",
        )


@cases("autocast.grad_scaler")
def found_in_a_region(context: CaseContext) -> None:
    """Compute a loss under float16 autocast: if its gradients overflow, the step must be skipped and the scale must be
    reduced; otherwise the step must be made."""
    if "float16" not in context.descriptor.dtypes:
        context.note("the device declares no float16")
        context.same(
            "float16" in context.descriptor.dtypes, False, "the descriptor declares float16"
        )
        return
    for size, wanted in ((1.0, True), (3e4, False)):
        (weight,) = _parameters(context, (4, 4))
        optimizer, scaler = torch.optim.SGD([weight], lr=0.1), _scaler(context, init_scale=4.0)
        with torch.autocast(context.kind, torch.float16):
            loss = torch.mm(context.to_device(torch.full((2, 4), size)), weight).sum()
        scaler.scale(loss.float()).backward()
        scaler.step(optimizer)
        scaler.update()
        moved = float(context.from_device(weight.detach())[0, 0]) != 1.0
        context.same(
            moved, wanted, f"operands of {size:g}: the step was wrongly made or wrongly skipped"
        )
        context.same(
            scaler.get_scale(), 4.0 if wanted else 2.0, "the scale after the step is wrong"
        )


@cases("autocast.grad_scaler")
def grows_and_backs_off(context: CaseContext) -> None:
    """Compare the scale with the documented one over 17 steps: the scale must grow by growth_factor after
    growth_interval successful steps in a row, and shrink by backoff_factor after each skipped step. A skipped step
    restarts the count of successful steps."""
    for options in (
        {"growth_interval": 3},
        {"growth_interval": 1},
        {"growth_interval": 2, "growth_factor": 4.0, "backoff_factor": 0.125},
    ):
        _follow(context, options)


def _follow(context: CaseContext, options: dict[str, Any]) -> None:
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context, **options), torch.optim.SGD([x], lr=0.0)
    interval = options["growth_interval"]
    growth, backoff = options.get("growth_factor", 2.0), options.get("backoff_factor", 0.5)
    scale, count = _INIT, 0
    _begin(context, scaler)
    for number, bad in enumerate("ggbgggggbbgggggggg"):
        x.grad = context.to_device(torch.tensor([1.0, float("inf") if bad == "b" else 1.0, 1.0]))
        scaler.step(optimizer)
        scaler.update()
        if bad == "b":
            scale, count = scale * backoff, 0
        elif (count := count + 1) == interval:
            scale, count = scale * growth, 0
        text = f"the scale is wrong with {', '.join(f'{k} {v:g}' for k, v in options.items())}"
        context.same(scaler.get_scale(), scale, text, at=f"after step {number + 1}")
        context.same(
            scaler._get_growth_tracker(),
            count,
            "the count of successful steps is wrong",
            at=f"after step {number + 1}",
        )


@cases("autocast.grad_scaler")
def scale_that_overflows(context: CaseContext) -> None:
    """Make successful steps with a scale of 2**127: the scale must keep its value instead of becoming infinite."""
    (x,) = _parameters(context, (3,))
    scaler = _scaler(context, init_scale=2.0**127, growth_interval=1)
    optimizer = torch.optim.SGD([x], lr=0.0)
    _begin(context, scaler)
    for _ in range(2):
        x.grad = context.to_device(torch.ones(3))
        scaler.step(optimizer)
        scaler.update()
    context.same(scaler.get_scale(), 2.0**127, "the scale after growing from 2**127 is wrong")


@cases("autocast.grad_scaler")
def sets_a_scale(context: CaseContext) -> None:
    """Pass a new scale to GradScaler.update, as a number or as a tensor on the device: get_scale must return the new
    scale."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=1.0)
    for given in (16.0, context.to_device(torch.tensor(32.0))):
        _begin(context, scaler)
        x.grad = context.to_device(torch.ones(3))
        scaler.step(optimizer)
        scaler.update(given)
        context.same(
            scaler.get_scale(), float(given), "the scale differs from the one given to update"
        )


@cases("autocast.grad_scaler")
def unscaled_and_clipped(context: CaseContext) -> None:
    """Call unscale_, clip the gradients and step: unscale_ must give the unscaled gradients, a second unscale_ must
    raise RuntimeError, and step must use the clipped gradients."""
    parameters = _parameters(context, (2,), (2,))
    scaler, optimizer = _scaler(context), torch.optim.SGD(parameters, lr=1.0)
    loss = 3 * parameters[0].sum() + 4 * parameters[1].sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    found = [
        context.from_device(each.grad).tolist() for each in parameters if each.grad is not None
    ]
    context.same(found, [[3.0, 3.0], [4.0, 4.0]], "the gradients after unscale_ are wrong")
    text = "a second unscale_ does not raise the documented exception"
    context.raises(RuntimeError, scaler.unscale_, optimizer, text=text)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 5.0)
    context.check(
        abs(float(context.from_device(norm)) - 50**0.5) < 1e-4,
        "the norm that clip_grad_norm_ returned is wrong",
        found=float(norm),
    )
    scaler.step(optimizer)
    scaler.update()
    want = 1 - 3 * 5 / 50**0.5
    got = float(context.from_device(parameters[0].detach())[0])
    context.check(
        abs(got - want) < 1e-4,
        "the parameter after a step with clipped gradients is wrong",
        expected=want,
        found=got,
    )


@cases("autocast.grad_scaler")
def unscale_finds(context: CaseContext) -> None:
    """Call unscale_ on a gradient with an infinity, then overwrite the gradient with finite values: the step must still
    be skipped, and the scale must be reduced."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=1.0)
    _begin(context, scaler)
    x.grad = context.to_device(torch.tensor([1.0, float("inf"), 1.0]))
    scaler.unscale_(optimizer)
    x.grad.fill_(1.0)
    scaler.step(optimizer)
    scaler.update()
    context.same(context.from_device(x.detach()).tolist(), [1.0] * 3, "the step was not skipped")
    context.same(scaler.get_scale(), _INIT / 2, "the scale was not reduced")


@cases("autocast.grad_scaler")
def several_optimisers(context: CaseContext) -> None:
    """Use one scaler for two optimisers: only the optimiser with a NaN gradient must skip its step, and the scale must
    be reduced."""
    for bad in (None, 0, 1):
        parameters = _parameters(context, (3,), (3,))
        scaler = _scaler(context)
        optimisers = [torch.optim.SGD([each], lr=1.0) for each in parameters]
        _begin(context, scaler)
        for number, each in enumerate(parameters):
            each.grad = context.to_device(torch.ones(3))
            if number == bad:
                each.grad[2] = float("nan")
        for optimizer in optimisers:
            scaler.step(optimizer)
        scaler.update()
        moved = [float(context.from_device(each.detach())[0]) != 1.0 for each in parameters]
        context.same(
            moved,
            [number != bad for number in (0, 1)],
            "an optimiser wrongly made or wrongly skipped its step",
        )
        scale = _INIT if bad is None else _INIT / 2
        context.same(
            scaler.get_scale(), scale, "the scale after the steps of two optimisers is wrong"
        )


@cases("autocast.grad_scaler")
def next_step_is_made(context: CaseContext) -> None:
    """Run four steps, the first and third with an infinity or NaN: only the first and third must be skipped."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=1.0)
    _begin(context, scaler)
    moved = []
    for value in (float("inf"), 1.0, float("nan"), 1.0):
        before = float(context.from_device(x.detach())[0])
        x.grad = context.to_device(torch.tensor([1.0, 1.0, value]))
        scaler.step(optimizer)
        scaler.update()
        moved.append(float(context.from_device(x.detach())[0]) != before)
    context.same(moved, [False, True, False, True], "a step was wrongly made or wrongly skipped")


@cases("autocast.grad_scaler")
def accumulated(context: CaseContext) -> None:
    """Accumulate the gradients of three scaled losses and step once: the gradients must be unscaled exactly once."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=0.25)
    for _ in range(3):
        scaler.scale(x.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    context.same(
        context.from_device(x.detach()).tolist(),
        [0.25] * 3,
        "the parameter after the step is wrong",
    )


@cases("autocast.grad_scaler")
def state_round_trips(context: CaseContext) -> None:
    """Load the state_dict of a scaler into another scaler, before or after the first use of the second scaler: its
    scale and step count must be restored, and its next step must continue from them."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=0.0)
    _begin(context, scaler)
    for value in (float("inf"), 1.0, 1.0):
        x.grad = context.to_device(torch.tensor([1.0, 1.0, value]))
        scaler.step(optimizer)
        scaler.update()
    state = scaler.state_dict()
    for used in (False, True):
        other = _scaler(context, init_scale=1024.0)
        if used:
            _begin(context, other)
        other.load_state_dict(state)
        context.same(other.state_dict(), state, "state_dict() differs from the loaded state")
        _begin(context, other)
        x.grad = context.to_device(torch.ones(3))
        other.step(optimizer)
        other.update()
        context.same(
            other.get_scale(), _INIT, "the scale after the third successful step in a row is wrong"
        )


@cases("autocast.grad_scaler")
def disabled(context: CaseContext) -> None:
    """Use a GradScaler with enabled=False: scale must return the loss itself, get_scale must return 1, and step must
    always run the optimizer's step."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context, enabled=False), torch.optim.SGD([x], lr=1.0)
    loss = x.sum()
    context.check(scaler.scale(loss) is loss, "scale() did not return the loss itself")
    context.same(scaler.get_scale(), 1.0, "get_scale() of a disabled scaler is not 1")
    x.grad = context.to_device(torch.tensor([float("inf"), 1.0, 1.0]))
    scaler.step(optimizer)
    scaler.update()
    context.same(context.from_device(x.detach()).tolist()[1:], [0.0] * 2, "the step was not made")
