"""The compile suite: checks of compiled calls and of what the compiler assumes about the device."""

from conformance.checks.cases.cases import OpCheck, Suite, collect_cases
from conformance.suites.compile import eager_equals_compiled, meta_agrees
from opinfo.torch_private import load_compiler

SUITE = Suite(
    "compile",
    cases=collect_cases(),
    op_checks=(
        OpCheck(
            meta_agrees.META,
            meta_agrees.applies,
            (meta_agrees.check,),
            grad=True,
            axes=False,
            samples=1,
            more=3,
        ),
        OpCheck(
            eager_equals_compiled.CLAUSE,
            eager_equals_compiled.applies,
            (eager_equals_compiled.check,),
            grad=True,
            axes=False,
            more_variants=(eager_equals_compiled.DYNAMIC,),
            whole_variants=(eager_equals_compiled.INDUCTOR,),
            samples=1,
            more=3,
            seconds=60.0,
            loads=load_compiler,
        ),
    ),
)
