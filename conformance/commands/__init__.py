"""The commands of ``conform``, one module each; ``conformance/cli.py`` puts them together."""
