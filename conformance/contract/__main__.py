"""``python -m conformance.contract``: the contract as docs/contract.md shows it."""

import sys

from conformance.contract import load
from conformance.contract.page import markdown

# Bytes, so that the page is the same whatever the console's encoding and line endings are.
sys.stdout.buffer.write(markdown(load()).encode())
