"""A device whose tensors have strides but no addresses is judged by values: in every layout, writes included."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome
from tests.plugin.running import ForkServer, cells_of
from tests.strangers.bench import MODULES

_DESCRIPTOR = """
from devices.descriptor import Descriptor

DESCRIPTOR = Descriptor(
    name="{device}",
    torch_type="{device}",
    title="Strides, and no storage",
    module="{module}",
    capabilities=frozenset({{{capabilities}}}),
    dtypes=frozenset({{{dtypes}}}),
)
"""

OPS = ("neg", "mul")
#: Clauses that need neither an address nor a storage.
BY_VALUES = ("values", "inputs_intact", "bounds", "out_kept", "inplace", "overlap_raises")


def judged(
    device: str,
    module: str,
    folder: Path,
    fork: ForkServer,
    *what: str,
    dtypes: str = '"float32", "uint8"',
    capabilities: str = '"strides"',
) -> dict[CellKey, Outcome]:
    given = {"device": device, "module": module, "dtypes": dtypes, "capabilities": capabilities}
    (folder / "descriptor.py").write_text(_DESCRIPTOR.format(**given))
    fork.pytest(
        "-q",
        *(what or (f"--ops={','.join(OPS)}", "--clauses=layout.*")),
        *("--expectations", "none", f"--descriptor={folder}", f"--results={folder / 'results'}"),
        PYTHONPATH=str(MODULES),
    )
    return {key: result.outcome for key, result in cells_of(folder / "results").items()}


@pytest.mark.slow
def test_a_sound_device_passes_in_every_layout(tmp_path: Path, fork: ForkServer) -> None:
    outcomes = judged("twin", "strange_two", tmp_path, fork)
    for op in OPS:
        for clause in BY_VALUES:
            assert outcomes[CellKey(f"layout.{clause}", op, "float32")] is Outcome.PASS, clause
    result = cells_of(tmp_path / "results")[CellKey("layout.values", "neg", "float32")]
    assert {"transposed", "contiguous+step_inner+offset"} <= set(result.ran_layouts)


@pytest.mark.slow
def test_writes_into_views_that_are_lost_are_found(tmp_path: Path, fork: ForkServer) -> None:
    outcomes = judged("losing", "strange_losing", tmp_path, fork)
    for op in OPS:
        for clause in ("out_kept", "inplace"):
            assert outcomes[CellKey(f"layout.{clause}", op, "float32")] is Outcome.FAIL, clause
        assert outcomes[CellKey("layout.values", op, "float32")] is Outcome.PASS


@pytest.mark.slow
def test_manners_of_another_framework_are_charged_once(tmp_path: Path, fork: ForkServer) -> None:
    """Exceptions of its own are refusals as good as torch's; a dtype that it does not have is no fault of every op."""
    device = "foreign", "strange_foreign", tmp_path, fork
    ops = "--ops=clamp_min,floor,index_select,ldexp,neg", "--dtypes=float32"
    clauses = "layout.type_*,layout.variants,layout.out_kept,dispatch.unsupported,dispatch.no_*"
    outcomes = judged(
        *(*device, f"--clauses={clauses}", *ops),
        dtypes='"float32", "complex64"',
    )
    red = {cell for cell, outcome in outcomes.items() if outcome is not Outcome.PASS}
    assert {cell.unit for cell in red} == {"index_select", "ldexp", "neg"}
    indices = {outcomes[cell] for cell in red if cell.unit == "index_select"}
    assert indices == {Outcome.UNSUPPORTED}  # they are int64
    assert {cell.clause for cell in red if cell.unit == "neg"} == {
        "layout.variants",
        "layout.out_kept",
    }
    assert outcomes[CellKey("layout.variants", "neg", "float32")] is Outcome.FAIL
    results = cells_of(tmp_path / "results")
    for clause, op, by in (
        ("layout.out_kept", "neg", "layout.variants"),
        ("dispatch.no_silent_fallback", "ldexp", "layout.values"),
    ):
        assert results[CellKey(clause, op, "float32")].blocked_by == by
    # Negative views are asked of floor, too, and no result without them: layout.views says that there are none.
    reads = "layout.values", "layout.inputs_intact", "layout.views"
    outcomes = judged(*device, f"--clauses={','.join(reads)}", "--ops=floor,t", "--dtypes=float32")
    red = {cell for cell, outcome in outcomes.items() if outcome is not Outcome.PASS}
    assert red == {CellKey("layout.views", "t", "float32")} and len(outcomes) == 5
    ops = "argmax", "softmax.with_dtype"  # the second asks for float64, which is not declared
    judged(*device, "--clauses=precision.trust", f"--ops={','.join(ops)}", "--dtypes=float32")
    results = cells_of(tmp_path / "results")
    argmax, softmax = (results[CellKey("precision.trust", op, "float32")] for op in ops)
    assert argmax.message == "blocked by layout.values: a single call already has wrong values"
    assert softmax.outcome is Outcome.UNSUPPORTED
    outcomes = judged(*device, "--clauses=device.capability")
    failing = [cell.unit for cell, outcome in outcomes.items() if outcome is not Outcome.PASS]
    assert failing == ["undeclared"]


