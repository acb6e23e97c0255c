"""The pytest plugin: pytest's hooks, each of which calls what does the work.

Inert unless the run takes paths of the ``conformance`` package: pytest's other users see options and nothing else.
``run/session.py`` works in the process that the user started, ``run/worker.py`` in each process that runs items: workers
of xdist, or with ``-n 0`` the user's own.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from conformance.run import pytest_adapter as pytest_
from devices.errors import ConformError, with_cause
from devices.torch_version import NoTorch, has_torch, require_torch

if TYPE_CHECKING:
    from conformance.run.careful import Runner
    from conformance.run.fork_client import ForkServer
    from conformance.run.session import Session
    from conformance.run.worker import Worker, WorkerOrders


@dataclass
class _Run:
    """A run of the suite, in the process that the user started."""

    session: Session
    orders: WorkerOrders
    junitxml: Path | None
    foreign: int = 0  # failures of tests that are not the suite's
    aborted: str = ""  # why the run was given up, if it was
    ended: str = ""  # what is printed at the end

    def stop(self, error: ConformError) -> NoReturn:
        self.aborted = str(error)
        pytest_.stop_run(error)


_RUN: pytest.StashKey[_Run] = pytest.StashKey()
_WORKER: pytest.StashKey[Worker | Runner] = pytest.StashKey()
_SERVER: pytest.StashKey[ForkServer] = pytest.StashKey()  # starts workers
_BARE = pytest.StashKey[bool]()  # an item is reported once: nobody wants more, nothing else runs
_AUTO = pytest.StashKey[bool]()  # -n auto: only as many workers as are worth their start


def pytest_addoption(parser: pytest.Parser) -> None:
    pytest_.add_options(parser)


# -- before the tests


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """One worker unless a number of workers was given: a crash then ends that worker, and not the run."""
    if not pytest_.takes_the_suite(config):
        return None
    from conformance.run.xdist_adapter import is_worker, prepare_options
    from devices import autoload

    if is_worker(config):
        return None
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
    _begin_loading(config)
    return None


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Workers per device times devices, bounded by memory; None leaves the number to xdist."""
    if not pytest_.takes_the_suite(config) or not has_torch():
        return None
    from conformance.plan.selection import find_descriptor
    from conformance.run.isolation.controller import useful_workers
    from conformance.run.session import known

    config.stash[_AUTO] = True
    _begin_loading(config)
    try:
        request = pytest_.request_of(config)
        found = find_descriptor(request.device, request.descriptor)
        server = config.stash.get(_SERVER, None)
        return useful_workers(known(found, request.descriptor, server).descriptor)
    except ConformError:
        return None  # pytest_cmdline_main and pytest_configure report what is wrong


def _begin_loading(config: pytest.Config) -> None:
    """Load what workers need, while this process prepares the run."""
    from conformance.checks.child import use_copier
    from conformance.run.fork_client import ForkServer
    from conformance.run.xdist_adapter import has_workers_here

    if _SERVER not in config.stash and has_workers_here(config.option):
        server = config.stash[_SERVER] = ForkServer()
        use_copier(server)
        config.add_cleanup(server.close)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not pytest_.takes_the_suite(config):
        return
    from conformance.run.xdist_adapter import has_workers, is_worker, limit_workers

    try:
        from opinfo.device import limit_threads
    except Exception as error:  # with torch, the modules are imported that extend it
        pytest_.stop_run(NoTorch(f"torch cannot be imported: {with_cause(error)}"))

    limit_threads()
    if is_worker(config):
        return
    junitxml = pytest_.take_junitxml(config)
    pytest_.join_arguments(config)
    from conformance.run.session import prepare

    try:
        session = prepare(pytest_.request_of(config), config.stash.get(_SERVER, None))
    except ConformError as error:
        pytest_.end_run(error)
    run = config.stash[_RUN] = _Run(session, session.orders(), junitxml)
    config.pluginmanager.register(_Reports(run, config), "conform-reports")
    if config.stash.get(_AUTO, False):
        limit_workers(config.option, len(run.orders.named))
    if has_workers(config.option):
        _watch_workers(config, run)


def _watch_workers(config: pytest.Config, run: _Run) -> None:
    from conformance.run.worker import write_orders
    from conformance.run.xdist_adapter import XdistHooks

    known = run.orders.named

    def collected(items: Iterable[str]) -> None:
        run.session.keep(known[item] for item in items)

    orders, server = write_orders(run.orders), config.stash.get(_SERVER, None)
    controller = run.session.controller(run.orders, partial(pytest_.say, config))
    hooks = XdistHooks(controller, orders, run.stop, collected, server)
    config.pluginmanager.register(hooks, "conform-isolation")
    run.session.look_ahead()


