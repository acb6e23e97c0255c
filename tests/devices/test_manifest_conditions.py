"""`when`: on which machines a block holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.manifest import Condition, Manifest, ManifestError, public_version

FACTS = {
    "torch": "2.13.0+cpu",
    "driver": "26.18.1",
    "os": "linux",
    "arch": "x86_64",
    "device_name": "Intel(R) Arc(TM) B580 Graphics",
    "python": "3.11.7",
}


def manifest(*whens: str) -> Manifest:
    """A block of five lines for each ``when``."""
    block = '[[expect]]\nclause = "*"\noutcome = "fail"\nreason = "why"\n{}\n'
    texts = [block.format(f"when = {{ {when} }}" if when else "") for when in whens]
    return Manifest.parse("".join(texts), Path("expected.toml"))


@pytest.mark.parametrize(
    ("version", "public"),
    [("2.13.0+cpu", "2.13.0"), ("2.13.0", "2.13.0"), ("2.14.0a0+git1a2b", "2.14.0a0")],
)
def test_a_public_version_has_no_local_part(version: str, public: str) -> None:
    assert public_version(version) == public


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("", True),
        ('torch = ">=2.12,<2.14"', True),
        ('torch = "==2.13.0"', True),
        ('torch = "==2.13.*"', True),
        ('torch = "<=2.13"', True),
        ('torch = ">2.13"', False),
        ('torch = "~=2.12"', True),
        ('torch = "<2.13"', False),
        ('torch = "!=2.13.0"', False),
        ('driver = "<26.18"', False),
        ('driver = ">=26.18"', True),
        ('python = ">=3.10"', True),
        ('os = "linux"', True),
        ('os = "lin"', False),
        ('os = "Linux"', False),
        ('arch = "x86*"', True),
        ('device_name = "*Arc*"', True),
        ('device_name = "*A770*"', False),
        ('torch = ">=2.12", os = "linux"', True),
        ('torch = ">=2.12", os = "darwin"', False),
    ],
)
def test_a_block_is_active_where_every_condition_holds(when: str, holds: bool) -> None:
    active = manifest(when).active(FACTS)
    assert (len(active.blocks), len(active.inactive)) == ((1, 0) if holds else (0, 1))


@pytest.mark.parametrize(
    ("specifier", "holds"),
    [
        (">=2.14", True),  # PEP 440 alone says False to this and to the next
        ("<2.14", False),
        ("==2.14.0", True),
        (">=2.14.0.dev20260801", True),
        ("<2.14.0.dev20260801", False),
        (">=2.14.0.dev20261001", False),
        (">=2.12", True),
        ("==2.14.*", True),
    ],
)
def test_a_nightly_counts_as_its_release_unless_one_is_named(specifier: str, holds: bool) -> None:
    facts = {"torch": "2.14.0.dev20260901+cu130"}
    assert Condition.parse("torch", specifier).holds(facts) is holds


def test_a_build_s_local_part_is_not_compared() -> None:
    facts = {"python": "3.15.0a0+"}  # as Python built from its repository names itself
    assert Condition.parse("python", ">=3.15").holds(facts)


def test_what_is_inactive_is_kept_in_order() -> None:
    whens = ('os = "darwin"', 'os = "linux"', 'os = "windows"', "")
    active = manifest(*whens).active(FACTS)
    assert [block.line for block in active.blocks] == [6, 16]
    assert [block.line for block in active.inactive] == [1, 11]


def test_what_was_inactive_stays_so() -> None:
    once = manifest('os = "darwin"', "").active(FACTS)
    assert once.active(FACTS) == once


def test_a_fact_that_the_machine_does_not_know_is_an_error() -> None:
    with pytest.raises(ManifestError) as caught:
        manifest("", 'os = "linux"', 'runtime = ">=12"').active({"os": "linux", "torch": "2.13"})
    assert str(caught.value) == (
        "expected.toml:11: when: the condition needs the fact 'runtime', which is not known on this"
        " machine (known: 'os', 'torch'): let the descriptor's facts() return it"
    )


def test_an_unknown_fact_does_not_hide_behind_a_false_condition() -> None:
    with pytest.raises(ManifestError, match="the fact 'runtime'"):
        manifest('os = "darwin", runtime = ">=12"').active(FACTS)


def test_every_block_that_cannot_be_answered_is_named() -> None:
    with pytest.raises(ManifestError) as caught:
        manifest('runtime = ">=12"', "", 'runtime = "<12"').active(FACTS)
    places = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert places == ["expected.toml:1", "expected.toml:11"]


def test_a_version_that_is_none_is_an_error() -> None:
    with pytest.raises(ManifestError) as caught:
        manifest('driver = ">=1"').active({**FACTS, "driver": "R580-beta (custom)"})
    assert str(caught.value) == (
        "expected.toml:1: when: the condition needs the version 'driver', but its value here is"
        " 'R580-beta (custom)', which is not a version (PEP 440): let the descriptor's facts()"
        " normalise it"
    )
