"""The pytest plugin of the suite. It implements pytest's hooks, which call the code in ``conformance/run``.

If the arguments do not include the ``conformance`` package, the plugin only adds options to ``--help``. The code of
``run/session.py`` runs in the process that the user started. The code of ``run/worker.py`` runs in each process that
runs items: in the workers of pytest-xdist, or with ``-n 0`` in the process that the user started.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from conformance.run import pytest_adapter as pytest_
from devices.errors import ConformError, with_cause
from devices.torch_version import NoTorch, has_torch, require_torch

if TYPE_CHECKING:
    from conformance.plan.selection import Item
    from conformance.run.crash_isolation import Runner
    from conformance.run.fork_client import ForkServer
    from conformance.run.session import Session
    from conformance.run.worker import Worker, WorkerOrders


@dataclass
class _Run:
    """The plugin's data about a run of the suite, in the process that the user started."""

    session: Session
    orders: WorkerOrders
    junitxml: Path | None
    foreign: int = 0  # failures of tests that are not the suite's
    aborted: str = ""  # why the run was given up, if it was
    ended: str = ""  # what is printed at the end
    seen: set[str] = field(default_factory=set)  # ids of the items that were reported

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """The items of the run, by their id."""
        return self.orders.items_by_id()

    def has(self, node_id: str) -> bool:
        """Returns True if a pytest node id belongs to one of the suite's items."""
        return pytest_.item_of(node_id) in self.items

    def stop(self, error: ConformError) -> NoReturn:
        """Ends the run because of an error."""
        self.aborted = str(error)
        pytest_.stop_run(error)


_RUN: pytest.StashKey[_Run] = pytest.StashKey()
_WORKER: pytest.StashKey[Worker | Runner] = pytest.StashKey()
_SERVER: pytest.StashKey[ForkServer] = pytest.StashKey()  # starts workers
# Only the suite's items run, and no plugin waits for setup and teardown.
_BARE = pytest.StashKey[bool]()
_AUTO = pytest.StashKey[bool]()  # -n auto: only as many workers as are worth their start
_CHECKED = pytest.StashKey[bool]()  # the command line was checked


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the suite's options to pytest."""
    pytest_.add_options(parser)


# -- before the tests


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Checks the command line. If ``-n`` was not given, the run gets one worker, so that a crash ends only the worker
    and not the run."""
    if hasattr(config, "workerinput"):
        return None
    _check_command_line(config)
    if not pytest_.takes_the_suite(config):
        return None
    from conformance.checks.scratch import keep_tools_in
    from conformance.run.xdist_adapter import prepare_options
    from devices import autoload
    from devices.files import cache_root

    try:
        require_torch()
    except ConformError as error:  # before anything imports torch; pytest prints usage errors alike
        print(f"ERROR: {error}", file=sys.stderr)
        return error.exit_code
    if autoload.INSTALLED:
        autoload.put_off()
    try:
        prepare_options(config.option)
    except ConformError as error:
        pytest_.end_run(error)
    with suppress(OSError):  # the cache cannot be written: they are where they are by default
        (cache_root() / "pytest").mkdir(parents=True, exist_ok=True)
        keep_tools_in(cache_root())
    _begin_loading(config)
    return None


def _check_command_line(config: pytest.Config) -> None:
    """Ends the run with a message if the command line is wrong. The check is made before torch is imported."""
    ours = pytest_.takes_the_suite(config)
    asked = ours or (pytest_.has_options(config) and not config.option.help)
    if not asked or config.stash.get(_CHECKED, False):
        return
    config.stash[_CHECKED] = True
    from conformance.plan import usage

    try:
        pytest_.check_paths(config, usage.meant)
        if not ours:
            return
        pytest_.refuse_plugins(config)
        request = pytest_.request_of(config)
        device = usage.check(request)
        if device is not None or request.results is not None:
            from conformance.run.progress import check_folder

            name = device.name if device is not None else ""
            if not request.collect_only:
                folder = usage.results_folder(request, name)
                check_folder(folder, request, pytest_.files_of_user(config))
    except ConformError as error:
        pytest_.end_run(error)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Returns the number of workers for ``-n auto``: the workers per device times the number of devices, limited by the
    number of processors and by the memory. If the function returns None, pytest-xdist chooses the number."""
    if not pytest_.takes_the_suite(config) or not has_torch():
        return None
    _check_command_line(config)
    from conformance.plan.selection import find_descriptor
    from conformance.run.isolation.controller import useful_workers
    from conformance.run.session import collect_facts

    config.stash[_AUTO] = True
    _begin_loading(config)
    try:
        request = pytest_.request_of(config)
        found = find_descriptor(request.device, request.descriptor)
        server = config.stash.get(_SERVER, None)
        return useful_workers(collect_facts(found, request.descriptor, server).descriptor)
    except ConformError:
        return None  # pytest_cmdline_main and pytest_configure report what is wrong


