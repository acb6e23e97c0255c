"""The rules by which PyTorch's Cross-Repository CI Relay accepts a callback, written anew from the description of its action.

Sources: pytorch/test-infra, .github/actions/cross-repo-ci-relay-callback/action.yml (the inputs and their limits),
pytorch/rfcs#98 (nightly runs), test-infra#8607 (failing tests), test-infra#8803 (the verdict). Where the relay shortens or
drops a text in silence, these rules complain: nothing of ours may be lost on the way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

#: Linux refuses an environment variable of this size (MAX_ARG_STRLEN), name and terminator included.
LONGEST_VARIABLE = 128 * 1024
#: GitHub refuses outputs of a job beyond 1 MiB, counted in UTF-16.
LONGEST_OUTPUTS = 1 << 20
#: The HUD refuses a payload beyond this size.
LONGEST_PAYLOAD = 2 << 20

CONCLUSIONS = {
    *("action_required", "cancelled", "failure", "neutral", "skipped", "stale"),
    *("success", "timed_out"),
}
INPUTS = {
    *("status", "conclusion", "delivery-id", "event-type", "test-results"),
    *("failed-tests-detail", "triage-verdict", "artifact-url"),
}


def callback(inputs: Mapping[str, str]) -> dict[str, Any]:
    """The ``workflow`` object that the action would send. Raises AssertionError for inputs that the action, the relay or
    the HUD refuses, shortens or ignores."""
    assert set(inputs) <= INPUTS, f"no input of the action: {set(inputs) - INPUTS}"
    assert all(len(f"{n}={v}\0") <= LONGEST_VARIABLE for n, v in inputs.items())
    assert sum(2 * len(v) for v in inputs.values()) <= LONGEST_OUTPUTS
    assert all("\n" not in v and v.isascii() for v in inputs.values()), "one line of ASCII each"
    assert inputs["status"] == "completed"
    assert inputs["conclusion"] in CONCLUSIONS
    event, delivery = inputs.get("event-type", ""), inputs.get("delivery-id", "")
    assert bool(event) == bool(delivery), "both, or none"
    assert event in ("", "nightly", "periodic")
    assert re.fullmatch(r"|[0-9a-f]{7,40}", delivery)
    url = inputs.get("artifact-url", "")
    assert url == "" or is_plain_url(url)
    workflow: dict[str, Any] = {"status": "completed", "conclusion": inputs["conclusion"]}
    if url:
        workflow["artifact_url"] = url
    if text := inputs.get("test-results", ""):
        workflow["test_results"] = counts = json.loads(text)
        assert isinstance(counts, dict)
        numbers = [counts[name] for name in ("passed", "failed", "skipped")]
        assert all(type(number) is int and number >= 0 for number in numbers)
        assert sum(numbers) == counts["total"]
    if text := inputs.get("failed-tests-detail", ""):
        workflow["failed_tests_detail"] = check_tests(json.loads(text))
    if text := inputs.get("triage-verdict", ""):
        workflow["triage_verdict"] = check_verdict(json.loads(text))
    assert len(json.dumps(workflow)) <= LONGEST_PAYLOAD
    return workflow


def is_plain_url(url: object) -> bool:
    """Of a web page, without a user name, spaces and control characters."""
    if not isinstance(url, str) or len(url) > 500:
        return False
    found = re.fullmatch(r"https?://([^/?#]+)\S*", url)
    return found is not None and "@" not in found[1] and url.isprintable()


def check_tests(given: Any) -> list[dict[str, Any]]:
    assert isinstance(given, list) and 0 < len(given) <= 1000
    for one in given:
        assert set(one) <= {"name", "classname", "message", "stacktrace", "duration"}
        assert one["name"] and isinstance(one["name"], str)
        texts = (one.get("classname", ""), one.get("message", ""), one.get("stacktrace", ""))
        assert all(isinstance(text, str) for text in texts)
        assert len(texts[1]) <= 1024 and len(texts[2]) <= 4096
        assert isinstance(one.get("duration", 0.0), (int, float)) and one.get("duration", 0.0) >= 0
    return given


def check_text(value: object, most: int) -> None:
    assert isinstance(value, str) and value.strip() == value != "" and len(value) <= most, value


def check_verdict(given: Any) -> dict[str, Any]:
    """A verdict of schema version 1."""
    assert isinstance(given, dict) and len(json.dumps(given).encode()) <= 16 * 1024
    known = {
        *("schema_version", "category", "confidence", "summary", "suspected_upstream"),
        *("evidence", "reproduced_on_retry", "analyzer", "analyzed_at"),
    }
    assert set(given) <= known
    assert given["schema_version"] == 1 and type(given["schema_version"]) is int
    assert given["category"] in ("upstream", "backend", "infra", "flake", "unknown")
    assert given["confidence"] in ("high", "medium", "low")
    check_text(given["summary"], 1000)
    if (suspected := given.get("suspected_upstream")) is not None:
        assert given["category"] == "upstream"
        assert set(suspected) <= {"pr", "commit", "reason"} and set(suspected) & {"pr", "commit"}
        assert type(suspected.get("pr", 1)) is int and suspected.get("pr", 1) > 0
        assert re.fullmatch(r"[0-9a-fA-F]{7,40}", suspected.get("commit", "0" * 7))
        if "reason" in suspected:
            check_text(suspected["reason"], 300)
    evidence = given.get("evidence", [])
    assert isinstance(evidence, list) and len(evidence) <= 10
    for item in evidence:
        assert item and set(item) <= {"job", "test", "log_url", "excerpt"}
        for name, value in item.items():
            check_text(value, {"excerpt": 1000, "log_url": 500}.get(name, 200))
        assert "log_url" not in item or is_plain_url(item["log_url"])
    assert isinstance(given.get("reproduced_on_retry", True), bool)
    for name, value in given.get("analyzer", {}).items():
        assert name in ("name", "version", "model", "prompt_version")
        check_text(value, 200)
    if "analyzed_at" in given:
        datetime.fromisoformat(given["analyzed_at"].replace("Z", "+00:00"))
    return given
