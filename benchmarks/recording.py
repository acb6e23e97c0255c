"""Measures how much slower a training step is while `conform record` records it, and the size of the recording.

The first step costs more than the others, because the range of the values is read for each distinct call; a program of
many steps pays it once."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.figures import Figure
from benchmarks.running import ROOT

#: The width, layers, length and batch of a transformer whose step takes 50 ms or more on one core, and of one whose step
#: takes about 3 ms; and the budget of each step.
_MODELS = {"≥ 50 ms": ((256, 4, 64, 8), 3.0), "about 3 ms": ((32, 2, 16, 4), 6.0)}
_MOST_KILOBYTES = 200.0
_STEPS = 15


def measure() -> dict[str, list[float]]:
    """For each model: the ratio of a recorded step to a plain one, and the kilobytes of the recording. A
    step and a recorded step alternate, in processor time, because the machine may be busy. Call it in a new process."""
    import torch

    from conformance.recordings.recorder import CallRecorder
    from conformance.recordings.wire import encode_recording

    torch.set_num_threads(1)
    found = {}
    for name, (shape, _) in _MODELS.items():
        step = _step_of(*shape)
        recorder = CallRecorder()
        for _ in range(3):
            step()
        with recorder.recording_program():
            step()
        ratios = []
        for _ in range(_STEPS):
            plain = _seconds(step)
            with recorder.recording_program():
                ratios.append(_seconds(step) / plain)
        size = len(encode_recording(recorder.recording())) / 1e3
        found[name] = [statistics.median(ratios), size]
    return found


def _step_of(width: int, layers: int, length: int, batch: int) -> Callable[[], None]:
    import torch

    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(batch, length, width)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def measured() -> Iterator[Figure]:
    code = "import json; from benchmarks.recording import measure; print(json.dumps(measure()))"
    found = json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True))
    for name, (_, most) in _MODELS.items():
        ratio, size = found[name]
        yield Figure(f"a step of {name}, recorded / plain", ratio, most, ratio=True)
        yield Figure(f"recording of a step of {name}, kB", size, _MOST_KILOBYTES)