def _begin_loading(config: pytest.Config) -> None:
    """Starts the fork server, which imports torch for the workers while this process prepares the run."""
    from conformance.checks.child import use_copier
    from conformance.run.fork_client import ForkServer
    from conformance.run.xdist_adapter import has_workers_here

    if _SERVER not in config.stash and has_workers_here(config.option):
        server = config.stash[_SERVER] = ForkServer()
        use_copier(server)
        config.add_cleanup(server.close)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Prepares a run of the suite: makes the plan and registers the hooks that collect reports and watch workers."""
    if not pytest_.takes_the_suite(config):
        return
    from conformance.run.xdist_adapter import has_workers, is_worker, limit_workers

    try:
        from opinfo.device import limit_threads
    except Exception as error:  # importing torch imports the backends that are installed, too
        pytest_.stop_run(NoTorch(f"torch cannot be imported: {with_cause(error)}"))

    limit_threads()
    if is_worker(config):
        return
    junitxml = pytest_.take_junitxml(config)
    pytest_.join_arguments(config)
    from conformance.run.session import prepare

    try:
        server, files = config.stash.get(_SERVER, None), pytest_.files_of_user(config)
        files = (*files, *((junitxml,) if junitxml is not None else ()))
        say = partial(pytest_.say_early, config)
        session = prepare(pytest_.request_of(config), server, files, say)
    except ConformError as error:
        pytest_.end_run(error)
    run = config.stash[_RUN] = _Run(session, session.orders(), junitxml)
    config.pluginmanager.register(_Reports(run, config), "conform-reports")
    if config.stash.get(_AUTO, False):
        limit_workers(config.option, len(run.items))
    if has_workers(config.option):
        _watch_workers(config, run)


def _watch_workers(config: pytest.Config, run: _Run) -> None:
    from conformance.run.worker import write_orders
    from conformance.run.xdist_adapter import XdistHooks

    known = run.items

    def collected(items: Iterable[str]) -> None:
        run.session.record_items(known[item] for item in items)

    orders, server = write_orders(run.orders), config.stash.get(_SERVER, None)
    controller = run.session.controller(run.orders, partial(pytest_.say, config))
    begin = run.session.progress.begin
    hooks = XdistHooks(controller, orders, run.stop, begin, collected, server)
    config.pluginmanager.register(hooks, "conform-isolation")
    run.session.look_ahead()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Returns the lines about the run that pytest prints before the first test."""
    run = config.stash.get(_RUN, None)
    return [] if run is None else run.session.header()


# -- collecting and running, in each process that runs items


