"""Judges the evidence in a file again, without the device.

``python -m tests.frame.judged_elsewhere FILE`` prints the faults of each judgement as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from conformance.checks.ops.judgements import read_judgements


def main() -> None:
    torch.set_num_threads(1)
    faults = [each.faults() for each in read_judgements(Path(sys.argv[1]))]
    assert not hasattr(torch, "simulated") and "tests.wrapped.faults" not in sys.modules
    print(json.dumps(faults))


if __name__ == "__main__":
    main()
