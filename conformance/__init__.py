"""The contract and the suites that hold a device to it. Importing this needs no torch.

What a vendor's package imports::

    from conformance import Descriptor, Tolerance, common_facts
"""

from devices.descriptor import Autocast, Capability, Descriptor, Fact, Tolerance, common_facts

__all__ = ["Autocast", "Capability", "Descriptor", "Fact", "Tolerance", "common_facts"]
