"""The lower bound: draws the same ops' float32 samples and calls the ops on plain tensors, without checking anything.

This is the time of a harness without cost: torch and its op database are imported, each sample is drawn once (seeded
per op, without upstream's bookkeeping for each sample), and each op is called as often as both ways must call it: for
the expected result, for another layout, and with ``out=``. No layout is created, and no byte is compared.
"""

from __future__ import annotations

import warnings
from itertools import islice
from typing import Any

import torch

from benchmarks.same_ops import LIMIT, same_ops
from opinfo.catalog import Op, catalogue
from opinfo.samples import direct_seeding, seed_everything


def call(op: Op, sample: Any) -> None:
    """Call the op twice, and once more with ``out=`` if it supports that. Exceptions are ignored, as in the other ways."""
    arguments = (sample.input, *sample.args)
    try:
        expected = op.function(*arguments, **sample.kwargs)
        op.function(*arguments, **sample.kwargs)
        if op.has_out and isinstance(expected, torch.Tensor):
            op.function(*arguments, **sample.kwargs, out=torch.empty_like(expected))
    except Exception:  # failures do not matter here, only time
        pass


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with torch.no_grad(), direct_seeding():
        for op in map(catalogue().__getitem__, same_ops()):
            seed_everything(0)
            for sample in islice(op.raw_samples(torch.float32), LIMIT):
                call(op, sample)


if __name__ == "__main__":
    main()