def pytest_report_header(config: pytest.Config) -> list[str]:
    run = config.stash.get(_RUN, None)
    return [] if run is None else run.session.header()


# -- collecting and running, in each process that runs items


def _worker(config: pytest.Config) -> Worker | Runner:
    """What runs items in this process, made at first use: a controller of xdist never needs it."""
    from conformance.run.careful import start_worker
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
    if not pytest_.is_suite(module_path):
        return None
    config = parent.config
    return pytest_.SuiteFile.from_parent(
        parent, path=module_path, items=lambda: _worker(config).items, run=_run_item
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the controller which items pytest kept, after ``-k`` and the like."""
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
        session.config.stash[_RUN].session.keep(worker.items[item] for item in kept)


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if not (isinstance(item, pytest_.SuiteItem) and item.config.stash.get(_BARE, False)):
        return None
    pytest_.run_phase(item)
    return True


def _run_item(item: pytest_.SuiteItem) -> None:
    """Run one item, attach its cells to the report, and fail if one is not as expected."""
    from conformance.run.isolation.watch import DeviceLost
    from conformance.run.outcomes import write_report
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


# -- reports and the end, in the process that the user started


def pytest_sessionstart(session: pytest.Session) -> None:
    if _RUN in session.config.stash and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # A CI job that is cancelled ends like an interrupted one: with a result that can be resumed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


class _Reports:
    """Takes the cells out of reports. Registered for a run of the suite, as this hook is not given the config."""

    def __init__(self, run: _Run, config: pytest.Config) -> None:
        self._run, self._root = run, config.rootpath
        self._pace, self._say = run.session.pace(), partial(pytest_.say, config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Iterator[None]:
        """Before anyone prints them."""
        from conformance.run.outcomes import read_report
        from conformance.run.xdist_adapter import REPORT, worker_of

        for name, value in report.user_properties:
            if name == REPORT and report.when == "call":  # the teardown has it too
                self._run.session.gather(read_report(str(value)), worker_of(report))
        file = Path(self._root, report.nodeid.split("::")[0])
        self._run.foreign += report.failed and not pytest_.is_suite(file)
        yield
        session = self._run.session
        if line := self._pace.line(len(session.outcomes), session.failing, time.monotonic()):
            self._say(line)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    run = config.stash.get(_RUN, None)
    if run is None:
        return
    ours = run.session
    if pytest_.collects_only(config):
        shutil.rmtree(ours.folder, ignore_errors=True)
        return
    if exitstatus == pytest.ExitCode.USAGE_ERROR:
        return
    from conformance.run.xdist_adapter import stopped_by_failures
    from reports.summary import publish, summarise

    stopped = stopped_by_failures(session)
    if run.aborted or exitstatus == pytest.ExitCode.INTERNAL_ERROR:
        ours.cut_short = run.aborted or "pytest itself failed, see above"
    elif exitstatus == pytest.ExitCode.INTERRUPTED and not stopped:
        ours.cut_short = "interrupted"
    # A resumed run may have had everything but its files.
    nothing = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not ours.outcomes
    if nothing and ours.partial:
        ours.clean_up()
        options = ", ".join(ours.request.selection)
        run.ended = f"nothing selected (exit 5): no item of the plan is left by {options}"
        return
    try:
        result = ours.finish(run.junitxml, stopped=stopped, say=partial(pytest_.say, config))
        lines = publish(result, os.environ)
    except ConformError as error:
        pytest_.stop_run(error)
    code = result.exit_code or (pytest.ExitCode.TESTS_FAILED if run.foreign else 0)
    if ours.cut_short:
        lines = (*lines, f"cut short: {ours.cut_short}. The same command with --resume continues.")
        if exitstatus != pytest.ExitCode.INTERRUPTED:
            code = pytest.ExitCode.INTERNAL_ERROR  # the documented code of infrastructure
    session.exitstatus = int(code)
    run.ended = "\n".join(
        [
            summarise(result, styled=pytest_.is_styled(config), verbosity=config.get_verbosity()),
            *lines,
        ]
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is None or not run.ended:
        return
    terminalreporter.section("conformance")
    terminalreporter.write_line(run.ended)
    if line := run.session.cache_line():
        terminalreporter.write_line(line)
