"""Upstream's way on equal work: device-type tests over op_db with float32 samples, one non-contiguous layout and
``out=``.

Failures are ignored, as in our_way.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

from benchmarks.same_ops import LIMIT, same_ops

OPS = set(same_ops())
torch.set_num_threads(1)


class TestUpstreamWay(TestCase):
    samples = 0

    @ops([o for o in op_db if o.full_name in OPS], allowed_dtypes=(torch.float32,))  # type: ignore[untyped-decorator]
    def test_layout(self, device: str, dtype: torch.dtype, op: Any) -> None:
        for sample in itertools.islice(op.sample_inputs(device, dtype), LIMIT):
            try:
                self._one(op, sample)
            except Exception:  # failures do not matter here, only time
                pass

    def _one(self, op: Any, sample: Any) -> None:
        expected = op(sample.input, *sample.args, **sample.kwargs)
        other = sample.noncontiguous()
        self.assertEqual(op(other.input, *other.args, **other.kwargs), expected)
        if op.supports_out and isinstance(expected, torch.Tensor):
            out = torch.empty_like(expected)
            op(sample.input, *sample.args, **sample.kwargs, out=out)
            self.assertEqual(out, expected)


instantiate_device_type_tests(TestUpstreamWay, globals(), only_for="cpu")
