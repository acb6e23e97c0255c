"""The adapter over torch's op database: the fields that it uses, and what it makes of them.

The database is private to torch. When a field moves in a new minor version these tests say which.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal import common_device_type
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

from opinfo import catalog
from opinfo.catalog import catalogue, dtype_name
from opinfo.compare import DEFAULT_TOLERANCES

MINOR = ".".join(torch.__version__.split(".")[:2])

_INFO = (
    "aten_name",
    "backward_dtypes",
    "decorators",
    "dtypes",
    "dtypesIf",
    "error_inputs_func",
    "full_name",
    "inplace_operator_variant",
    "inplace_variant",
    "is_factory_function",
    "method_variant",
    "op",
    "operator_variant",
    "promotes_int_to_float",
    "sample_inputs_func",
    "supports_autograd",
    "supports_forward_ad",
    "supports_gradgrad",
    "supports_out",
    "test_conjugated_samples",
    "test_neg_view",
)
_BY_CLASS = {
    "OpInfo": _INFO,
    "UnaryUfuncInfo": _INFO,
    "BinaryUfuncInfo": (*_INFO, "supports_rhs_python_scalar"),
    "ReductionOpInfo": (*_INFO, "identity", "nan_policy"),
}
#: The fields used, by minor version of torch: one entry for each that is supported.
FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "2.9": _BY_CLASS,
    "2.10": _BY_CLASS,
    "2.11": _BY_CLASS,
    "2.12": _BY_CLASS,
    "2.13": _BY_CLASS,
}
SAMPLE_FIELDS = ("input", "args", "kwargs", "output_process_fn_grad")
DECORATE_FIELDS = ("cls_name", "decorators", "test_name")

needs_pinned_torch = pytest.mark.skipif(
    MINOR not in FIELDS, reason=f"fields are pinned for torch {', '.join(FIELDS)}, this is {MINOR}"
)
only_on_213 = pytest.mark.skipif(
    MINOR != "2.13", reason=f"counted in torch 2.13's database, this is {MINOR}"
)


def first_of(cls: type[Any]) -> Any:
    """An entry of exactly this class."""
    return next(info for info in op_db if type(info) is cls)


@needs_pinned_torch
@pytest.mark.parametrize("name", sorted(_BY_CLASS))
def test_entries_have_the_fields_that_the_adapter_reads(name: str) -> None:
    info = first_of(getattr(core, name))
    missing = [field for field in FIELDS[MINOR][name] if not hasattr(info, field)]
    assert missing == []


def test_the_adapter_reads_no_field_that_is_not_pinned() -> None:
    tree = ast.parse(inspect.getsource(catalog))
    direct = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self.info", "info")
    }
    by_name = {
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_field"
    }
    assert direct | by_name == {field for fields in _BY_CLASS.values() for field in fields}


def test_no_other_module_reads_torch_s_entries() -> None:
    checkout = Path(catalog.__file__).resolve().parents[1]
    readers = {
        path.relative_to(checkout).as_posix()
        for package in ("opinfo", "conformance", "devices", "reports")
        for path in (checkout / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and "torch.testing._internal" in (node.module or ""))
        or (isinstance(node, ast.Attribute) and node.attr == "info")
    }
    assert readers == {"opinfo/catalog.py", "opinfo/module_catalog.py"}


def test_samples_have_the_fields_that_are_read() -> None:
    info = first_of(core.OpInfo)
    sample = next(iter(info.sample_inputs_func(info, "cpu", torch.float32, False)))
    assert [field for field in SAMPLE_FIELDS if not hasattr(sample, field)] == []


def test_decorators_have_the_fields_that_are_read() -> None:
    decorated = [d for info in op_db for d in info.decorators if hasattr(d, "test_name")]
    assert decorated
    for decorator in decorated:
        assert [field for field in DECORATE_FIELDS if not hasattr(decorator, field)] == []


def test_tolerance_overrides_have_the_form_that_is_read() -> None:
    tol = common_device_type.tol(atol=1e-3, rtol=1e-4)
    assert (tol.rtol, tol.atol) == (1e-4, 1e-3)
    both = common_device_type.toleranceOverride({torch.float32: tol})
    alone = common_device_type.precisionOverride({torch.float32: 1e-2})
    assert both.d == {torch.float32: tol} and alone.d == {torch.float32: 1e-2}


@only_on_213
def test_the_database_has_702_ops_and_6121_pairs_of_op_and_dtype() -> None:
    ops = catalogue()
    assert (len(ops), sum(len(op.dtypes) for op in ops.values())) == (702, 6121)


def test_ops_come_in_the_database_s_order_under_unique_ids() -> None:
    assert [op.info for op in catalogue().values()] == list(op_db)


def test_an_id_is_name_and_variant() -> None:
    op = catalogue()["std.unbiased"]
    assert op.id == "std.unbiased" and op.function is catalogue()["std"].function


@pytest.mark.parametrize(
    ("op", "kind"), [("abs", "unary"), ("add", "binary"), ("sum", "reduction"), ("mm", "")]
)
def test_the_kind_of_ufunc_is_the_entry_s_class(op: str, kind: str) -> None:
    assert catalogue()[op].ufunc == kind


def test_dtypes_of_a_device_type_without_a_list_are_the_cpu_s() -> None:
    op = catalogue()["mm"]
    assert op.dtypes_on("cpu") == op.dtypes == op.dtypes_on("npu")
    assert "float32" in op.dtypes and "bool" not in op.dtypes


def test_dtypes_of_a_listed_device_type_are_its_own() -> None:
    op = catalogue()["mm"]
    listed = {dtype_name(d) for d in op.info.dtypesIf["cuda"]}
    assert op.dtypes_on("cuda") == listed != op.dtypes


@pytest.mark.parametrize(
    ("op", "view"), [("transpose", True), ("squeeze", True), ("add", False), ("clone", False)]
)
def test_a_view_is_told_from_the_schema(op: str, view: bool) -> None:
    assert catalogue()[op].declares_view is view


@pytest.mark.parametrize(
    ("op", "restrides"), [("transpose", True), ("unsqueeze", True), ("add", False), ("mm", False)]
)
def test_an_in_place_variant_that_restrides_is_told_from_its_tag(op: str, restrides: bool) -> None:
    assert catalogue()[op].restrides_in_place is restrides


@pytest.mark.parametrize(
    ("op", "takes"), [("clone", True), ("empty_like", True), ("contiguous", True), ("add", False)]
)
def test_a_memory_format_is_told_from_the_schema(op: str, takes: bool) -> None:
    assert catalogue()[op].takes_memory_format is takes


def test_variants_of_an_op_are_torch_s_own() -> None:
    add = catalogue()["add"]
    assert add.function is torch.add and add.method is torch.Tensor.add
    assert add.inplace is torch.Tensor.add_ and add.operator is not None
    assert add.inplace_operator is not None and add.has_out and not add.is_factory
    assert catalogue()["nn.functional.linear"].method is None
    assert catalogue()["zeros"].is_factory


def test_what_a_reduction_declares_is_read() -> None:
    total = catalogue()["sum"]
    assert (total.identity, total.nan_policy) == (0, "propagate")
    assert catalogue()["nansum"].nan_policy == "omit"
    assert (catalogue()["add"].identity, catalogue()["add"].nan_policy) == (None, None)


def test_whether_a_binary_op_takes_a_python_scalar_is_read() -> None:
    assert catalogue()["add"].takes_python_scalar
    assert not catalogue()["mm"].takes_python_scalar
    assert {op.takes_python_scalar for op in catalogue().values() if op.ufunc == "binary"} == {
        True,
        False,
    }


def test_whether_an_op_gives_floats_for_integers_is_read() -> None:
    assert catalogue()["sin"].promotes_int_to_float
    assert not catalogue()["neg"].promotes_int_to_float


def test_a_tolerance_override_of_a_comparison_that_we_make_is_taken() -> None:
    assert catalogue()["addbmm"].tolerance("float32", "cpu") == (1e-5, 1.5e-5)


@only_on_213
def test_an_override_for_another_type_of_device_is_that_one_s() -> None:
    """In torch's database grid_sampler_3d has an override for MPS; torch 2.9 and 2.10 have none."""
    known = catalogue()
    assert known["grid_sampler_3d"].tolerance("float32", "mps") == (5e-4, 5e-5)
    assert known["grid_sampler_3d"].tolerance("float32", "cuda") is None


