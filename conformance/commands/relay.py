"""Finds out about the job in which ``conform crcr`` runs: the change of PyTorch under test, the event, and the address of
the artifacts, from the options and from the variables of GitHub Actions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from conformance.version import VERSION
from devices import torch_version
from devices.errors import ConformError
from devices.files import explained, read_regular
from reports.triage import Analyzer, Job, Upstream

_COMMIT: Final = re.compile(r"[0-9a-fA-F]{7,40}")
#: No spaces, no user name, no control characters: the relay refuses such an address.
_URL: Final = re.compile(r"https?://[^\s/@\x00-\x1f]+(?:/[^\s\x00-\x1f]*)?")


class _Sha(msgspec.Struct):
    sha: str = ""


class _Pull(msgspec.Struct):
    number: int = 0
    head: _Sha = msgspec.field(default_factory=_Sha)


class _Payload(msgspec.Struct):
    pull_request: _Pull | None = None
    after: str = ""  # of a push
    head_sha: str = ""


class _Client(msgspec.Struct):
    payload: _Payload = msgspec.field(default_factory=_Payload)


class _Event(msgspec.Struct):
    """The part of a ``repository_dispatch`` event of the relay that names the change under test."""

    client_payload: _Client = msgspec.field(default_factory=_Client)


@dataclass(frozen=True, slots=True)
class RelayReport:
    """What is known of a job: ``job`` for the verdict, and ``about_the_job``, the inputs of the action that do not
    depend on the run."""

    job: Job
    about_the_job: Mapping[str, str]


def relay_report(given: Mapping[str, Any], environment: Mapping[str, str]) -> RelayReport:
    """Returns what the options and the environment variables of GitHub Actions say about a job. Raises UsageError for
    options that contradict each other, and ConformError if the file of the event cannot be read."""
    event, commit, pr = given["event"] or "", given["commit"] or "", given["pr"] or 0
    if commit and not _COMMIT.fullmatch(commit):
        raise click.UsageError(f"--commit {commit!r}: expected 7 to 40 hexadecimal digits")
    url = given["artifact_url"] or _address(environment)
    if url and not _URL.fullmatch(url):
        raise click.UsageError(
            f"--artifact-url {url!r}: expected an address such as https://example.org/run/1"
        )
    if event and pr:
        raise click.UsageError(f"--event {event} tests no pull request: leave out --pr")
    if event and not commit:
        commit = torch_version.commit() or ""
        if not commit:
            raise click.UsageError(
                f"--event {event} needs the tested commit of PyTorch: give --commit SHA (the installed torch does not "
                "state its commit)"
            )
    upstream = Upstream(pr, commit)
    if not (event or pr or commit):
        upstream = _dispatched(environment)
    job = Job(
        given["job"] or environment.get("GITHUB_JOB", ""),
        url,
        upstream,
        Analyzer("torch-conformance", VERSION),
        datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )
    return RelayReport(job, {"artifacts": url, "event": event, "delivery": commit if event else ""})


def _address(environment: Mapping[str, str]) -> str:
    """Returns the address of the workflow run, which lists the artifacts; an empty text outside of GitHub Actions."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, number = (environment.get(name, "") for name in names)
    if not (server and repository and number):
        return ""
    return f"{server}/{repository}/actions/runs/{number}#artifacts"


def _dispatched(environment: Mapping[str, str]) -> Upstream:
    """Returns the change under test in a workflow that the relay started; an empty one in other workflows."""
    path = environment.get("GITHUB_EVENT_PATH", "")
    if environment.get("GITHUB_EVENT_NAME") != "repository_dispatch" or not path:
        return Upstream()
    with explained(ConformError, f"$GITHUB_EVENT_PATH ({path})", "cannot be read"):
        raw = read_regular(Path(path))
    try:
        found = msgspec.json.decode(raw, type=_Event).client_payload.payload
    except msgspec.DecodeError as error:
        raise ConformError(
            f"$GITHUB_EVENT_PATH ({path}): expected an event of the relay: {error}"
        ) from None
    pull = found.pull_request or _Pull()
    commit = pull.head.sha or found.after or found.head_sha
    return Upstream(max(pull.number, 0), commit if _COMMIT.fullmatch(commit) else "")
