"""The adapter over torch's own op database: the only module that touches ``torch.testing._internal``.

Everything there is private and moves between minor versions, so a test pins each field used
(``tests/opinfo/test_catalog.py``). Upstream's skips and expected failures are never inherited.
"""

from __future__ import annotations

import ast
import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from functools import cache, cached_property
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from devices.files import cache_root, write_whole
from devices.torch_version import supported
from opinfo.compare import DEFAULT_TOLERANCES

#: Tests of upstream whose tolerance overrides speak of what we compare: a kernel with itself in another
#: layout or variant. Overrides for gradients, numpy references or Inductor are about other things.
_TOLERANCE_TESTS = frozenset(
    {None, "test_noncontiguous_samples", "test_variant_consistency_eager", "test_out"}
)


#: The modules of torch that have a ``freeze_rng_state``, by version.
_FREEZING = (
    "torch.testing._utils",
    "torch.testing._internal.common_utils",
    "torch.testing._internal.common_methods_invocations",
)


class UnsupportedTorch(RuntimeError):
    """The installed torch lacks something that the adapter reads."""


_Value = TypeVar("_Value")


class _Field(Generic[_Value]):
    """A field of a database entry, read once; with a default where only some classes of entries have it."""

    def __init__(self, upstream: str, *default: _Value) -> None:
        self._upstream, self._default = upstream, default

    def __set_name__(self, owner: type[Op], name: str) -> None:
        self._name = name

    def __get__(self, op: Op, owner: type[Op]) -> _Value:
        value: _Value = getattr(op.info, self._upstream, *self._default)
        vars(op)[self._name] = (
            value  # found there from now on: an entry looks at each name that it is asked for
        )
        return value


_Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Op:
    """One OpInfo, with the fields that the harness uses under stable names.

    Raises AttributeError at first use if upstream has renamed a field; the pinning test says which.
    """

    info: Any

    #: name and variant, ``std.unbiased``: unique in the database
    id = _Field[str]("full_name")
    function = _Field[_Function]("op")
    method = _Field[_Function | None]("method_variant")
    operator = _Field[_Function | None]("operator_variant")
    inplace = _Field[_Function | None]("inplace_variant")
    inplace_operator = _Field[_Function | None]("inplace_operator_variant")
    has_out = _Field[bool]("supports_out")
    is_factory = _Field[bool]("is_factory_function")
    promotes_int_to_float = _Field[bool]("promotes_int_to_float")
    #: whether a binary op takes a Python scalar as its right operand
    takes_python_scalar = _Field[bool]("supports_rhs_python_scalar", False)
    #: of a reduction
    identity = _Field[Any]("identity", None)
    #: of a reduction: ``propagate``, ``omit`` or None
    nan_policy = _Field[str | None]("nan_policy", None)
    #: whether gradients of gradients, and forward-mode products, are implemented
    has_second_gradient = _Field[bool]("supports_gradgrad")
    has_forward_gradient = _Field[bool]("supports_forward_ad")
    #: whether the database allows conjugated, and negated, views as inputs of the op
    takes_conj_view = _Field[bool]("test_conjugated_samples")
    takes_neg_view = _Field[bool]("test_neg_view")

    @property
    def spatial(self) -> int:
        """The number of spatial dimensions of an op that is named by it, as ``max_unpool2d`` is; else 0."""
        named = re.search(r"(\d)d(?:\.|$)", self.id)
        return int(named[1]) if named else 0

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """Names of the dtypes that torch's CPU implements."""
        return frozenset(map(dtype_name, self.info.dtypes))

    def dtypes_on(self, torch_type: str) -> frozenset[str]:
        """Names of the dtypes that the database lists for a device type, none if it says that there are none; the CPU's for
        a device type of which it says nothing."""
        listed = self.info.dtypesIf.get(torch_type) if torch_type != "cpu" else None
        return self.dtypes if listed is None else frozenset(map(dtype_name, listed))

    @cached_property
    def dtypes_anywhere(self) -> frozenset[str]:
        """Names of the dtypes that the database lists for some device type, the CPU among them."""
        lists = (self.info.dtypes, *self.info.dtypesIf.values())
        return frozenset(dtype_name(dtype) for listed in lists for dtype in listed or ())

    @cached_property
    def gradient_dtypes(self) -> frozenset[str]:
        """Names of the dtypes for which the database says that the op has a gradient on the CPU."""
        listed = self.info.backward_dtypes if self.info.supports_autograd else ()
        return frozenset(map(dtype_name, listed)) & self.dtypes

    @cached_property
    def ufunc(self) -> str:
        """``unary``, ``binary``, ``reduction`` or empty, from the class of the database entry."""
        from torch.testing._internal.opinfo import core

        for kind, cls in (
            ("unary", core.UnaryUfuncInfo),
            ("binary", core.BinaryUfuncInfo),
            ("reduction", core.ReductionOpInfo),
        ):
            if isinstance(self.info, cls):
                return kind
        return ""

    @cached_property
    def _overloads(self) -> list[Any]:
        name: str = self.info.aten_name
        return _aten(name) or _aten(
            name.replace("linalg.", "linalg_").replace("special.", "special_")
        )

    @cached_property
    def schemas(self) -> tuple[Any, ...]:
        """The schemas of the aten overloads of this name, empty for ops composed in Python."""
        return tuple(overload._schema for overload in self._overloads)

    @cached_property
    def unsafe_in_graphs(self) -> bool:
        """Whether an overload of this name is tagged as one that graphs cannot hold, or whose result's shape or
        existence depends on values (torch.Tag). One that takes a shape instead does not make it safe."""
        tags = {
            torch.Tag.cudagraph_unsafe,
            torch.Tag.dynamic_output_shape,
            torch.Tag.data_dependent_output,
        }
        return any(tags & set(overload.tags) for overload in self._overloads)

    @cached_property
    def pointwise(self) -> bool:
        """Whether an overload of this name is tagged as one whose result depends, element by element, on its inputs
        at the same place (torch.Tag.pointwise)."""
        return any(torch.Tag.pointwise in overload.tags for overload in self._overloads)

    @property
    def packets(self) -> tuple[str, ...]:
        """The aten ops of this name, with the in-place one: ``aten::add``, ``aten::add_``."""
        names = dict.fromkeys(schema.name for schema in self.schemas)
        return tuple(name + end for name in names for end in ("", "_"))

    @property
    def has_error_inputs(self) -> bool:
        """Whether the database knows calls that raise."""
        return self.info.error_inputs_func is not None

    def error_inputs(self, device: str) -> Iterator[Any]:
        """Those calls on a device, with the type and the message that they raise; straight from upstream's
        function, as ``raw_samples``."""
        found: Iterator[Any] = self.info.error_inputs_func(self.info, device)
        return found

    @cached_property
    def declares_view(self) -> bool:
        """Whether some overload's result aliases an argument that it does not write to."""
        aliases = (r.alias_info for schema in self.schemas for r in schema.returns)
        return any(alias is not None and not alias.is_write for alias in aliases)

    @cached_property
    def restrides_in_place(self) -> bool:
        """Whether the in-place variant is tagged ``inplace_view``: it changes self's shape or strides."""
        name = getattr(self.inplace, "__name__", "")
        return any(torch.Tag.inplace_view in overload.tags for overload in _aten(name))

    @cached_property
    def takes_memory_format(self) -> bool:
        return any(a.name == "memory_format" for schema in self.schemas for a in schema.arguments)

    def tolerance(self, dtype: str, torch_type: str) -> tuple[float, float] | None:
        """The database's own (rtol, atol) for the comparisons that we make on a type of device, or None.

        An override for one type of device is that one's. The CPU's is everyone's, as the CPU is the reference; CUDA's is
        every accelerator's, as upstream has none for most.

        An override loosens the dtype's default and never tightens it: upstream's assertEqual takes the
        larger of the two (torch/testing/_internal/common_utils.py, ``rtol_override``).
        """
        found: list[tuple[float, float]] = []
        target = getattr(torch, dtype)
        types = {None, "cpu", torch_type, *(["cuda"] if torch_type != "cpu" else [])}
        for decorator in self.info.decorators:
            cls, test = getattr(decorator, "cls_name", None), getattr(decorator, "test_name", None)
            if cls not in (None, "TestCommon") or test not in _TOLERANCE_TESTS:
                continue
            if getattr(decorator, "device_type", None) not in types:
                continue
            for inner in getattr(decorator, "decorators", [decorator]):
                override = getattr(inner, "d", None)
                if isinstance(override, dict) and target in override:
                    value = override[target]  # a precisionOverride contains only atol
                    rtol, atol = getattr(value, "rtol", 0.0), getattr(value, "atol", value)
                    found.append((float(rtol or 0.0), float(atol or 0.0)))
        if not found:
            return None
        found.append(DEFAULT_TOLERANCES.get(dtype, (0.0, 0.0)))
        return max(r for r, _ in found), max(a for _, a in found)

    def raw_samples(self, dtype: torch.dtype) -> Iterator[Any]:
        """Upstream's samples on the CPU, straight from its function.

        ``sample_inputs()`` wraps the same iterator in ``inspect.stack()`` and reseeds for each sample;
        callers seed once (``opinfo.samples``).
        """
        samples: Iterator[Any] = self.info.sample_inputs_func(self.info, "cpu", dtype, False)
        return samples


def _aten(name: str) -> list[Any]:
    """The overloads of the aten op of this name: none if there is no such op."""
    packet = getattr(torch.ops.aten, name, None) if name else None
    return [] if packet is None else [getattr(packet, each) for each in packet.overloads()]


def database_entry(op_id: str) -> Any:
    """The database's own entry of an op: what a repro script uses, which carries this function."""
    from torch.testing._internal.common_methods_invocations import op_db  # needs expecttest

    return next(info for info in op_db if info.full_name == op_id)


