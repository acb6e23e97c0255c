"""Reading expected.toml: what a block holds, what is refused, and where that is."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from devices.errors import ConformError
from devices.manifest import CauseKind, Condition, ExpectedOutcome, Manifest, ManifestError

MINIMAL = '[[expect]]\nclause = "layout.values"\noutcome = "fail"\nreason = "why"\n'
CLAUSES = ("layout.values", "layout.bounds", "graphs.pool")
LAYOUTS = ("channels_last+offset", "transposed", "stepped")
KNOWN = {"clause": CLAUSES, "layouts": LAYOUTS}


def refusal(text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        Manifest.parse(text, Path("expected.toml"), KNOWN)
    return str(caught.value)


def block_with(**values: str) -> str:
    """A minimal block with keys replaced or added, each written in TOML."""
    keys = {"clause": '"layout.values"', "outcome": '"fail"', "reason": '"why"', **values}
    return "[[expect]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items() if value)


def test_a_block_holds_what_the_design_shows() -> None:
    text = """
        [[expect]]
        clause = "layout.bounds"          # each axis: exact, list, or trailing *
        op = ["nn.functional.conv2d", "nn.functional.conv_transpose*"]
        dtype = ["float16", "bfloat16"]
        layouts = ["channels_last+offset"]
        outcome = "fail"
        raises = "RuntimeError"
        match = "expected .* got"
        when = { torch = ">=2.12,<2.14", driver = "<26.18", device_name = "*Arc*" }
        kind = "upstream-bug"
        reason = "oneDNN picks NHWC"
        issue = "https://github.com/pytorch/pytorch/issues/1"
        expires = 2027-03-01
    """
    (block,) = Manifest.parse(text, Path("x/expected.toml"), KNOWN).blocks
    assert block.clause == ("layout.bounds",)
    assert block.op == ("nn.functional.conv2d", "nn.functional.conv_transpose*")
    assert block.dtype == ("float16", "bfloat16")
    assert block.layouts == frozenset({"channels_last+offset"})
    assert block.outcome is ExpectedOutcome.FAIL
    assert block.raises == "RuntimeError"
    assert block.match is not None
    assert block.match.pattern == "expected .* got"
    assert block.when == (
        Condition("torch", ">=2.12,<2.14"),
        Condition("driver", "<26.18"),
        Condition("device_name", "*Arc*"),
    )
    assert block.kind is CauseKind.UPSTREAM_BUG
    assert block.reason == "oneDNN picks NHWC"
    assert block.issue == "https://github.com/pytorch/pytorch/issues/1"
    assert block.expires == date(2027, 3, 1)
    assert block.where == "x/expected.toml:2"


def test_what_is_left_out_means_any() -> None:
    (block,) = Manifest.parse(MINIMAL).blocks
    assert (block.op, block.dtype, block.layouts) == (("*",), ("*",), None)
    assert (block.raises, block.match, block.when, block.kind) == (None, None, (), None)
    assert (block.issue, block.expires, block.min_pass_rate) == (None, None, None)
    assert block.where == "line 1"


def test_a_flaky_block_holds_its_pass_rate() -> None:
    text = block_with(outcome='"flaky"', expires="2027-01-01", min_pass_rate="1")
    (block,) = Manifest.parse(text).blocks
    assert block.min_pass_rate == 1.0


@pytest.mark.parametrize("outcome", ["fail", "crash", "hang", "unsupported"])
def test_every_outcome_can_be_expected(outcome: str) -> None:
    (block,) = Manifest.parse(block_with(outcome=f'"{outcome}"')).blocks
    assert block.outcome.value == outcome


def test_an_empty_manifest_has_no_blocks() -> None:
    assert Manifest.parse("# nothing yet\n") == Manifest()


def test_a_name_said_twice_is_said_once() -> None:
    (block,) = Manifest.parse(block_with(op='["add", "mul", "add"]')).blocks
    assert block.op == ("add", "mul")


def test_a_block_is_found_again_by_the_line_of_its_header() -> None:
    text = (
        '# a comment with [[expect]]\n[[expect]] # "\nclause = "a"\noutcome = "fail"\n'
        'reason = """\n[[expect]]\n\\"""\n[[expect]]\n""""\n\n  [[ "expect" ]]\nclause = "b"\n'
        "outcome = \"fail\"\nreason = '''\n[[expect]]'''\n[['expect']]\nclause = 'c'\n"
        'outcome = "fail"\nreason = "x"\n'
    )
    manifest = Manifest.parse(text)
    assert [(block.clause, block.line) for block in manifest.blocks] == [
        (("a",), 2),
        (("b",), 11),
        (("c",), 16),
    ]


def test_lines_count_whatever_ends_them() -> None:
    manifest = Manifest.parse((MINIMAL * 2).replace("\n", "\r\n"))
    assert [block.line for block in manifest.blocks] == [1, 5]


def test_conditions_may_stand_under_a_header_of_their_own() -> None:
    (block,) = Manifest.parse(MINIMAL + '[expect.when]\nos = "linux"\n').blocks
    assert block.when == (Condition("os", "linux"),)


