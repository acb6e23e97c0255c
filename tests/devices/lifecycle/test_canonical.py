"""The canonical form: one way to write a manifest, and no comment or meaning lost on the way."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.lifecycle.text import canonical, edited, render, take_apart
from devices.manifest import Block, Manifest, comments_in
from tests.devices.lifecycle.builders import block, manifest, parse
from tests.fuzzing import examples


def form(text: str) -> str:
    return canonical(text, parse(text))


def test_keys_come_in_one_order_and_names_are_sorted() -> None:
    text = """\
[[expect]]
reason = "why"
issue = "https://x.y/1"
outcome = 'fail'
op = ["mul", "add"]
"clause" = ["layout.values"]
dtype = ["int8", "bool", "int8"]
layouts = ["b", "a"]
when = { torch=">=2", os = "linux" }
"""
    assert (
        form(text)
        == """\
[[expect]]
clause = "layout.values"
op = ["add", "mul"]
dtype = ["bool", "int8"]
layouts = ["a", "b"]
outcome = "fail"
when = { os = "linux", torch = ">=2" }
reason = "why"
issue = "https://x.y/1"
"""
    )


def test_names_that_do_not_fit_a_line_have_one_each() -> None:
    ops = [f"nn.functional.op_{number}" for number in range(5)]
    text = form(block(op=str(ops)))
    assert 'op = [\n  "nn.functional.op_0",\n  "nn.functional.op_1",\n' in text
    assert max(map(len, text.splitlines())) <= 100


def test_axes_that_say_nothing_are_left_out() -> None:
    text = form(block(op='"*"', dtype='["*"]'))
    assert "op" not in text and "dtype" not in text


def test_blocks_of_one_cause_stand_together_in_the_order_of_clause_and_op() -> None:
    text = manifest(
        block(op='"mul"', reason='"b"'),
        block(op='"add"', reason='"b"'),
        block(op='"sub"', reason='"a"'),
    )
    assert [each.op[0] for each in parse(form(text)).blocks] == ["sub", "add", "mul"]


def test_headings_keep_their_blocks_and_are_sorted() -> None:
    text = "# about\n\n# z\n\n" + block(op='"add"') + "\n# a\n\n" + block(op='"mul"')
    assert form(text) == (
        "# about\n\n# a\n\n"
        '[[expect]]\nclause = "layout.values"\nop = "mul"\noutcome = "fail"\nreason = "why"\n\n'
        "# z\n\n"
        '[[expect]]\nclause = "layout.values"\nop = "add"\noutcome = "fail"\nreason = "why"\n'
    )


def test_a_comment_above_a_block_moves_with_it() -> None:
    text = manifest("# mine\n" + block(reason='"z"'), block(reason='"a"'))
    assert form(text).endswith(
        '# mine\n[[expect]]\nclause = "layout.values"\noutcome = "fail"\nreason = "z"\n'
    )


def test_a_comment_above_a_key_moves_with_it_and_one_behind_stays_behind() -> None:
    text = (
        '[[expect]] # h\n# r\nreason = "why"  # rr\n# c\nclause = "a.b"\noutcome = "fail"\n# end\n'
    )
    assert form(text) == (
        '[[expect]]  # h\n# c\nclause = "a.b"\noutcome = "fail"\n# r\nreason = "why"  # rr\n# end\n'
    )


def test_an_array_with_comments_stays_as_it_was_written() -> None:
    text = block(op='[\n  "mul", # first\n  "add",\n]')
    assert 'op = [\n  "mul", # first\n  "add",\n]\n' in form(text)


def test_conditions_become_an_inline_table_and_keep_their_comments() -> None:
    for written in (
        'when.torch = ">=2"  # c',
        '[expect.when]  # c\ntorch = ">=2"',
        '[expect.when]\n# c\ntorch = ">=2"',
    ):
        assert '# c\nwhen = { torch = ">=2" }\n' in form(block() + written + "\n")


def test_texts_stay_as_they_were_written() -> None:
    reason = '"""\\\n  one \\\n  # no comment\n\n[[expect]]\n"""'
    text = form(block(match="'a\\.b'", reason=reason))
    assert f"reason = {reason}\n" in text and "match = 'a\\.b'\n" in text


def test_the_end_of_a_text_is_no_comment() -> None:
    text = block(reason='"""\none\n# two"""') + block(reason='"""\na\n# b"""')
    assert Counter(_reasons(form(text))) == Counter(["one\n# two", "a\n# b"])


def _reasons(text: str) -> list[str]:
    return [each.reason for each in parse(text).blocks]


def test_line_endings_of_windows_are_kept() -> None:
    text = manifest(block(reason='"b"'), block(reason='"a"'))
    assert form(text.replace("\n", "\r\n")) == form(text).replace("\n", "\r\n")


