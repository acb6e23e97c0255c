"""What a script carries: copies of functions that do what the functions do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from conformance.checks.repro import modules
from conformance.checks.repro.bundle import Bundle
from conformance.checks.repro.modules import Module, NotCarried, given_module
from conformance.checks.repro.script import script_text
from conformance.checks.repro.statements import Definition
from devices import descriptor
from tests.repro import first, second


def text_of(bundle: Bundle) -> str:
    imports, texts = sorted(bundle.imports), bundle.texts().values()
    return "\n".join(["from __future__ import annotations", *imports, *texts])


def executed(bundle: Bundle) -> dict[str, Any]:
    """What a script with these copies defines."""
    module = sys.modules["a_script"] = ModuleType("a_script")  # dataclasses look up their module
    exec(compile(text_of(bundle), "repro.py", "exec"), vars(module))
    return vars(module)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (first.uses_two_of_a_name, (5,)),
        (first.uses_aliases, (5,)),
        (first.uses_modules, ()),
        (first.hides_names, (5,)),
        (first.uses_a_table, (5,)),
        (first.uses_classes, ()),
        (first.uses_marks, ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_copy_does_what_the_function_does(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    copied = executed(Bundle().take([function]))[function.__name__]
    assert copied(*arguments) == function(*arguments)


def test_two_definitions_of_a_name_get_two_names() -> None:
    bundle = Bundle().take([first.uses_two_of_a_name])
    names = executed(bundle)
    assert (names["_own"](5), names["_own_second"](5)) == (6, 4)


def test_a_global_that_is_assigned_gets_a_name_of_its_own_too() -> None:
    names = executed(Bundle().take([first.changes_a_global]))
    assert names["changes_a_global"]() == 110
    assert (names["_calls"], names["_calls_second"]) == (110, 110)
    assert names["changes_a_global"]() == 120


def test_what_a_function_adds_must_keep_its_name() -> None:
    with pytest.raises(NotCarried, match="_own has another meaning in a script"):
        Bundle().take([first._own, second._own])


def test_of_a_shared_class_only_the_methods_are_copied_that_something_mentions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = text_of(Bundle().take([first.uses_classes]))
    assert "def never_called" in whole and "def reset" in whole  # a suite's own classes
    shared = {m.__name__: Module(m.__name__, _source(m), True) for m in (first, second)}
    monkeypatch.setattr(
        "conformance.checks.repro.statements.read_module",
        lambda name: shared.get(name) or modules.read_module(name),
    )
    bundle = Bundle().add([Definition(shared[first.__name__], "uses_classes")])
    text = text_of(bundle)
    assert "def never_called" not in text and "def reset" not in text
    assert "def total" in text and "def count" in text
    bundle.mention(["reset"])
    assert "def reset" in text_of(bundle)
    assert executed(bundle)["uses_classes"]() == first.uses_classes()


def _source(module: Any) -> str:
    with open(module.__file__, encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (first.imports_inside, "imports devices.errors below the top level of the module"),
        (first.takes_a_module, "the module devices.machine is used as a value"),
    ],
)
def test_what_cannot_be_copied_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(NotCarried, match=said):
        Bundle().take([function])


def test_a_constant_that_is_read_from_a_file_is_written_out() -> None:
    bundle = Bundle().take([descriptor.Descriptor])
    bundle.mention(["function"])
    names = executed(bundle)
    assert names["FUNCTIONS"] == dict(descriptor.FUNCTIONS)
    assert names["STATISTICS"] == descriptor.STATISTICS


def test_the_statements_of_a_descriptor_that_bind_no_name_come_along() -> None:
    text = (
        '"""A descriptor."""\n'
        "from devices.errors import listing as words\n"
        "KNOWN = []\n"
        "KNOWN.append(words(['a']))\n"
        "KNOWN += ['b']\n"
        "DESCRIPTOR = KNOWN * 2\n"
        "if __name__ == '__main__':\n"
        "    print(DESCRIPTOR)\n"
    )
    bundle = Bundle().add([Definition(given_module("given", text, "DESCRIPTOR"), "DESCRIPTOR")])
    assert executed(bundle)["DESCRIPTOR"] == ["'a'", "b"] * 2
    assert "print" not in text_of(bundle) and "A descriptor." not in text_of(bundle)


@pytest.mark.slow
def test_the_text_of_a_script_does_not_depend_on_the_order_of_sets() -> None:
    code = (
        "from conformance import suites\n"
        "from conformance.checks.cases.script import script_of_case\n"
        "from devices import registry\n"
        "case = suites.case_of('device.async_error', 'surfaces')\n"
        "print(script_of_case(case, registry.get('simulated')))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PATH": "", "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        pytest.param("sys.exit(print('PASS'))", 0, "PASS\n", marks=pytest.mark.slow),
        pytest.param("sys.exit(print('FAIL') or 1)", 1, "FAIL\n", marks=pytest.mark.slow),
        ("raise ImportError('no such module')", 2, "ImportError: no such module\n"),
    ],
)
def test_a_script_that_cannot_make_its_check_exits_2(line: str, status: int, said: str) -> None:
    text = script_text(Bundle(), [line], head="an example")
    done = subprocess.run(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == status and done.stdout.endswith(said)
