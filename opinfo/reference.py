"""Functions that compute references, which are the expected results of calls. A device is never its own reference.

Expected values are the CPU's result on contiguous copies of the inputs. Expected strides come from the meta device,
which supports nearly every call. For calls that it does not support, they come from FakeTensor with the device under
test, because FakeTensor distinguishes devices. On every device except the CPU, the strides of eager CPU are accepted as
well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from devices.files import cache_root as cache_root
from devices.files import file_name, write_whole
from opinfo.bundled_references import answers_for, beginning
from opinfo.compare import Arguments, on_device, tensors_of
from opinfo.layouts import Geometry
from opinfo.spot_check import is_due
from opinfo.torch_private import (
    NO_FAKE_ANSWER,
    FakeTensorMode,
    storage_id,
    version_of,
    without_modes,
)

#: The version of the cache's format. Increase it if the meaning of a question or an answer changes.
FORMAT = 2
#: The key of a cache entry that says: do not use shipped answers for this op and dtype.
_DISTRUSTED = ""


class ReferenceCache:
    """Cached stride references of one op and dtype. References that are shipped with the package are used too. ``save``
    replaces the file atomically, and only if the cache has new references."""

    def __init__(self, root: Path, torch_build: str, torch_type: str, name: str) -> None:
        self._about = torch_build, torch_type, file_name(name)
        folder = root / "references" / f"v{FORMAT}-{torch_build}" / torch_type
        self._path = folder / f"{file_name(name)}.json"
        self._new = False

    @cached_property
    def _answers(self) -> dict[str, Any]:
        return self._read_file()

    def _read_file(self) -> dict[str, Any]:
        # If the file is missing or damaged, answers are computed again and the file is replaced.
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any])
        return {}

    @cached_property
    def _shipped(self) -> Mapping[str, Any]:
        return answers_for(*self._about)

    def get(self, key: str) -> Any | None:
        return self._answers.get(key)

    def shipped(self, key: str) -> Any | None:
        """Returns the stride reference that is shipped with the package, if it exists and is trusted; otherwise
        None."""
        return None if _DISTRUSTED in self._answers else self._shipped.get(beginning(key))

    def distrust(self) -> None:
        """Stops using shipped stride references for the op and dtype, because one of them was wrong. Removes the
        shipped references that were already used."""
        self._answers.clear()
        self.put(_DISTRUSTED, True)

    def put(self, key: str, answer: Any) -> None:
        self._answers[key] = answer
        self._new = True

    def save(self) -> None:
        """Writes the file if the cache has new references. Raises OSError if the folder cannot be written."""
        # If another worker has meanwhile found a shipped answer to be wrong, the new entries here may include it, so they are not
        # written and will be computed again.
        if self._new and (_DISTRUSTED in self._answers or _DISTRUSTED not in self._read_file()):
            write_whole(self._path, msgspec.json.encode(self._answers))
        self._new = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The properties that a reference requires of one output tensor. ``alias`` is the index of the input whose storage
    the output shares."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    alias: int | None
    dtype: str

    @property
    def significant(self) -> tuple[int, ...]:
        return significant(self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class StrideAnswer:
    """The result of a stride reference for one call: the outputs, or the type of the exception that was raised, or the
    reason why no reference is available."""

    outputs: tuple[OutputSpec, ...] | None
    raises: str | None = None
    unavailable: str | None = None


def significant(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides that matter, which are those of dimensions longer than 1; an empty tuple if the tensor has no
    elements."""
    if 0 in shape:
        return ()
    return tuple([s for n, s in zip(shape, stride, strict=True) if n > 1])


def output_specs(result: Any, inputs: Sequence[torch.Tensor]) -> tuple[OutputSpec, ...]:
    """Returns a description of each strided output tensor of a call."""
    storages = {storage_id(t): i for i, t in reversed(list(enumerate(inputs)))}
    return tuple(
        OutputSpec(
            tuple(t.shape),
            tuple(t.stride()),
            int(t.storage_offset()),
            storages.get(storage_id(t)),
            str(t.dtype).removeprefix("torch."),
        )
        for t in tensors_of(result)
        if t.layout == torch.strided
    )


def forget_dispatches() -> None:
    """Clears FakeTensor's own cache, which grows with every new shape. The results are cached by ReferenceCache."""
    FakeTensorMode.cache_clear()


#: A device type that FakeTensor accepts, and for which neither torch nor a vendor has code.
_ELSEWHERE = torch.device("maia", 0)
_META = torch.device("meta")

#: Where a stride answer comes from. "device": FakeTensor with the device under test. "elsewhere": FakeTensor with a device
#: that has no vendor code. "meta": torch's meta kernels, which take a third of the time and are wrong for some ops.
StrideOracle: TypeAlias = Literal["device", "elsewhere", "meta"]


