"""The root of the errors that are told to people in one line, without a traceback."""

from __future__ import annotations


class ConformError(Exception):
    """Something the user can act on: what was expected, what came, what to do.

    ``exit_code`` is what the command line exits with where the error ends it; 4 (usage) unless a
    subclass says otherwise.
    """

    exit_code: int = 4
