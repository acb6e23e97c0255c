"""Serves a site of runs to a browser on this machine: for looking at a run before, or instead of, publishing it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from devices.errors import ConformError
from reports.dashboard.build import Options, build

HOST = "127.0.0.1"


class ServeError(ConformError):
    """The error for a port that cannot be used."""


class _Handler(SimpleHTTPRequestHandler):
    """Answers requests for the files of a site, without a line of log for each."""

    def end_headers(self) -> None:
        # The next site at this port has files of the same names.
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@dataclass(frozen=True, slots=True)
class Served:
    """A site that can be served: its address, the number of its runs, and the server."""

    url: str
    runs: int
    server: ThreadingHTTPServer


@contextmanager
def serving(runs: Sequence[Path], port: int, title: str) -> Iterator[Served]:
    """Builds a site of some runs in a temporary folder and binds a server for it to a port of this machine; with port
    0, to any that is free. The folder is removed at the end.

    Unlike a published site, it also shows runs that are partial or incomplete: the cells that have an outcome, and a
    line on each page that says what is missing.

    Raises RunError if the files of a run are damaged, and ServeError if the port is in use.
    """
    with tempfile.TemporaryDirectory(prefix="conform-serve-") as name:
        folder = Path(name) / "site"
        built = build(runs, folder, Options(title=title, publish=False))
        handler = partial(_Handler, directory=str(folder))
        try:
            server = ThreadingHTTPServer((HOST, port), handler)
        except OSError as error:
            raise ServeError(
                f"port {port}: {error.strerror or error}. Choose another with --port, or leave it out"
            ) from None
        with server:
            yield Served(f"http://{HOST}:{server.server_address[1]}/", built.runs, server)
