"""The compile suite: checks of compiled ops and programs, and of what torch's compiler assumes about the device."""

from conformance.checks.cases.cases import OpCheck, Suite, collect_cases
from conformance.suites.compile import (
    compiled_autograd,
    control_programs,
    device_interface,
    device_programs,
    eager_equals_compiled,
    essential_programs,
    exported_programs,
    guard_programs,
    meta_agrees,
    nested_modules,
    network_programs,
    number_programs,
    random_numbers,
    stride_tags,
    view_programs,
    whole_ops,
)
from conformance.suites.compile.compiled_samples import COMPILER, WHOLE
from opinfo.torch_private import load_compiler

SUITE = Suite(
    "compile",
    cases=collect_cases(
        stride_tags.cases,
        whole_ops.cases,
        essential_programs.cases,
        view_programs.cases,
        network_programs.cases,
        number_programs.cases,
        control_programs.cases,
        guard_programs.cases,
        random_numbers.cases,
        device_programs.cases,
        device_interface.cases,
        compiled_autograd.cases,
        nested_modules.cases,
        exported_programs.cases,
    ),
    op_checks=(
        OpCheck(
            meta_agrees.META,
            meta_agrees.applies,
            (meta_agrees.check,),
            grad=True,
            quick=meta_agrees.in_quick,
            more_variants={WHOLE: meta_agrees.in_core},
        ),
        OpCheck(
            eager_equals_compiled.CLAUSE,
            eager_equals_compiled.applies,
            (eager_equals_compiled.check,),
            grad=True,
            quick=eager_equals_compiled.in_quick,
            more_variants={
                WHOLE: eager_equals_compiled.every_op,
                eager_equals_compiled.DYNAMIC: eager_equals_compiled.in_core,
            },
            whole_variants=(COMPILER,),
            seconds=60.0,
            loads=load_compiler,
        ),
    ),
)