@pytest.mark.slow
def test_gradients_of_a_dtype_that_is_not_declared_are_not_asked_for(
    tmp_path: Path, fork: ForkServer
) -> None:
    what = "--clauses=autograd.first,autograd.second", "--ops=softmax.with_dtype"
    dtypes = '"float32", "int32"'  # the call asks for float64
    outcomes = judged(
        *("slim", "strange_narrow", tmp_path, fork, *what), dtypes=dtypes, capabilities=""
    )
    assert set(outcomes.values()) == {Outcome.UNSUPPORTED} and len(outcomes) == 2


@pytest.mark.slow
def test_a_device_is_not_held_to_hooks_that_are_optional(tmp_path: Path, fork: ForkServer) -> None:
    """Without a guard it has no current index, no streams and no capabilities; its tensors are a class of its own."""
    clauses = ("--clauses=device.capability,transfer.scalars,transfer.numpy_refused",)
    outcomes = judged("unhooked", "strange_unhooked", tmp_path, fork, *clauses)
    for cell in (
        "device.capability::moves",
        "device.capability::says_so",
        "transfer.scalars::tolist_after_work",
        "transfer.numpy_refused::numpy",
    ):
        assert outcomes[CellKey.parse(cell)] is Outcome.PASS, cell


@pytest.mark.slow
def test_a_synchronize_that_raises_is_charged_once(tmp_path: Path, fork: ForkServer) -> None:
    clause = ("--clauses=device.capability",)
    for device, module, outcome in (
        ("draft", "strange_raising", Outcome.FAIL),
        ("twin", "strange_two", Outcome.PASS),
    ):
        outcomes = judged(device, module, tmp_path, fork, *clause)
        assert outcomes.pop(CellKey("device.capability", "waits", "")) is outcome
        assert Outcome.ERROR not in outcomes.values()


@pytest.mark.slow
def test_what_python_kernels_raise_is_told_apart(tmp_path: Path, fork: ForkServer) -> None:
    """A missing kernel is unsupported, whichever check asks for it; what was never answered is blocked, not an error;
    indices of another dtype are compared as numbers; an assertion without a text says where it is."""
    what = (
        "--ops=argmin,complex,erf,nanmean,sub",
        "--clauses=layout.values,layout.empty_reduce,layout.type_promotion,dispatch.no_silent_fallback",
    )
    outcomes = judged("handy", "strange_python", tmp_path, fork, *what)
    found = {f"{key.clause}::{key.unit}": outcome for key, outcome in outcomes.items()}
    wrong = {cell for cell, outcome in found.items() if outcome is Outcome.FAIL}
    assert wrong == {f"layout.values::{op}" for op in ("argmin", "complex", "erf")}
    for cell in (
        "layout.values::nanmean",
        "layout.empty_reduce::nanmean",
        "layout.type_promotion::sub",
        "layout.type_promotion::complex",  # by declaration, which the plan could not foresee
    ):
        assert found[cell] is Outcome.UNSUPPORTED, cell
    assert found["dispatch.no_silent_fallback::erf"] is Outcome.BLOCKED
    text = cells_of(tmp_path / "results")[CellKey("layout.values", "erf", "float32")].message
    assert "AssertionError at strange_python.py:" in text


@pytest.mark.slow
def test_where_nothing_holds_a_stream_cases_that_need_that_are_refused_by_declaration(
    tmp_path: Path, fork: ForkServer
) -> None:
    has = '"strides", "storage", "streams", "events"'
    what = ("--clauses=allocator.record_stream,allocator.cross_stream,events.record",)
    outcomes = judged(*("simulated", "strange_native", tmp_path, fork, *what), capabilities=has)
    assert outcomes[CellKey("allocator.record_stream", "small", "")] is Outcome.UNSUPPORTED
    assert set(outcomes.values()) <= {Outcome.PASS, Outcome.UNSUPPORTED}
