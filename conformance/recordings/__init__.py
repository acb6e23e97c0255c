"""Recordings of the aten calls that a program makes: the file format, the recorder, and the source of samples that
replays a recording."""
