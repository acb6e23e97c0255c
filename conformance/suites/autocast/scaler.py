"""autocast.grad_scaler: what torch.amp.GradScaler finds, scales and skips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.checks.autocast.asking import lower_dtypes
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from devices.failure import Kind

cases = Cases(Kind.STATE)

_INIT = 8.0
_SPECIAL = {"inf": float("inf"), "minus_inf": -float("inf"), "nan": float("nan")}


def _scaler(context: Context, **options: Any) -> torch.amp.GradScaler:
    given: dict[str, Any] = {"init_scale": _INIT, "growth_interval": 3} | options
    return torch.amp.GradScaler(context.kind, **given)


def _parameters(context: Context, *shapes: Sequence[int], index: int = 0) -> list[torch.Tensor]:
    return [
        context.to_device(torch.ones(tuple(shape)), index).detach().requires_grad_()
        for shape in shapes
    ]


def _values(context: Context, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [context.from_device(each.detach()).clone() for each in tensors]


def _begin(context: Context, scaler: torch.amp.GradScaler, index: int = 0) -> torch.Tensor:
    """Scale something: a scaler makes its state then."""
    found: torch.Tensor = scaler.scale(context.to_device(torch.ones(1), index))
    return found


def _stepped(
    context: Context,
    parameters: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    text: str,
) -> tuple[bool, float]:
    """Whether a step is made with these gradients, which are those of a loss that was scaled; the scale after it. A
    step is made with all parameters or with none."""
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
    context.check(len({*moved}) < 2, f"{text}: a step is made with all parameters or with none")
    return any(moved), scaler.get_scale()


def _skips(
    context: Context,
    parameters: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    what: str,
) -> None:
    stepped, scale = _stepped(context, parameters, grads, what)
    context.same(stepped, False, f"{what}: the step is skipped")
    context.same(scale, _INIT / 2, f"{what}: the scale backs off")


def _steps(
    context: Context,
    parameters: list[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
    what: str,
) -> None:
    stepped, scale = _stepped(context, parameters, grads, what)
    context.same(stepped, True, f"{what}: the step is made")
    context.same(scale, _INIT, f"{what}: the scale stays")


@cases("autocast.grad_scaler")
def scales(context: Context) -> None:
    """scale multiplies a loss, or a list of them, by the scale, in their dtype, with a graph."""
    scaler = _scaler(context)
    (x,) = _parameters(context, (3,))
    scaled = scaler.scale((2 * x).sum())
    context.same(scaler.get_scale(), _INIT, "get_scale gives the scale")
    context.same(float(context.from_device(scaled.detach())), 6 * _INIT, "a loss times the scale")
    scaled.backward()
    assert x.grad is not None
    context.same(context.from_device(x.grad).tolist(), [2 * _INIT] * 3, "its gradient, scaled")
    several: Any = scaler.scale([x.detach(), (x.detach() + 1,)])  # type: ignore[list-item]
    found = [context.from_device(each).tolist() for each in (several[0], several[1][0])]
    context.same(found, [[_INIT] * 3, [2 * _INIT] * 3], "each of several")
    for lower in lower_dtypes(context.opened):
        made = scaler.scale(context.to_device(torch.ones(2, dtype=lower)))
        context.same(context.from_device(made).float().tolist(), [_INIT] * 2, f"{lower}")


@cases("autocast.grad_scaler")
def steps(context: Context) -> None:
    """A step is that of the optimiser with gradients that are not scaled."""
    scaler, parameters = _scaler(context), _parameters(context, (3,), (2, 2))
    optimizer = torch.optim.SGD(parameters, lr=0.25)
    loss = 2 * parameters[0].sum() + (parameters[1] * 4).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    context.same(context.from_device(parameters[0].detach()).tolist(), [0.5] * 3, "1 - 0.25 * 2")
    context.same(
        context.from_device(parameters[1].detach()).tolist(), [[0.0] * 2] * 2, "1 - 0.25 * 4"
    )


_PLACES = (0, 1, 500, 1022, 1023, 1024)


@cases(
    "autocast.grad_scaler",
    over={
        name: (value,)
        for name, value in {"inf": "inf", "minus_inf": "minus_inf", "nan": "nan"}.items()
    },
)
def anywhere(context: Context, value: str) -> None:
    """It is found in the first element, the last, and others of a gradient."""
    for place in _PLACES:
        (x,) = _parameters(context, (1025,))
        grad = torch.ones(1025)
        grad[place] = _SPECIAL[value]
        _skips(context, [x], [grad], f"{value} in element {place} of 1025")
    (x,) = _parameters(context, (1025,))
    _steps(context, [x], [torch.full((1025,), 1e30)], "large numbers")


@cases("autocast.grad_scaler")
def any_parameter(context: Context) -> None:
    """It is found in the first parameter, the last, and each between them, whatever their sizes; in none of them, the
    step is made. Parameters without a gradient and empty ones take part in nothing."""
    shapes = [(3,), (2, 5), (1,), (), (0,), (4, 1, 3), (7,)]
    for place in [None, *range(len(shapes))]:
        if place == 4:
            continue  # it has no element
        parameters = _parameters(context, *shapes)
        grads = [torch.ones(shape) for shape in shapes]
        if place is None:
            _steps(context, parameters, grads, "no inf in seven parameters")
            continue
        grads[place].view(-1)[-1] = float("inf" if place % 2 else "nan")
        _skips(context, parameters, grads, f"a parameter of shape {shapes[place]}")
    parameters = _parameters(context, (3,), (3,))
    _steps(context, parameters, [None, torch.ones(3)], "a parameter without a gradient")


@cases("autocast.grad_scaler")
def many_parameters(context: Context) -> None:
    """It is found in each third of three hundred parameters: past the end of one launch's list."""
    for place in (None, 0, 64, 109, 150, 255, 299):
        parameters = _parameters(context, *[(3,)] * 300)
        grads = [torch.ones(3) for _ in parameters]
        if place is None:
            _steps(context, parameters, grads, "no inf in 300 parameters")
        else:
            grads[place][1] = float("inf")
            _skips(context, parameters, grads, f"parameter {place} of 300")


