"""No text that users read has a word of words.toml; and each entry of that list is seen to be found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.wording.texts import Text, python_texts, user_visible_texts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AVOID = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))["avoid"]


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    return list(user_visible_texts())


@pytest.mark.parametrize("word", AVOID, ids=lambda word: word["pattern"])
def test_no_text_that_users_read_has_the_word(word: dict[str, str], texts: list[Text]) -> None:
    pattern = re.compile(word["pattern"], re.IGNORECASE | re.MULTILINE)
    found = [
        f"{text.place}: …{match.string[max(match.start() - 30, 0) : match.end() + 30]!r}"
        for text in texts
        if (match := pattern.search(text.text))
    ]
    assert not found, f"write {word['instead']}:\n" + "\n".join(found)


def test_docstrings_messages_data_and_pages_are_read(texts: list[Text]) -> None:
    kinds = {(text.kind, text.path.suffix) for text in texts}
    assert {("docstring", ".py"), ("message", ".py"), ("file", ".toml"), ("file", ".md")} <= kinds


def test_a_word_is_found_in_a_docstring_a_message_and_an_f_string(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""A fault that nobody mended."""\n'
        'PLAIN = "run the script and mend the fault"\n'
        'COUNTED = f"{number} faults were mended by {name}"\n'
        'NAME = "mended"\n',
        encoding="utf-8",
    )
    found = [(text.line, text.kind) for text in python_texts(path) if "mend" in text.text]
    assert found == [(1, "docstring"), (2, "message"), (3, "message")]
