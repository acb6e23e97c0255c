"""What the adapters use of pytest, xdist and execnet beyond their documented API is still there.

A failure here names what has gone and the versions that are supported: adapt the adapter, then widen the range in
pyproject.toml.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import execnet
import execnet.gateway_base
import execnet.gateway_bootstrap
import pytest
import xdist.dsession
import xdist.remote
import xdist.workermanage
from _pytest.capture import CaptureManager
from _pytest.config.argparsing import Parser
from packaging.requirements import Requirement
from packaging.version import Version

from conformance.run import xdist_adapter
from conformance.run.execnet_adapter import is_plain, pipes_of, process_of
from devices.files import tomllib

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def supported(package: str) -> Requirement:
    """The versions that pyproject.toml admits."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    (found,) = (
        requirement
        for requirement in map(Requirement, project["dependencies"])
        if requirement.name == package
    )
    return found


def require(package: str, found: bool, what: str) -> None:
    adapter = {"pytest-xdist": "xdist"}.get(package, package)
    assert found, (
        f"{package} {metadata.version(package)}: {what}. Supported: {supported(package)}. Adapt "
        f"conformance/run/{adapter}_adapter.py, then the range in pyproject.toml"
    )


def require_names(package: str, owner: Any, names: Iterable[str]) -> None:
    source = inspect.getsource(owner)
    for name in names:
        there = hasattr(owner, name) or f"self.{name}" in source
        require(package, there, f"{owner.__name__} has no {name}")


def require_parameters(package: str, function: Callable[..., Any], names: Iterable[str]) -> None:
    missing = set(names) - inspect.signature(function).parameters.keys()
    require(package, not missing, f"{function.__qualname__} takes no {', '.join(sorted(missing))}")


@pytest.mark.parametrize("package", ["pytest", "pytest-xdist", "execnet"])
def test_the_installed_version_is_in_a_range_with_an_upper_bound(package: str) -> None:
    range_ = supported(package).specifier
    assert any(each.operator == "<" for each in range_), f"{package} has no upper bound"
    assert any(each.operator == ">=" for each in range_), f"{package} has no lower bound"
    require(package, Version(metadata.version(package)) in range_, "not a supported version")


def test_what_is_used_of_pytest() -> None:
    parser = Parser(_ispytest=True)
    require_names("pytest", Parser, ("_anonymous", "_groups"))
    require_names("pytest", CaptureManager, ("global_and_fixture_disabled",))
    group = parser.getgroup("mine")
    group.addoption("--mine", dest="conform_mine", help="x", action="store_true")
    require("pytest", "--mine" in group.options[0].names(), "an option has no names()")
    require_names("pytest", pytest.Config, ("invocation_params", "stash", "args"))
    for name in ("USAGE_ERROR", "INTERNAL_ERROR", "INTERRUPTED", "NO_TESTS_COLLECTED"):
        require("pytest", hasattr(pytest.ExitCode, name), f"ExitCode has no {name}")


@pytest.mark.parametrize("value", ["layout-add-float32"])
def test_the_parameter_of_an_item_of_pytest(request: pytest.FixtureRequest, value: str) -> None:
    params = getattr(getattr(request.node, "callspec", None), "params", None)
    require("pytest", params == {"value": value}, "an item has no callspec.params")


def test_the_options_of_pytest_and_xdist_that_are_read(pytestconfig: pytest.Config) -> None:
    for name in ("collectonly", "help", "pyargs", "keyword", "markexpr", "maxfail", "capture"):
        require("pytest", hasattr(pytestconfig.option, name), f"there is no option {name}")
    for name in ("numprocesses", "dist", "tx", "maxworkerrestart", "maxschedchunk"):
        require("pytest-xdist", hasattr(pytestconfig.option, name), f"there is no option {name}")


def test_what_is_used_of_xdist() -> None:
    session, node = xdist.dsession.DSession, xdist.workermanage.WorkerController
    require_names(
        "pytest-xdist", session, ("nodemanager", "countfailures", "maxfail", "shouldstop")
    )
    require_names("pytest-xdist", node, ("gateway", "workerinput", "workeroutput", "config"))
    require_names("pytest-xdist", xdist.workermanage.NodeManager, ("group",))
    require_names("pytest-xdist", xdist.remote.WorkerInteractor, ("workerid",))
    hooks = inspect.getsource(xdist.dsession) + inspect.getsource(xdist.workermanage)
    for name in ("configure_node", "testnodedown", "handlecrashitem", "xdist_setupnodes"):
        require("pytest-xdist", f"pytest_{name}(" in hooks, f"pytest_{name} is not called")
    require("pytest-xdist", '"worker_id"' in inspect.getsource(xdist.remote), "no report.worker_id")


@pytest.mark.parametrize("mode", xdist_adapter.SUPPORTED)
def test_a_supported_scheduler_of_xdist_takes_an_item_back(mode: str) -> None:
    module = __import__(f"xdist.scheduler.{mode}", fromlist=["x"])
    name = {"load": "LoadScheduling", "worksteal": "WorkStealingScheduling"}[mode]
    scheduler = getattr(module, name)
    require_parameters("pytest-xdist", scheduler.mark_test_pending, ("item",))


def test_what_is_used_of_execnet() -> None:
    require_names("execnet", execnet.Group, ("allocate_id", "makegateway", "_register"))
    require_names("execnet", execnet.Group, ("execmodel", "remote_execmodel"))
    require_names("execnet", execnet.gateway_base.Popen2IO, ("infile", "outfile"))
    require_names("execnet", execnet.Gateway, ("newchannel", "remote_exec", "_rinfo"))
    require_parameters("execnet", execnet.gateway_bootstrap.bootstrap, ("io", "spec"))
    require("execnet", "_spec" in vars(execnet.XSpec("popen")), "XSpec has no _spec")
    require("execnet", is_plain(execnet.XSpec("popen//id=gw0")), "a spec has further fields")


def test_the_process_and_the_pipes_of_a_gateway_of_execnet() -> None:
    group = execnet.Group(execmodel="main_thread_only")
    gateway = group.makegateway("popen")
    try:
        process = process_of(gateway)
        require("execnet", process is not None, "a gateway does not show its process")
        assert process is not None and process.poll() is None
        require("execnet", len(pipes_of(gateway.newchannel())) == 2, "its pipes are not found")
    finally:
        group.terminate(timeout=10)


def test_a_failure_names_the_supported_versions() -> None:
    with pytest.raises(
        AssertionError, match=r"DSession has no horn. Supported: pytest-xdist<4,>=3"
    ):
        require_names("pytest-xdist", xdist.dsession.DSession, ["horn"])
