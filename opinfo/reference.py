"""References: what a result should be. A device is never its own.

Values: the CPU's result on contiguous copies of the inputs. Strides: the meta device, which settles nearly every call;
where it does not, FakeTensor with the device under test as its device (it branches on the device), with eager CPU as an
accepted alternative on every other device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import torch

from devices.files import cache_root as cache_root
from devices.files import file_name, write_whole
from opinfo.compare import Call, on_device, tensors_of
from opinfo.layouts import Geometry
from opinfo.shipped import answers_for, beginning
from opinfo.spot_check import is_due
from opinfo.torch_private import (
    NO_FAKE_ANSWER,
    FakeTensorMode,
    storage_id,
    version_of,
    without_modes,
)

#: Raised when the meaning of a question or an answer changes.
FORMAT = 2
#: In place of a question's name: the file has nothing that came with this package.
_DISTRUSTED = ""


class ReferenceCache:
    """Answers for one op and dtype, beside those that come with this package. ``save`` writes only what is new, through a
    rename."""

    def __init__(self, root: Path, torch_build: str, torch_type: str, name: str) -> None:
        self._about = torch_build, torch_type, file_name(name)
        folder = root / "references" / f"v{FORMAT}-{torch_build}" / torch_type
        self._path = folder / f"{file_name(name)}.json"
        self._new = False

    @cached_property
    def _answers(self) -> dict[str, Any]:
        return self._read()

    def _read(self) -> dict[str, Any]:
        # A cold cache or a damaged file costs the answers, which are computed again and overwrite it.
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any])
        return {}

    @cached_property
    def _shipped(self) -> Mapping[str, Any]:
        return answers_for(*self._about)

    def get(self, key: str) -> Any | None:
        return self._answers.get(key)

    def shipped(self, key: str) -> Any | None:
        """The answer that comes with this package."""
        return None if _DISTRUSTED in self._answers else self._shipped.get(beginning(key))

    def distrust(self) -> None:
        """An answer that comes with this package is wrong here: take none from now on, and forget those that were taken."""
        self._answers.clear()
        self.put(_DISTRUSTED, True)

    def put(self, key: str, answer: Any) -> None:
        self._answers[key] = answer
        self._new = True

    def save(self) -> None:
        """Write the file if something was added. Raises OSError if the folder cannot be written."""
        # What another worker has found wrong meanwhile, this one may hold: then all that is new here is computed again.
        if self._new and (_DISTRUSTED in self._answers or _DISTRUSTED not in self._read()):
            write_whole(self._path, msgspec.json.encode(self._answers))
        self._new = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What a reference says of one output tensor. ``alias`` is the index of the input whose storage it shares."""

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
    """A stride reference's answer: outputs, or the name of the exception raised, or no answer (with why)."""

    outputs: tuple[OutputSpec, ...] | None
    raises: str | None = None
    unavailable: str | None = None


