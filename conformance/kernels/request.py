"""The request to judge a kernel, as data: where the kernel and its reference are defined, what the kernel replaces, and
which checks are made."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from devices.errors import ConformError

#: The kinds of kernels. Each is loaded by the module of :mod:`conformance.kernels.forms` that has the name.
FUNCTION = "function"


class NotLoadable(ConformError):
    """The error for a function that another process cannot import."""

    exit_code = 4


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place where an object is defined: the path of a Python file and the object's name in the file. ``module`` is
    the name under which the file is imported; it is empty if the file is loaded from its path."""

    path: str
    name: str
    module: str = ""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Source:
        """Returns the place where a function or custom op is defined. Raises NotLoadable if another process cannot
        import it."""
        inner = getattr(function, "_init_fn", function)  # of a torch.library.CustomOpDef
        name, module = getattr(inner, "__qualname__", ""), getattr(inner, "__module__", "") or ""
        path = getattr(sys.modules.get(module), "__file__", None)
        if path is None or not all(map(str.isidentifier, name.split("."))):
            raise NotLoadable(
                f"{name or function!r}: expected a function that is defined at module level of "
                "a Python file, because the kernel runs in another process, which imports the "
                "function"
            )
        return cls(str(Path(path).resolve()), name, "" if module == "__main__" else module)

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


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The request to judge one kernel.

    ``form`` says how the kernel is loaded. ``target`` is the op that the kernel replaces: an aten overload such as
    ``aten::softmax.int``, an overload packet such as ``aten::_softmax``, or the id of an op in torch's op database; it
    is empty if there is a ``reference``. ``samples`` is the place of a function that yields (args, kwargs). ``seconds``
    is the time limit of each call. With ``strides``, the strides of the results are compared; with ``layouts``,
    non-contiguous inputs are tried; with ``shapes``, samples of other shapes are added to the given ones.
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