def test_an_override_for_the_cpu_is_everyone_s_and_cuda_s_every_accelerator_s() -> None:
    """linalg.solve has one for the CPU, conv_transpose1d one for CUDA."""
    known = catalogue()
    solve = known["linalg.solve"].tolerance("float32", "cpu")
    assert solve is not None and known["linalg.solve"].tolerance("float32", "xpu") == solve
    transposed = known["nn.functional.conv_transpose1d"]
    assert transposed.tolerance("float32", "xpu") == transposed.tolerance("float32", "cuda")
    assert transposed.tolerance("float32", "cpu") is None


def test_an_override_of_precision_alone_keeps_the_relative_tolerance() -> None:
    rtol, _ = DEFAULT_TOLERANCES["float16"]
    assert catalogue()["acos"].tolerance("float16", "cpu") == (rtol, 1e-2)


def test_no_override_is_tighter_than_the_dtype_s_default() -> None:
    for op in catalogue().values():
        for dtype in op.dtypes & DEFAULT_TOLERANCES.keys():
            rtol, atol = op.tolerance(dtype, "cuda") or DEFAULT_TOLERANCES[dtype]
            assert rtol >= DEFAULT_TOLERANCES[dtype][0] and atol >= DEFAULT_TOLERANCES[dtype][1]


def test_an_op_without_overrides_has_no_tolerance_of_its_own() -> None:
    assert catalogue()["add"].tolerance("float32", "cpu") is None


def test_dtypes_are_named_without_torch() -> None:
    assert dtype_name(torch.float8_e5m2) == "float8_e5m2"


def test_the_deep_copy_that_loading_leaves_out_is_put_back() -> None:
    import dataclasses

    catalogue()
    assert core.asdict is dataclasses.asdict
    assert "asdict(self)" in inspect.getsource(core.OpInfo.__post_init__)


OPTIMISER_FIELDS = (
    "has_capturable_arg",
    "only_supports_sparse_grads",
    "optim_cls",
    "optim_inputs_func",
    "step_requires_closure",
    "supported_impls",
)


def test_entries_of_optimisers_have_the_fields_that_are_used() -> None:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        assert [name for name in OPTIMISER_FIELDS if not hasattr(info, name)] == []
        assert all(isinstance(each.kwargs, dict) for each in info.optim_inputs_func(device="cuda"))


def test_optimisers_are_literals() -> None:
    found = {each.name: each for each in catalog.optimisers()}
    assert found["Adam"].implementations == ("foreach", "fused", "capturable")
    assert found["LBFGS"].closure and found["SparseAdam"].sparse
    for each in found.values():
        assert ast.literal_eval(repr(each.arguments)) == each.arguments
    tensors = [given["lr"] for given in found["SGD"].arguments if isinstance(given.get("lr"), dict)]
    assert tensors == [{"tensor": pytest.approx(0.001)}]
