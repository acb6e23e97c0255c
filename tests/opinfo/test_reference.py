"""References: FakeTensor's strides, the CPU's values, and the cache file of the former."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opinfo import reference as references
from opinfo.compare import Arguments
from opinfo.layouts import Geometry, Layout
from opinfo.reference import (
    MutatedInput,
    ReferenceCache,
    StrideAnswer,
    StrideReference,
    cache_root,
    output_specs,
    significant,
    value_answer,
)

ONE = torch.arange(24.0).reshape(2, 3, 4)


def on_cpu(cache: ReferenceCache | None = None) -> StrideReference:
    return StrideReference("cpu", cache)


def ask(
    reference: StrideReference,
    function: Callable[..., Any],
    *tensors: torch.Tensor,
    layout: str = "contiguous",
    name: str = "op",
    with_offset: bool = False,
    **kwargs: Any,
) -> StrideAnswer:
    geometries = [Layout.parse(layout).geometry(t.shape) for t in tensors]
    return reference.answer(
        name, function, Arguments(tensors, kwargs), geometries, with_offset=with_offset
    )


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    geometry = Layout.parse(layout).geometry(tensor.shape)
    base = torch.zeros(geometry.extent)
    return base.as_strided(geometry.shape, geometry.stride, geometry.offset)


def new_cache(root: Path, name: str = "add-float32") -> ReferenceCache:
    return ReferenceCache(root, "2.13.0-abc", "cpu", name)


def the_file(root: Path) -> Path:
    (path,) = (p for p in root.rglob("*") if p.is_file())
    return path


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "reversed+step_outer+offset"])
def test_fake_tensor_says_of_add_what_eager_gives(layout: str) -> None:
    tensor = laid_out(ONE, layout)
    eager = output_specs(torch.add(tensor, tensor), [tensor, tensor])
    answer = ask(on_cpu(), torch.add, ONE, ONE, layout=layout)
    assert answer.outputs is not None
    assert [o.significant for o in answer.outputs] == [o.significant for o in eager]
    assert (answer.outputs[0].shape, answer.outputs[0].dtype) == ((2, 3, 4), "float32")
    assert answer.outputs[0].alias is None


def test_a_view_names_the_input_that_it_shares_storage_with() -> None:
    def second_s_rows(_: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return other[1:]

    answer = ask(on_cpu(), second_s_rows, ONE, ONE, layout="contiguous+offset", with_offset=True)
    assert answer.outputs is not None
    assert (answer.outputs[0].alias, answer.outputs[0].offset) == (1, 17 + 12)


def test_a_call_that_is_refused_gives_the_exception_s_name() -> None:
    answer = ask(on_cpu(), torch.mm, torch.zeros(2, 3), torch.zeros(2, 3))
    assert (answer.outputs, answer.raises, answer.unavailable) == (None, "RuntimeError", None)


def test_what_the_device_s_own_code_refuses_is_not_refused_elsewhere(tmp_path: Path) -> None:
    def broken(given: torch.Tensor) -> torch.Tensor:
        if given.device.type == "xla":
            raise AttributeError("its module has no such function")
        return given + 1

    reference = StrideReference("xla", new_cache(tmp_path))
    geometries = [Layout.parse("contiguous").geometry(ONE.shape)]
    for _ in range(2):  # computed, then from the cache
        here, there = (
            reference.answer("op", broken, Arguments((ONE,), {}), geometries, where=where)
            for where in ("device", "elsewhere")
        )
        assert (here.raises, there.raises) == ("AttributeError", None)
    wrong = reference.answer(
        "mm", torch.mm, Arguments((ONE, ONE), {}), geometries * 2, where="elsewhere"
    )
    assert wrong.raises == "RuntimeError"


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "contiguous+step_inner+offset"])
@pytest.mark.parametrize("function", [torch.exp, torch.softmax, torch.cumsum, torch.sum])
def test_the_meta_device_answers_as_fake_tensor_does(
    function: Callable[..., Any], layout: str
) -> None:
    given = torch.ones(3, 4)
    call = Arguments((given,), {} if function is torch.exp else {"dim": 1})
    geometries = [Layout.parse(layout).geometry(given.shape)]
    fake, meta = (
        on_cpu().answer("op", function, call, geometries, where=where)
        for where in ("device", "meta")
    )
    assert fake.outputs is not None and meta.outputs == fake.outputs


def test_the_meta_device_has_no_answer_for_what_is_not_on_it() -> None:
    geometries = [Layout.parse("contiguous").geometry(ONE.shape)]
    for function in (torch.nonzero, lambda given: torch.ones(2)):
        answer = on_cpu().answer("op", function, Arguments((ONE,), {}), geometries, where="meta")
        assert answer.outputs is None and answer.unavailable


def test_a_shape_that_depends_on_data_has_no_answer() -> None:
    answer = ask(on_cpu(), torch.nonzero, ONE)
    assert answer.outputs is None and answer.raises is None
    assert answer.unavailable == "DynamicOutputShapeException"


def test_sparse_inputs_have_no_answer() -> None:
    sparse = torch.eye(2).to_sparse()
    answer = on_cpu().answer(
        "op", torch.neg, Arguments((sparse,), {}), [Geometry((2, 2), (), 0, 0)]
    )
    assert answer.unavailable == "an input is not strided"


def test_a_device_named_in_the_arguments_is_the_reference_s() -> None:
    answer = ask(on_cpu(), torch.zeros_like, ONE, device="meta")
    assert answer.outputs is not None and answer.outputs[0].stride == (12, 4, 1)


@pytest.mark.parametrize(
    ("shape", "stride", "kept"),
    [
        ((2, 3), (3, 1), (3, 1)),
        ((2, 1, 3), (3, 99, 1), (3, 1)),
        ((1, 1), (7, 9), ()),
        ((2, 0), (5, 1), ()),
        ((), (), ()),
    ],
)
def test_strides_of_dimensions_of_size_1_and_of_empty_tensors_mean_nothing(
    shape: tuple[int, ...], stride: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert significant(shape, stride) == kept


def test_an_op_that_mutates_is_given_copies() -> None:
    given = torch.ones(2)
    answer = value_answer(torch.Tensor.add_, Arguments((given, 5), {}).on, [given], mutates=True)
    assert answer.result.tolist() == [6.0, 6.0] and given.tolist() == [1.0, 1.0]


def test_an_op_that_mutates_unannounced_is_an_error() -> None:
    given = torch.ones(2)
    with pytest.raises(MutatedInput, match="exceptions.toml"):
        value_answer(torch.Tensor.add_, Arguments((given, 5), {}).on, [given])


def test_a_value_that_raises_is_an_answer() -> None:
    answer = value_answer(torch.mm, Arguments((ONE, ONE), {}).on, [ONE, ONE])
    assert isinstance(answer.raises, RuntimeError) and answer.result is None


# -- the cache


def test_a_question_is_computed_once(tmp_path: Path) -> None:
    reference = on_cpu(new_cache(tmp_path))
    first, second = ask(reference, torch.add, ONE, ONE), ask(reference, torch.add, ONE, ONE)
    assert first == second and (reference.asked, reference.missed) == (2, 1)


@pytest.mark.parametrize(
    "function", [torch.add, torch.nonzero, torch.mm], ids=["outputs", "no answer", "raises"]
)
def test_every_kind_of_answer_survives_the_file(
    tmp_path: Path, function: Callable[..., Any]
) -> None:
    tensors = (ONE,) if function is torch.nonzero else (ONE, ONE)
    cache = new_cache(tmp_path)
    written = ask(on_cpu(cache), function, *tensors)
    cache.save()
    reference = on_cpu(new_cache(tmp_path))
    assert ask(reference, function, *tensors) == written and reference.missed == 0


@pytest.mark.parametrize(("with_offset", "missed"), [(False, 1), (True, 2)])
def test_an_offset_is_part_of_the_question_for_views_alone(
    tmp_path: Path, with_offset: bool, missed: int
) -> None:
    reference = on_cpu(new_cache(tmp_path))
    for layout in ("contiguous", "contiguous+offset"):
        ask(reference, torch.neg, ONE, layout=layout, with_offset=with_offset)
    assert reference.missed == missed


def test_whatever_the_answer_depends_on_is_part_of_the_question(tmp_path: Path) -> None:
    reference = on_cpu(new_cache(tmp_path))
    ask(reference, torch.sum, ONE, dim=0)
    ask(reference, torch.sum, ONE, dim=1)
    ask(reference, torch.sum, ONE.double(), dim=1)
    ask(reference, torch.sum, ONE[:1], dim=1)
    ask(reference, torch.sum, ONE, layout="transposed", dim=1)
    ask(reference, torch.sum, ONE, name="other", dim=1)
    assert reference.missed == reference.asked == 6


def test_an_argument_without_a_stable_text_is_never_remembered(tmp_path: Path) -> None:
    reference = on_cpu(new_cache(tmp_path))

    def with_object(tensor: torch.Tensor, marker: object) -> torch.Tensor:
        return tensor + 1

    for _ in range(2):
        ask(reference, with_object, ONE, marker=object())
    assert reference.missed == 2


def test_without_a_cache_every_question_is_computed() -> None:
    reference = on_cpu(None)
    for _ in range(2):
        ask(reference, torch.neg, ONE)
    assert reference.missed == 2


def test_answers_come_back_from_the_file(tmp_path: Path) -> None:
    cache = new_cache(tmp_path)
    cache.put("a", [[2, 3], [3, 1], 0, None, "float32"])
    cache.save()
    assert new_cache(tmp_path).get("a") == [[2, 3], [3, 1], 0, None, "float32"]
    assert new_cache(tmp_path).get("b") is None


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b"[1, 2]", b'{"a": 1', b"\xff\xfe", b"null"], ids=repr
)
def test_a_damaged_file_is_computed_anew_and_written_over(tmp_path: Path, damaged: bytes) -> None:
    cache = new_cache(tmp_path)
    first = ask(on_cpu(cache), torch.add, ONE, ONE)
    cache.save()
    the_file(tmp_path).write_bytes(damaged)
    again = new_cache(tmp_path)
    reference = on_cpu(again)
    assert ask(reference, torch.add, ONE, ONE) == first and reference.missed == 1
    again.save()
    reference = on_cpu(new_cache(tmp_path))
    assert ask(reference, torch.add, ONE, ONE) == first and reference.missed == 0


@pytest.mark.parametrize("answer", ["[[1]]", '{"raises": 1}', "7", "[[[2], [1], 0, null]]"])
def test_an_entry_of_another_form_is_computed_anew(tmp_path: Path, answer: str) -> None:
    cache = new_cache(tmp_path)
    first = ask(on_cpu(cache), torch.add, ONE, ONE)
    cache.save()
    path = the_file(tmp_path)
    key = path.read_text().split('"')[1]
    path.write_text(f'{{"{key}": {answer}}}')
    reference = on_cpu(new_cache(tmp_path))
    assert ask(reference, torch.add, ONE, ONE) == first and reference.missed == 1


def test_a_file_is_replaced_at_once_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_cache(tmp_path)
    first.put("a", 1)
    first.save()
    path = the_file(tmp_path)
    replaced: list[tuple[bytes, bytes]] = []
    rename = os.replace

    def watched(source: str, target: Path) -> None:
        replaced.append((Path(source).read_bytes(), Path(target).read_bytes()))
        assert Path(source).parent == Path(target).parent  # a rename within one file system
        rename(source, target)

    monkeypatch.setattr(os, "replace", watched)
    second = new_cache(tmp_path)
    second.put("b", 2)
    second.save()
    assert replaced == [(b'{"a":1,"b":2}', b'{"a":1}')]
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_cache(tmp_path)
    first.put("a", 1)
    first.save()
    path = the_file(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    second = new_cache(tmp_path)
    second.put("b", 2)
    with pytest.raises(OSError, match="No space left"):
        second.save()
    assert list(path.parent.iterdir()) == [path] and path.read_bytes() == b'{"a":1}'


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    new_cache(tmp_path).save()
    assert list(tmp_path.iterdir()) == []


def test_builds_device_types_and_ops_do_not_share_a_file(tmp_path: Path) -> None:
    for build, kind, name in (
        ("2.13.0-abc", "cpu", "add-float32"),
        ("2.12.0-abc", "cpu", "add-float32"),
        ("2.13.0-abc", "cuda", "add-float32"),
        ("2.13.0-abc", "cpu", "add-int64"),
    ):
        cache = ReferenceCache(tmp_path, build, kind, name)
        assert cache.get("a") is None
        cache.put("a", name)
        cache.save()
    assert len(list(tmp_path.rglob("*.json"))) == 4


def test_a_name_that_is_no_file_name_is_made_one(tmp_path: Path) -> None:
    cache = new_cache(tmp_path, "torch.ops.aten::x/../y-float32")
    cache.put("a", 1)
    cache.save()
    assert the_file(tmp_path).parent.name == "cpu"


def test_the_cache_is_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CONFORMANCE_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("TORCH_CONFORMANCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache_root() == Path("/some/where/torch-conformance")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "torch-conformance"


def test_a_device_whose_factories_cannot_be_faked_is_asked_about_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Factories that a vendor wrote in Python give real tensors under FakeTensor too."""
    wanted = ask(on_cpu(), torch.neg, ONE, layout="transposed")
    make = references.fake_strided

    def made(dtype: Any, geometry: Any, device: torch.device, with_offset: bool) -> torch.Tensor:
        if device.type == "cpu":
            raise RuntimeError("already associated to a python object")
        return make(dtype, geometry, device, with_offset)

    monkeypatch.setattr(references, "fake_strided", made)
    found = ask(on_cpu(), torch.neg, ONE, layout="transposed")
    assert found.outputs is not None and found == wanted