def significant(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The strides that address memory: those of dimensions longer than 1, none for a tensor of size 0."""
    if 0 in shape:
        return ()
    return tuple([s for n, s in zip(shape, stride, strict=True) if n > 1])


def output_specs(result: Any, inputs: Sequence[torch.Tensor]) -> tuple[OutputSpec, ...]:
    """Describe the strided output tensors of a call."""
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
    """Empty FakeTensor's own cache of dispatches: it grows with every new shape, and ours holds the answers."""
    FakeTensorMode.cache_clear()


#: A device that FakeTensor takes, and that no code of torch or of a vendor is for.
_ELSEWHERE = torch.device("maia", 0)
_META = torch.device("meta")

#: Of which device an answer is: FakeTensor's of the device under test, or of one that has none of the vendor's code; or that of
#: torch's meta kernels alone, which takes a third of the time, and is wrong for some ops.
Where: TypeAlias = Literal["device", "elsewhere", "meta"]


class StrideReference:
    """FakeTensor's answers for one device type, and those of the meta device, remembered in a cache file (a miss takes 1.3
    to 2.7 ms, and 0.8 ms)."""

    def __init__(self, torch_type: str, cache: ReferenceCache | None) -> None:
        self._device = torch.device(torch_type, 0) if torch_type != "cpu" else torch.device("cpu")
        self._cache = cache
        self.asked = 0
        self.missed = 0
        self.shipped = 0  # of those asked for, answers that came with this package
        self.mistaken = False  # one of them is another here

    @cached_property
    def _mode(self) -> FakeTensorMode:
        # It keeps nothing that an answer depends on, and each that is made walks through the whole stack.
        return FakeTensorMode()

    def answer(
        self,
        name: str,
        function: Callable[..., Any],
        call: Call,
        geometries: Sequence[Geometry],
        *,
        with_offset: bool = False,
        where: Where = "device",
    ) -> StrideAnswer:
        """What FakeTensor, or the meta device, makes of ``function`` on tensors of these geometries.

        ``name`` identifies op, variant and dtype in the cache. Offsets are part of the question only where
        the answer can depend on them (views): they are 0 otherwise.
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
        call: Call,
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
            ) as exc:  # of the vendor's factories in Python, which may take no other device
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
        where: Where, name: str, call: Call, geometries: Sequence[Geometry], with_offset: bool
    ) -> str:
        """The question's name in the cache, which begins with a letter for where it is asked; empty if its answer cannot be
        kept."""
        if " at 0x" in call.form:  # an argument without a stable repr
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
    """A tensor of this geometry; under FakeTensorMode, a fake one."""
    if with_offset and geometry.offset:
        flat = torch.empty((geometry.extent,), dtype=dtype, device=device)
        return flat.as_strided(geometry.shape, geometry.stride, geometry.offset)
    return torch.empty_strided(geometry.shape, geometry.stride, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class ValueAnswer:
    """The CPU's result on contiguous copies, or the exception that it raised; ``after`` are the tensors of a call that
    mutates its arguments, as it left them."""

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
    """Run ``function`` on the CPU, on contiguous ``values``; on copies if it ``mutates`` its arguments.

    Raises MutatedInput if it does so unexpectedly: the values would be wrong from then on.
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


class MutatedInput(RuntimeError):
    """An op that is not listed as mutating writes to its arguments."""


def _encode(answer: StrideAnswer) -> Any:
    if answer.outputs is None:
        return {"raises": answer.raises, "unavailable": answer.unavailable}
    return [[o.shape, o.stride, o.offset, o.alias, o.dtype] for o in answer.outputs]


def _decode(data: Any) -> StrideAnswer | None:
    """The answer in a cache entry; None if there is none, or if it was not written by this module."""
    try:
        if isinstance(data, dict):
            return StrideAnswer(None, data["raises"], data["unavailable"])
        outputs = (OutputSpec(tuple(size), tuple(stride), *rest) for size, stride, *rest in data)
        return StrideAnswer(tuple(outputs))
    except (KeyError, TypeError, ValueError):
        return None


# -- float32 in what is compared
#
# By default, torch lets cuDNN's convolutions and recurrent networks round their operands to TF32, which has the digits of
# float16 (https://docs.pytorch.org/docs/stable/notes/cuda.html, TensorFloat-32).


@contextmanager
def ieee() -> Iterator[None]:
    """Within the block, matrix products, convolutions and recurrent networks of float32 are computed in float32."""
    matmuls, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    try:
        # torch's op database leaves no other way to set them.
        with cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            deterministic=cudnn.deterministic,
            allow_tf32=False,
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(matmuls)


#: The same in the lines of a script.
IEEE: Final = (
    'torch.set_float32_matmul_precision("highest")',
    # Not allow_tf32 = False: torch's op database, which some scripts import, forbids it.
    "torch.backends.cudnn.set_flags(_allow_tf32=False)",
)
