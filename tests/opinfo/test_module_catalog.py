"""The fields of torch's database of modules that the adapter reads are there, and it names the modules that are planned."""

from __future__ import annotations

import torch
from packaging.version import Version
from torch.testing._internal import common_modules

from conformance.suites.nn.modules import LONG, MOST, NAMES
from devices.torch_version import LAST
from opinfo.module_catalog import module_entries


def test_entries_have_the_fields_that_are_read() -> None:
    for info in common_modules.module_db:
        assert info.name.startswith("nn.")
        assert callable(info.module_cls) and callable(info.module_inputs_func)


def test_samples_say_how_a_module_is_made_and_called() -> None:
    samples = module_entries()["BatchNorm2d"].samples(training=True)
    assert samples
    for sample in samples:
        assert sample.args and sample.inputs[0].requires_grad


def in_this_torch(names: list[str]) -> list[str]:
    """The names that are in this torch's database. The newest supported torch has all of them."""
    if Version(torch.__version__).release[:2] == LAST:
        return names
    return [name for name in names if name in module_entries()]


def test_every_module_of_the_database_is_planned() -> None:
    assert list(module_entries()) == in_this_torch(NAMES)


def test_modules_with_many_samples_are_listed() -> None:
    many = [
        name for name, entry in module_entries().items() if len(entry.samples(training=True)) > MOST
    ]
    assert many == in_this_torch(LONG)
