"""The class ``Subject``: a function that is tested on a device, such as an op of torch's database, a recorded aten
call, or a kernel under test."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Function: TypeAlias = Callable[..., Any]

#: An expression of a repro script, and the functions that it uses, which the script must contain.
Source: TypeAlias = tuple[str, tuple[Any, ...]]

#: The prefixes by which torch's op database names public functions whose aten name has none, such as
#: ``nn.functional.batch_norm``; for the other spaces, the prefix of the aten name, such as ``linalg_svd``.
_SPACES = {"linalg_": "linalg.", "fft_": "fft.", "special_": "special."}


class Subject:
    """A function under test with everything that the checks need to know about it.

    ``function`` is called on the device, and ``reference`` on the CPU, on the meta device and with FakeTensor. The two
    are the same function for torch's ops, and different functions for a kernel that runs only on the device. The
    defaults of all other attributes say that nothing is known: no other variants, no schema, no gradient.
    """

    #: unique in its source, such as ``std.unbiased``
    id: str
    #: the name by which messages show a call of the function, if it is neither a public name of torch nor the id
    shown_as: str = ""
    function: Function
    reference: Function
    method: Function | None = None
    operator: Function | None = None
    inplace: Function | None = None
    inplace_operator: Function | None = None
    has_out: bool = False
    is_factory: bool = False
    promotes_int_to_float: bool = False
    #: whether a binary op takes a Python scalar as its right operand
    takes_python_scalar: bool = False
    #: the identity of a reduction, such as 0 for a sum
    identity: Any = None
    #: what a reduction does with NaN: ``propagate``, ``omit`` or None
    nan_policy: str | None = None
    #: whether a result may be as imprecise as that of torch's op on the CPU, even where the bounds of precision are narrower
    as_precise_as_cpu: bool = False
    #: whether second derivatives and forward-mode derivatives are implemented
    has_second_gradient: bool = False
    has_forward_gradient: bool = False
    #: whether the function refuses tensors whose sizes do not fit each other. Tensors of a function that may read outside of
    #: such tensors are never resized.
    checks_sizes: bool = True
    #: the ids of the layouts in which the function may be called; None means all
    layouts: tuple[str, ...] | None = None
    #: the prefixes of families of ``exceptions.toml`` that say nothing about the function, although they list its name
    unwanted_families: tuple[str, ...] = ()
    #: whether the function accepts conjugated and negated views as inputs
    takes_conj_view: bool = False
    takes_neg_view: bool = False

    @property
    def runs_on_cpu(self) -> bool:
        """True if ``function`` runs on the CPU as well as on the device. Some checks compare it with itself there."""
        return self.reference is self.function

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which ``exceptions.toml`` may list properties of the function."""
        return (self.id,)

    @property
    def own_families(self) -> frozenset[str]:
        """The families of ``exceptions.toml`` to which the function belongs by its schema: ``mutates.self`` if every
        overload writes to its first argument."""
        written = [
            schema.arguments and (alias := schema.arguments[0].alias_info) and alias.is_write
            for schema in self.schemas
        ]
        return frozenset({"mutates.self"} if written and all(written) else ())

    @property
    def dtypes(self) -> frozenset[str]:
        """The names of the dtypes that the reference supports."""
        return frozenset()

    @property
    def gradient_dtypes(self) -> frozenset[str]:
        """The names of the dtypes for which the reference has a gradient."""
        return frozenset()

    @property
    def ufunc(self) -> str:
        """The kind of an elementwise function or a reduction: ``unary``, ``binary``, ``reduction``; otherwise empty."""
        return ""

    @property
    def schemas(self) -> tuple[Any, ...]:
        """The schemas of the aten overloads that the function may call."""
        return ()

    @property
    def unsafe_in_graphs(self) -> bool:
        """True if the function cannot be captured, or if the shape or existence of its result depends on values."""
        return False

    @property
    def pointwise(self) -> bool:
        """True if each element of the result depends only on the elements of the inputs at the same position."""
        return False

    @property
    def has_error_inputs(self) -> bool:
        """True if ``error_inputs`` yields calls that must raise."""
        return False

    @property
    def declares_view(self) -> bool:
        """True if the result aliases an argument that is not written to."""
        return False

    @property
    def restrides_in_place(self) -> bool:
        """True if the in-place variant changes the shape or strides of self."""
        return False

    @property
    def takes_memory_format(self) -> bool:
        """True if the function has an argument ``memory_format``."""
        return False

    @property
    def spatial(self) -> int:
        """The number of spatial dimensions that the name contains, such as 2 for ``max_unpool2d``."""
        return 0

    @property
    def dtypes_anywhere(self) -> frozenset[str]:
        """The names of the dtypes that the function supports on any type of device."""
        return self.dtypes

    def dtypes_on(self, torch_type: str) -> frozenset[str]:
        """Returns the names of the dtypes that the function supports on a type of device."""
        return self.dtypes

    @property
    def packets(self) -> tuple[str, ...]:
        """The names of the aten ops of the schemas and of their in-place variants, such as ``aten::add`` and
        ``aten::add_``."""
        names = dict.fromkeys(schema.name for schema in self.schemas)
        return tuple(name + end for name in names for end in ("", "_"))

    def written_tensors(self, call: Any) -> frozenset[int]:
        """Returns the positions of the tensors that a call writes to, as far as this class can tell; none by
        default. ``call`` is an :class:`opinfo.compare.Arguments`. The checks add the tensors that
        ``exceptions.toml`` lists."""
        return frozenset()

    def possible_result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns tensors on the meta device that stand for the result of a call with the given tensors, if torch cannot
        compute the shapes of the result from the shapes of the tensors. More clauses may apply to the returned tensors than to
        the real result, and no fewer. Returns None if nothing is known about the result."""
        return None

    def error_inputs(self, device: str) -> Iterator[Any]:
        """Yields calls that must raise, made on ``device``, with the type and message of the exception."""
        return iter(())

    def tolerance(self, dtype: str, torch_type: str) -> tuple[float, float] | None:
        """Returns the (rtol, atol) for comparing results on a type of device; None if the defaults apply."""
        return None

    def raw_samples(self, dtype: torch.dtype) -> Iterator[Any]:
        """Yields samples on the CPU, with the attributes of ``torch.testing._internal.opinfo.core.SampleInput``:
        ``input``, ``args``, ``kwargs`` and ``output_process_fn_grad``."""
        raise NotImplementedError(f"{self.id} has no samples of its own")

    def source_of(self, function: Function) -> Source:
        """Returns the expression by which a repro script refers to ``function``, a function of this object that has
        no public name in torch. Raises ValueError for a function that was not defined in a file."""
        name, module = getattr(function, "__qualname__", ""), sys.modules.get(function.__module__)
        path = getattr(module, "__file__", None)
        if path is None or not name.isidentifier():
            raise ValueError(f"{self.id}: {function!r} is not defined at the top of a Python file")
        return f"loaded({path!r}, {name!r})", (loaded,)

    def process_of(self, dtype: str, index: int) -> Function:
        """Returns the function that extracts the determined part of the result of sample number ``index``, in a form
        that can be written to a file."""
        raise NotImplementedError(f"{self.id} has no samples of its own")

    def source_of_process(self, dtype: str, index: int) -> Source:
        """Returns the expression by which a repro script refers to the function that extracts the determined part of
        the result of sample number ``index``."""
        raise NotImplementedError(f"{self.id} has no samples of its own")


@dataclass(frozen=True, slots=True)
class DeterminatePart:
    """A function that returns ``process`` of the result of ``function``: the part that the arguments determine.

    ``source`` is the expression by which a repro script refers to ``process``, with the functions that it uses."""

    function: Any
    process: Any
    source: Any = ("", ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.process(self.function(*args, **kwargs))


def loaded(path: Any, name: Any) -> Any:
    """Returns the object that a Python file defines under a name. Repro scripts contain a copy of the function."""
    spec = importlib.util.spec_from_file_location(f"loaded_for_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return getattr(module, name)


def names_of_packet(packet: str) -> tuple[str, ...]:
    """Returns the names under which ``exceptions.toml`` may list an aten op: its own, with ``aten.`` in front, and those
    of torch's op database, which lists an in-place op, such as ``add_``, under the name ``add``. ``linalg_svd`` is
    ``aten.linalg_svd``, ``linalg_svd``, ``linalg.svd`` and ``nn.functional.linalg_svd``."""
    own, packet = f"aten.{packet}", packet[:-1] if packet[-1:] == "_" else packet
    spaced = [
        space + packet.removeprefix(prefix)
        for prefix, space in _SPACES.items()
        if packet.startswith(prefix)
    ]
    return (own, packet, *spaced, f"nn.functional.{packet}")
