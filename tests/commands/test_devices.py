"""``conform devices``: what is declared, what is answered, and why a device is not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import conform
from conformance.commands import devices as command
from conformance.onboarding.questions import Question, Reply, ask
from devices import registry
from devices.descriptor import CAPABILITIES, Descriptor
from devices.registry import Registry

UNTRIED = ("cuda", "hpu", "mps", "mtia", "npu", "rocm", "xpu")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(conform, ["devices", *arguments])


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Descriptor:
    """A device that is here, and that answers otherwise than it declares."""
    device = Descriptor(
        name="one",
        torch_type="npu",
        title="An NPU",
        capabilities=frozenset({"strides", "streams"}),
        dtypes=frozenset({"float32"}),
    )
    reply = Reply(
        {"strides": True, "streams": False, "generator": True, "graphs": None},
        ["float32"],
        {"device_name": "NPU 1"},
        raised={"streams": "RuntimeError: no driver"},
    )
    monkeypatch.setattr(registry, "installed", lambda: Registry({"one": device}, {}))
    monkeypatch.setattr(command, "ask_all", lambda questions: [reply for _ in questions])
    return device


def test_declared_and_probed_are_held_apart(one: Descriptor) -> None:
    (row,) = json.loads(call("--json").stdout)["devices"]
    assert row["capabilities"] == ["streams", "strides"]
    assert row["probed"]["declared_and_absent"] == ["streams"]
    assert row["probed"]["present_and_undeclared"] == ["generator"]
    text = " ".join(call().stdout.split())  # lines are wrapped
    assert (
        "one declares these capabilities, but the probe did not find them: streams (RuntimeError: no driver)"
        in text
    )
    assert "one has these capabilities, but does not declare them: generator" in text


def test_a_named_device_shows_every_capability(one: Descriptor) -> None:
    text = call("one").stdout
    for name in CAPABILITIES:
        assert name in text
    assert "NPU 1" in text and "declared dtypes: float32" in text


def test_a_device_that_cannot_be_asked_says_why(
    one: Descriptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ask_all", lambda questions: [Reply(error="it hangs")])
    assert "one is not available here: it hangs" in call().stdout


def test_an_unknown_name_is_one_message() -> None:
    result = call("npux", "--no-probe")
    assert result.exit_code == 4 and "there is no device 'npux'" in result.stderr


@pytest.mark.parametrize("name", UNTRIED)
def test_a_device_that_is_not_here_says_so_without_torch(name: str) -> None:
    code = (
        "import sys; from devices import registry;"
        f"print(registry.get({name!r}).unavailable()); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != "None", "this machine has one: the test means machines without"


@pytest.mark.parametrize("name", [each for each in UNTRIED if each != "cuda"])
def test_an_untried_descriptor_says_so_and_names_its_sources(name: str) -> None:
    device = registry.get(name)
    assert device.folder is not None and device.expectations is not None
    text = (device.folder / "descriptor.py").read_text(encoding="utf-8")
    assert "never been run; the first run may" in " ".join(text.split()) and len(device.sources) > 1
    assert "[[expect]]" not in device.expectations.read_text(encoding="utf-8")


def test_the_cpu_answers_in_a_process_of_its_own() -> None:
    reply = ask(Question(name="cpu"))
    cpu = registry.get("cpu")
    assert reply.error == ""
    assert reply.capabilities["strides"] is True and reply.capabilities["streams"] is False
    assert set(reply.dtypes) == set(cpu.dtypes)


def test_a_device_that_dies_when_asked_costs_no_one_else(tmp_path: Path) -> None:
    (tmp_path / "descriptor.py").write_text(
        "import os\nfrom conformance import Descriptor\n"
        "DESCRIPTOR = Descriptor(name='dead', torch_type='cpu', title='Dead', capabilities=frozenset(),"
        " dtypes=frozenset({'float32'}), to_device=lambda tensor: os.kill(os.getpid(), 9))\n"
    )
    assert "was killed by SIGKILL" in ask(Question(path=str(tmp_path))).error
