"""``python -m tests.simulated.stress [--seconds N] [--threads N] [--seed N]``: the device under many threads.

Each thread runs drawn programs of kernels, copies, events and waits over streams of both devices, with blocks that
are freed while work is in flight, pinned memory, private pools, caches that are emptied; what each program must give
is known. The exit status is 0 where every program was right and the counters add up at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Sequence
from random import Random

import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated

SIZES = (1, 10, 1000, 50_000, 300_000)  # elements of float32


class Program:
    """One drawn program: a tensor, what it must hold, and the stream that owns it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._index = random.randrange(2)
        self._stream = self._new_stream()
        with self._stream:
            self.x = torch.full((random.choice(SIZES),), 1.0, device=f"simulated:{self._index}")
        self.want = 1.0

    def _new_stream(self) -> torch.Stream:
        return torch.Stream(f"simulated:{self._index}", priority=self._random.choice((0, -1)))

    def run(self) -> str | None:
        """What went wrong; None where nothing did."""
        steps: list[Callable[[], None]] = [
            *(self._add, self._double, self._clone, self._elsewhere, self._other_device),
            *(self._pinned, self._pool, self._garbage),
        ]
        for _ in range(self._random.randrange(1, 20)):
            # Large numbers would no longer be exact in float32.
            step = self._random.choice(steps) if self.want < 2**20 else self._clone
            with self._stream:
                step()
        with self._stream:
            got = self.x.cpu()
        if bool((got == self.want).all()):
            return None
        wrong = int((got != self.want).sum())
        return f"expected {self.want}, got {got[:3].tolist()}: {wrong} of {got.numel()} elements"

    def _add(self) -> None:
        self.x = self.x + 1
        self.want += 1

    def _double(self) -> None:
        self.x.mul_(2)
        self.want *= 2

    def _clone(self) -> None:
        self.x = self.x.clone()

    def _elsewhere(self) -> None:
        """The next step happens on another stream, ordered by events both ways."""
        other, event = self._new_stream(), self._stream.record_event()
        other.wait_event(event)
        with other:
            self.x.record_stream(other)
            y = self.x - 1
            back = other.record_event()
        self._stream.wait_event(back)
        y.record_stream(self._stream)
        self.x = y + 1

    def _other_device(self) -> None:
        there = self.x.to(f"simulated:{1 - self._index}") + 0
        self.x = there.to(f"simulated:{self._index}")

    def _pinned(self) -> None:
        host = torch.empty(self.x.shape, pin_memory=True)
        host.copy_(self.x, non_blocking=True)
        self.x = host.to(self.x.device, non_blocking=True)

    def _pool(self) -> None:
        with torch.simulated.use_mem_pool(torch.simulated.MemPool(), self._index):
            self.x = self.x + 0

    def _garbage(self) -> None:
        """Blocks that are freed while their kernels are in flight."""
        for _ in range(3):
            (self.x * 3).sub_(1)
        if self._random.random() < 0.05:
            torch.simulated.empty_cache()


def stress(threads: int, seed: int, goes_on: Callable[[int], bool]) -> tuple[list[int], list[str]]:
    """Run programs in so many threads while ``goes_on``, asked with the number that the thread has done.

    The number of programs by thread, and what went wrong.
    """
    done, wrong = [0] * threads, []

    def work(number: int) -> None:
        random = Random(f"{seed}-{number}")
        while goes_on(done[number]):
            try:
                said = Program(random).run()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            if said is not None:
                wrong.append(f"thread {number}, program {done[number]}: {said}")
            done[number] += 1

    every = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()
    return done, wrong + _left_over()


def _left_over() -> list[str]:
    """What the allocator holds once nothing lives any more."""
    gc.collect()
    said = []
    for index in range(2):
        torch.simulated.synchronize(index)
    torch.simulated.empty_cache()
    for index in range(2):
        stats = torch.simulated.memory_stats(index)
        for counter in ("allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split"):
            left = stats[f"{counter}.all.current"]
            if left:
                said.append(f"simulated:{index}: {counter} is {left} with nothing alive")
    return said


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulated.stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    stop = time.monotonic() + given.seconds
    with contextlib.suppress(KeyboardInterrupt):
        done, wrong = stress(given.threads, given.seed, lambda _: time.monotonic() < stop)
        print(
            f"{sum(done)} programs in {given.threads} threads, {given.seconds:g} s, {len(wrong)} wrong"
        )
        print("\n".join(wrong[:20]))
        return 1 if wrong else 0
    return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