@cases("autocast.grad_scaler", requires={"strides"})
def strided(context: Context) -> None:
    """It is found in gradients that are transposed, in channels_last, stepped, or views of one buffer; values between
    their elements do not count."""
    inf = float("inf")
    for bad in (False, True):
        given = torch.ones(4, 6)
        given[3, 2] = inf if bad else 1.0
        forms: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "transposed": lambda t: context.to_device(t.t().contiguous()).t(),
            "stepped": lambda t: context.to_device(
                torch.stack([t, torch.full_like(t, inf)], -1).contiguous()
            )[..., 0],
            "an offset": lambda t: context.to_device(
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
def on_each_index(context: Context, bad: int) -> None:
    """Parameters on several indices: an inf on one of them skips the step of all."""
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
def in_dtype(context: Context, name: str) -> None:
    """Gradients of a dtype are looked at, and unscaled in it; those of float16 are refused, unless asked for."""
    if name not in context.descriptor.dtypes:
        context.note(f"the device declares no {name}")
        context.same(name in context.descriptor.dtypes, False, f"no {name}")
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
            text = "unscale_ refuses gradients of float16"
            context.raises(ValueError, scaler.unscale_, optimizer, text=text)
            continue
        scaler.unscale_(optimizer)
        got = context.from_device(x.grad).double()
        context.same(got[:4].tolist(), [1.0] * 4, f"a gradient of {name} is unscaled")
        scaler.step(optimizer)
        scaler.update()
        moved = float(context.from_device(y.detach())[0]) != 1.0
        context.same(moved, value == 1.0, f"{value} in a gradient of {name}: the step")


@cases("autocast.grad_scaler")
def found_in_a_region(context: Context) -> None:
    """A loss in a lower precision that overflows skips the step, and one that does not makes it."""
    if "float16" not in context.descriptor.dtypes:
        context.note("the device declares no float16")
        context.same("float16" in context.descriptor.dtypes, False, "no float16")
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
        context.same(moved, wanted, f"operands of {size:g}: the step is made")
        context.same(scaler.get_scale(), 4.0 if wanted else 2.0, "the scale")


@cases("autocast.grad_scaler")
def grows_and_backs_off(context: Context) -> None:
    """The scale grows after growth_interval steps in a row, by its factor, and backs off after each that was skipped,
    after which the count begins again."""
    for options in (
        {"growth_interval": 3},
        {"growth_interval": 1},
        {"growth_interval": 2, "growth_factor": 4.0, "backoff_factor": 0.125},
    ):
        _follow(context, options)


def _follow(context: Context, options: dict[str, Any]) -> None:
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
        text = f"the scale with {', '.join(f'{k} {v:g}' for k, v in options.items())}"
        context.same(scaler.get_scale(), scale, text, at=f"after step {number + 1}")
        context.same(
            scaler._get_growth_tracker(), count, "the steps that count", at=f"{number + 1}"
        )


@cases("autocast.grad_scaler")
def scale_that_overflows(context: Context) -> None:
    """A scale does not grow to inf: it stays where it is."""
    (x,) = _parameters(context, (3,))
    scaler = _scaler(context, init_scale=2.0**127, growth_interval=1)
    optimizer = torch.optim.SGD([x], lr=0.0)
    _begin(context, scaler)
    for _ in range(2):
        x.grad = context.to_device(torch.ones(3))
        scaler.step(optimizer)
        scaler.update()
    context.same(scaler.get_scale(), 2.0**127, "the scale is finite")


@cases("autocast.grad_scaler")
def sets_a_scale(context: Context) -> None:
    """update takes a new scale, as a number or as a tensor on the device."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=1.0)
    for given in (16.0, context.to_device(torch.tensor(32.0))):
        _begin(context, scaler)
        x.grad = context.to_device(torch.ones(3))
        scaler.step(optimizer)
        scaler.update(given)
        context.same(scaler.get_scale(), float(given), "the scale that was given")


@cases("autocast.grad_scaler")
def unscaled_and_clipped(context: Context) -> None:
    """unscale_ gives the gradients themselves, once; they can be clipped, and step does not unscale them again."""
    parameters = _parameters(context, (2,), (2,))
    scaler, optimizer = _scaler(context), torch.optim.SGD(parameters, lr=1.0)
    loss = 3 * parameters[0].sum() + 4 * parameters[1].sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    found = [
        context.from_device(each.grad).tolist() for each in parameters if each.grad is not None
    ]
    context.same(found, [[3.0, 3.0], [4.0, 4.0]], "the gradients without the scale")
    text = "a second unscale_ is refused"
    context.raises(RuntimeError, scaler.unscale_, optimizer, text=text)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 5.0)
    context.check(
        abs(float(context.from_device(norm)) - 50**0.5) < 1e-4, "the norm before", found=float(norm)
    )
    scaler.step(optimizer)
    scaler.update()
    want = 1 - 3 * 5 / 50**0.5
    got = float(context.from_device(parameters[0].detach())[0])
    context.check(
        abs(got - want) < 1e-4, "the step with clipped gradients", expected=want, found=got
    )


@cases("autocast.grad_scaler")
def unscale_finds(context: Context) -> None:
    """What unscale_ found skips the step after it, though the gradient is mended in between."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=1.0)
    _begin(context, scaler)
    x.grad = context.to_device(torch.tensor([1.0, float("inf"), 1.0]))
    scaler.unscale_(optimizer)
    x.grad.fill_(1.0)
    scaler.step(optimizer)
    scaler.update()
    context.same(context.from_device(x.detach()).tolist(), [1.0] * 3, "the step is skipped")
    context.same(scaler.get_scale(), _INIT / 2, "the scale backs off")


@cases("autocast.grad_scaler")
def several_optimisers(context: Context) -> None:
    """Each optimiser skips its own step; the scale backs off if one of them did."""
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
        context.same(moved, [number != bad for number in (0, 1)], "which of two steps are made")
        scale = _INIT if bad is None else _INIT / 2
        context.same(scaler.get_scale(), scale, "the scale, after two optimisers")


@cases("autocast.grad_scaler")
def next_step_is_made(context: Context) -> None:
    """An inf is forgotten with update: the next step is made."""
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
    context.same(moved, [False, True, False, True], "which of four steps are made")


@cases("autocast.grad_scaler")
def accumulated(context: Context) -> None:
    """Gradients that are accumulated over several backwards are unscaled once."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context), torch.optim.SGD([x], lr=0.25)
    for _ in range(3):
        scaler.scale(x.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    context.same(context.from_device(x.detach()).tolist(), [0.25] * 3, "1 - 0.25 * 3")


@cases("autocast.grad_scaler")
def state_round_trips(context: Context) -> None:
    """A state that is loaded, before the first step or after it, gives the same scale and count, and goes on from them."""
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
        context.same(other.state_dict(), state, "the state that was loaded")
        _begin(context, other)
        x.grad = context.to_device(torch.ones(3))
        other.step(optimizer)
        other.update()
        context.same(
            other.get_scale(), _INIT, "it goes on: the third step in a row grows the scale"
        )


@cases("autocast.grad_scaler")
def disabled(context: Context) -> None:
    """A scaler that is off scales nothing and makes every step."""
    (x,) = _parameters(context, (3,))
    scaler, optimizer = _scaler(context, enabled=False), torch.optim.SGD([x], lr=1.0)
    loss = x.sum()
    context.check(scaler.scale(loss) is loss, "the loss itself")
    context.same(scaler.get_scale(), 1.0, "a scale of 1")
    x.grad = context.to_device(torch.tensor([float("inf"), 1.0, 1.0]))
    scaler.step(optimizer)
    scaler.update()
    context.same(context.from_device(x.detach()).tolist()[1:], [0.0] * 2, "the step is made")
