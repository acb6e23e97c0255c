"""The adapter over torch's database of ops (OpInfo). Only the modules in ``opinfo`` use ``torch.testing._internal``.

The database is private and changes between minor versions of torch, so a test pins each field that is used
(``tests/opinfo/test_catalog.py``). The database's own skips and expected failures are ignored.
"""

from __future__ import annotations

import ast
import gc
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from functools import cache, cached_property
from itertools import islice
from typing import Any

import torch

from devices.files import cache_root, write_whole
from devices.torch_version import supported
from opinfo.compare import DEFAULT_TOLERANCES
from opinfo.subject import Function, Source, Subject

#: Upstream tests whose tolerance overrides apply here, because they compare a kernel with itself in another layout or
#: variant. Overrides for gradients, numpy references or Inductor concern other comparisons.
_TOLERANCE_TESTS = frozenset(
    {None, "test_noncontiguous_samples", "test_variant_consistency_eager", "test_out"}
)


#: Modules that have a ``freeze_rng_state`` in one of the supported versions of torch.
_FREEZING = (
    "torch.testing._utils",
    "torch.testing._internal.common_utils",
    "torch.testing._internal.common_methods_invocations",
)


class UnsupportedTorch(RuntimeError):
    """The error for an installed torch that lacks a private name or a database that the adapter needs."""


class _Field:
    """A descriptor for a field of a database entry, which is read once and then stored. A default is required if only
    some classes of entries have the field."""

    def __init__(self, upstream: str, *default: Any) -> None:
        self._upstream, self._default = upstream, default

    def __set_name__(self, owner: type[Op], name: str) -> None:
        self._name = name

    def __get__(self, op: Op, owner: type[Op]) -> Any:
        value = getattr(op.info, self._upstream, *self._default)
        vars(op)[self._name] = value  # later reads find it here; reading the entry again is slow
        return value


def _field(upstream: str, *default: Any) -> Any:
    """Returns a ``_Field``. The function is declared to return Any, so that type checkers accept the attribute as a
    value of the field's type."""
    return _Field(upstream, *default)


