"""The suite's options for pytest, without running it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from _pytest.config.argparsing import Parser

from conformance.plan.options import Request, duration, joined, matching
from conformance.run.pytest_adapter import add_options
from conformance.run.pytest_adapter import request_of as request
from devices.errors import ConformError

SOME = (
    "--device", "--descriptor", "--plan", "--ops", "--dtypes", "--clauses", "--expectations",
    "--results", "--max-time", "--no-reference-cache", "--redact",
)  # fmt: skip


@pytest.fixture
def parser() -> Parser:
    return Parser(_ispytest=True)


def request_of(parser: Parser, *arguments: str, args: tuple[str, ...] = ()) -> Request:
    """The request of a command line, with pytest's own options as they are by default."""
    add_options(parser)
    namespace = parser.parse_known_args(list(arguments))

    class Config:
        option = argparse.Namespace(pyargs=False, **vars(namespace))

    Config.args = list(args)  # type: ignore[attr-defined]
    return request(Config)  # type: ignore[arg-type]


def test_every_destination_starts_with_conform(parser: Parser) -> None:
    add_options(parser)
    groups = [g for g in parser._groups if g.name.startswith("torch-conformance: ")]
    found = {name: o.dest for group in groups for o in group.options for name in o.names()}
    assert set(SOME) <= set(found)
    assert [d for d in found.values() if not d.startswith("conform_")] == []


def test_the_suite_s_groups_come_before_all_others(parser: Parser) -> None:
    parser.getgroup("another").addoption("--another")
    add_options(parser)
    ours = [group.name.startswith("torch-conformance: ") for group in parser._groups]
    assert ours == sorted(ours, reverse=True) and ours[0] and not ours[-1]


def test_to_resume_and_to_start_again_exclude_each_other(parser: Parser) -> None:
    with pytest.raises(ConformError, match="--resume and --no-resume exclude each other"):
        request_of(parser, "--resume", "--no-resume")


@pytest.mark.parametrize("option", ["--device", "--plan", "--results"])
def test_an_option_that_another_plugin_has_is_named(parser: Parser, option: str) -> None:
    parser.addoption(option)
    with pytest.raises(pytest.UsageError, match=f"needs the option {option}.*-p no:NAME"):
        add_options(parser)


def test_without_options_the_plan_is_quick_and_whole(parser: Parser) -> None:
    request = request_of(parser)
    assert request.plan == "quick" and request.selection == {} and not request.no_reference_cache
    assert (request.device, request.ops, request.expectations) == (None, None, None)


def test_every_option_that_narrows_the_run_is_told(parser: Parser) -> None:
    request = request_of(
        parser,
        *("--ops", "add,mm", "--dtypes", "int64", "--clauses", "layout.*", "--max-time", "2m"),
    )
    assert request.selection == {
        "--ops": "add,mm",
        "--dtypes": "int64",
        "--clauses": "layout.*",
        "--max-time": "120s",
    }


def test_a_node_id_narrows_the_run(parser: Parser) -> None:
    request = request_of(
        parser, args=("conformance/test_conformance.py::test_conformance[layout-add-float32]",)
    )
    assert list(request.selection) == ["pytest node ids"]


def test_a_path_beside_the_suite_narrows_the_run(parser: Parser) -> None:
    request = request_of(parser, args=("conformance/suites",))
    assert list(request.selection) == ["pytest paths"]


@pytest.mark.parametrize("argument", ["conformance", ".", "conformance/test_conformance.py"])
def test_the_suite_s_module_and_every_folder_around_it_is_the_whole_run(
    parser: Parser, argument: str
) -> None:
    assert request_of(parser, args=(argument,)).selection == {}


def test_options_that_say_where_and_how_do_not_narrow_the_run(parser: Parser) -> None:
    request = request_of(
        parser,
        *("--device", "cpu", "--plan", "full", "--results", "x", "--expectations", "none"),
        *("--redact", "--no-reference-cache"),
    )
    assert request.selection == {}
    assert (request.device, request.plan, request.results) == ("cpu", "full", Path("x"))
    assert request.redact and request.no_reference_cache


@pytest.mark.parametrize("option", ["--ops", "--dtypes", "--clauses"])
@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_an_empty_list_is_refused(parser: Parser, option: str, value: str) -> None:
    with pytest.raises(
        ConformError, match=f"{option} is empty: expected names separated by commas"
    ):
        request_of(parser, option, value)


def test_blanks_around_the_names_of_a_list_do_not_count(parser: Parser) -> None:
    assert request_of(parser, "--ops", " add , mm,").ops == ("add", "mm")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400)]
)
def test_a_duration_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "soon", "0", "-5s", "nan", "inf", "1d", "1e999s"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConformError, match="expected a duration such as 90s, 20m or 1h"):
        duration(text)


NAMES = ("add", "addmm", "__getitem__", "nn.functional.conv2d", "nn.functional.conv3d")


@pytest.mark.parametrize(
    ("globs", "found"),
    [
        (["add"], {"add"}),
        (["add*"], {"add", "addmm"}),
        (["__getitem__"], {"__getitem__"}),
        (["*conv?d"], {"nn.functional.conv2d", "nn.functional.conv3d"}),
        (["add", "*getitem*"], {"add", "__getitem__"}),
    ],
)
def test_globs_select_names(globs: list[str], found: set[str]) -> None:
    assert matching("--ops", globs, NAMES) == found


def test_each_glob_must_match_something() -> None:
    with pytest.raises(ConformError, match=r"--ops 'adm' matches nothing .* did you mean .*'add'"):
        matching("--ops", ["add", "adm"], NAMES)


def test_case_matters() -> None:
    with pytest.raises(ConformError):
        matching("--ops", ["ADD"], NAMES)


def test_paths_behind_our_options_are_joined_to_them() -> None:
    given = ("-n", "2", "--results", "/x", "--ops", "add", "--junitxml", "y.xml", "conformance")
    assert joined(given) == (
        *("-n", "2", "--results=/x", "--ops", "add", "--junitxml=y.xml", "conformance"),
    )
    assert joined(joined(given)) == joined(given)


def test_backward_needs_a_recording(parser: Parser) -> None:
    with pytest.raises(ConformError, match="--backward needs --recording FILE"):
        request_of(parser, "--backward")


@pytest.mark.parametrize("given", [("--backward",), ()])
def test_gradients_of_a_recording_are_judged_on_demand(
    parser: Parser, given: tuple[str, ...]
) -> None:
    assert request_of(parser, "--recording=calls.jsonl", *given).backward == bool(given)


def test_the_size_of_calls_is_not_limited_without_a_recording(parser: Parser) -> None:
    with pytest.raises(ConformError, match="--max-elements needs --recording FILE"):
        request_of(parser, "--max-elements", "100")


def test_a_limit_of_the_size_of_calls_narrows_the_run(parser: Parser) -> None:
    found = request_of(parser, "--recording=calls.jsonl", "--max-elements", "100")
    assert (found.max_elements, found.selection) == (100, {"--max-elements": "100"})
    assert not found.names_cells
