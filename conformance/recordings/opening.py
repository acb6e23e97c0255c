"""Opens a recording of any format for a replay."""

from __future__ import annotations

import hashlib
from pathlib import Path

from conformance.recordings.formats import is_own, read
from conformance.recordings.source import RecordedSource, open_recording
from conformance.recordings.wire import encode_recording, write_recording
from reports.folder import RECORDING_FILE


class OpenedRecording:
    """A recording of any format, opened for a replay. ``given`` is the name of the file that the user gave. ``path`` is
    a file in the format of ``conform record``: the user's file, or the file that :meth:`convert` writes."""

    def __init__(self, path: Path, name: str | None = None, *, backward: bool = False) -> None:
        """Reads the recording in the file ``path``. ``name`` is the name of its format; without it, the format is
        recognized. With ``backward``, the gradients of the calls are judged too. Raises RecordingError if the file has
        no known format, or is damaged."""
        self.given = path.name
        self.path, self._must_convert = path.absolute(), not is_own(path, name)
        if self._must_convert:
            recording = read(path, name)
            digest = hashlib.blake2b(encode_recording(recording), digest_size=8).hexdigest()
            self.source = RecordedSource(recording, digest, backward=backward)
        else:
            self.source = open_recording(self.path, backward=backward)

    def convert(self, folder: Path) -> None:
        """Writes the calls, in the format of ``conform record``, into a results folder, from which the processes of the
        run read them. Does nothing if the user's file already has this format. Raises OSError."""
        if self._must_convert:
            self.path, self._must_convert = folder / RECORDING_FILE, False
            write_recording(self.path, self.source.recording)
