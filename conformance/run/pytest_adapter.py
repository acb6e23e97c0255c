"""The classes of the suite's pytest items, and the code that uses parts of pytest that are not documented: options of
other plugins, values of pytest's own options, the paths among the arguments, and the terminal.

``tests/plugin/test_adapters.py`` checks that the private names exist.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from conformance.plan.options import OPTIONS, Request, joined
from devices.errors import ConformError

PACKAGE: Final = Path(__file__).resolve().parents[1]
#: What pytest is given, and finds, as the file of the suite's items.
SUITE_FILE: Final = PACKAGE / "test_conformance.py"

#: The package of pytest's own plugins.
PYTESTS_OWN: Final = "_pytest."

#: pytest's options that leave items out: such a run is partial.
_DESELECTING: Final = ("keyword", "markexpr", "lf", "deselect", "stepwise", "maxfail")
#: Options of pytest and its plugins with which items run in one process, or not at all: debuggers, and pytest-cov, which
#: decides before we are asked that there are no workers.
_IN_PROCESS: Final = (
    "cov_source",
    *("usepdb", "trace", "collectonly", "setupplan", "setuponly", "setupshow", "showfixtures"),
    *("show_fixtures_per_test", "markers", "help", "version", "cacheshow", "looponfail"),
)


# -- options


def add_options(parser: pytest.Parser) -> None:
    """Registers the suite's options, so that ``--help`` lists them before all other options. Raises UsageError if
    another plugin has an option of the same name."""
    # pytest reports a clash by an argparse.ArgumentError: from 9.0 at once, before that when it parses.
    others = (parser._anonymous, *parser._groups)
    taken = {name for other in others for option in other.options for name in option.names()}
    before = list(parser._groups)
    for option in OPTIONS:
        if option.name in taken:
            raise pytest.UsageError(
                f"torch-conformance needs the option {option.name}, but another pytest plugin already has it. "
                "Disable that plugin: pytest -p no:NAME …"
            )
        kind: dict[str, Any] = {"metavar": option.metavar, "default": option.default}
        if option.kind == "flag":
            kind = {"action": "store_true"}
        group = parser.getgroup(option.group)
        group.addoption(option.name, dest=option.dest, help=option.help, **kind)
    ours = [group for group in parser._groups if group not in before]
    parser._groups[:] = [*ours, *before]
    # From 9.1 on, pytest prints argparse's own groups; the first one holds the positional arguments.
    if (optparser := getattr(parser, "optparser", None)) is not None:
        titles = {group.name for group in ours}
        first, *rest = optparser._action_groups
        rest.sort(key=lambda group: group.title not in titles)
        optparser._action_groups[:] = [first, *rest]


#: Options, and settings in an ini file, with which other plugins run a test again until it passes, or leave tests out:
#: the name of the value, the option, the plugin, and what to do instead.
_AGAIN: Final = "repeated tests would hide failing cells. List flaky cells in the manifest instead"
_REFUSED: Final = (
    ("reruns", "--reruns", "pytest-rerunfailures", _AGAIN),
    ("force_reruns", "--force-reruns", "pytest-rerunfailures", _AGAIN),
    ("retries", "--retries", "pytest-retry", _AGAIN),
    ("force_flaky", "--force-flaky", "flaky", _AGAIN),
    (
        "splits",
        "--splits",
        "pytest-split",
        "use --shard I/N, and `conform merge` to join the shards",
    ),
)


def refuse_plugins(config: pytest.Config) -> None:
    """Raises ConformError for an option of another plugin that would make the results of a run wrong."""
    for dest, option, plugin, instead in _REFUSED:
        given = getattr(config.option, dest, None)
        where = option
        if not given:
            try:
                given = int(config.getini(dest) or 0)
                where = f"the setting {dest} in {config.inipath}"
            except (KeyError, ValueError, TypeError):  # no setting of this name, or not a number
                continue
        if given and str(given) != "0":
            raise ConformError(f"{where} ({plugin}) cannot be used here: {instead}")


def check_paths(config: pytest.Config, suggest: Callable[[str], str]) -> None:
    """Raises ConformError for an argument that is neither a file nor a folder. ``suggest`` returns a text about the
    argument that the user may have meant."""
    for argument in config.args:
        path = _path(config, argument)
        if path.exists() or (config.option.pyargs and _is_module(argument.split("::")[0])):
            continue
        raise ConformError(f"{argument!r} is not a file or folder{suggest(argument)}")


def files_of_user(config: pytest.Config) -> tuple[Path, ...]:
    """Returns the files that pytest's own options name and that may be in the results folder, such as the file of
    ``--junitxml``."""
    path = getattr(config.option, "xmlpath", None)
    return (Path(path).absolute(),) if path else ()


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def request_of(config: pytest.Config) -> Request:
    """Returns the command line as a Request. Raises ConformError if an option has a wrong value."""
    given = config.option
    deselects = [name for name in _DESELECTING if getattr(given, name, None)]
    if any("::" in argument for argument in config.args):
        deselects.append("node ids")
    elif config.args and not any(_takes_all(config, argument) for argument in config.args):
        deselects.append("paths")
    return Request.from_options(
        vars(given), collect_only=collects_only(config), deselects=deselects
    )


def collects_only(config: pytest.Config) -> bool:
    """Returns True if ``--collect-only`` was given."""
    return bool(getattr(config.option, "collectonly", False))


def has_options(config: pytest.Config) -> bool:
    """Returns True if the command line has an option of the suite."""
    return any(
        getattr(config.option, option.dest, option.default) not in (option.default, False)
        for option in OPTIONS
    )


def in_process(option: Any) -> bool:
    """Returns True if an option of pytest requires that items run in pytest's own process, or that no item runs."""
    uncaptured = getattr(option, "capture", "fd") == "no"
    return uncaptured or any(getattr(option, name, False) for name in _IN_PROCESS)


