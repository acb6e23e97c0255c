"""Mutants of autocast and of the gradient scaler.

An op has another policy, a cache of weights lasts too long or mixes weights up, a scaler overlooks infinities or counts
steps wrongly. The name of a mutant describes it completely: ``policy log lower no_grad`` (log runs in the lower precision,
under no_grad), ``cache mm address``, ``check only the first``, ``update late``. If no case notices a mutant, calls of a
probe are made with and without it; the mutant is equivalent if no answer differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import torch

from conformance import contract
from conformance.checks.autocast.calls import ARGUMENTS, Operands, overload
from conformance.checks.autocast.lists import LISTS, POLICY
from conformance.checks.cases.cases import BehaviourCase
from conformance.suites import planned_cases
from opinfo.compare import replace_tensors, tensors_of
from tests.mutation.items import device, is_refused
from tests.mutation.kernels import Result

_FLOAT32, _LOWER = torch.float32, (torch.bfloat16, torch.float16)
_KEY = "AutocastPrivateUse1"
_C: Any = torch._C

#: What an op is cast to instead.
_WRONG = (
    *("lower", "float32", "unlisted", "promote", "first", "bfloat16", "float16", "float64"),
    *("first operand", "last operand", "result", "tensors of matrices", "graph lost"),
)
#: When: of a call, and of the state in which it is made.
_WHEN = ("always", "float16", "bfloat16", "no_grad", "grad", "a leaf", "no leaf", "second", "mixed")
_CACHED = ("mm", "linear", "addmm", "bmm", "matmul", "mv", "conv2d")
_CACHES = ("kept", "address", "shape", "never", "every operand", "without a graph", "first dtype")
_CHECKS = (
    *(
        "never",
        "no inf",
        "no nan",
        "no minus inf",
        "only minus inf",
        "only the first",
        "only the last",
    ),
    *("not the first", "not the last", "first element", "all but the last element", "first half"),
    *(
        "only contiguous",
        "not of 0 dimensions",
        "not of one element",
        "not past 100",
        "not of index 1",
    ),
    *("not of index 0", "last wins", "large is inf", "does not unscale", "unscales the first"),
    *(
        "unscales twice",
        "unscales by the scale",
        "keeps what is infinite",
        "dense",
        "not of bfloat16",
    ),
    *("not of float64", "only where all are", "sum of the elements", "past 256 elements"),
)
_UPDATES = (
    *(
        "late",
        "early",
        "never grows",
        "never backs off",
        "always backs off",
        "grows twice",
        "doubles",
    ),
    *("halves", "keeps the count after inf", "keeps the count after growth", "grows to inf"),
    *(
        "counts twice",
        "exchanges the factors",
        "returns a copy",
        "half the interval",
        "count not moved",
    ),
)


def _policies() -> list[str]:
    return [f"policy {op} {wrong}|{when}" for op in POLICY for wrong in _WRONG for when in _WHEN]


def names(seed: int, count: int) -> list[str]:
    """Half of the names are policies, the others caches and scalers. No name occurs twice."""
    rng = Random(seed)
    sorts = {
        "policy": _policies(),
        "cache": [f"cache {op} {how}" for op in _CACHED for how in _CACHES],
        "check": [f"check {how}" for how in _CHECKS],
        "update": [f"update {how}" for how in _UPDATES],
    }
    turns = ("policy", "cache", "policy", "check", "policy", "update", "policy", "check")
    for each in sorts.values():
        rng.shuffle(each)
    found: list[str] = []
    while len(found) < count:
        sort = turns[len(found) % len(turns)]
        found.append((sorts[sort] or sorts["policy"]).pop())
    return found


@dataclass
class Run:
    """How often a mutant changed what it replaces."""

    reached: int = 0
    kept: dict[Any, Any] = field(default_factory=dict)


Kernel = Callable[..., Any]


def _without(key: str = _KEY) -> Any:
    return _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(getattr(_C.DispatchKey, key)))


def _region() -> torch.dtype:
    found: torch.dtype = torch.get_autocast_dtype("simulated")
    return found


def _cast(value: Any, dtype: torch.dtype) -> Any:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
        return tensor.to(dtype) if eligible else tensor

    return replace_tensors(value, cast)


def _meets(when: str, args: Any, run: Run) -> bool:
    tensors = [t for t in tensors_of(args) if t.is_floating_point()]
    if when in ("float16", "bfloat16"):
        return str(_region()) == f"torch.{when}"
    if when in ("no_grad", "grad"):
        return torch.is_grad_enabled() is (when == "grad")
    if when in ("a leaf", "no leaf"):
        return any(t.requires_grad and t.is_leaf for t in tensors) is (when == "a leaf")
    if when == "second":
        run.kept["calls"] = run.kept.get("calls", 0) + 1
        return bool(run.kept["calls"] % 2 == 0)
    if when == "mixed":
        return len({t.dtype for t in tensors}) > 1
    return True


def _own(args: Any, policy: str, named: Any) -> tuple[Any, Any]:
    """The arguments as autocast gives them to an op of a list."""
    if policy == "lower":
        return _cast(args, _region()), named
    if policy == "float32":
        return _cast(args, _FLOAT32), named
    if policy == "float32_by_default":
        spared = named.get("dtype") or any(t.dtype == torch.float64 for t in tensors_of(args))
        return (args, named) if spared else (args, {**named, "dtype": _FLOAT32})
    tensors = [t for t in tensors_of(args) if t.is_floating_point()]
    if policy == "promote" and tensors:
        wide = any(t.dtype == _FLOAT32 for t in tensors)
        return _cast(args, _FLOAT32 if wide else tensors[0].dtype), named
    return args, named


def _wrongly(args: Any, wrong: str, policy: str, named: Any) -> tuple[Any, Any]:
    tensors = [t for t in tensors_of(args) if t.is_floating_point()]
    if wrong in ("lower", "float32", "promote", "unlisted"):
        return _own(args, wrong, named)
    if wrong == "first" and tensors:
        return _cast(args, tensors[0].dtype), named
    if wrong in ("bfloat16", "float16"):
        return _cast(args, getattr(torch, wrong)), named
    if wrong == "float64":
        return replace_tensors(args, lambda t: t.double() if t.is_floating_point() else t), named
    right, named = _own(args, policy, named)
    if wrong == "graph lost":
        return replace_tensors(right, torch.Tensor.detach), named
    if wrong in ("first operand", "last operand", "tensors of matrices"):
        rest = tensors_of(right)
        spared = {
            "first operand": {0},
            "last operand": {len(rest) - 1},
            "tensors of matrices": {n for n, t in enumerate(rest) if t.dim() != 2},
        }[wrong]
        given = iter(enumerate(tensors_of(args)))

        def swap(tensor: torch.Tensor) -> torch.Tensor:
            number, plain = next(given)
            return plain if number in spared else tensor

        return replace_tensors(right, swap), named
    return right, named  # "result"


def policy_kernel(op: str, wrong: str, when: str, run: Run) -> Kernel:
    call, policy = overload(op), POLICY[op]

    def kernel(*args: Any, **named: Any) -> Any:
        meets = _meets(when, args, run)
        if policy == "refused" and not (meets and wrong != "result"):
            raise RuntimeError("unsafe to autocast")
        given = _wrongly(args, wrong, policy, named) if meets else _own(args, policy, named)
        run.reached += meets
        with _without():
            found = call(*given[0], **given[1])
        return _cast(found, _region()) if meets and wrong == "result" else found

    return kernel


def cache_kernel(op: str, how: str, run: Run) -> Kernel:
    """A mutant of the cache of cast weights, which replaces torch's own cache."""
    call = overload(NAMES.get(op, op))

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        lower = _region()
        if not tensor.is_floating_point() or tensor.dtype in (lower, torch.float64):
            return tensor
        weight = tensor.requires_grad and tensor.is_leaf and tensor.dtype == _FLOAT32
        if how == "every operand":
            weight = tensor.dtype == _FLOAT32
        if how == "never" or not weight or not torch.is_autocast_cache_enabled():
            return tensor.to(lower)
        run.reached += 1
        key: Any = {"address": tensor.data_ptr(), "shape": tuple(tensor.shape)}.get(how, id(tensor))
        kept = run.kept.get(key)
        lasts = how == "kept" or kept is None or kept[2] == _TURN[0]
        fits = kept is not None and lasts and (how == "first dtype" or kept[1].dtype == lower)
        if fits and (how != "kept" or kept[0] is tensor):
            return kept[1]  # type: ignore[no-any-return]
        if how == "without a graph":
            made = tensor.to(lower)
        else:
            with torch.enable_grad():
                made = tensor.to(lower)
        run.kept[key] = tensor, made, _TURN[0]
        return made

    def kernel(*args: Any, **named: Any) -> Any:
        given = replace_tensors(args, cast)
        with _without():
            return call(*given, **named)

    return kernel


