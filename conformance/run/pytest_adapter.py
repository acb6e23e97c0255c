"""What the suite is to pytest, its items; and all that it uses of pytest beyond its documented API: other plugins' options, the
values of pytest's own options, where a run's arguments point, and the terminal.

``tests/plugin/test_adapters.py`` pins these names.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from conformance.plan.options import OPTIONS, Request, joined
from devices.errors import ConformError

PACKAGE: Final = Path(__file__).resolve().parents[1]
#: What pytest is given, and finds, as the file of the suite's items.
SUITE_FILE: Final = PACKAGE / "test_conformance.py"

#: What modules of pytest's own plugins are in.
PYTESTS_OWN: Final = "_pytest."

#: pytest's options that leave items out: such a run is partial.
_DESELECTING: Final = ("keyword", "markexpr", "lf", "deselect", "stepwise", "maxfail")
#: pytest's options with which a person looks at one process, or nothing runs.
_IN_PROCESS: Final = (
    *("usepdb", "trace", "collectonly", "setupplan", "setuponly", "setupshow", "showfixtures"),
    *("show_fixtures_per_test", "markers", "help", "version", "cacheshow", "looponfail"),
)


# -- options


def add_options(parser: pytest.Parser) -> None:
    """Register the suite's options. Raises UsageError that names an option which another plugin has taken."""
    # pytest reports a clash by an argparse.ArgumentError: from 9.0 at once, before that when it parses.
    others = (parser._anonymous, *parser._groups)
    taken = {name for other in others for option in other.options for name in option.names()}
    group = parser.getgroup("conform", "torch-conformance: check a device against the contract")
    for option in OPTIONS:
        if option.name in taken:
            raise pytest.UsageError(
                f"torch-conformance needs the option {option.name}, but another pytest plugin already has it. "
                "Disable that plugin: pytest -p no:NAME …"
            )
        kind: dict[str, Any] = {"metavar": option.metavar, "default": option.default}
        if option.kind == "flag":
            kind = {"action": "store_true"}
        group.addoption(option.name, dest=option.dest, help=option.help, **kind)


def request_of(config: pytest.Config) -> Request:
    """What the command line asks for. Raises ConformError."""
    given = config.option
    deselects = [name for name in _DESELECTING if getattr(given, name, None)]
    if any("::" in argument for argument in config.args):
        deselects.append("node ids")
    elif config.args and not any(_takes_all(config, argument) for argument in config.args):
        deselects.append("paths")
    return Request.read(vars(given), collect_only=collects_only(config), deselects=deselects)


def collects_only(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "collectonly", False))


def in_process(option: Any) -> bool:
    """Whether an option asks for one process, or for no run at all."""
    uncaptured = getattr(option, "capture", "fd") == "no"
    return uncaptured or any(getattr(option, name, False) for name in _IN_PROCESS)


def take_junitxml(config: pytest.Config) -> Path | None:
    """The file of ``--junitxml``, and switch pytest's own writer off: it would write items, not cells."""
    path = getattr(config.option, "xmlpath", None)
    if not path:
        return None
    config.option.xmlpath = None
    return Path(path).absolute()


def join_arguments(config: pytest.Config) -> None:
    """Have workers get each path joined to its option, see ``joined``."""
    arguments = joined(map(str, config.invocation_params.args))
    config.invocation_params = dataclasses.replace(config.invocation_params, args=arguments)


# -- what a run takes


def takes_the_suite(config: pytest.Config) -> bool:
    """Whether some argument is the package, a folder around it, or something inside it."""
    if config.option.help:
        return False
    return any(
        path == PACKAGE or path in PACKAGE.parents or PACKAGE in path.parents
        for path in (_path(config, argument) for argument in config.args)
    )


def _takes_all(config: pytest.Config, argument: str) -> bool:
    path = _path(config, argument)
    return path in (PACKAGE, SUITE_FILE) or path in PACKAGE.parents


def _path(config: pytest.Config, argument: str) -> Path:
    name = argument.split("::")[0]
    # With --pyargs an argument may name the package as Python does, wherever it is installed.
    if config.option.pyargs and name.split(".")[0] == PACKAGE.name:
        return PACKAGE.joinpath(*name.split(".")[1:])
    return Path(os.path.abspath(name))


def is_suite(path: Path) -> bool:
    return path == SUITE_FILE


# -- the suite's items


class SuiteItem(pytest.Item):
    """An item of the suite. ``run`` is given itself."""

    def __init__(self, *, item_id: str, run: Callable[[SuiteItem], None], **of_pytest: Any) -> None:
        super().__init__(**of_pytest)
        self.item_id, self._run = item_id, run

    def runtest(self) -> None:
        self._run(self)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class SuiteFile(pytest.File):
    """The suite's items, which ``items`` names."""

    def __init__(
        self,
        *,
        items: Callable[[], Iterable[str]],
        run: Callable[[SuiteItem], None],
        **of_pytest: Any,
    ) -> None:
        super().__init__(**of_pytest)
        self._items, self._run = items, run

    def collect(self) -> Iterator[SuiteItem]:
        for each in self._items():
            name = f"{self.path.stem}[{each}]"
            # Given as text, pytest reads it as it reads it from its cache: without, --lf knows none of them.
            nodeid = f"{self.nodeid}::{name}"
            yield SuiteItem.from_parent(self, name=name, nodeid=nodeid, item_id=each, run=self._run)


def run_phase(item: SuiteItem) -> None:
    """What pytest does with a test, without the phases before and after: an item has none, and each costs a message
    between processes and what plugins do in it, together as much as a short item takes."""
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reraise = (pytest.exit.Exception, KeyboardInterrupt)
    call = pytest.CallInfo.from_call(
        partial(hook.pytest_runtest_call, item=item), when="call", reraise=reraise
    )
    report = hook.pytest_runtest_makereport(item=item, call=call)
    hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


# -- the end of a run, and the terminal


#: The name under which pytest registers its capture of logs, and the options that ask for it.
_LOGS: Final = "logging-plugin"
_LOG_OPTIONS: Final = ("log_cli", "log_cli_level", "log_file", "log_level")


def capture_no_logs(config: pytest.Config) -> None:
    """Leave out pytest's capture of logs, unless an option asks for it: three times an item it attaches handlers to each of
    torch's loggers. Items log nothing of their own, and a failure of one says what it found."""
    asked = (config.getini(each) or config.getoption(each, None) for each in _LOG_OPTIONS)
    if config.pluginmanager.has_plugin(_LOGS) and not any(asked):
        config.pluginmanager.unregister(name=_LOGS)


def end_run(error: ConformError) -> NoReturn:
    """One message, the documented exit code, no traceback."""
    if error.exit_code == int(pytest.ExitCode.USAGE_ERROR):
        raise pytest.UsageError(str(error)) from None
    stop_run(error)


def stop_run(error: ConformError) -> NoReturn:
    """The same once tests run, where pytest takes no usage errors."""
    raise pytest.exit.Exception(str(error), returncode=error.exit_code) from None


def say(config: pytest.Config, text: str) -> None:
    """Print a line at once: what follows may take minutes."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        reporter.ensure_newline()
        reporter.write_line(f"conformance: {text}")


def is_styled(config: pytest.Config) -> bool:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return reporter is not None and bool(reporter.hasmarkup)
