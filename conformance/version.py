"""The suite's version: part of every plan's hash, and what ``conform --version`` says."""

VERSION = "0.2.0"
