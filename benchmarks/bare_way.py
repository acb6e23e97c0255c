"""The floor: the same ops and float32 samples drawn and called on bare tensors, and nothing looked at.

What is left when a harness costs nothing: torch and its op database are imported, each sample is drawn once
(seeded per op, without upstream's per-sample bookkeeping), and the op is called as often as both ways must call
it: for the expected result, for another layout, and with ``out=``. No layout is built, no byte compared.
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
    """Call the op twice, and with ``out=`` where it has one. What raises is passed over, as in the other ways."""
    arguments = (sample.input, *sample.args)
    try:
        expected = op.function(*arguments, **sample.kwargs)
        op.function(*arguments, **sample.kwargs)
        if op.has_out and isinstance(expected, torch.Tensor):
            op.function(*arguments, **sample.kwargs, out=torch.empty_like(expected))
    except Exception:  # what fails is not what is measured
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
