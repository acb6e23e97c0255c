"""Draws texts at random for a reader to judge: ``python -m tests.wording --seed 7 --count 100``."""

from __future__ import annotations

import random
from textwrap import indent

import click

from tests.wording.texts import user_visible_texts


@click.command()
@click.option(
    "--seed", type=int, required=True, help="Choose it after the last change to the texts."
)
@click.option("--count", type=int, default=100, show_default=True, help="How many of each kind.")
def main(seed: int, count: int) -> None:
    """Print COUNT docstrings and COUNT messages, each with its place, as a reader meets them: a docstring below the
    signature of its function, a message with the names of the values that are filled in."""
    drawn, texts = random.Random(seed), list(user_visible_texts())
    for kind in ("docstring", "message"):
        print(f"# {count} texts of the kind {kind}, seed {seed}\n")
        chosen = drawn.sample([text for text in texts if text.kind == kind], count)
        for number, text in enumerate(sorted(chosen, key=lambda each: each.place), 1):
            print(f"{number}. {text.place}\n{indent(text.shown, '    ')}\n")


if __name__ == "__main__":
    main()