def drawn_sample(op_id: str, dtype: str, index: int) -> Any:
    """The database's own sample of this number. A repro script may carry this function, too."""
    info = database_entry(op_id)
    drawn = info.sample_inputs_func(info, "cpu", getattr(torch, dtype), False)
    return next(islice(drawn, index, None))


@dataclass(frozen=True, slots=True)
class Optimiser:
    """One entry of the database of optimisers."""

    name: str  # in torch.optim
    implementations: tuple[str, ...]  # foreach, fused, capturable: arguments that choose one
    arguments: tuple[dict[str, Any], ...]  # as literals: a tensor is {"tensor": its values}
    closure: bool  # step() takes one
    sparse: bool  # gradients are sparse, and no others are taken


@cache
def optimisers() -> tuple[Optimiser, ...]:
    """Every optimiser of torch's database, with the argument sets for a device of every capability. Kept for this build of
    torch: the database takes seconds to load, and a process that plans needs nothing else of it.

    Raises UnsupportedTorch if the database cannot be imported.
    """
    build = f"{torch.__version__}-{str(torch.version.git_version or 'unknown')[:12]}"
    path = cache_root() / f"optimisers-{build}.py"
    try:
        kept = ast.literal_eval(path.read_text(encoding="utf-8"))
        return tuple(Optimiser(*each) for each in kept)
    except (OSError, ValueError, SyntaxError, TypeError):  # nothing kept, or not by this module
        found = _database_of_optimisers()
    with suppress(OSError):  # it is asked again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, repr([astuple(each) for each in found]))
    return found


def _database_of_optimisers() -> tuple[Optimiser, ...]:
    catalogue()  # it stands on the database of ops, which is faster to load in this way
    try:
        from torch.testing._internal.common_optimizers import optim_db
    except ImportError as exc:
        raise UnsupportedTorch(
            f"torch {torch.__version__} could not load its database of optimisers "
            f"(torch.testing._internal.common_optimizers): {exc}"
        ) from exc
    found = []
    for info in optim_db:
        entry: Any = info
        ways: list[str] = [each for each in ("foreach", "fused") if each in entry.supported_impls]
        ways += ["capturable"] * entry.has_capturable_arg
        sets = tuple(_literal(each.kwargs) for each in entry.optim_inputs_func(device="cuda"))
        needs = (entry.step_requires_closure, entry.only_supports_sparse_grads)
        found.append(Optimiser(entry.optim_cls.__name__, tuple(ways), sets, *needs))
    return tuple(found)


def _literal(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": value.tolist()}
    if isinstance(value, dict):
        return {key: _literal(each) for key, each in value.items()}
    return tuple(map(_literal, value)) if isinstance(value, tuple) else value


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` -> ``float32``."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def host_generator_kept() -> Iterator[None]:
    """Let the database's functions that seed keep the state of the CPU's generator, and of no other.

    They also ask the device's module whether it is available and for a state. A module need not have these functions,
    and where it lacks them the call raises on the CPU as it does on the device.
    """

    @contextmanager
    def kept() -> Iterator[None]:
        state = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(state)

    modules = (sys.modules.get(name) for name in _FREEZING)
    held = [(each, each.freeze_rng_state) for each in modules if hasattr(each, "freeze_rng_state")]  # type: ignore[union-attr]
    for module, _ in held:
        module.freeze_rng_state = kept  # type: ignore[union-attr]
    try:
        yield
    finally:
        for module, original in held:
            module.freeze_rng_state = original  # type: ignore[union-attr]


@contextmanager
def _without_deep_copies() -> Iterator[None]:
    """Let each OpInfo remember its arguments without copying them in depth, which takes a quarter of the time of
    loading the database. Only upstream's Python references read that memory, and they copy what they change."""
    core: Any = importlib.import_module("torch.testing._internal.opinfo.core")
    deep = core.asdict
    core.asdict = lambda info: {f.name: getattr(info, f.name) for f in fields(info)}
    try:
        yield
    finally:
        core.asdict = deep


@cache
def catalogue() -> dict[str, Op]:
    """All ops of the database by id, in its order. Loading takes 1 to 3 s and 100 MB beyond torch's own.

    Raises UnsupportedTorch if the database cannot be imported.
    """
    # The database is a million objects that live for ever: collecting garbage while they are made, and
    # walking them in every later collection, would double the time of loading and cost it again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with _without_deep_copies():
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as exc:
        raise UnsupportedTorch(
            f"torch {torch.__version__} could not load its op database "
            f"(torch.testing._internal.common_methods_invocations): {exc}. "
            f"Install the packages it needs (expecttest, numpy), or {supported()}."
        ) from exc
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
    ops: dict[str, Op] = {}
    for op in map(Op, op_db):
        if ops.setdefault(op.id, op) is not op:
            raise UnsupportedTorch(f"torch's op database has two entries named {op.id!r}")
    return ops
