"""Mutants of AOTAutograd's runtime wrappers: of the code that torch writes around a compiled graph. It writes to mutated inputs,
rebuilds outputs that are views of inputs or of other outputs, raises version counters, and hands gradients to the backward graph.

Torch generates this code as text for each graph. A mutant changes the text. Its name describes it completely:
``wrapper|effect``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock

import torch

from tests.mutation import compilers
from tests.mutation.compile.listing import all_in_turn
from tests.mutation.compile.reach_table import reaching
from tests.mutation.compile.trial import Counted, attempt
from tests.mutation.compiled_probe import compare
from tests.mutation.kernels import Result

FAMILY: Final = "runtime_wrappers"
_MODULE: Final = "torch._functorch._aot_autograd.subclass_codegen"


class Edit(NamedTuple):
    """A change of generated text: a regular expression, what takes the place of a match, and the number of matches that are
    replaced (0 for all)."""

    pattern: str
    replacement: str
    count: int = 0

    def applied(self, text: str) -> str:
        return re.sub(self.pattern, self.replacement, text, count=self.count, flags=re.MULTILINE)


_ALIAS: Final = r"gen_alias_from_base\(([^,]*), ([^,]*), ([^,]*), (.*)\)\)$"
_COPIED: Final = r"(\S+)\.copy_\((\S+)\)"
_UNTIL_CALLED: Final = r"with _DisableAutocast_\(\):"

#: By the name that torch gives to a generated function: what a mutant changes in it. Some of the text cannot be reached through
#: torch.compile: Dynamo refuses programs that change the shape or strides of an input, and passes no tensor twice. Some has no effect
#: here: a graph that runs op by op raises version counters by itself, and autocast is switched off twice around a graph with gradients.
EDITS: Final[dict[str, dict[str, Edit]]] = {
    "output_alias_wrapper": {
        "an output that is an input is a view of it": Edit(
            r"append\((orig_inputs\[\d+\])\)$", r"append(\1.view_as(\1))"
        ),
        "a view is a copy": Edit(_ALIAS, r"gen_alias_from_base(\1, \2, \3, \4).clone())"),
        "a view is not a view of its base": Edit(_ALIAS, r"\2)"),
        "a view requires a gradient if it must not": Edit(
            r"gen_alias_from_base\(([^,]*), ([^,]*), False", r"gen_alias_from_base(\1, \2, True"
        ),
        "a view does not require a gradient": Edit(
            r"gen_alias_from_base\(([^,]*), ([^,]*), True", r"gen_alias_from_base(\1, \2, False"
        ),
    },
    "mutation_epilogue": {
        "no input is written": Edit(_COPIED, "None"),
        "the first input is not written": Edit(_COPIED, "None", 1),
        "zeros are written to inputs": Edit(_COPIED, r"\1.copy_(torch.zeros_like(\2))"),
    },
    "runtime_wrapper_orchestration": {
        "gradients stay switched off": Edit(r"(if grad_enabled: ).*\(True\)$", r"\1None"),
        "a change of the gradient mode is lost": Edit(
            r"^    torch\._C\._set_grad_enabled\(.*$", "    pass"
        ),
        "autocast stays switched on": Edit(_UNTIL_CALLED, "if True:"),
        "outputs are in reverse order": Edit(
            r"^    ret_outs = fw_outs$", "    ret_outs = fw_outs[::-1]"
        ),
    },
    "compiled_fn_wrapper": {
        "outputs without a gradient require one": Edit(
            r"^    non_diff = \(.*$", "    non_diff = []"
        ),
    },
    "compiled_function_backward": {
        "a gradient of a gradient is zero": Edit(r"return _double_bw_\(.*\)$", "return impl_fn()"),
    },
    "backward_prologue": {
        "gradients keep their strides": Edit(
            r"_process_tangent_\((all_args\[_i\]),[^\[]*\[j\][^\[]*\[j\][^\[]*\[j\] if .* None\)\[0\]",
            r"\1",
        ),
        "saved tensors are in reverse order": Edit(
            r"\*ctx_saved_tensors", "*tuple(ctx_saved_tensors)[::-1]"
        ),
        "saved sizes are in reverse order": Edit(r"\*ctx_symints", "*tuple(ctx_symints)[::-1]"),
        "gradients are in reverse order": Edit(
            r"_bw_grads = (\[.*,.*\])$", r"_bw_grads = \1[::-1]"
        ),
    },
    "backward_epilogue": {
        "the first gradient is lost": Edit(r"out = tuple\(out\)$", "out = (None, *tuple(out)[1:])"),
    },
    "synthetic_base_wrapper": {
        "the memory of aliased inputs is copied": Edit(
            r"(_bases\[\d+\] = )(\S.*)$", r"\1(\2).clone()"
        ),
    },
}


class Spec(NamedTuple):
    """A mutant."""

    wrapper: str
    effect: str

    @property
    def edit(self) -> Edit:
        return EDITS[self.wrapper][self.effect]


def names(seed: int, count: int) -> list[str]:
    """Mutants 0 to count - 1: all of them in an order drawn from the seed, then all again."""
    known = ["|".join((wrapper, effect)) for wrapper, own in EDITS.items() for effect in own]
    return all_in_turn(FAMILY, known, seed, count)


@contextmanager
def _generated(change: Callable[[str, str], str]) -> Iterator[None]:
    """For a block, the text of each generated function is ``change(name, text)``."""
    module: Any = importlib.import_module(_MODULE)
    right = module._compile_and_exec_source

    def compiled(
        source: str, names: Any, function: str, artifact: str, *rest: Any, **more: Any
    ) -> Any:
        return right(change(artifact, source), names, function, artifact, *rest, **more)

    with mock.patch.object(module, "_compile_and_exec_source", compiled):
        yield


@contextmanager
def planted(spec: Spec, sham: bool) -> Iterator[Counted]:
    """Plants a mutant for a block."""
    state = Counted(sham)

    def change(wrapper: str, text: str) -> str:
        if wrapper != spec.wrapper:
            return text
        state.ran += 1
        wrong = spec.edit.applied(text)
        state.reached += wrong != text
        return text if sham else wrong

    with (
        _generated(change),
        torch.set_grad_enabled(torch.is_grad_enabled()),
    ):  # a mutant may leave it off
        yield state


@contextmanager
def noting() -> Iterator[set[str]]:
    """Notes the mutants that would change a generated function in a block. Nothing is changed."""
    notes: set[str] = set()

    def change(wrapper: str, text: str) -> str:
        for effect, edit in EDITS.get(wrapper, {}).items():
            if edit.applied(text) != text:
                notes.add(f"{FAMILY}|{wrapper}|{effect}")
        return text

    with _generated(change):
        yield notes


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    """Tries a mutant with the cases that reach it."""
    spec = Spec(*name.split("|"))
    found = Result(f"c{number:04d}", FAMILY, spec.wrapper, "always", spec.effect, "")
    tell(found)
    return attempt(
        found,
        reaching({f"{FAMILY}|{name}"}, compilers.cases()),
        lambda sham: planted(spec, sham),
        compilers.outcome,
        lambda plant: compare(plant, compilers.NAME, Random(f"{seed} {number}")),
        tell,
    )
