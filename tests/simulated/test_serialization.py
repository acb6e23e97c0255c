"""What is saved comes back: values, strides, offsets, what shares a storage, and where it lay."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated


def again(saved: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file, **options)


def views() -> tuple[torch.Tensor, torch.Tensor]:
    """A transposed tensor of the second device, and a part of it."""
    base = torch.arange(12.0, device="simulated:1").view(3, 4).t()
    return base, base[1:, ::2]


WAYS = {
    "torch.save": again,
    "pickle": lambda saved: pickle.loads(pickle.dumps(saved)),
    "deepcopy": copy.deepcopy,
}
#: torch's reduction for plain pickle writes each tensor's storage, on the CPU too.
UNSHARED = {"pickle"}


@pytest.mark.parametrize("way", WAYS)
def test_values_strides_offsets_and_shared_storage_stay(way: str) -> None:
    given = views()
    whole, part = WAYS[way](given)
    for made, want in zip((whole, part), given, strict=True):
        assert made.device == want.device and made.dtype == want.dtype
        assert (made.stride(), made.storage_offset()) == (want.stride(), want.storage_offset())
        assert torch.equal(made.cpu(), want.cpu())
    shared = whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
    assert shared == (way not in UNSHARED)
    assert whole.untyped_storage().data_ptr() != given[0].untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_dtypes_come_back(dtype: torch.dtype) -> None:
    given = torch.tensor([0, 1, 2]).to(dtype).to("simulated")
    assert again(given).dtype == dtype and torch.equal(again(given).cpu(), given.cpu())


@pytest.mark.parametrize("where", ["cpu", "simulated:0", torch.device("simulated", 0)])
def test_map_location_says_where(where: Any) -> None:
    whole, part = again(views(), map_location=where)
    assert whole.device == part.device == torch.device(where)
    assert torch.equal(part.cpu(), views()[1].cpu())


def test_map_location_by_name_and_by_function() -> None:
    there = torch.ones(2, device="simulated:1")
    assert again(there, map_location={"simulated:1": "simulated:0"}).device.index == 0
    assert again(there, map_location=lambda storage, place: storage).device.type == "cpu"


def test_what_was_saved_on_the_cpu_loads_on_the_device() -> None:
    assert again(torch.ones(2), map_location="simulated").device == torch.device("simulated", 0)


def test_an_absent_index_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"SIMULATED device 7 .*device_count\(\) is 2"):
        again(torch.ones(2, device="simulated"), map_location="simulated:7")


def test_modules_and_optimisers_come_back() -> None:
    model = torch.nn.Linear(2, 2).to("simulated:1")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2, device="simulated:1")).sum().backward()
    optimizer.step()
    loaded = again({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other = torch.nn.Linear(2, 2).to("simulated:1")
    other.load_state_dict(loaded["model"])
    assert torch.equal(other.weight.cpu(), model.weight.cpu())
    assert loaded["optimizer"]["state"][0]["exp_avg"].device.index == 1


def test_loading_keeps_the_current_device() -> None:
    with torch.simulated.device(0):
        again(torch.ones(2, device="simulated:1"))
        assert torch.simulated.current_device() == 0
