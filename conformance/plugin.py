"""The pytest plugin: options, collection and reporting. The work is in session.py and worker.py.

Inert unless the run takes paths of the ``conformance`` package: pytest's other users see options and
nothing else. Under xdist the controller prepares, gathers and judges; workers only run items.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from conformance.isolation.guard import DeviceLost
from conformance.options import Request, add_options, joined
from devices.errors import ConformError

if TYPE_CHECKING:
    from conformance.forking.client import ForkServer
    from conformance.items import ItemId
    from conformance.orders import WorkerOrders
    from conformance.session import Session
    from conformance.worker import Worker

_PACKAGE = Path(__file__).resolve().parent
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_WORKER: pytest.StashKey[Worker] = pytest.StashKey()
_XMLPATH: pytest.StashKey[Path | None] = pytest.StashKey()
_ENDED = pytest.StashKey[str]()
_FOREIGN = pytest.StashKey[int]()  # failures of tests that are not ours
_ORDERS: pytest.StashKey[WorkerOrders] = pytest.StashKey()
_ABORTED = pytest.StashKey[str]()  # why the run was given up, if it was
_SERVER: pytest.StashKey[ForkServer] = pytest.StashKey()  # that workers come from
_AUTO = pytest.StashKey[bool]()  # -n auto: as many workers as are of use


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _takes_the_suite(config: pytest.Config) -> bool:
    """Whether some argument is the package, a folder around it, or something inside it.

    With ``--pyargs`` an argument may name the package as Python does, wherever it is installed.
    """
    for arg in config.args:
        name = arg.split("::")[0]
        if config.option.pyargs and name.split(".")[0] == _PACKAGE.name:
            return True
        path = Path(os.path.abspath(name))
        if path == _PACKAGE or path in _PACKAGE.parents or _PACKAGE in path.parents:
            return True
    return False


def _give_up(error: ConformError) -> NoReturn:
    """One message, the documented exit code, no traceback."""
    if error.exit_code == int(pytest.ExitCode.USAGE_ERROR):
        raise pytest.UsageError(str(error)) from None
    raise pytest.exit.Exception(str(error), returncode=error.exit_code) from None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_XMLPATH] = None
    if not _takes_the_suite(config) or config.option.help:
        return
    from conformance.worker import limit_threads

    limit_threads()
    if _is_worker(config):
        return
    # pytest's own writer would write items, not cells, to the same file.
    if xmlpath := getattr(config.option, "xmlpath", None):
        config.stash[_XMLPATH] = Path(xmlpath).absolute()
        config.option.xmlpath = None
    config.invocation_params = dataclasses.replace(
        config.invocation_params, args=joined(map(str, config.invocation_params.args))
    )
    from conformance.isolation.workers import limit_workers
    from conformance.session import orders_for, prepare

    try:
        session = config.stash[_SESSION] = prepare(Request.of(config))
    except ConformError as error:
        _give_up(error)
    config.stash[_FOREIGN] = 0
    orders = config.stash[_ORDERS] = orders_for(session)
    if config.stash.get(_AUTO, False):
        limit_workers(config.option, len(orders.items) + len(orders.last))
    if getattr(config.option, "tx", None) and not config.option.collectonly:
        _watch_workers(config, session)


# -- xdist


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """One worker where no number of them was given: what crashes ends it, and not the run."""
    from conformance.isolation.workers import check_distribution, force_one, wants_a_worker

    if _is_worker(config) or not _takes_the_suite(config):
        return
    try:
        check_distribution(config.option)
    except ConformError as error:
        raise pytest.UsageError(str(error)) from None
    if wants_a_worker(config.option):
        force_one(config.option)
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = str(10**9)  # those that die in vain are counted elsewhere
    _begin_loading(config)


def _begin_loading(config: pytest.Config) -> None:
    """Have what workers need loaded, while this process prepares the run."""
    from conformance.forking.client import ForkServer
    from conformance.isolation.workers import has_workers_here

    if _SERVER not in config.stash and has_workers_here(config.option):
        server = config.stash[_SERVER] = ForkServer()
        config.add_cleanup(server.close)


def _watch_workers(config: pytest.Config, session: Session) -> None:
    from conformance.isolation.hooks import XdistHooks
    from conformance.items import ItemId, named
    from conformance.session import controller_for

    orders = config.stash[_ORDERS]
    known = named(orders.items, orders.last)

    def stop(error: ConformError) -> NoReturn:
        config.stash[_ABORTED] = str(error)
        raise pytest.exit.Exception(str(error), returncode=error.exit_code) from None

    def collected(items: Any) -> None:
        for item in items:
            session.collected.update(known[ItemId(*item)].cells)

    given = {"results": str(session.folder), "orders": orders.text()}
    controller, server = controller_for(session, orders), config.stash.get(_SERVER, None)
    hooks = XdistHooks(controller, given, stop, collected, server)
    config.pluginmanager.register(hooks, "conform-isolation")
    session.look_ahead()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Workers per device times devices, bounded by memory; None leaves it to xdist."""
    if not _takes_the_suite(config):
        return None
    from conformance.isolation.workers import auto
    from conformance.selection import find_descriptor

    config.stash[_AUTO] = True
    _begin_loading(config)
    try:
        return auto(find_descriptor(Request.of(config)))
    except ConformError:
        return None  # pytest_configure will say what is wrong


