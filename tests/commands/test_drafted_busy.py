"""Drafts of ``busy``: what is measured decides whether one is declared, and the descriptor says which and why."""

from __future__ import annotations

import ast
import math
from datetime import date
from pathlib import Path

import msgspec
import pytest

from conformance.onboarding import drafting, init
from conformance.onboarding.primitives import (
    ASKED,
    CANDIDATES,
    BusyTry,
    Trial,
    is_asynchronous,
    measured,
    shortcoming,
    source,
    why_none,
)
from conformance.onboarding.questions import Question, Reply, Said, _reply
from devices.descriptor import CAPABILITIES
from devices.registry import load_file

DAY = date(2026, 1, 31)
NPU = Question(name="mine", torch_type="npu")
SYNCHRONOUS = "the call returned only when its work had ended (60 of 61 ms)"


def trials(
    factor: float = 1.5, returned: float = 0.1, pending: float | None = None, times: int = 3
) -> list[Trial]:
    """Trials whose work takes ``factor`` times as long as asked, in ms."""
    return [
        Trial(asked, returned, factor * asked if pending is None else pending, factor * asked)
        for asked in ASKED
        for _ in range(times)
    ]


def replying(*tries: BusyTry, streams: bool = True) -> Reply:
    answers = {**dict.fromkeys(CAPABILITIES, False), "streams": streams}
    return Reply(answers, ["float32"], busy=list(tries))


def described(tmp_path: Path, reply: Reply) -> str:
    text = drafting.descriptor(NPU, reply, DAY)
    (tmp_path / "descriptor.py").write_text(text, encoding="utf-8")
    return text


# What was measured


def test_work_that_lasts_long_enough_while_the_host_goes_on_is_good() -> None:
    assert shortcoming(trials()) == ""


def test_work_that_is_once_too_short_is_no_good() -> None:
    short = Trial(60.0, 0.1, 70.0, 59.0)
    text = shortcoming([*trials(), short])
    assert text == (
        "it is not always long enough: 60 ms were asked for, and the work ended after 59.0 ms"
    )


def test_a_call_that_waits_for_its_work_is_synchronous() -> None:
    some = [Trial(20.0, 29.0, 30.0, 30.0), Trial(60.0, 89.0, 90.0, 90.0)]
    assert not is_asynchronous(some)
    assert shortcoming(some) == "the call returned only when its work had ended (89 of 90 ms)"


def test_a_host_that_was_suspended_once_is_no_synchronous_call() -> None:
    assert shortcoming([*trials(), Trial(60.0, 85.0, 90.0, 90.0)]) == ""


def test_a_call_that_mostly_returns_late_is_no_good() -> None:
    some = [each for each in trials() if each.asked != 60] + [Trial(60.0, 40.0, 180.0, 180.0)] * 3
    assert shortcoming(some) == "60 ms were asked for, and the call returned only after 40 ms"


@pytest.mark.parametrize(
    ("pending", "text"),
    [
        (0.2, "either query() is wrong, or work begins only when it is waited for"),
        (math.inf, "query() of the stream was still False seconds later"),
    ],
)
def test_a_query_that_disagrees_with_the_work_is_said(pending: float, text: str) -> None:
    assert text in shortcoming(trials(pending=pending))


def test_work_that_takes_much_too_long_is_no_good() -> None:
    assert shortcoming(trials(20.0)).startswith("it takes too long: 20 ms were asked for")
    assert shortcoming([*trials(), Trial(20.0, 0.1, 900.0, 900.0)]) == "", "another program ran"


def test_what_was_measured_is_one_line() -> None:
    some = [
        Trial(20.0, 0.1, 30.0, 30.2),
        Trial(20.0, 0.3, 35.0, 36.0),
        Trial(60.0, 0.2, 90.0, 90.0),
    ]
    assert measured(some) == (
        "a stream was busy for 30 to 36 ms where 20 ms were asked for, 90 ms where 60 ms were asked for; "
        "the calls returned within 0.3 ms"
    )


def test_a_draft_that_ended_the_process_or_does_not_exist_is_no_capability() -> None:
    found = BusyTry("matrix_product", True, "a stream was busy")
    said = {
        "": Said(over=True),
        "sleep": Said("sleep", over=True),  # the module has no such function
        "running_product": Said("running_product", over=True, raised="the process was killed"),
        "matrix_product": Said("matrix_product", over=True, answer=msgspec.to_builtins(found)),
    }
    reply = _reply(said)
    assert reply.busy == [BusyTry("running_product", False, "the process was killed"), found]
    assert reply.raised == reply.broken == {}


# What is drafted


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_draft_that_works_is_declared_with_what_was_measured(
    candidate: str, tmp_path: Path
) -> None:
    text = described(tmp_path, replying(BusyTry(candidate, True, "a stream was busy for 30 ms")))
    device = load_file(tmp_path)
    assert device.busy is not None and device.gate is None
    assert (
        f"# {CANDIDATES[candidate].format(torch_type='npu')}: a stream was busy for 30 ms." in text
    )
    assert source(candidate, "npu") in text
    assert text.count("Callable") == source(candidate, "npu").count("Callable") + (
        candidate != "sleep"
    )


def test_a_draft_that_does_not_work_is_a_comment_with_what_was_found(tmp_path: Path) -> None:
    reply = replying(
        BusyTry("running_product", False, SYNCHRONOUS, asynchronous=False),
        BusyTry("matrix_product", False, "it is not always long enough"),
    )
    text = described(tmp_path, reply)
    assert load_file(tmp_path).busy is None
    assert "# def _busy(milliseconds: float) -> None:" in text and "# busy=_busy," in text
    assert "(torch.mm): it is not always long enough." in " ".join(text.split()).replace(" # ", " ")
    lines = text.partition("collections.abc.Callable:\n#\n")[2].splitlines()
    commented = [line.removeprefix("# ").removeprefix("#") for line in lines if line[:1] == "#"]
    assert "\n".join(commented) + "\n" == source("matrix_product", "npu"), "it can be uncommented"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (replying(streams=False), "the device has no streams that work"),
        (
            replying(BusyTry("matrix_product", False, SYNCHRONOUS, asynchronous=False)),
            "calls return only when their work has ended, so no work is in flight",
        ),
    ],
)
def test_a_synchronous_device_is_offered_nothing_and_told_why(
    reply: Reply, why: str, tmp_path: Path
) -> None:
    text = described(tmp_path, reply)
    assert load_file(tmp_path).busy is None
    assert why in " ".join(text.split()).replace(" # ", " ")
    assert "def _busy" not in text
    (line,) = init._work_in_flight(NPU, reply)
    assert line.startswith("  work in flight is not checked: ") and why in line


def test_init_says_what_was_measured_or_what_was_found_of_each_draft() -> None:
    works = BusyTry("sleep", True, "a stream was busy for 30 ms")
    (line,) = init._work_in_flight(NPU, replying(works))
    assert line == (
        "  `busy` is drafted with torch.npu._sleep, so work in flight is checked: a stream was busy for 30 ms"
    )
    late = BusyTry("sleep", False, "it takes too long")
    first, second = init._work_in_flight(NPU, replying(late))
    assert first.endswith("torch.npu._sleep: it takes too long")
    assert "as a comment" in second


def test_without_a_result_there_is_a_reason_too() -> None:
    assert why_none([], "npu", streams=True) == "no draft could be tried"


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_draft_imports_torch_only_inside_of_its_functions(candidate: str) -> None:
    body = ast.parse(source(candidate, "npu")).body
    assert [type(each) for each in body] == [ast.FunctionDef, ast.FunctionDef]
