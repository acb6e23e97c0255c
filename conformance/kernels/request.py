"""The request to judge a kernel, as data: where the kernel and its reference are defined, what the kernel replaces, and
which checks are made."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from devices.errors import ConformError

#: The kinds of kernels. Each is loaded by the module of :mod:`conformance.kernels.forms` that has the name.
FUNCTION = "function"


class NotLoadable(ConformError):
    """The error for a function that another process cannot import."""

    exit_code = 4


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says where an object is defined: the path of a Python file and the object's name in the file. ``module`` is the
    name under which the file is imported; it is empty if the file is loaded from its path."""

    path: str
    name: str
    module: str = ""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Source:
        """Returns the Source of a function or custom op: the module and the name that refer to this very object. A
        decorated function (``functools.wraps``, ``torch.compile``) has the name of the function that it wraps, which is
        another kernel. Raises NotLoadable if another process cannot import the object."""
        for module in _modules_of(function):
            path, name = vars(module).get("__file__"), _name_in(module, function)
            if path is not None and name:
                spelled = "" if module.__name__ == "__main__" else module.__name__
                return cls(str(Path(path).resolve()), name, spelled)
        name = getattr(function, "__qualname__", "") or repr(function)
        raise NotLoadable(
            f"{name}: expected a function that is defined at module level of a Python file, "
            "because the kernel runs in another process, which imports the function; found no "
            "module in which a name refers to this object"
        )

    def load(self) -> Any:
        """Imports the file and returns the object. Raises any exception that the file raises."""
        found: Any = self.load_module()
        for part in self.name.split(".") if self.name else ():
            found = getattr(found, part)
        return found

    def load_module(self) -> Any:
        """Returns the module of the file, which is imported only once in a process."""
        if self.module:
            return importlib.import_module(self.module)
        name = f"conform_kernel_{abs(hash(self.path)):x}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, self.path)
            if spec is None or spec.loader is None:
                raise NotLoadable(f"{self.path}: expected a Python file")
            folder = str(Path(self.path).parent)
            if folder not in sys.path:  # a kernel may import its neighbours
                sys.path.append(folder)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def _modules_of(function: Any) -> Iterator[Any]:
    """Yields the loaded modules that may have a name for an object: the module that the object names, those of the
    functions that it wraps, the module of its code or class, and then every other module."""
    names: dict[str, None] = {}
    inner, seen = (
        getattr(function, "_init_fn", function),
        set[int](),
    )  # of a torch.library.CustomOpDef
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        names[getattr(inner, "__module__", None) or ""] = None
        names[getattr(inner, "__globals__", {}).get("__name__", "")] = None
        inner = getattr(inner, "__wrapped__", None)
    names[type(function).__module__] = None
    loaded = dict(sys.modules)
    found = (loaded.get(name) for name in (*names, *loaded))
    yield from (each for each in found if isinstance(each, ModuleType))


def _name_in(module: Any, function: Any) -> str:
    """Returns the name by which a module refers to an object; empty if it has none."""
    own = getattr(getattr(function, "_init_fn", function), "__qualname__", "")
    names = dict(getattr(module, "__dict__", {}))  # no attribute of a module is computed
    first, *parts = own.split(".") if own else [""]
    found = names.get(first)
    for part in parts if isinstance(found, type) else ():
        found = getattr(found, part, None)
    if own and found is function:
        return str(own)
    named = (name for name, value in names.items() if value is function)
    return next((name for name in named if name.isidentifier()), "")


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The request to judge one kernel.

    ``form`` says how the kernel is loaded. ``target`` is the op that the kernel replaces: an aten overload such as
    ``aten::softmax.int``, an overload packet such as ``aten::_softmax``, or the id of an op in torch's op database; it
    is empty if there is a ``reference``. ``samples`` says where a function is defined that yields (args, kwargs).
    ``seconds`` is the time limit of each call. With ``strides``, the strides of the results are compared; with
    ``layouts``, non-contiguous inputs are tried; with ``shapes``, samples of other shapes are added to the given ones.
    """

    kernel: Source
    form: str = FUNCTION
    target: str = ""
    reference: Source | None = None
    samples: Source | None = None
    name: str = ""
    device: str = "cpu"
    descriptor: str | None = None
    dtypes: tuple[str, ...] = ("float32",)
    seconds: float = 10.0
    load_seconds: float = 300.0
    strides: bool = True
    layouts: bool = True
    shapes: bool = True
    guard_pages: bool = True
    speed: bool = True

    @property
    def replaces(self) -> str:
        """The name of the op that the kernel replaces, or of its reference."""
        return self.target or (self.reference.name if self.reference else self.name)
