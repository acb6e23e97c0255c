"""The CPU with the process group of tests/distributed/faulty.py."""

from dataclasses import replace

from devices.cpu.descriptor import DESCRIPTOR as CPU
from devices.cpu.descriptor import GLOO
from devices.descriptor import ProcessGroup

DESCRIPTOR = replace(
    CPU,
    name="faulty_group",
    module="tests.distributed.faulty",
    process_group=ProcessGroup("faulty", GLOO.reductions, shares_indices=True),
)