def take_junitxml(config: pytest.Config) -> Path | None:
    """Returns the file given by ``--junitxml``; None if the option was not given. Also switches off pytest's own
    writer, which would write one entry for each item instead of one for each cell."""
    path = getattr(config.option, "xmlpath", None)
    if not path:
        return None
    config.option.xmlpath = None
    return Path(path).absolute()


def join_arguments(config: pytest.Config) -> None:
    """Changes the arguments for the workers, so that each path is in one argument with its option, such as
    ``--results=PATH``."""
    arguments = joined(map(str, config.invocation_params.args))
    config.invocation_params = dataclasses.replace(config.invocation_params, args=arguments)


# -- what a run takes


def takes_the_suite(config: pytest.Config) -> bool:
    """Returns True if an argument is the folder of the conformance package, one of its parent folders, or a path inside
    the package."""
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
    """Returns True if a path is the file that contains the suite's items."""
    return path == SUITE_FILE


def item_of(node_id: str) -> str:
    """Returns the name of the suite's item with this pytest node id; an empty text if the node id belongs to another
    test."""
    name = node_id.partition("::")[2]
    prefix = f"{SUITE_FILE.stem}["
    return name.removeprefix(prefix).removesuffix("]") if name.startswith(prefix) else ""


# -- the suite's items


class SuiteItem(pytest.Item):
    """A pytest item of the suite. To run the item, ``run`` is called with the item as its argument."""

    def __init__(self, *, item_id: str, run: Callable[[SuiteItem], None], **of_pytest: Any) -> None:
        super().__init__(**of_pytest)
        self.item_id, self._run = item_id, run

    def runtest(self) -> None:
        """Runs the item."""
        self._run(self)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Returns the path, no line number, and the name of the item for pytest's reports."""
        return self.path, None, self.name


class SuiteFile(pytest.File):
    """The pytest file that contains the suite's items. The function ``items`` returns their names."""

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
        """Yields the suite's items."""
        for each in self._items():
            name = f"{self.path.stem}[{each}]"
            # Without an explicit id pytest builds another one, which --lf does not find in pytest's cache.
            nodeid = f"{self.nodeid}::{name}"
            yield SuiteItem.from_parent(self, name=name, nodeid=nodeid, item_id=each, run=self._run)


