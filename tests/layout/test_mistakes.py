"""A mistake of ours in a check is an ``error`` of its cells and says where it is; what the device raises is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.dlpack import from_dlpack

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Invocation, Unjudged
from conformance.checks.ops.evidence import Evidence, called_and_written_to
from conformance.checks.ops.failures import from_device
from conformance.suites.layout import SUITE, reads
from conformance.suites.layout.determinism import judge_same_bits
from conformance.suites.layout.overlap import OVERLAP
from conformance.suites.layout.views import judge_views
from conformance.suites.precision.sampled_ulp import judge_rounded
from devices.cell import CellOutcome, Outcome
from devices.cpu.descriptor import DESCRIPTOR
from opinfo.compare import Wrong
from opinfo.device import open_device
from opinfo.guarded import Guarded, identity
from opinfo.layouts import CONTIGUOUS
from opinfo.reference import OutputSpec, StrideAnswer
from tests.trials import Rig, Subject


def raising(evidence: Any, reference: Any) -> Any:
    yield torch.zeros(2) + torch.zeros(3)


def cells_of(op: str, folder: Path, *clauses: str) -> dict[str, CellOutcome]:
    """The cell of each clause, or of these alone, for one sample on the CPU."""
    wanted = tuple(each for each in SUITE.op_checks if not clauses or each.clause in clauses)
    rig = Rig(
        DESCRIPTOR,
        ((op, "float32"),),
        planted=lambda _: nullcontext(),
        watched=lambda: nullcontext(set()),
        places=lambda _: set(),
        samples=1,
        checks=wanted,
    )
    run = Subject(rig.items[0], rig, open_device(DESCRIPTOR), folder).run()
    return {key.clause: record.to_outcome() for key, record in run.cells.items()}


def test_a_mistake_of_ours_is_an_error_that_says_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reads, "differs", None)
    told = cells_of("neg", tmp_path)["layout.values"]
    assert told.outcome is Outcome.ERROR
    assert "'NoneType' object is not callable, at reads.py:" in told.message


def test_what_a_kernel_raises_in_a_step_fails_values_and_blocks_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(reads._PLAIN, "layout.values", raising)
    told = cells_of("neg", tmp_path)
    values, strides = told["layout.values"], told["layout.output_strides"]
    assert values.outcome is Outcome.FAIL and values.raises == "RuntimeError"
    assert strides.outcome is Outcome.BLOCKED and strides.blocked_by == "layout.values"
    for cell in (values, strides):
        assert "The size of tensor a (2) must match" in cell.message


def test_a_package_whose_name_begins_with_torch_is_a_vendors() -> None:
    file = Path(torch.__file__).parent.with_name("torchax") / "tensor.py"
    with pytest.raises(KeyError) as raised:
        exec(compile("raise KeyError('no lowering')", str(file), "exec"))
    assert from_device(raised.value)


def evidence_of(
    result: torch.Tensor,
    *inputs: Guarded,
    storage: bool = True,
    mutable: Sequence[int] = (),
    back: Callable[[torch.Tensor], torch.Tensor] = identity,
) -> Evidence:
    """The evidence of a call on the CPU that returns ``result``, on a device that shows storages or does not."""
    call = Invocation(
        function=lambda *_: result,
        arguments=lambda tensors, device: (tuple(tensors), {}),
        values=(),
        inputs=inputs,
        device=torch.device("cpu"),
        move=identity,
        back=back,
        settle=lambda result: None,
        storage=storage,
    )
    return called_and_written_to(call, mutable)


NO_SPECS = SimpleNamespace(specs=None, eager_specs=None, mutable=frozenset())


class Unwritable(torch.Tensor):
    def fill_(self, value: Any) -> Any:
        raise RuntimeError("no fill_")


def test_an_output_that_cannot_be_written_to_is_no_executed_check() -> None:
    """Of devices that declare no storage: what it shares memory with is not known then."""
    (found,) = reads.judge_fresh(evidence_of(Unwritable(torch.ones(3)), storage=False), NO_SPECS)
    assert isinstance(found, Unjudged) and isinstance(found.error, RuntimeError)
    assert list(reads.judge_fresh(evidence_of(torch.ones(3), storage=False), NO_SPECS)) == [None]


def test_an_input_that_cannot_be_read_after_a_write_hides_no_other_check() -> None:
    """A lazy device loses the base if a piece of ``chunk`` is written to."""
    given = Guarded(torch.arange(6.0).view(2, 3), CONTIGUOUS.geometry((2, 3)), identity)
    lost, whole = given.base, given.base.clone()

    def back(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is lost and not torch.equal(lost, whole):
            raise RuntimeError("not a lazy tensor")
        return tensor

    evidence = evidence_of(given.view[:1], given, back=back)
    assert evidence.raised is None and evidence.unjudged is None
    (write,) = evidence.writes
    assert write is not None and str(write.error) == "not a lazy tensor"
    assert torch.equal(given.view, torch.arange(6.0).view(2, 3))
    assert given.intact(back)


def test_an_input_that_the_device_has_no_way_to_read_is_not_judged() -> None:
    """The clauses would count a check that was not made."""
    given = Guarded(torch.arange(6.0).view(2, 3), CONTIGUOUS.geometry((2, 3)), identity)
    whole = given.base.clone()

    def back(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is given.base and not torch.equal(tensor, whole):
            raise NotImplementedError("no copy")
        return tensor

    with pytest.raises(NotImplementedError, match="no copy"):
        evidence_of(given.view[:1], given, back=back)


@pytest.mark.parametrize("storage", [True, False])
@pytest.mark.parametrize("mutable", [(), (0,)])
@pytest.mark.parametrize("view", [torch.Tensor.t, torch.conj], ids=["transposed", "conjugated"])
def test_an_output_that_lies_in_an_input_is_not_fresh(
    view: Callable[[torch.Tensor], torch.Tensor], mutable: tuple[int, ...], storage: bool
) -> None:
    """Also where only a write can show it: of an op that updates its input, and through the conj bit."""
    values = torch.complex(torch.ones(2, 3), torch.arange(6.0).view(2, 3))
    given = Guarded(values, CONTIGUOUS.geometry((2, 3)), identity)
    evidence = evidence_of(view(given.view), given, storage=storage, mutable=mutable)
    reference: Any = SimpleNamespace(specs=None, eager_specs=None, mutable=frozenset(mutable))
    (found,) = reads.judge_fresh(evidence, reference)
    assert isinstance(found, Wrong) and found.kind == "alias"
    assert given.intact(identity)  # what the write changed has its bytes again


@pytest.mark.parametrize(("mutable", "right"), [((0,), True), ((), False)])
def test_an_input_that_the_op_updates_late_does_not_share_memory(
    mutable: tuple[int, ...], right: bool
) -> None:
    """A lazy device updates the statistics of a batch norm while something else is read or written."""
    given = Guarded(torch.ones(2, 3), CONTIGUOUS.geometry((2, 3)), identity)

    class Late(torch.Tensor):
        def fill_(self, value: Any) -> Any:
            given.view.fill_(2.5)

    evidence = evidence_of(Late(torch.ones(3)), given, storage=False, mutable=mutable)
    reference: Any = SimpleNamespace(specs=None, eager_specs=None, mutable=frozenset(mutable))
    (found,) = reads.judge_fresh(evidence, reference)
    assert (found is None) is right


@pytest.mark.parametrize("storage", [True, False])
@pytest.mark.parametrize(("alias", "right"), [(0, True), (None, False)])
def test_the_cpu_decides_what_is_handed_through_where_fake_tensor_has_no_answer(
    alias: int | None, right: bool, storage: bool
) -> None:
    """`histogramdd` returns the bins that it was given."""
    given = Guarded(torch.zeros(2, 3), CONTIGUOUS.geometry((2, 3)), identity)
    eager = (OutputSpec((2, 3), (3, 1), 0, alias, "float32"),)
    reference: Any = SimpleNamespace(specs=None, eager_specs=eager, mutable=frozenset())
    (found,) = reads.judge_fresh(evidence_of(given.view, given, storage=storage), reference)
    assert (found is None) is right


def test_an_output_at_the_addresses_of_an_input_is_not_fresh() -> None:
    """In a storage of its own, such as one that was made from a pointer."""
    given = Guarded(torch.ones(2, 3), CONTIGUOUS.geometry((2, 3)), identity)
    (found,) = reads.judge_fresh(evidence_of(from_dlpack(given.view), given), NO_SPECS)
    assert isinstance(found, Wrong) and "addresses that overlap input 0" in found.found


def test_an_input_that_a_call_moves_is_seen() -> None:
    given = Guarded(torch.ones(2, 3), CONTIGUOUS.geometry((2, 3)), identity)
    given.view.t_()
    reference = SimpleNamespace(mutable=frozenset())
    (found,) = reads.judge_inputs(evidence_of(torch.ones(1), given), reference)
    assert isinstance(found, Wrong) and found.kind == "moved"


def test_a_result_in_an_overwritten_input_is_kept_as_the_call_left_it() -> None:
    given = Guarded(torch.ones(2, 3), CONTIGUOUS.geometry((2, 3)), identity)
    evidence = evidence_of(given.view.add_(1), given)
    assert evidence.read.eq(2).all() and given.view.eq(1).all()
    reference = SimpleNamespace(mutable=frozenset())
    (found,) = reads.judge_inputs(evidence, reference)
    assert isinstance(found, Wrong) and found.kind == "bytes"


@pytest.mark.parametrize("back", [identity, torch.Tensor.cpu], ids=["cpu", "another_device"])
def test_a_result_on_the_cpu_keeps_its_values_when_the_output_is_written_to(
    back: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """On another device too: what ``x.to("cpu")`` returns is not copied when it is read."""
    evidence = evidence_of(torch.zeros(3), storage=False, back=back)
    assert evidence.writes[0] is not None and evidence.read.tolist() == [0, 0, 0]


def test_a_result_past_its_storage_is_read_by_nobody() -> None:
    past = torch.ones(4)
    past.untyped_storage().resize_(8)
    evidence = evidence_of(past)
    assert evidence.read is None and evidence.unjudged is not None
    (found,) = reads.judge_fresh(evidence, NO_SPECS)
    assert isinstance(found, Wrong) and found.kind == "storage"
    reference: Any = SimpleNamespace(value=None, free=False, meta_specs=None)
    for judge in (reads.judge_values, judge_views, judge_rounded):
        assert list(judge(evidence, reference)) == []
    (same,) = judge_same_bits([evidence, evidence], reference)
    assert isinstance(same, Unjudged)


def spec(*stride: int) -> OutputSpec:
    return OutputSpec((2, 3), stride, 0, None, "float32")


@pytest.mark.parametrize(
    ("meta", "fake", "eager", "other", "right"),
    [
        ((3, 1), None, None, None, True),  # FakeTensor is not asked
        ((1, 2), (3, 1), None, None, True),
        ((1, 2), (1, 2), (3, 1), None, True),
        ((1, 2), (1, 2), None, None, False),
        (None, (1, 2), None, None, False),  # meta has no answer
        (None, (3, 1), None, None, True),
        ((1, 2), (1, 2), (1, 2), None, False),
        (None, (1, 2), (1, 2), (3, 1), True),  # meta is asked last: a pad
        (None, (1, 2), (1, 2), (1, 2), False),
    ],
)
def test_strides_are_those_of_one_of_the_references(
    meta: tuple[int, ...] | None,
    fake: tuple[int, ...] | None,
    eager: tuple[int, ...] | None,
    other: tuple[int, ...] | None,
    right: bool,
) -> None:
    asked = {"meta_specs": meta, "specs": fake, "eager_specs": eager, "other_specs": other}
    given = {name: each and (spec(*each),) for name, each in asked.items()}
    if meta == (3, 1):
        del given["specs"], given["eager_specs"], given["other_specs"]
    found = list(reads.judge_strides(evidence_of(torch.ones(2, 3)), SimpleNamespace(**given)))
    assert (found == [None]) is right and len(found) == 1


@pytest.mark.parametrize(
    ("families", "answers"), [({"strides.not_of_meta"}, True), ({"strides.of_no_backend"}, False)]
)
def test_a_meta_kernel_that_is_written_for_the_cpu_is_no_reference(
    families: set[str], answers: bool
) -> None:
    answer = StrideAnswer((spec(3, 1),))
    traits = SimpleNamespace(families=families)
    ctx: Any = SimpleNamespace(traits=traits, stride_answer=lambda *_, **__: answer)
    laid: Any = SimpleNamespace(sample=None, case=None)
    assert (Reference(ctx, laid).other_specs is not None) is answers


@pytest.mark.parametrize(
    ("families", "fewest", "most"), [(set(), 900, 999), ({"strides.not_of_meta"}, 0, 0)]
)
def test_fake_tensor_is_asked_for_some_calls_of_every_op_and_all_of_some_ops(
    families: set[str], fewest: int, most: int
) -> None:
    answer = StrideAnswer((spec(3, 1),))
    ctx: Any = SimpleNamespace(
        traits=SimpleNamespace(families=families), stride_answer=lambda *_, **__: answer
    )
    calls: list[Any] = [
        SimpleNamespace(sample=SimpleNamespace(index=n), case=SimpleNamespace(id="transposed"))
        for n in range(1000)
    ]
    by_meta = [each for each in calls if Reference(ctx, each).meta_specs is not None]
    assert fewest <= len(by_meta) <= most


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (torch.ones(2, 3), None),  # other values, which are unspecified
        (torch.ones(3, 2), "shape"),
        (torch.ones(2, 3, dtype=torch.float64), "shape"),
        (RuntimeError("no such kernel"), "raised"),
    ],
)
def test_where_values_are_unspecified_shape_and_dtype_are_judged(
    read: Any, kind: str | None
) -> None:
    raised = read if isinstance(read, Exception) else None
    wanted = SimpleNamespace(result=torch.zeros(2, 3), raises=None)
    reference = SimpleNamespace(value=wanted, raises=False, free=True)
    (found,) = reads.judge_values(Evidence(read=read, raised=raised), reference)
    assert (found and found.kind) == kind


def test_overlap_alone_is_judged_as_after_the_other_clauses(tmp_path: Path) -> None:
    """The functional result is then first asked for here, and not by FakeTensor."""
    told = cells_of("zero_", tmp_path, OVERLAP)[OVERLAP]
    assert told.outcome is Outcome.PASS, told.message
