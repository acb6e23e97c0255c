"""What kind of failure a message tells of, and where."""

from __future__ import annotations

import pytest

from devices.cell import CellKey, Outcome, Verdict
from reports.deviation import bare, deviation, kind_of, place_of, shown_layout
from reports.model import CellResult

CELL = CellKey("layout.values", "add", "float32")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("3 of 6 elements differ; first at [1]: expected 1.0, got nan", "values"),
        ("out 0 does not hold the functional result: 2 of 2 elements differ", "values"),
        ("output strides [(2, 1)]; FakeTensor says [(1, 2)]", "strides"),
        ("output 0: storage offset 0, the reference says 1", "storage offset"),
        ("self was moved or restrided: (2,) became (1,)", "moved or restrided"),
        ("output 0 shares its storage with input 0", "aliasing"),
        ("output 0: does not share the storage of input 0, the reference does", "no aliasing"),
        ("output 0 needs 12 bytes of a storage of 8", "storage too small"),
        ("8 bytes outside input 0 changed, first at storage byte 4", "bytes outside changed"),
        ("input 0 changed: 0 bytes of its elements, 4 between them", "bytes between elements changed"),
        ("input 0 changed: 10 bytes of its elements, 0 between them", "input changed"),
        ("dtype torch.float32 expected, torch.float64 came", "dtype"),
        ("shape (2, 3) expected, (3, 2) came", "shape"),
        ("did not raise although the result has another shape", "no exception"),
        ("returned a result where the CPU raises RuntimeError: no", "no exception"),
        ("wrote to overlapping memory without an error or a warning", "no exception"),
        ("a non-empty out= of another shape was resized without a warning", "no warning"),
        ("one of two equal calls raised, the other did not", "not deterministic"),
        ("relative error 0.01 against float64; float32 leaves less than 1e-05", "precision lost"),
        ("output 0: conj bit False, the CPU's is True", "conj or neg bit"),
        ("raised RuntimeError: expected a dense tensor; the reference does not raise", "raised RuntimeError"),
        ("has the identity 1, raised IndexError: none", "raised IndexError"),
    ],
)  # fmt: skip
def test_a_message_has_a_kind(message: str, kind: str) -> None:
    assert deviation(message) == kind
    assert deviation(f"[transposed/contiguous] {message} (3 failing checks of 9)") == kind


def test_the_exception_that_decided_goes_before_the_words() -> None:
    assert deviation("shape (2,) expected", "ValueError") == "raised ValueError"


def test_an_unknown_message_is_its_own_kind_without_its_numbers() -> None:
    assert deviation("lost 17 bats and -3.5e+07 owls") == "lost # bats and # owls"
    assert deviation("") == "no message"


def test_layout_and_count_are_taken_off_a_cell_s_message() -> None:
    message = "[out=reversed+offset] wrong [1] (2 failing checks of 5)"
    assert (shown_layout(message), bare(message)) == ("out=reversed+offset", "wrong [1]")
    assert (shown_layout("wrong [1]"), bare("wrong [1]")) == ("", "wrong [1]")


@pytest.mark.parametrize(
    ("outcome", "message", "raises", "kind"),
    [
        (Outcome.FAIL, "[transposed] 1 of 2 elements differ", None, "values"),
        (Outcome.CRASH, "worker gw1 killed by SIGSEGV", None, "crash: killed by SIGSEGV"),
        (Outcome.CRASH, "worker gw0 killed by SIGSEGV", None, "crash: killed by SIGSEGV"),
        (Outcome.HANG, "", None, "hang"),
        (Outcome.UNSUPPORTED, "no", "NotImplementedError", "unsupported: NotImplementedError"),
        (Outcome.ERROR, "no check was executed: …", None, "error: nothing checked"),
        (Outcome.PASS, "", None, "pass"),
    ],
)
def test_every_outcome_has_a_kind(
    outcome: Outcome, message: str, raises: str | None, kind: str
) -> None:
    result = CellResult(CELL, outcome, Verdict.REGRESSION, message=message, raises=raises)
    assert kind_of(result) == kind


@pytest.mark.parametrize(
    ("layouts", "place"),
    [
        ((), ""),
        (("contiguous", "transposed"), "contiguous"),
        (("contiguous+step_inner+offset", "contiguous+step_outer"), "step"),
        (("transposed+step_inner", "reversed"), "order"),
        (("contiguous+step_outer+expand_last+offset",), "step+expand+offset"),
        (("transposed/contiguous",), "order"),
        (("contiguous+offset/channels_last",), "order+offset"),
        (("out=transposed", "out=contiguous+step_inner"), "out=order"),
        (("out=contiguous",), "out=contiguous"),
        (("out=wrong_shape",), "out=wrong_shape"),
        (("nan_strided",), "nan_strided"),
        (("pinned:0011aabb",), "pinned:0011aabb"),
    ],
)
def test_the_place_is_that_of_the_simplest_layout(layouts: tuple[str, ...], place: str) -> None:
    assert place_of(layouts) == place
