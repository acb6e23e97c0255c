"""The contract and the suites that hold a device to it. Importing this needs no torch.

What a vendor's package imports::

    from conformance import Capability, Descriptor, Tolerance
"""

from devices.descriptor import Capability, Descriptor, Fact, Tolerance

__all__ = ["Capability", "Descriptor", "Fact", "Tolerance"]
