"""Tensors are exchanged through DLPack without a copy, in the order that the consumer's stream asks for."""

from __future__ import annotations

import pytest
import torch
from torch.utils import dlpack

import devices.simulated.backend  # noqa: F401 - makes torch.simulated


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("by", [lambda x: x, dlpack.to_dlpack, lambda x: x.__dlpack__()])
def test_both_sides_are_one_memory(by: object, index: int) -> None:
    given = torch.arange(6.0, device=f"simulated:{index}").view(2, 3).t()[1:]
    made = torch.from_dlpack(by(given))  # type: ignore[operator]
    assert made.device == given.device and made.stride() == given.stride()
    assert made.data_ptr() == given.data_ptr()
    made[0, 0] = 99
    given[1, 1] = 98
    assert made.tolist() == given.tolist() == [[99.0, 4.0], [2.0, 98.0]]


def test_the_device_is_an_extension_with_its_index() -> None:
    device = torch.ones(1, device="simulated:1").__dlpack_device__()
    assert device == (dlpack.DLDeviceType.kDLExtDev, 1)
    assert torch.ones(1).__dlpack_device__() == (dlpack.DLDeviceType.kDLCPU, 0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.bool, torch.complex64])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    given = torch.ones(3, device="simulated").to(dtype)
    assert torch.from_dlpack(given).dtype == dtype


def test_the_exporter_may_die_first() -> None:
    given = torch.ones(3, device="simulated")
    made = torch.from_dlpack(given)
    del given
    assert (made + 1).tolist() == [2.0] * 3


def test_a_copy_is_one_where_it_is_asked_for() -> None:
    given = torch.ones(3, device="simulated")
    torch.from_dlpack(given, copy=True).zero_()
    assert given.tolist() == [1.0] * 3


def test_the_consumer_s_stream_waits_for_the_producer_s() -> None:
    producer, consumer = torch.Stream("simulated"), torch.Stream("simulated")
    x = torch.zeros(3, device="simulated")
    torch.simulated.synchronize()
    gate = torch.simulated.Gate()
    with producer:
        gate.close()
        x.add_(1)
        x.__dlpack__(stream=consumer.native_handle)
    assert not consumer.query()
    gate.open()
    with consumer:
        assert x.tolist() == [1.0] * 3


@pytest.mark.parametrize("stream", [None, -1])
def test_no_order_is_made_where_none_is_wanted(stream: int | None) -> None:
    producer = torch.Stream("simulated")
    gate = torch.simulated.Gate()
    x = torch.zeros(3, device="simulated")
    torch.simulated.synchronize()
    with producer:
        gate.close()
        x.__dlpack__(stream=stream)
    assert torch.accelerator.current_stream().query()
    gate.open()
    producer.synchronize()


def test_a_stream_that_is_none_is_refused() -> None:
    x = torch.ones(1, device="simulated")
    with pytest.raises(TypeError, match="stream must be"):
        x.__dlpack__(stream="0")
    with pytest.raises(ValueError, match="no stream of device 0 has this handle"):
        x.__dlpack__(stream=12345)


def test_what_dlpack_cannot_say_is_refused() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(1, device="simulated", requires_grad=True))
    with pytest.raises(BufferError, match="conjugate bit"):
        torch.from_dlpack(torch.ones(1, dtype=torch.complex64, device="simulated").conj())
