"""The corpus of arXiv 2606.20128, rebuilt from its description: the ten wrong kernels fail and the sixteen right ones
pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.kernels import formats
from conformance.kernels.formats import reference_file
from conformance.kernels.judge import judged
from conformance.kernels.judgement import Verdict

CORPUS = Path(__file__).with_name("correctness_illusion")
WANTED = formats.Wanted(dtypes=("float32", "float16"), speed=False)
KERNELS = {
    each.name: each
    for file in sorted(CORPUS.glob("*.py"))
    for each in reference_file.requests(file, WANTED)
}
WRONG = {name for name in KERNELS if name.endswith("_buggy")}


def test_the_corpus_has_the_kernels_of_the_paper() -> None:
    pairs = ("softmax", "gelu", "silu", "rmsnorm", "l2norm", "leaky_relu", "matmul", "attention")
    both = {f"{name}_triton" for name in (*pairs, "flash_attention")}
    alone = {f"{name}_triton" for name in ("relu", "sigmoid", "tanh", "elu")}
    right = both | alone | {"softmax", "layernorm", "matmul"}
    wrong = {f"{name}_buggy" for name in both} | {"softmax_llm_buggy"}
    assert {*KERNELS} == right | wrong and (len(right), len(wrong)) == (16, 10)
    assert wrong == WRONG


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_each_kernel_of_the_corpus_has_its_verdict(name: str) -> None:
    found = judged(KERNELS[name])
    assert found.verdict is (Verdict.WRONG if name in WRONG else Verdict.RIGHT), found.faults
    if name in WRONG:
        failed = {(each.check, each.dtype) for each in found.faults}
        assert {("layout.values", "float32"), ("layout.values", "float16")} <= failed
