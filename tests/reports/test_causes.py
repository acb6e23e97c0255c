"""Failures by cause: what shares one, what is shown of it, and the files that hold them all."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from conformance.contract import load
from devices.cell import CellKey, Outcome, Seen, Use, Verdict
from devices.failure import Failure, Kind
from opinfo.layouts import FreeLayout
from reports.advice import sentence, todo
from reports.causes import ADVICE, Cause, causes, place_of
from reports.failures import causes_in, document, markdown_of, write_failures
from reports.gate import gate
from reports.junit import explain
from reports.model import CellResult, Clause, Example, ExampleTensor, Run, RunError
from reports.run import load_run, write_run
from reports.summary import summarise
from tests.reports.builders import (
    PROVENANCE,
    changed_result,
    failed,
    failure,
    passed,
    plan_document,
)
from tests.strangers.crowded import NEGATED, OPS

FAMILIES = {"sin": "unary", "cos": "unary", "mul": "binary", "eq": "binary"}
VALUES = failure("1 of 2 elements differ", layout="contiguous+step_inner")
SMALL = Example(
    "torch.sin(t[0])",
    "contiguous+step_inner",
    "1 of 2 elements differ",
    (ExampleTensor("float32", (2,), (2,), 0, "[0.0, 1.0]"),),
    17,
)


def cell(op: str, dtype: str = "float32", clause: str = "layout.values") -> CellKey:
    return CellKey(clause, op, dtype)


def wrong(key: CellKey, **changed: object) -> CellResult:
    given = {
        "raises": None,
        "failure": VALUES,
        "failed": 2,
        "layouts": ("contiguous+step_inner",),
        **changed,
    }
    return failed(key, **given)  # type: ignore[arg-type]


def derivative(op: str, *layouts: str, clause: str = "autograd.first") -> CellResult:
    shown = failure("1 of 2 elements differ", check="gradient", layout=layouts[0])
    return wrong(cell(op, clause=clause), failure=shown, layouts=layouts)


def test_a_derivative_that_is_wrong_in_a_layout_does_not_pass_for_the_op_s_plain_call() -> None:
    """An expanded gradient spoils the derivatives of ops that are wrong in other layouts, or not at all."""
    expanded = ("grad=contiguous+expand_first", "grad=sum", "both=contiguous+expand_first")
    found = causes(
        [
            wrong(cell("sin")),
            wrong(cell("cos"), layouts=("contiguous+offset",)),
            derivative("sin", *expanded),
            derivative("cos", *expanded[:1], clause="autograd.second"),
        ],
        FAMILIES,
    )
    assert [(sentence(cause), len(cause.results)) for cause in found] == [
        ("wrong values of derivatives if an input or the incoming gradient is expanded (sin, cos)", 2),
        ("wrong values if an input is not contiguous (sin)", 1),
        ("wrong values if an input has a storage offset (cos)", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "layout", ["grad=transposed", "both=contiguous+step_inner+offset", "inplace_slice=transposed", "batched"]
)  # fmt: skip
def test_a_call_that_is_wrong_in_a_layout_explains_its_derivative_there(layout: str) -> None:
    (cause,) = causes([wrong(cell("sin")), derivative("sin", layout)], FAMILIES)
    assert sentence(cause) == "wrong values if an input is not contiguous (sin)"


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("contiguous", "wrong values of derivatives (sin)"),
        ("grad=large", "wrong values of derivatives (sin)"),
        ("batched", "wrong values of derivatives that are computed in one batch (sin)"),
        (
            "saved=reversed",
            "wrong values of derivatives if a tensor that backward needs is not contiguous (sin)",
        ),
        (
            "inplace_slice=contiguous",
            "wrong values of derivatives of in-place calls on a part of a larger tensor (sin)",
        ),
    ],
)
def test_a_derivative_may_be_wrong_alone(layout: str, said: str) -> None:
    (cause,) = causes([derivative("sin", layout)], FAMILIES)
    assert sentence(cause) == said


def test_a_wrong_derivative_explains_the_one_with_saved_tensors_in_that_layout() -> None:
    saved = derivative("sin", "saved=reversed", clause="autograd.saved_strides")
    (cause,) = causes([derivative("sin", "contiguous"), saved], FAMILIES)
    assert sentence(cause) == "wrong values of derivatives (sin)"
    assert len(causes([derivative("sin", "grad=sum"), saved], FAMILIES)) == 2


def test_derivatives_of_in_place_calls_on_a_part_of_a_tensor_are_one_cause() -> None:
    """Of many ops: the view that they are called on is at fault, and none of them."""
    ops = ("sin", "neg", "add", "mul", "cumsum")
    (cause,) = causes([derivative(op, "inplace_slice=contiguous") for op in ops], {})
    assert {result.key.unit for result in cause.results} == {*ops}


def test_an_overwritten_input_explains_wrong_values_in_other_layouts() -> None:
    overwritten = failure("1 byte differs", kind=Kind.BYTES, layout="contiguous")
    key = cell("sin", clause="layout.inputs_intact")
    spoilt = [wrong(cell("sin", clause="precision.trust")), derivative("sin", "contiguous")]
    (cause,) = causes([*spoilt, wrong(key, failure=overwritten, layouts=("contiguous",))], FAMILIES)
    assert cause.key.about[0] == "bytes"


def counts(found: Sequence[Cause]) -> list[int]:
    return [len(cause.results) for cause in found]


def sentences(*results: CellResult, every: Iterable[CellResult] = ()) -> list[tuple[str, int]]:
    return [(sentence(cause), len(cause.results)) for cause in causes(results, FAMILIES, every)]


def test_an_op_that_ends_the_process_when_it_is_called_plainly_has_one_cause_in_all_layouts() -> (
    None
):
    def died(clause: str, layout: str) -> CellResult:
        how = failure("", detail="the worker was killed by SIGSEGV", layout=layout)
        return changed_result(
            wrong(cell("sin", clause=clause), failure=how, layouts=()), outcome=Outcome.CRASH
        )

    plain = died("layout.values", "contiguous")
    stepped = died("layout.expanded_read", "contiguous+step_outer+expand_last")
    directed = died("dispatch.error_inputs", "raises(id='sin', which=5)")
    (said,) = sentences(plain, stepped, directed)
    assert said == ("calls crash: the worker was killed by SIGSEGV (sin)", 3)
    ((alone, _),) = sentences(stepped)  # where only some layouts kill, that is said
    assert "calls crash if an input is not contiguous and is expanded: " in alone


def died(op: str, layout: str, frame: str = "", clause: str = "layout.values") -> CellResult:
    how = Failure(
        kind=Kind.ENDED, detail="the worker was killed by SIGSEGV", layout=layout, frame=frame
    )
    result = wrong(cell(op, clause=clause), failure=how, layouts=())
    return changed_result(result, outcome=Outcome.CRASH)


def test_crashes_on_negated_inputs_are_one_cause_across_ops_and_clauses() -> None:
    results = [died("sin", "neg"), died("mul", "neg"), died("eq", "neg", clause="layout.views")]
    said = "calls crash if an input is lazily negated: the worker was killed by SIGSEGV"
    assert sentences(*results) == [(f"{said} (sin, mul, eq)", 3)]
    assert counts(causes([*results, died("sin", "conj")], FAMILIES)) == [3, 1]
    plain = died("sin", "contiguous", clause="precision.trust")  # not in the cell of the first
    assert counts(causes([*results, plain], FAMILIES)) == [3, 1]


def test_plain_calls_that_crash_in_the_same_frame_of_the_device_are_one_cause() -> None:
    """Without a frame, nothing shows that ops of two families crash for the same reason."""
    frame = "launch (vendor/ops.py:7)"
    same = [died(op, "contiguous", frame) for op in ("sin", "mul")]
    other = died("eq", "contiguous", "copy (vendor/ops.py:90)")
    unknown = [died(op, "contiguous") for op in ("abs", "add")]
    found = causes([*same, other, *unknown], FAMILIES)
    assert counts(found) == [2, 1, 1, 1]
    assert sentence(found[0]) == (
        "calls crash: the worker was killed by SIGSEGV in launch (vendor/ops.py:7) (sin, mul)"
    )


def test_a_missing_kernel_is_named_with_its_overload() -> None:
    """`aten::max` may have a kernel where `aten::max.dim_max` has none."""
    text = "Could not run 'aten::{}' with arguments from the 'abacus' backend. This could be".format
    names = ("max.dim_max", "max.dim_max", "max.unary_out")
    results = [
        raising(cell(op), text(name), "NotImplementedError")
        for op, name in zip(("sin", "mul", "eq"), names)
    ]
    found = causes(results, FAMILIES)
    assert [sentence(each) for each in found] == [
        "aten::max.dim_max has no kernel", "aten::max.unary_out has no kernel",
    ]  # fmt: skip
    assert todo(found[0], {}).startswith("register a kernel for aten::max.dim_max, or")


def test_failures_that_the_cpu_has_too_are_causes_of_their_own() -> None:
    reason = "FakeTensor gives other strides than the kernel"
    known = [wrong(cell(op), on_cpu=reason) for op in ("sin", "mul")]
    found = causes([*known, wrong(cell("cos"))], FAMILIES)
    assert [(sentence(each), len(each.results)) for each in found] == [
        (f"the CPU does the same: {reason} (sin, mul)", 2),
        ("wrong values if an input is not contiguous (cos)", 1),
    ]
    assert 'kind = "upstream-bug"' in todo(found[0], {})
    assert f"the CPU does the same: {reason}" in explain(known[0]).splitlines()


def test_ops_of_a_family_that_fail_in_the_same_layouts_have_one_cause() -> None:
    found = causes([wrong(cell("sin")), wrong(cell("cos")), wrong(cell("sin", "int64"))], FAMILIES)
    assert counts(found) == [3]
    assert sentence(found[0]) == "wrong values if an input is not contiguous (sin, cos)"
    assert [r.key for r in found[0].results] == [cell("sin"), cell("cos"), cell("sin", "int64")]


@pytest.mark.parametrize(
    "other",
    [
        wrong(cell("mul")),
        wrong(cell("tan")),  # no family: its own
        wrong(cell("cos"), failure=failure("int32 for int64", kind=Kind.DTYPE)),
        wrong(cell("cos"), failure=failure("raised", kind=Kind.RAISED, raises="RuntimeError")),
        wrong(cell("cos"), layouts=("contiguous+offset",)),
        wrong(cell("cos"), layouts=("channels_last",)),
        changed_result(wrong(cell("cos")), verdict=Verdict.IMPROVEMENT),
        changed_result(wrong(cell("cos")), outcome=Outcome.CRASH, layouts=()),
    ],
    ids=["family", "op", "kind", "exception", "place", "memory", "verdict", "outcome"],
)
def test_what_a_failure_can_tell_apart_is_never_one_cause(other: CellResult) -> None:
    assert counts(causes([wrong(cell("sin")), other], FAMILIES)) == [1, 1]


def test_a_layout_that_ops_of_three_families_get_wrong_is_one_cause() -> None:
    assert counts(causes([wrong(cell(op)) for op in ("sin", "mul", "tan")], FAMILIES)) == [3]


def test_the_other_clauses_of_an_op_follow_from_its_wrong_values() -> None:
    plain: dict[str, object] = {"layouts": ("contiguous",)}
    results = [
        wrong(cell("sin"), **plain),
        wrong(cell("sin", clause="layout.inplace"), **plain),
        wrong(cell("sin", clause="layout.out_kept"), layouts=("out=contiguous",)),
        wrong(
            cell("sin", clause="layout.determinism"),
            **plain,
            failure=failure("", kind=Kind.NOT_DETERMINISTIC),
        ),
    ]
    assert sentences(*results) == [("wrong values (sin)", 4)]
    other = wrong(cell("cos"), **plain)
    alone = [passed(cell(op)) for op in ("tan", "exp", "log", "abs")]
    families = FAMILIES | dict.fromkeys(("tan", "exp", "log", "abs"), "unary")
    assert counts(causes([*results, other], families, [*results, other, *alone])) == [4, 1]
    assert counts(causes([*results, other], families, [*results, other])) == [
        5
    ]  # most of the family


def raising(key: CellKey, text: str, name: str = "RuntimeError", **changed: object) -> CellResult:
    said = failure(
        "raised", kind=Kind.RAISED, raises=name, said=text, check="inputs" if key.dtype else "case"
    )
    return wrong(
        key, failure=said, raises=name, layouts=("contiguous",) if key.dtype else (), **changed
    )


def test_what_a_device_says_is_one_cause_in_every_clause_and_op() -> None:
    results = [
        raising(cell("sin"), "no path for tensors of 3 dims of torch.int64 [3, 4]"),
        raising(
            cell("mul", "int8", "layout.bounds"),
            "no path for tensors of 2 dims of torch.int8 [2, 1]",
        ),
        raising(
            CellKey("transfer.strides", "to", ""), "no path for tensors of 1 dims of torch.bool [7]"
        ),
        raising(cell("cos"), "no memory"),
    ]
    assert [count for _, count in sentences(*results)] == [3, 1]


def test_a_name_of_an_op_at_the_beginning_of_a_text_makes_no_cause_of_its_own() -> None:
    results = [raising(cell(op), f"{op}: not for this device") for op in ("sin", "mul", "eq")]
    assert sentences(*results) == [
        ("raises RuntimeError: sin: not for this device (sin, mul, eq)", 3)
    ]


def test_a_missing_kernel_is_one_cause_however_a_clause_shows_it() -> None:
    text = (
        "Could not run 'aten::_copy_from' with arguments from the 'abacus' backend. This could be"
    )
    raises = {"raises": "NotImplementedError", "said": text, "failure": None, "failed": 0}
    results = [
        raising(cell("sin"), text, "NotImplementedError"),
        wrong(cell("mul"), outcome=Outcome.UNSUPPORTED, layouts=(), **raises),
        wrong(
            cell("eq", clause="dispatch.error_inputs"),
            outcome=Outcome.BLOCKED,
            layouts=(),
            blocked_by="layout.values",
            **raises,
        ),
    ]
    assert sentences(*results) == [("aten::_copy_from has no kernel", 3)]


def test_a_dtype_that_kernels_lack_is_one_cause() -> None:
    results = [
        raising(cell(op), f"\"{op}_kernel\" not implemented for 'Half'") for op in ("sin", "mul")
    ]
    (cause,) = causes(results, FAMILIES)
    assert sentence(cause) == "kernels are not implemented for float16 (sin, mul)"
    assert "remove float16 from the descriptor's dtypes" in todo(cause, {})


def test_a_catch_all_fallback_is_one_cause_that_says_what_to_list() -> None:
    gone = failure("", kind=Kind.DEVICE, check="stays")
    results = [
        wrong(cell(op, clause="dispatch.no_silent_fallback"), failure=gone, layouts=())
        for op in FAMILIES
    ]
    (cause,) = causes(results, FAMILIES)
    assert sentence(cause) == "sin, cos, mul, eq run on the CPU instead of the device"
    assert todo(cause, {}).endswith('permitted_fallbacks=frozenset(["cos", "eq", "mul", "sin"])')


def test_a_name_made_of_the_op_s_makes_no_cause_of_its_own_and_the_plain_word_is_left() -> None:
    said = "Operator with name {} has no lowering, for all".format
    forms = {"sin": "aten::sin_", "mul": "aten::mul.out", "eq": "_aten_eq()", "all": "aten::all"}
    results = [raising(cell(op), said(name)) for op, name in forms.items()]
    assert counts(causes(results, FAMILIES)) == [4]
    assert counts(causes([results[0], raising(cell("mul"), said("aten::cos"))], FAMILIES)) == [1, 1]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "You should register `PrivateUse1HooksInterface`by `RegisterPrivateUse1HooksInterface` and implement "
            "`resizePrivateUse1Bytes` at the same time for PrivateUse1.",
            "implement resizePrivateUse1Bytes of PrivateUse1HooksInterface and register it",
        ),
        (
            "Please register a generator to the PrivateUse1 dispatch key",
            "implement getNewGenerator of PrivateUse1HooksInterface and register it",
        ),
        (
            "'Module' object has no attribute 'get_rng_state'",
            "add get_rng_state; if the device cannot support get_rng_state",
        ),
    ],
)
def test_what_torch_asks_of_a_backend_is_the_advice(text: str, advice: str) -> None:
    (cause,) = causes([raising(cell("sin"), text)], FAMILIES)
    assert todo(cause, {}).startswith(advice)


@pytest.mark.parametrize(
    ("requires", "advice"),
    [
        (("graphs",), 'if "graphs" is not supported, remove it from capabilities in descriptor.py'),
        (
            ("graph_pools", "graphs"),
            'if "graph_pools" and "graphs" are not supported, remove them from capabilities in descriptor.py',
        ),
        ((), ""),
    ],
)
def test_an_error_of_a_capability_s_clause_asks_whether_the_device_has_it(
    requires: tuple[str, ...], advice: str
) -> None:
    (cause,) = causes([raising(cell("sin", clause="graphs.pool"), "no graph")], FAMILIES)
    clause = Clause(id="graphs.pool", family="graphs", status="checked", requires=requires)
    assert todo(cause, {"graphs.pool": clause}) == advice


def test_errors_of_two_functions_are_two_causes_and_of_one_in_two_dtypes_are_one() -> None:
    def short(op: str, dtype: str, clause: str) -> CellResult:
        found = failure("255 ulps", kind=Kind.PRECISION, check="directed", layout="")
        return wrong(cell(op, dtype, clause), failure=found, layouts=())

    cells = (("sin", "bfloat16"), ("sin", "float16"), ("cos", "bfloat16"))
    assert counts(causes([short(*each, "precision.ulp") for each in cells], FAMILIES)) == [2, 1]
    assert counts(causes([short(*each, "layout.fp32_precision") for each in cells], FAMILIES)) == [
        3
    ]


def test_a_blocked_cell_has_the_cause_of_what_blocks_it() -> None:
    blocked: dict[str, object] = {
        "failure": None,
        "failed": 0,
        "outcome": Outcome.BLOCKED,
        "layouts": (),
    }
    results = [
        raising(cell("sin"), "out of luck"),
        wrong(cell("sin", clause="layout.bounds"), blocked_by="layout.values", **blocked),
        wrong(cell("mul", clause="layout.bounds"), blocked_by="layout.values", **blocked),
    ]
    assert sentences(*results) == [
        ("raises RuntimeError: out of luck (sin)", 2),
        ("cannot be checked, because layout.values fails", 1),
    ]


def fails(clause: str, case: str, words: str) -> CellResult:
    return wrong(
        CellKey(clause, case, ""), failure=Failure(kind=Kind.ORDER, subject=words), layouts=()
    )


def test_clauses_that_rest_on_a_failing_one_have_its_cause() -> None:
    rests = [
        fails("streams.autograd", "a", "the caller's stream did not wait for backward"),
        fails("streams.threads", "b", "the stream did not see the work before the event"),
    ]
    assert counts(causes(rests, {})) == [1, 1]
    found = causes([*rests, fails("streams.wait", "c", "the stream did not wait")], {})
    assert [sentence(each) for each in found] == [
        "streams.wait fails: the stream did not wait; 2 other clauses that rest on this clause fail too"
    ]
    assert found[0].example.key.clause == "streams.wait"


def test_a_failure_that_shows_something_else_does_not_follow_from_the_clause_it_rests_on() -> None:
    """A block that is reused early has nothing to do with counters that are wrong."""
    counted = "a block of 511 bytes should raise `allocated` by at least 511, but did not"
    results = [
        fails("allocator.accounting", "a", counted),
        fails("allocator.history", "sums", "the sizes of the live blocks are not `allocated`"),
        fails("allocator.record_stream", "small", "a block was reused while its stream was busy"),
        fails("allocator.pending", "four", "a freed block was not reused after its stream"),
    ]
    found = causes(results, {})
    assert [(each.key.about, len(each.results)) for each in found] == [
        (("allocator.accounting",), 2),
        (("allocator.record_stream",), 1),
        (("allocator.pending",), 1),
    ]


def test_the_seed_explains_failures_of_graphs_that_are_about_random_numbers() -> None:
    results = [
        fails("random.reproducible", "a", "rand: the same seed gave different values"),
        fails("graphs.replay_equals_eager", "b", "a replay left wrong values"),
        fails("graphs.recovery", "c", "after a capture, the same seed gave different numbers"),
        fails("graphs.lifecycle", "d", "the second replay left wrong values"),
    ]
    found = causes(results, {})
    assert [[r.key.unit for r in each.results] for each in found] == [["a", "c"], ["b", "d"]]


def test_every_clause_that_rests_on_another_exists() -> None:
    known = set(load().clauses) | {f"{clause.partition('.')[0]}.*" for clause in load().clauses}
    named = chain(ADVICE.rests_on, *ADVICE.rests_on.values())
    assert {each.partition("::")[0] for each in named} <= known
    assert {each.partition("/")[0] for each in ADVICE.same_check} <= known


def test_a_cause_says_which_cells_fail_for_another_reason_too() -> None:
    other = failure("", kind=Kind.RAISED, raises="RuntimeError", said="no", layout="transposed")
    same = failure("", kind=Kind.PRECISION, layout="contiguous+step_inner")
    both = [wrong(cell("sin"), also=(other,)), wrong(cell("cos"), also=(same,))]
    (cause,) = causes(both, FAMILIES)
    assert cause.partly == {cell("sin")}


def test_the_minimised_layout_decides_where_there_is_one() -> None:
    noisy = wrong(cell("cos"), layouts=("contiguous+step_inner+offset",), example=SMALL)
    assert counts(causes([wrong(cell("sin")), noisy], FAMILIES)) == [2]


def test_free_layouts_have_the_factors_of_their_parts() -> None:
    assert place_of(["free:steps=3,offset=4"]) == "strides+offset"
    assert place_of(["free:order=1.2.0", "free:expand=1"]) in ("strides", "expand")
    assert place_of(["out=free:steps=3,offset=2", "out=transposed"]) == "out=strides"


@pytest.mark.parametrize(
    "layout",
    [
        FreeLayout(order=(1, 0)),
        FreeLayout(steps=(2,)),
        FreeLayout(expand=0),
        FreeLayout(offset=1),
        FreeLayout(pads=(1,)),
        FreeLayout(ones=0),
    ],
    ids=lambda layout: layout.id,
)
def test_each_part_of_a_free_layout_is_a_factor(layout: FreeLayout) -> None:
    assert place_of([layout.id]) in ("strides", "expand", "offset")


def test_free_layouts_have_no_other_parts() -> None:
    parts = {each.name for each in fields(FreeLayout)}
    assert parts == {"order", "steps", "expand", "offset", "pads", "ones"}


def test_regressions_come_first_then_the_largest_cause() -> None:
    fixed = changed_result(wrong(cell("cos")), verdict=Verdict.IMPROVEMENT)
    results = [fixed, wrong(cell("mul")), wrong(cell("sin")), wrong(cell("cos"))]
    assert counts(causes(results, FAMILIES)) == [2, 1, 1]


def test_causes_do_not_depend_on_the_order_of_results_but_for_ties() -> None:
    results = [wrong(cell(op, d)) for op in ("sin", "cos", "mul") for d in ("float32", "int8")]
    wanted = set(sentences(*results))
    random.Random(0).shuffle(results)
    assert {count for _, count in sentences(*results)} == {count for _, count in wanted}


def test_the_example_is_the_smallest_minimised_one() -> None:
    large = replace(SMALL, tensors=(ExampleTensor("float32", (2, 2), (4, 2), 0),))
    results = [wrong(cell("sin")), wrong(cell("cos"), example=large)]
    results.append(wrong(cell("cos", "int64"), example=SMALL))
    (cause,) = causes(results, FAMILIES)
    assert cause.example is results[2]


def test_without_a_minimised_one_the_example_has_a_repro() -> None:
    results = [wrong(cell("sin"), repro=None), wrong(cell("cos"))]
    assert causes(results, FAMILIES)[0].example is results[1]


# -- a run


def run_of(folder: Path, *results: CellResult) -> Run:
    cells = [r.key for r in results]
    plan = plan_document(cells, families=FAMILIES)
    return write_run(folder, plan, {r.key: r for r in results}, PROVENANCE)


def test_the_terminal_shows_a_cause_once_with_what_to_do(tmp_path: Path) -> None:
    made = run_of(tmp_path, wrong(cell("sin"), example=SMALL), wrong(cell("cos")))
    text = summarise(gate(made))
    assert text.startswith("red (exit 1): 2 regressions; 0 of 2 cells pass")
    assert text.count("\nregression:") == 1
    assert "\nregression: 2 cells: wrong values if an input is not contiguous (sin, cos)\n" in text
    assert "    layout.values::sin[float32]: fail: " in text
    assert "to do" not in text  # nothing is known beyond the failure
    assert text.splitlines()[-1].startswith(f"report: {tmp_path}")


def test_a_cell_says_where_it_was_seen_before(tmp_path: Path) -> None:
    """On the terminal the first three bugs, in the files all of them."""
    seen = tuple(Seen(f"pytorch#{n}", "MPS", f"https://example.org/{n}") for n in range(1, 6))
    made = run_of(tmp_path, wrong(cell("sin"), seen=seen))
    line = "    seen before: pytorch#1 on MPS, pytorch#2 on MPS, pytorch#3 on MPS and 2 more"
    assert line in summarise(gate(made)).splitlines()
    write_failures(gate(made))
    assert "`pytorch#5 on MPS`" in (tmp_path / "failures.md").read_text()
    data = json.loads((tmp_path / "failures.json").read_text())
    assert data["causes"][0]["example"]["seen"] == [str(bug) for bug in seen]
    assert load_run(tmp_path).results[cell("sin")].seen == seen


def test_a_cause_says_how_many_models_call_its_most_used_op(tmp_path: Path) -> None:
    rare, common = Use(3, 150), Use(41, 150)
    made = run_of(
        tmp_path, wrong(cell("sin"), called_by=rare), wrong(cell("cos"), called_by=common)
    )
    assert (
        "    cos is called by 41 of 150 models" in summarise(gate(made), verbosity=1).splitlines()
    )
    write_failures(gate(made))
    assert "- `cos` is called by 41 of 150 models\n" in (tmp_path / "failures.md").read_text()
    data = json.loads((tmp_path / "failures.json").read_text())
    assert data["causes"][0]["used"] == "cos is called by 41 of 150 models"
    assert load_run(tmp_path).results[cell("sin")].called_by == rare


def test_a_cause_whose_ops_no_model_calls_says_nothing_about_models(tmp_path: Path) -> None:
    made = run_of(tmp_path, wrong(cell("sin")), wrong(cell("cos")))
    assert "models" not in summarise(gate(made)) + markdown_of(gate(made), causes_in(gate(made)))


def test_more_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    made = run_of(tmp_path, wrong(cell("sin"), example=SMALL), wrong(cell("cos")))
    text = summarise(gate(made), verbosity=1)
    assert "smallest failing example, layout contiguous+step_inner: torch.sin(t[0])" in text
    assert "t[0]: float32 of shape (2,), strides (2,) = [0.0, 1.0]" in text
    assert "and 1 more cell: layout.values::cos[float32]" in text
    assert "\nclause " in text


def test_an_error_is_said_to_be_ours(tmp_path: Path) -> None:
    results = [
        wrong(cell("sin"), failure=None, failed=0, outcome=Outcome.ERROR, note="no such layout"),
        wrong(cell("cos")),
    ]
    text = summarise(gate(run_of(tmp_path, *results)))
    assert text.count("it is a bug in torch-conformance") == 1


def test_the_end_of_a_run_takes_20_lines_the_largest_causes_first(tmp_path: Path) -> None:
    results = [raising(cell(f"op{n}"), "no" * n) for n in range(30)]
    results += [raising(cell("op29", dtype), "no" * 29) for dtype in ("int8", "int16")]
    made = run_of(tmp_path, *results)
    write_failures(gate(made))
    text = summarise(gate(made))
    lines = text.splitlines()
    shown = [number for number, line in enumerate(lines) if line.startswith("regression: ")]
    assert 3 < len(shown) < 30 and 15 < len(lines) <= 20
    assert lines[shown[0]].startswith("regression: 3 cells: ")
    assert f"more causes ({30 - len(shown)} cells) in {tmp_path / 'failures.md'}" in text


def test_the_report_files_hold_every_cause_and_cell(tmp_path: Path) -> None:
    results = [raising(cell(f"op{n}"), "no" * n) for n in range(30)]
    results.append(wrong(cell("sin"), example=SMALL))
    made = run_of(tmp_path, *results, passed(cell("mul")))
    write_failures(gate(made))
    data = json.loads((tmp_path / "failures.json").read_text())
    assert (data["format"], data["cells"], len(data["causes"])) == (2, 31, 31)
    names = {name for cause in data["causes"] for name in cause["cells"]}
    assert names == {str(r.key) for r in results}
    minimised = [cause["example"]["minimised"] for cause in data["causes"]]
    assert [m["call"] for m in minimised if m] == ["torch.sin(t[0])"]
    text = (tmp_path / "failures.md").read_text()
    assert text.startswith("# 31 regressions; 31 causes\n") and text.count("\n## ") == 31
    assert "- to reproduce the failure, in this folder: `python repro/0001.py`\n" in text


def test_a_run_without_failures_says_so(tmp_path: Path) -> None:
    made = run_of(tmp_path, passed(cell("sin")))
    judged = gate(made)
    found = document(judged, causes_in(judged))
    assert (found.causes, found.cells) == ([], 0)
    assert markdown_of(judged, ()) == "# No unexpected results\n"


def test_report_files_that_cannot_be_written_are_one_error(tmp_path: Path) -> None:
    made = run_of(tmp_path, wrong(cell("sin")))
    (tmp_path / "failures.json").mkdir()
    with pytest.raises(RunError, match=r"failures\.json: cannot be written"):
        write_failures(gate(made))


# -- the minimised example in JUnit


@pytest.mark.parametrize(
    "example",
    [
        SMALL,
        Example("check()", "nan", "wrong", (), 0, False),
        replace(SMALL, message="a\ud800b\x00 <&> ]]>", call="torch.add(t[0], float('nan'))"),
    ],
)
def test_an_example_reads_back_as_it_was_written(tmp_path: Path, example: Example) -> None:
    made = run_of(tmp_path, wrong(cell("sin"), example=example))
    assert load_run(tmp_path).results == made.results
    if example.message.isprintable():
        assert load_run(tmp_path).results[cell("sin")].example == example


def test_junit_shows_the_example_to_people(tmp_path: Path) -> None:
    run_of(tmp_path, wrong(cell("sin"), example=replace(SMALL, whole=False)))
    text = (tmp_path / "junit-layout.xml").read_text()
    assert "smallest failing example, layout contiguous+step_inner (the search used up its" in text


def test_junit_counts_the_cells_of_each_cause(tmp_path: Path) -> None:
    run_of(tmp_path, wrong(cell("sin")), wrong(cell("cos")), raising(cell("mul"), "no <7>"))
    read = ElementTree.parse(tmp_path / "junit-layout.xml").iter("property")
    properties = {each.get("name"): each.get("value") for each in read}
    assert properties["cause.1"] == "2: wrong values if an input is not contiguous (sin, cos)"
    assert properties["cause.2"] == "1: raises RuntimeError: no <7> (mul)"


def test_redacting_reaches_the_example_s_message(tmp_path: Path) -> None:
    said = replace(SMALL, message="seen on builder7")
    also = (failure("seen on builder7", kind=Kind.STATE),)
    plan = plan_document([cell("sin")], families=FAMILIES)
    results = {cell("sin"): wrong(cell("sin"), example=said, also=also)}
    made = write_run(tmp_path, plan, results, PROVENANCE, redact=True)
    kept = made.results[cell("sin")].example
    assert kept is not None and kept.message == "seen on [redacted]"
    assert b"builder7" not in (tmp_path / "run.conform").read_bytes()


# -- a run with twelve faults at once


class _Alike(msgspec.Struct):
    """Cells, by clause, that failed with the same fields; ``faults`` are those that redden each of them alone."""

    cells: dict[str, list[str]]
    faults: frozenset[str]
    outcome: Outcome = Outcome.FAIL
    failure: Failure | None = None
    layouts: tuple[str, ...] = ()
    raises: str | None = None
    said: str | None = None
    note: str = ""
    blocked_by: str = ""
    on_cpu: str = ""

    def results(self) -> Iterator[CellResult]:
        given = msgspec.structs.asdict(self)
        facts = {name: given[name] for name in given if name not in ("cells", "faults", "outcome")}
        for clause, names in self.cells.items():
            for name in names:
                key = CellKey.parse(f"{clause}::{name}")
                yield CellResult(key, self.outcome, Verdict.REGRESSION, failed=1, **facts)


class _Red(msgspec.Struct):
    """What failed in a run with several faults at once. ``passed`` are the other ops of these families."""

    families: dict[str, list[str]]
    passed: dict[str, list[str]]
    failed: list[_Alike]


@dataclass
class Crowd:
    """The causes of a run with several faults at once, and the faults that redden each of its cells alone."""

    planted: dict[CellKey, frozenset[str]]
    found: Sequence[Cause]

    @classmethod
    def of(cls, name: str) -> Crowd:
        path = Path(__file__).with_name("data") / name
        red = msgspec.json.decode(path.read_bytes(), type=_Red)
        planted = {result.key: each.faults for each in red.failed for result in each.results()}
        failing = [result for each in red.failed for result in each.results()]
        others = [passed(CellKey(c, op, "float32")) for c, ops in red.passed.items() for op in ops]
        families = {op: family for family, ops in red.families.items() for op in ops}
        return cls(planted, causes(failing, families, [*failing, *others]))

    @property
    def mixed(self) -> list[str]:
        """The causes whose cells do not share a fault."""
        return [
            sentence(cause)
            for cause in self.found
            if not frozenset.intersection(*(self.planted[r.key] for r in cause.results))
        ]

    @property
    def share(self) -> float:
        """The share of the cells that the 15 largest causes explain."""
        return sum(counts(self.found[:15])) / len(self.planted)


def twice(found: Iterable[Cause]) -> list[str]:
    """The sentences that stand twice, apart from the number of ops."""
    told = Counter(re.sub(r"[\d,]+ ops?\b", "ops", sentence(cause)) for cause in found)
    return [text for text, count in told.items() if count > 1]


def test_twelve_faults_at_once_are_told_apart() -> None:
    """In plan quick on the simulated device, with faults of ``devices/simulated/faults.toml`` switched on together and
    each alone; one more device raises in `record_stream`."""
    crowd = Crowd.of("twelve_faults.json")
    assert len(crowd.planted) >= 400 and len(frozenset().union(*crowd.planted.values())) == 12
    assert crowd.mixed == [] and crowd.share >= 0.9
    assert twice(crowd.found) == []


def test_the_faults_of_a_crowded_device_are_told_apart() -> None:
    """A device where negated inputs end the process, overloads have no kernel, attention answers zeros, and more:
    ``tests/strangers/crowded.py``."""
    crowd = Crowd.of("crowded.json")
    assert len(crowd.planted) >= 300
    assert crowd.mixed == [] and crowd.share >= 0.9
    assert twice(crowd.found) == []


@pytest.mark.parametrize(
    "fault",
    [
        NEGATED,
        *(fault for fault in OPS if fault.endswith("has no kernel")),
        *("allocator.ignore_record_stream", "events.elapsed_constant", "random.seed_ignored"),
    ],
)
def test_a_fault_of_a_crowded_device_is_one_cause(fault: str) -> None:
    crowd = Crowd.of("crowded.json")
    alone = {key for key, faults in crowd.planted.items() if faults == {fault}}
    of = [cause for cause in crowd.found if alone & {r.key for r in cause.results}]
    assert alone and len(of) == 1