class StrideReference:
    """Computes expected strides with FakeTensor for one device type, and with the meta device. The results are cached
    in a file; computing one takes about 2 ms (FakeTensor) or 1 ms (meta device)."""

    def __init__(self, torch_type: str, cache: ReferenceCache | None) -> None:
        self._device = torch.device(torch_type, 0) if torch_type != "cpu" else torch.device("cpu")
        self._cache = cache
        self.asked = 0
        self.missed = 0
        self.shipped = 0  # how many answers were shipped with the package
        self.mistaken = False  # whether a shipped answer was found to be wrong

    @cached_property
    def _mode(self) -> FakeTensorMode:
        # One mode for all questions: it keeps no state that an answer depends on, and creating one is slow.
        return FakeTensorMode()

    def answer(
        self,
        name: str,
        function: Callable[..., Any],
        call: Arguments,
        geometries: Sequence[Geometry],
        *,
        with_offset: bool = False,
        where: StrideOracle = "device",
    ) -> StrideAnswer:
        """Returns the outputs of ``function`` for inputs of the given geometries, according to FakeTensor or the meta
        device.

        ``name`` identifies op, variant and dtype in the cache. Storage offsets are 0 unless ``with_offset`` is true,
        which is needed for ops whose outputs can depend on them (views).
        """
        self.asked += 1
        if where == "elsewhere" and self._device.type == "cpu":
            where = "device"
        device = {"device": self._device, "elsewhere": _ELSEWHERE, "meta": _META}[where]
        key = self._key(where, name, call, geometries, with_offset)
        cache = self._cache if key else None
        given = None
        if cache is not None:
            if (found := _decode(cache.get(key))) is not None:
                return found
            given = _decode(cache.shipped(key))
            if given is not None and not is_due():
                self.shipped += 1
                cache.put(key, _encode(given))
                return given
        self.missed += 1
        answer = self._compute(function, call, geometries, with_offset, device)
        if cache is not None:
            if given is not None and answer != given:
                self.mistaken = True
                cache.distrust()
            cache.put(key, _encode(answer))
        return answer

    def _compute(
        self,
        function: Callable[..., Any],
        call: Arguments,
        geometries: Sequence[Geometry],
        with_offset: bool,
        device: torch.device,
    ) -> StrideAnswer:
        if any(t.layout != torch.strided for t in call.tensors):
            return StrideAnswer(None, unavailable="an input is not strided")
        with without_modes(), nullcontext() if device is _META else self._mode:
            inputs = list(zip((t.dtype for t in call.tensors), geometries, strict=True))
            try:
                fakes = [fake_strided(*each, device, with_offset) for each in inputs]
            except (
                Exception
            ) as exc:  # a vendor's factory function in Python may reject other devices
                if device is _META:
                    return StrideAnswer(None, unavailable=type(exc).__name__)
                device = _ELSEWHERE
                fakes = [fake_strided(*each, device, with_offset) for each in inputs]
            args, kwargs = call.bind(fakes)
            try:
                result = function(*args, **on_device(kwargs, device))
                if device is _META and any(t.device != _META for t in tensors_of(result)):
                    return StrideAnswer(None, unavailable="not of the meta device")
                return StrideAnswer(output_specs(result, fakes))
            except NO_FAKE_ANSWER as exc:
                return StrideAnswer(None, unavailable=type(exc).__name__)
            except Exception as exc:  # whatever the call raises is the answer
                return StrideAnswer(None, raises=type(exc).__name__)

    @staticmethod
    def _key(
        where: StrideOracle,
        name: str,
        call: Arguments,
        geometries: Sequence[Geometry],
        with_offset: bool,
    ) -> str:
        """Returns the key under which the strides of a call are cached. Its first letter says whether they come from
        FakeTensor or from the meta device. The key is empty if the strides cannot be cached."""
        if (
            " at 0x" in call.form
        ):  # the repr of an argument contains an address, so the key would not be stable
            return ""
        operands = [
            (str(t.dtype), g.shape, g.stride, g.offset if with_offset else 0)
            for t, g in zip(call.tensors, geometries, strict=True)
        ]
        text = f"{name} {call.form} {operands}"
        return where[0] + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def fake_strided(
    dtype: torch.dtype, geometry: Geometry, device: torch.device, with_offset: bool
) -> torch.Tensor:
    """Returns a tensor of the given geometry. Under FakeTensorMode the tensor is fake."""
    if with_offset and geometry.offset:
        flat = torch.empty((geometry.extent,), dtype=dtype, device=device)
        return flat.as_strided(geometry.shape, geometry.stride, geometry.offset)
    return torch.empty_strided(geometry.shape, geometry.stride, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class ValueAnswer:
    """The CPU's result on contiguous copies, or the exception that was raised. ``after`` has the tensors after a call
    that mutates its arguments."""

    result: Any
    raises: BaseException | None = None
    after: Sequence[torch.Tensor] = ()


def value_answer(
    function: Callable[..., Any],
    arguments: Callable[[list[torch.Tensor], torch.device], Any],
    values: Sequence[torch.Tensor],
    *,
    mutates: bool = False,
) -> ValueAnswer:
    """Calls ``function`` on the CPU with contiguous ``values``, or with copies of them if it ``mutates`` its arguments,
    and returns the result.

    Raises MutatedInput if the function changes an argument unexpectedly, because later references would then be wrong.
    """
    if mutates:
        values = [v.clone() for v in values]
    versions = [version_of(v) for v in values]
    args, kwargs = arguments(list(values), torch.device("cpu"))
    try:
        answer = ValueAnswer(function(*args, **kwargs), after=values if mutates else ())
    except Exception as exc:  # whatever the call raises is the answer
        answer = ValueAnswer(None, exc)
    if not mutates and [version_of(v) for v in values] != versions:
        raise MutatedInput(
            "the CPU changed an argument of an op that is not in a family mutates.* of opinfo/exceptions.toml"
        )
    return answer


#: The functions whose argument ``eps``, the fourth, is by default the machine epsilon of the operands' dtype. In torch,
#: ``torch.nn.functional``, ``torch.ops.aten`` and ``torch.Tensor``, they have the same name and the same arguments.
_DEFAULT_IS_EPSILON = ("rms_norm", "_fused_rms_norm")
_PLACE_OF_EPS = 3


class EpsilonOf(TorchFunctionMode):
    """Within this mode, functions whose default epsilon depends on the dtype of the operands take that of ``kind``, also for
    operands in float64. For the 16-bit dtypes it is that of float32, in which torch computes.

    Without the mode, the result in float64 would have another epsilon: for small operands it would be the result of
    another function, and not a more precise one.
    """

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.eps = torch.finfo(torch.float64 if kind is torch.float64 else torch.float32).eps

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(getattr(func, "__name__", "")).partition(".")[0]
        given = args[_PLACE_OF_EPS] if len(args) > _PLACE_OF_EPS else kwargs.get("eps")
        if name in _DEFAULT_IS_EPSILON and given is None:
            args, kwargs = args[:_PLACE_OF_EPS], {**kwargs, "eps": self.eps}
        return func(*args, **kwargs)


def epsilon_of(values: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
    """Returns the mode :class:`EpsilonOf` for the dtype of the first floating-point tensor; a context that changes nothing
    if there is none."""
    kinds = (each.dtype for each in values if each.is_floating_point())
    kind = next(kinds, None)
    return nullcontext() if kind is None else EpsilonOf(kind)


class MutatedInput(RuntimeError):
    """The error for an op that has changed its arguments although it is not listed as mutating."""


def _encode(answer: StrideAnswer) -> Any:
    if answer.outputs is None:
        return {"raises": answer.raises, "unavailable": answer.unavailable}
    return [[o.shape, o.stride, o.offset, o.alias, o.dtype] for o in answer.outputs]


def _decode(data: Any) -> StrideAnswer | None:
    """Returns the stride reference in a cache entry; None if the entry is missing or was written by another version."""
    try:
        if isinstance(data, dict):
            return StrideAnswer(None, data["raises"], data["unavailable"])
        outputs = (OutputSpec(tuple(size), tuple(stride), *rest) for size, stride, *rest in data)
        return StrideAnswer(tuple(outputs))
    except (KeyError, TypeError, ValueError):
        return None


# -- full float32 precision in comparisons
#
# By default, torch lets cuDNN's convolutions and recurrent networks round their operands to TF32, which has the precision
# of float16 (https://docs.pytorch.org/docs/stable/notes/cuda.html, TensorFloat-32).


@contextmanager
def ieee() -> Iterator[None]:
    """Makes torch compute float32 matrix products, convolutions and recurrent networks in full float32 within the
    context."""
    matmuls, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    try:
        # torch's op database forbids setting the flags directly.
        with cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            deterministic=cudnn.deterministic,
            allow_tf32=False,
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(matmuls)


#: The lines of a repro script that do the same as ``ieee``.
IEEE: Final = (
    'torch.set_float32_matmul_precision("highest")',
    # torch.backends.cudnn.allow_tf32 = False would not do: torch's op database, which some scripts import, forbids it.
    "torch.backends.cudnn.set_flags(_allow_tf32=False)",
)