# -- collection and running


def _worker(config: pytest.Config) -> Worker:
    """This process' runner, made at first use: a controller of xdist never needs one."""
    found = config.stash.get(_WORKER, None)
    if found is None:
        from conformance.isolation.setting import in_process
        from conformance.worker import Worker, started

        if _is_worker(config):
            found = started(config.workerinput)  # type: ignore[attr-defined]
        else:
            session = config.stash[_SESSION]
            setting = in_process(session.folder, session.keeper.lost)
            found = Worker(config.stash[_ORDERS], setting, session.device)
        config.stash[_WORKER] = found
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    suite = _suite_of(metafunc.definition.path)
    if suite is not None:
        items = _worker(metafunc.config).items
        metafunc.parametrize("item_name", [name for of, name in items if of == suite])


def _suite_of(path: Path) -> str | None:
    """The suite that a test file of ours parametrises."""
    ours = path.parent == _PACKAGE and path.stem.startswith("test_")
    return path.stem.removeprefix("test_") if ours else None


def _item_of(item: pytest.Item) -> ItemId | None:
    """The item of ours that pytest's item runs; None for others', and for a suite without any."""
    from conformance.items import ItemId

    suite, spec = _suite_of(item.path), getattr(item, "callspec", None)
    if suite is None or spec is None or not isinstance(spec.params.get("item_name"), str):
        return None
    return ItemId(suite, spec.params["item_name"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Our items in the plan's order over all files; a suite without items has nothing to skip.

    First of all, so that ``-k`` does not count the placeholders of such suites.
    """
    worker = config.stash.get(_WORKER, None)
    if worker is None:
        return
    place = {name: number for number, name in enumerate(worker.items)}
    ours = {id(item): found for item in items if (found := _item_of(item)) is not None}
    kept = [item for item in items if id(item) in ours or _suite_of(item.path) is None]
    kept.sort(key=lambda item: place[ours[id(item)]] if id(item) in ours else len(place))
    items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the controller which items pytest kept, after ``-k`` and the like."""
    worker = session.config.stash.get(_WORKER, None)
    if worker is None:
        return
    kept = [found for item in session.items if (found := _item_of(item)) is not None]
    if _is_worker(session.config):
        session.config.workeroutput["conform_collected"] = [list(k) for k in kept]  # type: ignore[attr-defined]
    else:
        run = session.config.stash[_SESSION]
        run.collected.update(cell for name in kept for cell in worker.items[name].cells)


@pytest.fixture
def run_item(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Run one item, attach its cells to the report, and fail if one is not as expected."""

    def run(suite: str, name: str) -> None:
        from conformance.items import ItemId

        worker = _worker(request.config)
        if worker.out_of_time:
            pytest.skip("--max-time is over")
        try:
            documents, bad = worker.run(ItemId(suite, name))
        except DeviceLost as dead:
            request.config.stash[_SESSION].lose(dead.lost, "main")
            request.config.stash[_ABORTED] = str(dead)
            raise pytest.exit.Exception(str(dead), returncode=dead.exit_code) from None
        request.node.user_properties.append(("conform", documents))
        if bad:
            pytest.fail("\n".join(bad), pytrace=False)

    return run


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> Iterator[None]:
    """Take the cells out of the report before anyone prints them."""
    config = _controller
    session = config.stash.get(_SESSION, None) if config is not None else None
    if session is not None and config is not None:
        ours: list[Any] = [value for name, value in report.user_properties if name == "conform"]
        for documents in ours:
            session.gather(documents, getattr(report, "worker_id", "main"))
        path = Path(config.rootpath, report.nodeid.split("::")[0])
        if report.failed and not ours and _suite_of(path) is None:
            config.stash[_FOREIGN] += 1
    return (yield)


_controller: pytest.Config | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    # pytest_runtest_logreport is given no config; a process has one session.
    global _controller
    _controller = session.config
    ours = session.config.stash.get(_SESSION, None) is not None
    if ours and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # A CI job that is cancelled ends as one that is interrupted: with what it has, to be resumed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


# -- the end


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    run = config.stash.get(_SESSION, None)
    if run is None or _is_worker(config):
        return
    if config.option.collectonly:
        shutil.rmtree(run.folder, ignore_errors=True)
    if config.option.collectonly or exitstatus == pytest.ExitCode.USAGE_ERROR:
        return
    from reports.gate import publish, summarise

    stopped = _stopped_by_failures(session)
    aborted = config.stash.get(_ABORTED, None)
    if aborted is not None or exitstatus == pytest.ExitCode.INTERNAL_ERROR:
        run.cut_short = aborted or "pytest itself failed, see above"
    elif exitstatus == pytest.ExitCode.INTERRUPTED and not stopped:
        run.cut_short = "interrupted"
    # A run that is gone on with may have had everything done but its files.
    nothing = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not run.documents
    if nothing and run.request.selection:
        run.clean_up()
        options = ", ".join(run.request.selection)
        config.stash[_ENDED] = f"nothing selected (exit 5): {options} leave no item of the plan"
        return
    try:
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        say = _speaker(reporter)
        done, result = run.finish(config.stash[_XMLPATH], stopped=stopped, say=say)
        told = publish(result, os.environ)
    except ConformError as error:
        raise pytest.exit.Exception(str(error), returncode=error.exit_code) from None
    code = int(result.exit_code)
    if run.cut_short and exitstatus != pytest.ExitCode.INTERRUPTED:
        code = int(pytest.ExitCode.INTERNAL_ERROR)  # the documented code of infrastructure
    if not code and config.stash[_FOREIGN]:
        code = int(pytest.ExitCode.TESTS_FAILED)
    session.exitstatus = code
    styled = bool(reporter is not None and reporter.hasmarkup)
    text = summarise(done, result, styled=styled)
    if run.cut_short:
        told = (*told, f"cut short: {run.cut_short}. The same command with --resume goes on.")
    config.stash[_ENDED] = "\n".join([text, *told])


def _stopped_by_failures(session: pytest.Session) -> bool:
    """Whether ``-x`` or ``--maxfail`` ended the run; under xdist its own session says so."""
    of_xdist: Any = session.config.pluginmanager.get_plugin("dsession")
    stop = str(getattr(of_xdist, "shouldstop", "") or "")
    return bool(session.shouldfail) or stop.startswith("stopping after")


def _speaker(reporter: Any) -> Callable[[str], None]:
    """Prints a line at once: what follows may take minutes."""

    def say(text: str) -> None:
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"conformance: {text}")

    return say


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    text = config.stash.get(_ENDED, None)
    if text is None:
        return
    session = config.stash[_SESSION]
    terminalreporter.section("conformance")
    terminalreporter.write_line(text)
    if session.asked:
        answered = session.asked - session.missed
        state = "" if session.request.reference_cache else " (cache off)"
        terminalreporter.write_line(
            f"Stride reference: {answered:,} of {session.asked:,} answers from the cache{state}."
        )


def pytest_report_header(config: pytest.Config) -> list[str]:
    session = config.stash.get(_SESSION, None)
    if session is None:
        return []
    from conformance.items import is_case, item_of

    cells, items = len(session.selected), len({item_of(c) for c in session.selected})
    manifest = session.expectations or "none"
    lines = [
        f"conformance: device {session.plan.device}, plan {session.plan.spec.name} "
        f"({session.plan.hash}): {cells:,} cells in {items:,} items",
        f"conformance: expectations {manifest}",
    ]
    if session.request.resume:
        lines.append(f"conformance: resumed: {len(session.documents):,} cells are done")
    if session.request.selection:
        lines.append(f"conformance: partial run ({', '.join(session.request.selection)})")
    if session.request.ops is not None or session.request.dtypes is not None:
        cases = sum(is_case(cell) for cell in session.plan.cells)
        lines.append(
            f"conformance: --ops and --dtypes leave out the {cases:,} cells that are of no op"
        )
    return lines
