"""The suite's version, which ``conform --version`` prints. It is part of every plan's hash."""

VERSION = "0.2.0"