def test_a_file_with_headings_gets_a_preamble_that_is_none_of_them() -> None:
    text = "# p\n\n# one\n\n" + block() + "\n# two\n\n" + block()
    parts = take_apart(form(text), parse(form(text)).blocks)
    assert (parts.preamble, [each.heading for each in parts.sections]) == (
        "# p",
        ["# one", "# two"],
    )
    headless = dataclasses.replace(parts, preamble="")
    again = headless.join()
    assert [s.heading for s in take_apart(again, parse(again).blocks).sections] == [
        "# one",
        "# two",
    ]


def test_what_is_behind_the_last_block_stays_there() -> None:
    text = block() + "# of it\n\n# the end\n"
    assert form(text).endswith('reason = "why"\n# of it\n\n# the end\n')


def test_a_file_without_blocks_keeps_its_comments() -> None:
    assert form("# a\n\n\n# b\n") == "# a\n\n# b\n"
    assert form("\n\n") == ""


@pytest.mark.parametrize("names", [["add"], ["add", "sub"]])
def test_an_edit_takes_names_out_of_an_array_and_leaves_the_others_comments(
    names: list[str],
) -> None:
    text = edited(block(op='[\n  "add", # one\n  "mul", # two\n  "sub", # three\n]'), {"op": names})
    assert list(parse(text).blocks[0].op) == names
    assert ("# one" in text, "# two" in text, "# three" in text) == (True, False, "sub" in names)


# Whatever was written

_COMMENTS = st.sampled_from(["", "# note", "# [[expect]]", '# "', "# two\n# lines"])
_KEYS = {
    "clause": st.sampled_from(['"a.b"', '["c.d", "a.*"]', "'x.y'"]),
    "outcome": st.sampled_from(['"fail"', "'crash'"]),
    "reason": st.sampled_from(['"why"', '"""\n[[expect]]\n# no"""', "'''a'''", '"x\\n"', f'"{"w " * 70}"']),
    "op": st.sampled_from(['"add"', '["mul", "add"]', '[\n  "mul", # m\n  "add" ]', '"*"', '["a*"]']),
    "dtype": st.sampled_from(['"float32"', '["int8", "bool"]']),
    "layouts": st.sampled_from(['["b", "a"]', '["a"]', str([f"layout {n}" for n in range(12)])]),
    "when": st.sampled_from(['{ torch = ">=2", os = "l*" }', "{os='x'}"]),
    "match": st.sampled_from(["'a#b'", '"\\\\d+"']),
    "raises": st.just('"RuntimeError"'),
    "kind": st.just("'device-bug'"),
    "issue": st.just('"https://x.y/#1"'),
    "expires": st.just("2027-01-01"),
}  # fmt: skip


@st.composite
def _written(draw: st.DrawFn) -> str:
    """A block as people might write it."""
    keys = ["clause", "outcome", "reason"]
    keys += draw(st.lists(st.sampled_from([key for key in _KEYS if key not in keys]), unique=True))
    lines = [draw(_COMMENTS), "[[ expect ]] " + draw(st.sampled_from(["", "# head"]))]
    for key in draw(st.permutations(keys)):
        lines += [
            draw(_COMMENTS),
            f"{key}={draw(_KEYS[key])}" + draw(st.sampled_from(["", " # c"])),
        ]
    lines += [draw(_COMMENTS), draw(st.sampled_from(["", "\n", "\n# heading\n\n"]))]
    return "\n".join(lines) + "\n"


def _meaning(read: Manifest) -> Counter[str]:
    return Counter(
        repr(
            (
                sorted(each.clause), sorted(each.op), sorted(each.dtype), each.layouts and sorted(each.layouts),
                each.outcome, each.raises, each.match and each.match.pattern, sorted(map(repr, each.when)),
                each.kind, each.reason, each.issue, each.expires, each.min_pass_rate,
            )
        )
        for each in read.blocks
    )  # fmt: skip


@examples(150)
@given(st.lists(_written(), max_size=4), st.sampled_from(["", "# about\n\n", "# about\n"]))
def test_nothing_is_lost_and_twice_is_as_once(blocks: list[str], before: str) -> None:
    text = before + "".join(blocks)
    read = parse(text)
    once = canonical(text, read)
    again = parse(once)
    assert _meaning(again) == _meaning(read)
    assert Counter(comments_in(once)) - Counter(comments_in(text)) <= Counter({PREAMBLE: 1})
    assert not Counter(comments_in(text)) - Counter(comments_in(once))
    assert canonical(once, again) == once


PREAMBLE = "# Expected failures, one block for each root cause."


@examples(150)
@given(_written())
def test_a_block_that_we_write_is_canonical_and_says_the_same(text: str) -> None:
    for each in parse(text).blocks:
        again = parse(render(each) + "\n")
        assert _meaning(again) == _meaning(Manifest((each,)))
        assert canonical(render(each) + "\n", again) == render(each) + "\n"


def test_long_reasons_are_broken_between_words() -> None:
    reason = 'the kernel "reads"  past ' + "the end of its input " * 12 + "\\ always"
    text = render(dataclasses.replace(_plain(), reason=reason))
    assert parse(text + "\n").blocks[0].reason == reason
    assert max(map(len, text.splitlines())) <= 100


def _plain() -> Block:
    return parse(block()).blocks[0]
