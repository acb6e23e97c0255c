"""The command ``python -m conformance.contract``, which prints the contract as the Markdown text of docs/contract.md."""

import sys

from conformance.contract import load
from conformance.contract.page import markdown

# Bytes, so that the page is the same whatever the console's encoding and line endings are.
sys.stdout.buffer.write(markdown(load()).encode())
