"""A device whose module has a graph class of its own is judged through that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import devices.simulated.backend as backend
from conformance.checks.behaviour.graph_capture import OwnGraph, new_graph
from conformance.checks.cases.context import CaseContext
from conformance.suites.graphs import capture, replays
from devices import registry
from opinfo.device import Device, open_device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The simulated device, as if torch.accelerator.Graph did not serve it."""
    opened = open_device(registry.get("simulated"))
    made: Any = torch._C._acceleratorGraph  # its capture_begin takes pool and mode, as CUDAGraph's
    monkeypatch.setattr(backend.module, "OwnGraph", made, raising=False)
    monkeypatch.setattr(torch.accelerator, "Graph", None)
    functions = {**opened.descriptor.functions, "graph": "OwnGraph"}
    return replace(opened, descriptor=replace(opened.descriptor, functions=functions))


def test_cases_run_through_it(device: Device) -> None:
    context = CaseContext(device, "own")
    assert isinstance(new_graph(context), OwnGraph)
    replays.present_contents(context, "pointwise")
    capture.unknown_mode(context)
    capture.alone(context, "relaxed")
    assert context.checks > 8