#: The names of these ops in the lists.
NAMES: dict[str, str] = {}
#: How many outermost regions have ended.
_TURN = [0]


def check_kernel(how: str, run: Run) -> Kernel:
    def wrong_in(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.reshape(-1)
        if how == "first element":
            flat = flat[:1]
        elif how == "all but the last element":
            flat = flat[:-1]
        elif how == "first half":
            flat = flat[: (flat.numel() + 1) // 2]
        elif how == "past 256 elements":
            flat = flat[:256] if flat.numel() > 256 else flat
        elif how == "dense":
            flat = tensor.as_strided((tensor.numel(),), (1,))
        if how == "no inf":
            return flat.isnan().any()
        if how == "no nan":
            return flat.isinf().any()
        if how == "no minus inf":
            return ((~flat.isfinite()) & (flat != -torch.inf)).any()
        if how == "only minus inf":
            return (flat == -torch.inf).any()
        if how == "large is inf":
            return ((flat.abs() > 1e20) | flat.isnan()).any()
        if how == "only where all are":
            return (~flat.isfinite()).all() if flat.numel() else flat.isnan().any()
        if how == "sum of the elements":
            return ~flat.sum().isfinite()
        return (~flat.isfinite()).any()

    def looks(number: int, count: int, tensor: torch.Tensor) -> bool:
        return not (
            how == "never"
            or (how == "only the first" and number)
            or (how == "only the last" and number < count - 1)
            or (how == "not the first" and count > 1 and not number)
            or (how == "not the last" and count > 1 and number == count - 1)
            or (how == "only contiguous" and not tensor.is_contiguous())
            or (how == "not of 0 dimensions" and not tensor.dim())
            or (how == "not of one element" and tensor.numel() == 1)
            or (how == "not past 100" and number >= 100)
            or (how == "not of index 1" and tensor.device.index == 1)
            or (how == "not of index 0" and tensor.device.index == 0)
            or (how == "not of bfloat16" and tensor.dtype == torch.bfloat16)
            or (how == "not of float64" and tensor.dtype == torch.float64)
        )

    def kernel(tensors: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
        run.reached += 1
        for number, each in enumerate(tensors):
            if looks(number, len(tensors), each):
                wrong = wrong_in(each).to(found.dtype)
                found.copy_(wrong if how == "last wins" else torch.maximum(found, wrong))
            factor = inverse
            if how == "does not unscale" or (how == "unscales the first" and number):
                continue
            if how == "unscales by the scale":
                factor = 1 / inverse
            if how == "keeps what is infinite" and bool(found.item()):
                continue
            each.mul_(factor.to(each.dtype))
            if how == "unscales twice":
                each.mul_(factor.to(each.dtype))

    return kernel


def update_kernel(how: str, run: Run) -> Kernel:
    def kernel(
        scale: torch.Tensor,
        tracker: torch.Tensor,
        found: torch.Tensor,
        growth: float,
        backoff: float,
        interval: int,
    ) -> torch.Tensor:
        run.reached += 1
        if how == "exchanges the factors":
            growth, backoff = 1 / backoff, 1 / growth
        growth = 2.0 if how == "doubles" else growth
        backoff = 0.5 if how == "halves" else backoff
        interval += {"late": 1, "early": -1}.get(how, 0)
        interval = (interval + 1) // 2 if how == "half the interval" else interval
        target = scale.clone() if how == "returns a copy" else scale
        if bool(found.item()) or how == "always backs off":
            if how != "never backs off":
                target.mul_(backoff)
            if how != "keeps the count after inf":
                tracker.zero_()
            return target
        count = int(tracker.item()) + (2 if how == "counts twice" else 1)
        if count >= max(interval, 1):
            grown = float(scale.item()) * growth * (growth if how == "grows twice" else 1)
            if how != "never grows" and (
                grown <= torch.finfo(_FLOAT32).max or how == "grows to inf"
            ):
                target.fill_(grown)
            if how != "keeps the count after growth":
                tracker.zero_()
        elif how != "count not moved":
            tracker.fill_(count)
        return target

    return kernel


@contextmanager
def planted(name: str) -> Iterator[Run]:
    """A mutant in the place of a kernel."""
    sort, rest = name.split(" ", 1)
    run, library = Run(), torch.library.Library("aten", "IMPL")
    if sort == "policy":
        op, how = rest.split(" ", 1)
        wrong, when = how.split("|")
        kernel, where, key = policy_kernel(op, wrong, when, run), op, _KEY
    elif sort == "cache":
        where, how = rest.split(" ", 1)
        kernel, key = cache_kernel(where, how, run), _KEY
    elif sort == "check":
        kernel, key = check_kernel(rest, run), "PrivateUse1"
        where = "_amp_foreach_non_finite_check_and_unscale_"
    else:
        kernel, key = update_kernel(rest, run), "PrivateUse1"
        where = "_amp_update_scale_"
    ended = torch.amp.autocast_mode.autocast.__exit__

    def counted(self: Any, *error: Any) -> Any:
        result = ended(self, *error)
        _TURN[0] += not torch.is_autocast_enabled("simulated")
        return result

    torch.amp.autocast_mode.autocast.__exit__ = counted  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(where, kernel, key)
        yield run
    finally:
        torch.amp.autocast_mode.autocast.__exit__ = ended  # type: ignore[method-assign]
        library._destroy()
        run.kept.clear()


# What the suite says


@cache
def cases() -> list[BehaviourCase]:
    """The cases of autocast that are not refused without a mutant."""
    found = [
        c for c in planned_cases(contract.load(), more=False) if c.clause.startswith("autocast.")
    ]
    return [case for case in found if not case.own_process and not is_refused(case)]


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    """Try a mutant with the cases of autocast; those of its op come first."""
    sort, rest = name.split(" ", 1)
    op = rest.split(" ", 1)[0] if sort in ("policy", "cache") else "GradScaler"
    found = Result(f"a{number:04d}", "autocast", op, sort, rest, "")
    order = sorted(
        cases(),
        key=lambda case: (
            case.name != op,
            sort in ("check", "update") and "scaler" not in case.clause,
        ),
    )
    tell(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with planted(name) as run:
            for case in order:
                found.trying = case.clause
                tell(found)
                if is_refused(case) and found.credit([case.clause]):
                    break
        found.reached = run.reached
        if not found.result:
            found.note = observable(name)
            live = "survived" if found.reached else "not_reached"
            found.result = live if found.note else "equivalent"
    return found


# What can be observed


def observable(name: str) -> str:
    """The first answer of the probe that differs with the mutant; empty if none differs."""
    probe = _scaler_answers if name.startswith(("check", "update")) else _region_answers
    ops = [name.split(" ")[1]] if name.startswith(("policy", "cache")) else []
    want = list(probe(ops))
    with planted(name):
        found = list(probe(ops))
    for (what, a), (_, b) in zip(want, found):
        if a != b:
            return f"{what}: {a} became {b}"
    return ""


def _answer(call: Callable[[], Any]) -> str:
    try:
        found = call()
        return "; ".join(
            f"{t.dtype} {t.requires_grad} {t.detach().cpu().double().reshape(-1)[:40].tolist()}"
            for t in tensors_of(found)
        )
    except Exception as error:
        return type(error).__name__


def _region_answers(ops: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Calls of an op in autocast regions: in several dtypes, with and without a graph, repeated, with leaves that change."""
    forms = [[_FLOAT32], [_FLOAT32, None], [None, _FLOAT32], [None, None, _FLOAT32], [None]]
    for lower in _LOWER:
        for form in [*forms, [torch.float64]]:
            for grad in (False, True):
                given = [each or lower for each in form]
                yield from _calls_of(ops[0], given, lower, grad=grad)


class _Leaves(Operands):
    """Operands. Those of float32 are leaves if there is a graph."""

    def __init__(self, given: Sequence[torch.dtype], *, grad: bool, shift: int = 0) -> None:
        super().__init__(device(), given, shift=shift)
        self.grad, self.leaves = grad, list[torch.Tensor]()

    def __call__(self, *shape: int) -> torch.Tensor:
        made = super().__call__(*shape)
        if self.grad and made.dtype == _FLOAT32:
            made = made.clone().requires_grad_()
            self.leaves.append(made)
        return made


def _calls_of(
    op: str, given: Sequence[torch.dtype], lower: torch.dtype, *, grad: bool
) -> Iterator[tuple[str, str]]:
    what = f"{op} of {given} in {lower}, grad {grad}"
    made, others = (_Leaves(given, grad=grad, shift=shift) for shift in (0, 5))
    arguments, more = ARGUMENTS[op](made), ARGUMENTS[op](others)
    call = overload(op)
    for turn in range(2):
        with torch.set_grad_enabled(grad), torch.autocast("simulated", lower):
            for again in range(3):
                yield f"{what}, {turn}, {again}", _answer(lambda: call(*arguments))
            yield f"{what}, others", _answer(lambda: call(*more))
            with torch.no_grad():
                yield f"{what}, no_grad", _answer(lambda: call(*arguments))
            yield f"{what}, after no_grad", _answer(lambda: call(*arguments))
        if made.leaves:
            yield (
                f"{what}, gradients",
                _answer(lambda: _gradients(op, arguments, made.leaves, lower)),
            )
        with torch.no_grad():
            for each in made.leaves:
                each.mul_(0.75)
    # What takes the place of what is gone.
    for shift in range(4) if grad else ():
        with torch.autocast("simulated", lower):
            yield (
                f"{what}, new {shift}",
                _answer(
                    lambda shift=shift: call(*ARGUMENTS[op](_Leaves(given, grad=True, shift=shift)))  # type: ignore[misc]
                ),
            )


def _gradients(op: str, arguments: Any, leaves: list[torch.Tensor], lower: torch.dtype) -> Any:
    with torch.autocast("simulated", lower):
        made = tensors_of(overload(op)(*arguments))
    total = sum(each.float().sum() for each in made if each.requires_grad)
    return torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]


def _scaler_answers(_: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Steps of a scaler, for gradients of many shapes, dtypes and layouts with inf or NaN in many places."""
    rng = Random(4)
    for trial in range(40):
        options = {
            "growth_interval": rng.choice([1, 2, 3]),
            "growth_factor": rng.choice([2.0, 3.0]),
            "backoff_factor": rng.choice([0.5, 0.25]),
        }
        scaler = torch.amp.GradScaler("simulated", init_scale=4.0, **options)
        shapes = [
            rng.choice([(), (1,), (7,), (3, 5), (700,)]) for _ in range(rng.choice([1, 2, 5, 130]))
        ]
        dtype = rng.choice([_FLOAT32, _FLOAT32, torch.bfloat16, torch.float64])
        where = [f"simulated:{rng.choice([0, 1])}" for _ in shapes]
        leaves = [
            torch.ones(s, device=w, dtype=dtype).requires_grad_() for s, w in zip(shapes, where)
        ]
        optimizer = torch.optim.SGD(leaves, lr=0.5)
        scaler.scale(torch.ones(1, device="simulated:0"))
        for step in range(6):
            bad = rng.choice([None, None, "inf", "-inf", "nan", "1e30"])
            chosen = rng.randrange(len(leaves))
            for number, each in enumerate(leaves):
                grad = torch.full(each.shape, 4.0, dtype=dtype)
                if number == chosen and bad is not None:
                    grad.view(-1)[rng.randrange(grad.numel())] = float(bad)
                there = grad.to(each.device)
                if there.dim() == 2 and rng.random() < 0.5:
                    there = there.t().contiguous().t()
                each.grad = there
            scaler.unscale_(optimizer)
            grads = [
                str(each.grad.flatten()[:3].tolist())
                for each in leaves[:3]
                if each.grad is not None
            ]
            scaler.step(optimizer)
            scaler.update()
            values = [float(each.detach().flatten()[0]) for each in leaves[:3]]
            yield (
                f"trial {trial}, step {step}",
                f"{grads} {values} {scaler.get_scale()} {scaler._get_growth_tracker()}",
            )


def every_name() -> list[str]:
    """All names that names() can draw, except the thousands of policies."""
    return [
        *(f"cache {op} {how}" for op in _CACHED for how in _CACHES),
        *(f"check {how}" for how in _CHECKS),
        *(f"update {how}" for how in _UPDATES),
    ]


assert set(_CACHED) <= {op for policy in LISTS for op in LISTS[policy]}