REFUSED = {
    "unknown key": (block_with(ops='"add"'), "unknown key 'ops'; did you mean 'op'"),
    "no clause": (
        block_with(clause=""),
        "the key 'clause' is missing: name one clause or several, such as",
    ),
    "no outcome": (
        block_with(outcome=""),
        "the key 'outcome' is missing: write one of 'fail', 'crash', 'hang', 'unsupported'",
    ),
    "no reason": (
        block_with(reason=""),
        "the key 'reason' is missing: write a sentence that says what causes the failures",
    ),
    "blank reason": (
        block_with(reason='" \\t"'),
        "'reason' is blank: write a sentence that says what causes the failures",
    ),
    "number as reason": (block_with(reason="7"), "'reason' must be a string, got 7: write a"),
    "unknown clause": (
        block_with(clause='"layout.value"'),
        "unknown clause 'layout.value'; did you mean 'layout.values' or 'layout.bounds'?",
    ),
    "unknown clause in a list": (
        block_with(clause='["layout.values", "grahps.pool"]'),
        "unknown clause 'grahps.pool'; did you mean 'graphs.pool'?",
    ),
    "prefix of no clause": (block_with(clause='"stream.*"'), "no clause begins with 'stream.'"),
    "number as clause": (
        block_with(clause="3"),
        "'clause' must be a string or a list of strings, got 3",
    ),
    "star inside": (
        block_with(op='"nn.*.conv"'),
        "'op' has the pattern 'nn.*.conv': only one '*' is allowed, at the end",
    ),
    "two stars": (
        block_with(op='"add**"'),
        "'op' has the pattern 'add**': only one '*' is allowed",
    ),
    "blank op": (
        block_with(op='""'),
        "'op' has the name '', which is blank or has spaces around it",
    ),
    "blanks around": (
        block_with(op='" add"'),
        "'op' has the name ' add', which is blank or has spaces",
    ),
    "empty list": (
        block_with(op="[]"),
        "'op' is an empty list: name at least one",
    ),
    "list of numbers": (
        block_with(dtype="[16]"),
        "'dtype' must be a string or a list of strings, got [16]",
    ),
    "unknown dtype": (
        block_with(dtype='"flaot32"'),
        "unknown dtype 'flaot32'; did you mean 'float32'",
    ),
    "prefix of no dtype": (block_with(dtype='"flt*"'), "no dtype begins with 'flt'"),
    "layouts no list": (
        block_with(layouts='"transposed"'),
        "'layouts' must be a list of layout names, got 'transposed'",
    ),
    "no layouts": (block_with(layouts="[]"), "'layouts' is an empty list: name at least one"),
    "unknown layout": (
        block_with(layouts='["transpose"]'),
        "unknown layout 'transpose'; did you mean 'transposed'? (3 are known)",
    ),
    "layout with star": (
        block_with(layouts='["trans*"]'),
        "'layouts' has the pattern 'trans*': name each layout in full, without '*'",
    ),
    "unknown outcome": (
        block_with(outcome='"fails"'),
        (
            "'outcome' must be one of 'fail', 'crash', 'hang', 'unsupported', 'blocked', 'flaky', got 'fails';"
            " did you mean 'fail'?"
        ),
    ),
    "outcome ambiguous": (
        block_with(outcome='"ambiguous-reference"'),
        "got 'ambiguous-reference'",
    ),
    "outcome error": (block_with(outcome='"error"'), "'outcome' must be one of"),
    "outcome pass": (block_with(outcome='"pass"'), "'outcome' must be one of"),
    "outcome no text": (block_with(outcome="true"), "'flaky', got True"),
    "raises dotted": (
        block_with(raises='"torch.OutOfMemoryError"'),
        "'raises' is 'torch.OutOfMemoryError': write the exception type's bare name, such as",
    ),
    "raises no text": (block_with(raises="[]"), "'raises' must be a string, got []"),
    "bad regex": (
        block_with(match='"a(b"'),
        (
            "'match' must be a regular expression, got 'a(b': missing ), unterminated subpattern at"
            " position 1"
        ),
    ),
    "blank match": (block_with(match='""'), "'match' is blank: write a regular expression, or"),
    "when no table": (
        block_with(when='">=2.12"'),
        "'when' must be a table of facts, such as { torch = \">=2.12\" }, got '>=2.12'",
    ),
    "when empty": (block_with(when="{}"), "'when' is empty: name at least one fact, or leave"),
    "unknown fact": (
        block_with(when='{ tocrh = ">=2.12" }'),
        "when: unknown fact 'tocrh'; did you mean 'torch'? (known: 'arch', ",
    ),
    "bad specifier": (
        block_with(when='{ torch = "2.12 or so" }'),
        (
            "when: 'torch' must be a version specifier (PEP 440) such as '>=2.12,<2.14',"
            " got '2.12 or so'"
        ),
    ),
    "bare version": (block_with(when='{ driver = "26.18" }'), "'driver' must be a version spec"),
    "only commas": (block_with(when='{ python = "," }'), "'python' must be a version specifier"),
    "number as specifier": (
        block_with(when="{ torch = 2.12 }"),
        "when: 'torch' must be a version specifier such as '>=2.12,<2.14', got 2.12",
    ),
    "blank glob": (
        block_with(when='{ device_name = " " }'),
        "when: 'device_name' must be a glob such as '*Arc*', got ' '",
    ),
    "local version": (
        block_with(when='{ torch = "==2.13.0+cpu" }'),
        "'torch' has the local version '2.13.0+cpu', which conditions ignore: write '==2.13.0'",
    ),
    "arbitrary equality": (
        block_with(when='{ runtime = "===12.8" }'),
        "'runtime' uses '===', which compares texts: write '==', got '===12.8'",
    ),
    "unknown kind": (
        block_with(kind='"device bug"'),
        (
            "'kind' must be one of 'not-implemented', 'device-bug', 'upstream-bug', 'hardware-limit',"
            " got 'device bug'; did you mean 'device-bug'"
        ),
    ),
    "issue number": (block_with(issue="12"), "'issue' must be a string, got 12: write the address"),
    "issue no URL": (
        block_with(issue='"#12"'),
        "'issue' is '#12', which is not a URL: write the address in full, such as 'https://",
    ),
    "expires in quotes": (
        block_with(expires='"2027-03-01"'),
        (
            "'expires' must be a date, without quotes and without a time of day, such as expires ="
            " 2027-03-01, got '2027-03-01'"
        ),
    ),
    "expires with time": (
        block_with(expires="2027-03-01T10:00:00"),
        "such as expires = 2027-03-01, got 2027-03-01 10:00:00",
    ),
    "flaky without expires": (
        block_with(outcome='"flaky"', min_pass_rate="0.9"),
        "outcome 'flaky' needs 'expires': write the last day on which the block is valid",
    ),
    "flaky without rate": (
        block_with(outcome='"flaky"', expires="2027-01-01"),
        "outcome 'flaky' needs 'min_pass_rate': write the share of a cell's runs that must pass",
    ),
    "rate of a failure": (
        block_with(min_pass_rate="0.5"),
        "'min_pass_rate' is for outcome 'flaky' only, and the block has the outcome 'fail'",
    ),
    "rate as percentage": (
        block_with(outcome='"flaky"', expires="2027-01-01", min_pass_rate="90"),
        "'min_pass_rate' must be a number from 0 to 1, got 90",
    ),
    "rate not a number": (
        block_with(outcome='"flaky"', expires="2027-01-01", min_pass_rate="nan"),
        "'min_pass_rate' must be a number from 0 to 1, got nan",
    ),
    "rate a truth value": (
        block_with(outcome='"flaky"', expires="2027-01-01", min_pass_rate="true"),
        "'min_pass_rate' must be a number from 0 to 1, got True",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_a_fault_in_a_block_is_named_with_its_line(text: str, message: str) -> None:
    said = refusal("# first line\n\n" + text)
    assert said.startswith("expected.toml:3: ")
    assert message in said
    assert "\n" not in said


def test_every_block_at_fault_is_named() -> None:
    text = block_with(op="[]") + MINIMAL + block_with(kind='"other"')
    lines = refusal(text).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["expected.toml:1", "expected.toml:10"]


def test_long_values_are_shortened() -> None:
    assert len(refusal(block_with(op="[" + "1, " * 500 + "]"))) < 200


def test_broken_toml_is_named_with_line_and_column() -> None:
    said = refusal(MINIMAL + "[[expect]]\nclause = layout\n")
    assert said == "expected.toml:6: not TOML: Invalid value (column 10)"


def test_toml_that_ends_early_is_named_with_its_last_line() -> None:
    said = refusal(MINIMAL + "clause")
    assert said.startswith("expected.toml:5: not TOML: ")
    assert said.endswith("at the end of the file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 1\n", "expected.toml: the key 'version' is outside of any block: write each"),
        ("[expect]\n", "expected.toml: 'expect' must be a list of tables: write each block under"),
        ("expect = [1]\n", "expected.toml: 'expect' must be a list of tables: write each block"),
        (
            'expect = [{ clause = "layout.values", outcome = "fail", reason = "x" }]\n',
            "expected.toml: not every block has an [[expect]] header (blocks: 1, headers: 0): write each",
        ),
        ("a = " + "[" * 20_000, "expected.toml"),
        ("a = " + "9" * 20_000, "expected.toml"),
    ],
)
def test_what_is_no_list_of_blocks_is_refused(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_a_manifest_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(MINIMAL)
    manifest = Manifest.load(path)
    assert manifest.path == path
    assert manifest.blocks[0].where == f"{path}:1"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert len(Manifest.load(path).blocks) == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.load(tmp_path / "absent.toml")
    assert str(caught.value) == (
        f"{tmp_path / 'absent.toml'}: expected the path of an expected.toml: No such file or directory"
    )


def test_a_file_that_is_not_text_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_bytes(MINIMAL.encode() + b"# \xff\n")
    with pytest.raises(ManifestError) as caught:
        Manifest.load(path)
    assert str(caught.value) == f"{path}:5: the manifest is not UTF-8: save it as UTF-8"


def test_a_manifest_s_error_is_one_for_people() -> None:
    assert issubclass(ManifestError, ConformError)