class Op(Subject):
    """An op of torch's database (OpInfo), with the fields that the harness uses, under names that do not change between
    versions.

    Raises AttributeError when a field that upstream has renamed is read for the first time; the test of the catalogue
    then names the field.
    """

    #: name and variant, ``std.unbiased``: unique in the database
    id = _field("full_name")
    function = _field("op")
    reference = _field("op")
    runs_on_cpu = True
    method = _field("method_variant")
    operator = _field("operator_variant")
    inplace = _field("inplace_variant")
    inplace_operator = _field("inplace_operator_variant")
    has_out = _field("supports_out")
    is_factory = _field("is_factory_function")
    promotes_int_to_float = _field("promotes_int_to_float")
    takes_python_scalar = _field("supports_rhs_python_scalar", False)
    identity = _field("identity", None)
    nan_policy = _field("nan_policy", None)
    has_second_gradient = _field("supports_gradgrad")
    has_forward_gradient = _field("supports_forward_ad")
    takes_conj_view = _field("test_conjugated_samples")
    takes_neg_view = _field("test_neg_view")

    def __init__(self, info: Any) -> None:
        self.info = info

    @property
    def spatial(self) -> int:
        """The number of spatial dimensions that the op's name contains, such as 2 for ``max_unpool2d``; 0 if the name
        contains none."""
        named = re.search(r"(\d)d(?:\.|$)", self.id)
        return int(named[1]) if named else 0

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """The names of the dtypes that the op supports on the CPU, according to the database."""
        return frozenset(map(dtype_name, self.info.dtypes))

    def dtypes_on(self, torch_type: str) -> frozenset[str]:
        """Returns the names of the dtypes that the database lists for a device type; the set may be empty. For a device
        type that the database does not mention, the dtypes of the CPU are returned."""
        listed = self.info.dtypesIf.get(torch_type) if torch_type != "cpu" else None
        return self.dtypes if listed is None else frozenset(map(dtype_name, listed))

    @cached_property
    def dtypes_anywhere(self) -> frozenset[str]:
        """The names of the dtypes that the database lists for any device type, including the CPU."""
        lists = (self.info.dtypes, *self.info.dtypesIf.values())
        return frozenset(dtype_name(dtype) for listed in lists for dtype in listed or ())

    @cached_property
    def gradient_dtypes(self) -> frozenset[str]:
        """The names of the dtypes for which the op has a gradient on the CPU, according to the database."""
        listed = self.info.backward_dtypes if self.info.supports_autograd else ()
        return frozenset(map(dtype_name, listed)) & self.dtypes

    @cached_property
    def ufunc(self) -> str:
        """The class of the database entry as a text: ``unary``, ``binary``, ``reduction``, or empty for other
        classes."""
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
        """The schemas of the op's aten overloads; empty for an op that is composed in Python."""
        return tuple(overload._schema for overload in self._overloads)

    @cached_property
    def unsafe_in_graphs(self) -> bool:
        """True if any overload of the op has a tag that excludes it from graphs: it cannot be captured, or the shape or
        existence of its result depends on values (see torch.Tag)."""
        tags = {
            torch.Tag.cudagraph_unsafe,
            torch.Tag.dynamic_output_shape,
            torch.Tag.data_dependent_output,
        }
        return any(tags & set(overload.tags) for overload in self._overloads)

    @cached_property
    def pointwise(self) -> bool:
        """True if any overload of the op is tagged as pointwise: each element of the result depends only on the
        elements of the inputs at the same position (torch.Tag.pointwise)."""
        return any(torch.Tag.pointwise in overload.tags for overload in self._overloads)

    @property
    def packets(self) -> tuple[str, ...]:
        """The names of the op's aten ops and of their in-place variants, such as ``aten::add`` and ``aten::add_``."""
        names = dict.fromkeys(schema.name for schema in self.schemas)
        return tuple(name + end for name in names for end in ("", "_"))

    @property
    def has_error_inputs(self) -> bool:
        """True if the database lists calls that must raise."""
        return self.info.error_inputs_func is not None

    def error_inputs(self, device: str) -> Iterator[Any]:
        """Yields the database's calls that must raise, made on ``device``, with the type and message of the
        exception."""
        found: Iterator[Any] = self.info.error_inputs_func(self.info, device)
        return found

    @cached_property
    def declares_view(self) -> bool:
        """True if the schema of any overload says that its result aliases an argument that is not written to."""
        aliases = (r.alias_info for schema in self.schemas for r in schema.returns)
        return any(alias is not None and not alias.is_write for alias in aliases)

    @cached_property
    def restrides_in_place(self) -> bool:
        """True if the in-place variant is tagged ``inplace_view``, so it changes the shape or strides of self."""
        name = getattr(self.inplace, "__name__", "")
        return any(torch.Tag.inplace_view in overload.tags for overload in _aten(name))

    @cached_property
    def takes_memory_format(self) -> bool:
        return any(a.name == "memory_format" for schema in self.schemas for a in schema.arguments)

    def tolerance(self, dtype: str, torch_type: str) -> tuple[float, float] | None:
        """Returns the database's (rtol, atol) for comparing results on a type of device, or None if the database lists
        none.

        An override for a device type applies to that type. An override for the CPU applies to every device, because the
        CPU is the reference. An override for CUDA applies to every accelerator, because the database has none for most
        of them.

        An override only loosens the tolerance of the dtype: upstream's assertEqual takes the larger of the two
        (torch/testing/_internal/common_utils.py, ``rtol_override``).
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

    def source_of(self, function: Function) -> Source:
        """Returns the expression that looks up a function of the op in torch's database, as a repro script writes
        it."""
        kinds = ("function", "method", "inplace", "operator", "inplace_operator")
        kind = next((each for each in kinds if getattr(self, each) == function), "function")
        name = "op" if kind == "function" else f"{kind}_variant"
        return f"database_entry({self.id!r}).{name}", (database_entry,)

    def process_of(self, dtype: str, index: int) -> Function:
        return DrawnProcess(self.id, dtype, index)

    def source_of_process(self, dtype: str, index: int) -> Source:
        """Returns the expression that looks up the ``output_process_fn_grad`` of sample number ``index`` in torch's
        database, as a repro script writes it."""
        sample = f"drawn_sample({self.id!r}, {dtype!r}, {index})"
        return f"{sample}.output_process_fn_grad", (drawn_sample,)

    def raw_samples(self, dtype: torch.dtype) -> Iterator[Any]:
        """Yields the database's samples on the CPU, directly from the function that makes them.

        ``sample_inputs()`` wraps the same iterator in ``inspect.stack()`` and seeds again for each sample, which is
        slow. Callers of this method seed once (``opinfo.samples``).
        """
        samples: Iterator[Any] = self.info.sample_inputs_func(self.info, "cpu", dtype, False)
        return samples


def _aten(name: str) -> list[Any]:
    """Returns the overloads of an aten op; an empty list if no op has that name."""
    packet = getattr(torch.ops.aten, name, None) if name else None
    return [] if packet is None else [getattr(packet, each) for each in packet.overloads()]


def database_entry(op_id: str) -> Any:
    """Returns the database's entry for an op. Repro scripts contain a copy of the function."""
    from torch.testing._internal.common_methods_invocations import op_db  # needs expecttest

    return next(info for info in op_db if info.full_name == op_id)


