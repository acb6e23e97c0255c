"""Arguments and evidence as plain JSON data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.ops.calls import elements_named
from conformance.checks.ops.judgements import Judgement, Parts, read_judgements, write_judgements
from conformance.checks.ops.modes import NotReplayed
from conformance.suites.layout.reads import judge_values
from devices.errors import ConformError
from opinfo.compare import Wrong
from opinfo.encoding import ARGUMENTS, NotEncodable, read_value, write_value

VALUES: dict[str, Any] = {
    "numbers": [1, True, None, 2.5, -math.inf, complex(1, -2), "text"],
    "shapes": (torch.Size([2, 3]), slice(1, None, 2), ..., range(3)),
    "torch": [torch.float16, torch.channels_last, torch.sparse_csr],
    "maps": {0: "a", "b": (1, 2), ("c", 1): [None]},
    "sets": frozenset({3, 1}),
    "objects": Wrong("values", "1", "2", first=(0, 1)),
}


def through_json(value: Any) -> Any:
    return read_value(json.loads(json.dumps(write_value(value))))


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back(name: str) -> None:
    found = through_json(VALUES[name])
    assert found == VALUES[name] and type(found) is type(VALUES[name])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int8]
)
def test_tensors_come_back_bit_by_bit(dtype: torch.dtype) -> None:
    for shape in ((), (0, 2), (3,), (7, 9)):
        given = torch.randint(-3, 3, shape).to(dtype)
        if dtype.is_floating_point and given.numel():
            given.view(-1)[0] = math.nan
        found = through_json([given, given.mT if given.dim() > 1 else given])
        for got, want in zip(found, [given, given.mT if given.dim() > 1 else given]):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            assert torch.equal(got.nan_to_num(9), want.nan_to_num(9))


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64])
def test_lazy_bits_of_a_tensor_come_back(dtype: torch.dtype) -> None:
    """Judges compare them with those of the device."""
    given = torch.tensor([1 + 2j, -3j], dtype=torch.complex64).to(dtype)
    lazy = [given, given.conj(), torch._neg_view(given), given.conj().imag]
    if dtype == torch.complex64:  # the CPU cannot read complex32 with both bits
        lazy.append(torch._neg_view(given.conj()))
    for each in lazy:
        found = through_json(each)
        assert (found.is_conj(), found.is_neg()) == (each.is_conj(), each.is_neg())
        wide = torch.complex64 if each.is_complex() else torch.float32
        assert torch.equal(found.to(wide), each.to(wide))


def test_a_sparse_tensor_and_a_named_result_come_back() -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(through_json(sparse).to_dense(), sparse.to_dense())
    found = through_json(torch.sort(torch.tensor([2.0, 1.0])))
    assert type(found) is torch.return_types.sort and found.indices.tolist() == [1, 0]


def test_functions_of_this_project_come_back_and_others_are_refused() -> None:
    given = partial(elements_named, operand=torch.ones(2), dim=0)
    found = through_json(given)
    assert found.func is elements_named and found.keywords["operand"].tolist() == [1, 1]
    nested: Callable[[], None] = lambda: None  # noqa: E731
    for foreign in (nested, torch.add, object()):
        with pytest.raises(NotEncodable, match="cannot be written as data"):
            write_value(foreign)
    for name in ("os:system", "builtins:eval", "subprocess:run"):
        with pytest.raises(ValueError, match="is not a module of this project"):
            read_value({"function": name})


def test_exceptions_come_back_with_their_type_text_and_cause() -> None:
    given = NotReplayed("while the call was captured")
    given.__cause__ = IndexError("out of range")
    found = through_json(given)
    assert (type(found), str(found), found.stage) == (NotReplayed, str(given), given.stage)
    assert (type(found.__cause__), str(found.__cause__)) == (IndexError, "out of range")
    foreign = through_json(torch.OutOfMemoryError("no memory"))
    assert isinstance(foreign, RuntimeError)
    assert (type(foreign).__name__, str(foreign)) == ("OutOfMemoryError", "no memory")


@pytest.mark.parametrize("value", [Wrong("values"), {1: 2}, frozenset(), ValueError("x")])
def test_arguments_hold_no_evidence(value: Any) -> None:
    with pytest.raises(NotEncodable):
        write_value(value, ARGUMENTS)


def test_a_part_that_could_not_be_computed_raises_when_it_is_read(tmp_path: Path) -> None:
    class Reference:
        def frozen(self, name: str) -> Any:
            if name == "value":
                raise IndexError("no such sample")
            return 0

    path = tmp_path / "evidence.json"
    write_judgements(path, [Judgement("layout.values", judge_values, None, Reference())])
    (found,) = read_judgements(path)
    assert isinstance(found.reference, Parts) and found.reference.free == 0
    with pytest.raises(RuntimeError, match="no value: IndexError: no such sample"):
        found.reference.value  # noqa: B018


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 0, "judgements": []}', '{"format": 1, "judgements": [{"x": 1}]}'],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConformError, match="is damaged, or another version of the suite wrote it"):
        read_judgements(path)