def run_phase(item: SuiteItem) -> None:
    """Runs an item as pytest runs a test, but without setup and teardown, which items of the suite do not need. The two
    phases together would take as much time as a short item, because each phase sends messages between processes and
    calls all plugins."""
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
    """Switches off pytest's capture of logs, unless an option requests it. The capture takes time, because it adds
    handlers to all of torch's loggers three times for each item. Its output is not needed, because items write no
    logs."""
    asked = (config.getini(each) or config.getoption(each, None) for each in _LOG_OPTIONS)
    if config.pluginmanager.has_plugin(_LOGS) and not any(asked):
        config.pluginmanager.unregister(name=_LOGS)


def end_run(error: ConformError) -> NoReturn:
    """Ends the run before the first test, with one message, the exit code of the error, and no traceback."""
    if error.exit_code == int(pytest.ExitCode.USAGE_ERROR):
        raise pytest.UsageError(str(error)) from None
    stop_run(error)


def stop_run(error: ConformError) -> NoReturn:
    """Ends the run while tests run, with one message and the exit code of the error. In this phase pytest no longer
    handles usage errors."""
    raise pytest.exit.Exception(str(error), returncode=error.exit_code) from None


def say(config: pytest.Config, text: str) -> None:
    """Prints a line on the terminal at once, even while pytest captures output."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        if reporter._tw.width_of_current_line:
            reporter._tw.line()
        reporter.write_line(f"conformance: {text}")


def say_early(config: pytest.Config, text: str) -> None:
    """Prints a line before pytest has its terminal reporter, unless ``-q`` was given."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if verbosity(config) >= 0:
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            print(f"conformance: {text}", flush=True)


def remark(config: pytest.Config, text: str) -> None:
    """Prints a line about the progress of a run, unless ``-q`` was given."""
    if verbosity(config) >= 0:
        say(config, text)


def is_styled(config: pytest.Config) -> bool:
    """Returns True if pytest's terminal shows colours."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return reporter is not None and bool(reporter.hasmarkup)


def verbosity(config: pytest.Config) -> int:
    """Returns -1 if ``-q`` was given, 1 if ``-v`` was given, and else 0."""
    return max(-1, min(config.get_verbosity(), 1))


@contextmanager
def only_foreign_reports(reporter: Any, is_ours: Callable[[str], bool]) -> Iterator[None]:
    """Hides the suite's items from pytest's lists of failures within the ``with`` block, because the suite's own
    summary reports their cells.

    The reports of the items are moved to the category with an empty name, in which pytest keeps the reports of setup.
    ``--durations`` finds the reports there, and no list shows them.
    """
    kept: dict[str, list[Any]] = {
        "": [],
        **{name: list(reports) for name, reports in reporter.stats.items()},
    }
    shown: dict[str, list[Any]] = {name: [] for name in kept}
    for name, reports in kept.items():
        for report in reports:
            ours = isinstance(report, pytest.TestReport) and is_ours(report.nodeid)
            shown["" if ours else name].append(report)
    reporter.stats.update(shown)
    try:
        yield
    finally:
        reporter.stats.update(kept)


# -- an output that cannot be written: a pipe whose reader has ended, or a full disk


class Output:
    """A wrapper of the stream of pytest's terminal. The first write that fails calls ``lost``, and all later writes are
    ignored."""

    def __init__(self, stream: Any, lost: Callable[[OSError], None]) -> None:
        self._stream, self._lost, self._broken = stream, lost, False

    def write(self, text: str) -> int:
        """Writes a text and returns its length."""
        self._try(partial(self._stream.write, text))
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self._try(self._stream.flush)

    def _try(self, act: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            act()
        except OSError as error:
            self._broken = True
            # What is still in the stream's buffer must not fail again when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._stream.flush()
            self._lost(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output(session: pytest.Session, failed: Callable[[str], None]) -> None:
    """Arranges that the run stops if its output cannot be written. ``failed`` is called with the reason, unless the
    output is a pipe whose reader has exited."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return

    def lost(error: OSError) -> None:
        why = f"the output cannot be written: {error.strerror or error}"
        if not isinstance(error, BrokenPipeError):
            failed(why)
        session.shouldstop = why
        of_xdist: Any = session.config.pluginmanager.get_plugin("dsession")
        if of_xdist is not None:
            of_xdist.shouldstop = why

    reporter._tw._file = Output(reporter._tw._file, lost)