def _worker(config: pytest.Config) -> Worker | Runner:
    """Returns the object that runs items in this process. It is created at first use, because the controller of a run
    with workers runs no items."""
    from conformance.run.crash_isolation import start_worker
    from conformance.run.isolation.watch import in_process
    from conformance.run.worker import Worker
    from conformance.run.xdist_adapter import input_of, is_worker

    if _WORKER not in config.stash and is_worker(config):
        config.stash[_WORKER] = start_worker(*input_of(config))
    elif _WORKER not in config.stash:
        run = config.stash[_RUN]
        session = run.session
        place = in_process(session.folder, session.lost, partial(pytest_.say, config))
        config.stash[_WORKER] = Worker(run.orders, place, session.folder, session.device)
    return config.stash[_WORKER]


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest_.SuiteFile | None:
    """Returns the collector of the suite's items if a path is the suite's test file."""
    if not pytest_.is_suite(module_path):
        return None
    config = parent.config
    return pytest_.SuiteFile.from_parent(
        parent, path=module_path, items=lambda: _worker(config).items, run=_run_item
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Sends the names of the collected items to the controller, after options such as ``-k`` have deselected items."""
    worker = session.config.stash.get(_WORKER, None)
    if worker is None:
        return
    from conformance.run.xdist_adapter import is_worker, report_collected, wants_every_phase

    kept = [item.item_id for item in session.items if isinstance(item, pytest_.SuiteItem)]
    if len(kept) == len(session.items):
        pytest_.capture_no_logs(session.config)
        session.config.stash[_BARE] = not wants_every_phase(session.config)
    if is_worker(session.config):
        report_collected(session.config, kept)
    else:
        ours = session.config.stash[_RUN].session
        ours.record_items(worker.items[item] for item in kept)
        on = session.config.option.continue_on_collection_errors
        if kept and (on or not session.testsfailed):  # else pytest runs nothing
            ours.progress.begin()


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Runs an item of the suite. Setup and teardown are left out, unless a plugin needs these phases."""
    if not (isinstance(item, pytest_.SuiteItem) and item.config.stash.get(_BARE, False)):
        return None
    pytest_.run_phase(item)
    return True


def _run_item(item: pytest_.SuiteItem) -> None:
    """Runs one item and attaches its cells to pytest's report. The item fails if the outcome of a cell is
    unexpected."""
    from conformance.run.isolation.watch import DeviceLost
    from conformance.run.item_report import write_report
    from conformance.run.xdist_adapter import REPORT

    config, worker = item.config, _worker(item.config)
    if worker.out_of_time:
        pytest.skip("--max-time is over")
    try:
        report, failures = worker.run(item.item_id)
    except DeviceLost as dead:  # only without workers
        here = config.stash[_RUN]
        here.session.lose(dead.lost, "main")
        here.stop(dead)
    item.user_properties.append((REPORT, write_report(report)))
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


_TWICE = (
    "{} ran twice: a pytest plugin repeats tests. A failing cell that is "
    "repeated until it passes would be reported as passed: disable that plugin with -p no:NAME"
)


class RanTwice(ConformError):
    """The error for a pytest plugin that repeats items."""

    exit_code = 3


# -- reports and the end, in the process that the user started


def pytest_sessionstart(session: pytest.Session) -> None:
    """Installs the handlers of SIGINT and SIGTERM, and arranges that the run stops if its output cannot be written."""
    run = session.config.stash.get(_RUN, None)
    if run is None:
        return
    from conformance.run.interrupts import listen

    def failed(why: str) -> None:
        run.aborted = why
        os.write(2, f"ERROR: {why}\n".encode())

    pytest_.guard_output(session, failed)
    listen(run.session.waits_for, run.session.kill_workers)


class _Reports:
    """A pytest plugin that collects the cells from pytest's reports. It is registered only for runs of the suite."""

    def __init__(self, run: _Run, config: pytest.Config) -> None:
        self._run, self._pace = run, run.session.pace()
        self._say = partial(pytest_.remark, config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Iterator[None]:
        """Collects the cells from a report before any other plugin prints the report, and prints a progress line."""
        from conformance.run.item_report import read_report
        from conformance.run.xdist_adapter import REPORT, worker_of

        for name, value in report.user_properties:
            if name == REPORT and report.when == "call":  # the report of the teardown has it, too
                if report.nodeid in self._run.seen:
                    self._run.stop(RanTwice(_TWICE.format(report.nodeid)))
                self._run.seen.add(report.nodeid)
                self._run.session.gather(read_report(str(value)), worker_of(report))
        self._run.foreign += report.failed and not self._run.has(report.nodeid)
        yield
        session = self._run.session
        if line := self._pace.line(len(session.outcomes), len(session.failing), time.monotonic()):
            self._say(line)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Writes the results of the run and sets the exit code."""
    config = session.config
    run = config.stash.get(_RUN, None)
    if run is None:
        return
    ours = run.session
    if pytest_.collects_only(config):
        ours.progress.abandon()
        shutil.rmtree(ours.folder, ignore_errors=True)
        return
    if exitstatus == pytest.ExitCode.USAGE_ERROR:
        ours.progress.abandon()
        return
    from conformance.run.xdist_adapter import stopped_by_failures
    from reports.folder import EARLIER_FILE
    from reports.summary import publish, summarise

    stopped = stopped_by_failures(session)
    if run.aborted or exitstatus == pytest.ExitCode.INTERNAL_ERROR:
        ours.cut_short = run.aborted or "pytest itself failed, see above"
    elif exitstatus == pytest.ExitCode.INTERRUPTED and not stopped:
        ours.cut_short = "interrupted"
    # A resumed run may have had everything but its files.
    nothing = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not ours.outcomes
    if nothing and ours.partial:
        ours.progress.abandon()
        options = " together with ".join(f"{n} {v}" for n, v in ours.request.selection.items())
        run.ended = f"nothing selected (exit 5): no test matches {options}"
        return
    if ours.cut_short and not ours.progress.begun:  # nothing has run: an earlier run stays
        ours.progress.abandon()
        run.ended = f"cut short: {ours.cut_short}. No test has run, and no file was changed."
        session.exitstatus = _code_of(run, exitstatus, int(pytest.ExitCode.INTERRUPTED))
        return
    try:
        result = ours.finish(run.junitxml, stopped=stopped, say=partial(pytest_.remark, config))
        lines = publish(result, os.environ)
    except ConformError as error:
        pytest_.stop_run(error)
    if ours.explored:  # a result, so -q shows it too
        lines = (*lines, ours.explored)
    lines = (*lines, *ours.played)
    code = result.exit_code or (pytest.ExitCode.TESTS_FAILED if run.foreign else 0)
    if ours.cut_short:
        lines = (
            *lines,
            f"cut short: {ours.cut_short}. Run the same command with --resume to continue.",
        )
        if ours.progress.keeps_earlier:
            lines = (*lines, f"The earlier complete run is kept: {ours.folder / EARLIER_FILE}")
    session.exitstatus = _code_of(run, exitstatus, int(code))
    verbosity = pytest_.verbosity(config)
    text = summarise(result, styled=pytest_.is_styled(config), verbosity=verbosity)
    run.ended = "\n".join([text, *lines])


def _code_of(run: _Run, exitstatus: int, code: int) -> int:
    """Returns the exit code of a run. If the run ended early and the user did not interrupt it, the exit code is 3
    (infrastructure)."""
    given_up = run.aborted or exitstatus != pytest.ExitCode.INTERRUPTED
    return int(pytest.ExitCode.INTERNAL_ERROR) if run.session.cut_short and given_up else code


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """Prints the verdict on the run at the end, instead of pytest's lists of failing items."""
    run = config.stash.get(_RUN, None)
    if run is None:
        return (yield)

    with pytest_.only_foreign_reports(terminalreporter, run.has):
        yield
    if not run.ended:
        return
    verbosity = pytest_.verbosity(config)
    if verbosity >= 0:
        terminalreporter.ensure_newline()  # otherwise write_line starts with an empty line after -n 0
        terminalreporter.section("conformance")
    terminalreporter.write_line(run.ended)
    if verbosity > 0 and (line := run.session.cache_line()):
        terminalreporter.write_line(line)
