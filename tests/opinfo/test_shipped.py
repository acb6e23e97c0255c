"""The stride references that come with the package: taken, looked at, and left out where they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from opinfo import bundled_references, spot_check
from opinfo.compare import Arguments
from opinfo.layouts import CONTIGUOUS
from opinfo.reference import ReferenceCache, StrideAnswer, StrideOracle, StrideReference

BUILD = "2.13.0+cpu-abcdef"
SHAPES = [(2, 3), (4,), (1, 5, 2), (7, 7)]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, of what was asked of the CPU; nothing is computed to look at it."""
    kept = tmp_path / "kept"
    asked(kept)
    file = tmp_path / "shipped.bin"
    file.write_bytes(bundled_references.pack(next((kept / "references").iterdir())))
    monkeypatch.setattr(bundled_references, "FILE", file)
    monkeypatch.setattr(spot_check, "ONE_IN", 10**12)
    return file


def asked(
    root: Path,
    kind: str = "cpu",
    function: Callable[..., Any] = torch.neg,
    build: str = BUILD,
    places: tuple[StrideOracle, ...] = ("device", "meta"),
) -> tuple[StrideReference, list[StrideAnswer]]:
    cache = ReferenceCache(root, build, kind, "neg-float32")
    strides = StrideReference(kind, cache)
    calls = [
        (Arguments((torch.ones(shape),), {}), [CONTIGUOUS.geometry(shape)]) for shape in SHAPES
    ]
    answers = [
        strides.answer("neg", function, *call, where=where) for where in places for call in calls
    ]
    cache.save()
    return strides, answers


def test_a_first_run_computes_nothing(written: Path, tmp_path: Path) -> None:
    _, computed = asked(tmp_path / "other", build="2.13.0+cpu-0123")
    strides, taken = asked(tmp_path / "new")
    assert (strides.asked, strides.missed, strides.shipped) == (8, 0, 8) and taken == computed
    strides, again = asked(tmp_path / "new")
    assert (strides.missed, strides.shipped) == (0, 0) and again == computed


@pytest.mark.parametrize("build", ["2.13.0+cu130-abcdef", "2.13.0-abcdef"])
def test_another_build_of_the_same_commit_takes_them(
    build: str, written: Path, tmp_path: Path
) -> None:
    assert asked(tmp_path / "new", build=build)[0].shipped == 8


@pytest.mark.parametrize("build", ["2.13.0+cpu-abcde0", "abcde", "2.14.0-unknown"])
def test_another_torch_takes_none(build: str, written: Path, tmp_path: Path) -> None:
    assert asked(tmp_path / "new", build=build)[0].shipped == 0


def test_another_type_of_device_takes_what_depends_on_none(written: Path, tmp_path: Path) -> None:
    assert asked(tmp_path / "a", "cuda", places=("meta",))[0].shipped == len(SHAPES)
    assert asked(tmp_path / "b", "cuda", places=("device",))[0].shipped == 0


@pytest.mark.parametrize("content", [b"", b"x\x9c", b"\xff" * 40, None])
def test_a_file_that_cannot_be_read_costs_its_answers(
    content: bytes | None, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "damaged.bin"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(bundled_references, "FILE", file)
    strides, _ = asked(tmp_path / "new")
    assert (strides.missed, strides.shipped) == (8, 0)


def test_a_wrong_one_is_seen_and_none_is_taken_again(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def transposed(tensor: torch.Tensor) -> torch.Tensor:  # what a vendor has made of the op
        return torch.neg(tensor).t() if tensor.dim() == 2 else torch.neg(tensor)

    monkeypatch.setattr(spot_check, "ONE_IN", 1)
    strides, found = asked(tmp_path / "new", function=transposed)
    assert strides.mistaken and strides.shipped == 0
    assert found[0].outputs is not None and found[0].outputs[0].shape == (3, 2)
    monkeypatch.setattr(spot_check, "ONE_IN", 10**12)
    strides, again = asked(tmp_path / "new", function=transposed)
    assert not strides.mistaken and strides.shipped == 0 and again == found


def test_those_taken_before_it_are_forgotten(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot_check._CHANCE, "random", iter([1.0, 1.0, 0.0] + [1.0] * 9).__next__)
    monkeypatch.setattr(spot_check, "ONE_IN", 2)
    strides, _ = asked(tmp_path / "new", function=lambda t: torch.neg(t).sum())
    assert strides.mistaken and strides.shipped == 2
    (path,) = (tmp_path / "new").rglob("*.json")
    kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    assert len(kept) == 1 + 6  # its mark, and those that were computed


def test_what_another_worker_found_wrong_is_not_written_back(written: Path, tmp_path: Path) -> None:
    slow = ReferenceCache(tmp_path, BUILD, "cpu", "neg-float32")
    slow.put("m1", [])  # taken before
    quick = ReferenceCache(tmp_path, BUILD, "cpu", "neg-float32")
    quick.distrust()
    quick.save()
    slow.save()
    found = ReferenceCache(tmp_path, BUILD, "cpu", "neg-float32")
    assert found.get("m1") is None and found.shipped("m1") is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "expected folders of devices"),
        ({"d" * 24: []}, "in the current format"),
        ({"": True, "m" + "0" * 24: []}, "computed without the shipped references"),
    ],
)
def test_what_is_no_whole_folder_is_not_packed(
    content: dict[str, Any] | None, text: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "neg-float32.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(ValueError, match=text):
        bundled_references.pack(tmp_path)


def test_the_file_of_the_package_is_for_the_torch_that_it_is_tested_with() -> None:
    found = bundled_references._read_file(bundled_references.FILE)
    assert found is not None and torch.__version__.startswith("2.13.0")
    assert found.commit == str(torch.version.git_version)[:12]
    for of in (each for by_name in found.by_type.values() for each in by_name.values()):
        keys = [
            of.keys[at : at + bundled_references._SIZE]
            for at in range(0, len(of.keys), bundled_references._SIZE)
        ]
        assert len(set(keys)) == len(of.places) and max(of.places) < len(found.answers)
