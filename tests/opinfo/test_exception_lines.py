"""Each line of ``exceptions.toml`` that leaves something out is needed: without it, a cell of torch's own CPU does not
pass, or checks something else. The exceptions to this are listed here, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from devices import registry
from opinfo.database import DATABASE
from opinfo.exceptions import Exceptions, Exclusion, exceptions, names
from tests.opinfo.lines import (
    Results,
    in_a_fork,
    run_cells,
    without_exclusion,
    without_from_family,
)

#: Excluded cells that pass on the CPU, by clause. They are left out because of other devices, or because what the cell
#: compares is nothing that a device promises.
PASS_ON_CPU = {
    # Two kernels of a device may draw their numbers in different orders.
    # For _batch_norm_with_update, out= refuses what the function refuses; no other call takes out=.
    "layout.variants": {
        *("bernoulli", "multinomial", "normal", "normal.number_mean", "randn", "resize_as_"),
        "_batch_norm_with_update",
    },
    # The memory that grows is the guarded memory of the harness itself.
    "layout.determinism": {"resize_", "resize_as_"},
    # FakeTensor has an answer for results without elements only.
    "layout.output_strides": {"combinations", "nn.functional.gaussian_nll_loss"},
    # These fail in the variants of plan core alone.
    "compile.eager_equals_compiled": {
        *("aten.nonzero_static.out", "aten.norm.dtype_out", "aten.norm.out", "geqrf"),
    },
    # FakeTensor remembers what the calls of an earlier cell returned.
    "compile.meta_agrees": {
        *("aten._native_multi_head_attention", "aten._transform_bias_rescale_qkv"),
    },
    # No region moves for the random numbers of these samples.
    "precision.gradients": {f"nn.functional.fractional_max_pool{rank}d" for rank in (2, 3)},
    "precision.ulp": {"nn.functional.fractional_max_pool3d"},
    # One sample of `to` copies to the host without waiting; on the CPU, there is nothing to wait for. Indices of
    # tensor_split stay on the CPU.
    "precision.trust": {"tensor_split", "to"},
}

#: The families whose lines leave out gradients, values or written tensors, or the samples that show them.
LEAVING_OUT = (
    *("gradients.of_storage", "gradients.of_any", "gradients.not_smooth"),
    *(
        "gradients.not_of_nothing",
        "gradients.indices_on_cpu",
        "mutates.self",
        "mutates.running_stats",
    ),
    *("mutates.max_norm", "as_strided.read", "values.free", "values.drawn", "values.of_last"),
    *("values.not_unique", "values.of_k", "values.converted", "returns_input", "expand.none"),
    *("expand.values", "axes.unique_indices", "axes.keep_shapes", "axes.written", "axes.channels"),
    *("axes.products", "axes.ties", "axes.masked_row", "axes.promotes", "axes.int32_index"),
    *("axes.pairs", "axes.unsettled", "axes.quadratic"),
)
#: Lines without which no cell of the CPU differs in float32.
SAME_ON_CPU = {
    # Of equal elements, each kernel of the CPU returns the one whose gradient the reference has.
    "gradients.of_any": {
        *(
            "aten.median.dim_values",
            "aten.nanmedian.dim_values",
            "kthvalue",
            "masked.median",
            "mode",
        ),
        *("msort", "nanquantile", "quantile", "sort", "topk"),
    },
    # The schema says the same, except for a recorded call.
    "mutates.self": {"resize_", "resize_as_", "zero_"},
    # The CPU writes an element that an index names twice in order, as the reference does.
    "expand.values": {"put"},
    # Has no dtype on the CPU.
    "mutates.running_stats": {"nn.functional.batch_norm.without_cudnn"},
    # The database's calls of these have no index twice.
    "values.of_last": {f"nn.functional.max_unpool{rank}d.grad" for rank in (1, 2, 3)},
    # Give their operand back in the dtype of their name.
    "returns_input": {"bfloat16", "half"},
    # The calls of these overloads are written by hand, and no axis changes them; the families name the op.
    "axes.unique_indices": {"aten.scatter.value_out", "aten.scatter_.value"},
    "axes.promotes": {"aten.clamp.out", "aten.clamp_"},
    # In float32, no sample has another shape without the line; in int64, some have.
    "axes.keep_shapes": {"item"},
    # No sample of plan quick is one that the line leaves out; conv1d and conv3d have such samples.
    "axes.channels": {"nn.functional.conv2d"},
}


#: The families that add checks of calls which an op refuses.
ADDING_CHECKS = ("index_range", "index_range.operands", "index_range.numbers", "numbers.converted")
#: The families of ops that take operands on different devices. The CPU has no other device beside it, so that their lines
#: are tried on the simulated device.
MIXING_DEVICES = ("cross_device.any", "cross_device.indices", "cross_device.first_decides")


def lines_of(*families: str) -> list[tuple[str, str]]:
    """The families of these names, each with each op that it names."""
    return [
        (family.name, op)
        for family in exceptions().families
        if family.name in families
        for op, subject in DATABASE.subjects().items()
        if any(names(pattern, name) for pattern in family.ops for name in subject.names)
    ]


FAMILY_LINES = lines_of(*LEAVING_OUT)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """A first cell imports what later ones need, so that a fork need not."""
    run_cells("add", ["float32"], exceptions(), wanted=lambda clause: clause == "layout.values")


def dtypes_of(op_id: str, exclusion: Exclusion | None = None) -> list[str]:
    """The dtypes in which a cell is tried: those that an exclusion names, or the first of these that the op takes."""
    taken = DATABASE.subjects()[op_id].dtypes & registry.get("cpu").dtypes
    if exclusion is not None and exclusion.dtypes:
        return sorted(taken & {*exclusion.dtypes})
    return [each for each in ("float32", "int64", "complex64", "bool") if each in taken][:3]


def excluded_ops(exclusion: Exclusion) -> Iterator[str]:
    for op in DATABASE.subjects():
        if any(names(pattern, op) for pattern in exclusion.ops):
            yield op


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(exceptions().exclusions)))
def test_an_excluded_cell_does_not_pass_on_the_cpu(number: int) -> None:
    known, exclusion = exceptions(), exceptions().exclusions[number]
    without = without_exclusion(known, number)

    def wanted(clause: str) -> bool:
        return any(names(pattern, clause) for pattern in exclusion.clauses)

    passing: dict[str, set[str]] = {}
    for op in excluded_ops(exclusion):
        dtypes = dtypes_of(op, exclusion)
        found = in_a_fork(
            lambda op=op, dtypes=dtypes: run_cells(op, dtypes, without, wanted=wanted)
        )  # type: ignore[misc]
        for clause in {name.split(" ")[-1] for name in found}:
            of_clause = [each for name, each in found.items() if name.endswith(f" {clause}")]
            if of_clause and all(each.outcome == "pass" for each in of_clause):
                passing.setdefault(clause, set()).add(op)
    ops = {*excluded_ops(exclusion)}
    expected = {
        clause: here
        for clause in PASS_ON_CPU
        if wanted(clause) and (here := PASS_ON_CPU[clause] & ops)
    }
    assert passing == expected, f"{exclusion.clauses}: {exclusion.reason}"


@pytest.mark.slow
@pytest.mark.parametrize(("family", "op"), lines_of(*ADDING_CHECKS))
def test_an_op_of_a_family_has_more_checks_of_what_it_refuses(family: str, op: str) -> None:
    def checks(known: Exceptions) -> int:
        found = in_a_fork(
            lambda: run_cells(
                op, dtypes_of(op), known, wanted=lambda clause: clause.startswith("dispatch.")
            )
        )
        return sum(each.checks for each in found.values())

    assert checks(exceptions()) > checks(without_from_family(exceptions(), family, op))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "op"), lines_of(*MIXING_DEVICES))
def test_a_right_device_fails_without_a_family_of_operands_on_other_devices(
    family: str, op: str
) -> None:
    def outcomes_of(known: Exceptions) -> set[str]:
        found = in_a_fork(
            lambda: run_cells(
                op,
                dtypes_of(op),
                known,
                device_name="simulated",
                wanted=lambda clause: clause == "dispatch.cross_device",
            )
        )
        return {each.outcome for each in found.values()}

    assert outcomes_of(exceptions()) <= {"pass"}
    assert "fail" in outcomes_of(without_from_family(exceptions(), family, op))


@lru_cache(maxsize=1)
def cells_of(op: str, without: str = "") -> Results:
    """The cells of an op, without the cells of compilers, which take longest; with ``without``, as if the op were not in
    this family."""
    known = exceptions() if not without else without_from_family(exceptions(), without, op)
    left_out = ("compile.", "dispatch.", "graphs.", "precision.ulp", "precision.budget")

    def wanted(clause: str) -> bool:
        return not clause.startswith(left_out)

    return in_a_fork(lambda: run_cells(op, dtypes_of(op)[:1], known, wanted=wanted))


def outcomes(cells: Results) -> dict[str, tuple[str, int]]:
    return {name: (each.outcome, each.checks) for name, each in cells.items()}


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted({op for _, op in FAMILY_LINES}))
def test_a_family_of_an_op_changes_its_cells(op: str) -> None:
    families = {family for family, each in FAMILY_LINES if each == op}
    now = outcomes(cells_of(op))
    same = {family for family in families if outcomes(cells_of(op, family)) == now}
    assert same == {family for family in families if op in SAME_ON_CPU.get(family, ())}


@pytest.mark.slow
@pytest.mark.parametrize("op", ["linalg.det", "linalg.slogdet", "logdet"])
def test_another_device_needs_the_family_of_saved_strides_that_the_cpu_misreads(op: str) -> None:
    """On the CPU these cells fail either way."""
    family, clause = "gradients.of_saved_strides", "autograd.saved_strides"
    for known, outcome in (
        (exceptions(), "pass"),
        (without_from_family(exceptions(), family, op), "fail"),
    ):
        found = in_a_fork(
            lambda known=known: run_cells(
                op, ["float32"], known, "simulated", lambda c: c == clause
            )  # type: ignore[misc]
        )
        assert [each.outcome for each in found.values()] == [outcome]