def drawn_sample(op_id: str, dtype: str, index: int) -> Any:
    """Returns the sample at position ``index`` among the database's samples for an op and dtype. Repro scripts may
    contain a copy of the function."""
    info = database_entry(op_id)
    drawn = info.sample_inputs_func(info, "cpu", getattr(torch, dtype), False)
    return next(islice(drawn, index, None))


@dataclass(frozen=True, slots=True)
class DrawnProcess:
    """The function of the database that extracts the determined part of a sample's result. The function is looked up
    when it is called, so that only its name needs to be written to a file."""

    op: str
    dtype: str
    index: int

    def __call__(self, result: Any) -> Any:
        return drawn_sample(self.op, self.dtype, self.index).output_process_fn_grad(result)


@dataclass(frozen=True, slots=True)
class Optimiser:
    """An entry of torch's database of optimisers."""

    name: str  # the name of its class in torch.optim
    implementations: tuple[
        str, ...
    ]  # arguments that select an implementation: foreach, fused, capturable
    arguments: tuple[
        dict[str, Any], ...
    ]  # as literals; a tensor is written as {"tensor": its values}
    closure: bool  # whether step() requires a closure
    sparse: bool  # whether it accepts sparse gradients only


@cache
def optimisers() -> tuple[Optimiser, ...]:
    """Returns every optimiser of torch's database, with its argument sets for a device that has every capability.

    The result is cached on disk for the installed build of torch, because the database takes seconds to load and
    planning needs nothing else from it. Raises UnsupportedTorch if the database cannot be imported.
    """
    build = f"{torch.__version__}-{str(torch.version.git_version or 'unknown')[:12]}"
    path = cache_root() / f"optimisers-{build}.py"
    try:
        kept = ast.literal_eval(path.read_text(encoding="utf-8"))
        return tuple(Optimiser(*each) for each in kept)
    except (
        OSError,
        ValueError,
        SyntaxError,
        TypeError,
    ):  # there is no cached file, or another version wrote it
        found = _database_of_optimisers()
    with suppress(OSError):  # not cached: the next process loads the database again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, repr([astuple(each) for each in found]))
    return found


def _database_of_optimisers() -> tuple[Optimiser, ...]:
    catalogue()  # the database of optimisers imports that of ops, which is faster to load in this way
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
    """Returns the name of a dtype: ``torch.float32`` becomes ``float32``."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def host_generator_kept() -> Iterator[None]:
    """Within the context, functions of the database that save and restore random states do this only for the CPU's
    generator.

    By default, these functions also call the device's module, to find out if the device is available and to read its
    random state. If a vendor's module lacks a function that they call, drawing samples on the CPU would fail as well.
    """

    @contextmanager
    def cpu_state_kept() -> Iterator[None]:
        state = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(state)

    modules = (sys.modules.get(name) for name in _FREEZING)
    held = [(each, each.freeze_rng_state) for each in modules if hasattr(each, "freeze_rng_state")]  # type: ignore[union-attr]
    for module, _ in held:
        module.freeze_rng_state = cpu_state_kept  # type: ignore[union-attr]
    try:
        yield
    finally:
        for module, original in held:
            module.freeze_rng_state = original  # type: ignore[union-attr]


@contextmanager
def _without_deep_copies() -> Iterator[None]:
    """Makes every OpInfo store its arguments without deep copies within the context. Deep copies take a quarter of the
    time of loading the database. Only the database's entries for Python references (torch._refs) read the stored
    arguments, and these entries copy the parts that they change."""
    core: Any = importlib.import_module("torch.testing._internal.opinfo.core")
    deep = core.asdict
    core.asdict = lambda info: {f.name: getattr(info, f.name) for f in fields(info)}
    try:
        yield
    finally:
        core.asdict = deep


@cache
def catalogue() -> dict[str, Op]:
    """Returns all ops of the database by id, in its order. Loading takes 1 to 3 s and 100 MB in addition to torch
    itself.

    Raises UnsupportedTorch if the database cannot be imported.
    """
    # The database is a million objects that are never freed. Garbage collections while they are made would double the time
    # of loading, and every later collection would visit all of them again.
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
