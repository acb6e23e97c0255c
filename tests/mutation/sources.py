"""Mutants of the runtime: the sources of the simulated device, rewritten so that a switch selects one of many mutations.

Each mutation changes one place of one line: a condition is true, false or slightly different; a statement is left out; a
sum becomes a difference; an answer is inverted. All mutations are compiled into one library, and ``SIMULATED_MUTANT``
switches one on by its number. Mutations that do not compile are removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch.utils import cpp_extension

from devices.files import cache_root
from devices.simulated.backend import build
from tests.mutation.unobserved import unobserved

#: The family of what each file does.
FILES: Final = {
    "allocator.cpp": "allocator", "allocator_release.cpp": "allocator", "allocator_state.cpp": "allocator",
    "allocator_torch.cpp": "allocator", "bindings_memory.cpp": "allocator", "settings.cpp": "allocator",
    "pluggable.cpp": "allocator", "stream.cpp": "streams", "worker.cpp": "streams", "failures.cpp": "streams",
    "event.cpp": "events", "event_ipc.cpp": "events", "capture.cpp": "graphs", "replay.cpp": "graphs",
    "graph.cpp": "graphs", "generator.cpp": "random", "copy.cpp": "transfer", "pinned.cpp": "transfer",
    "runtime.cpp": "device", "hooks.cpp": "device", "bindings.cpp": "device", "kernel.cpp": "dispatch",
    "activity.cpp": "profiler",
}  # fmt: skip

_SWITCH: Final = """\
// The switch of mutants: written by tests/mutation/sources.py.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <atomic>
#include <cstdlib>
namespace simulated {
inline std::atomic<int> active_mutant{std::getenv("SIMULATED_MUTANT") ? std::atoi(std::getenv("SIMULATED_MUTANT")) : -1};
inline std::atomic<long> mutant_reached{0};
// Where mutant -2 is on, every mutation that is reached is noted here, a byte each: a file that processes share.
inline unsigned char* notes() {
  static unsigned char* made = [] {
    const char* path = std::getenv("SIMULATED_MUTANT_NOTES");
    const int file = path == nullptr ? -1 : open(path, O_RDWR);
    void* found = file < 0 ? MAP_FAILED : mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return found == MAP_FAILED ? nullptr : static_cast<unsigned char*>(found);
  }();
  return made;
}
inline void note_mutant(int number) {
  if (unsigned char* found = notes()) {
    found[number] = 1;
  }
}
inline bool mutant(int number) {
  const int active = active_mutant.load(std::memory_order_relaxed);
  if (active != number) {
    if (active == -2) {
      note_mutant(number);
    }
    return false;
  }
  ++mutant_reached;
  return true;
}
// Reached where the two differ.
inline bool mutant_or(int number, bool right, bool wrong) {
  const int active = active_mutant.load(std::memory_order_relaxed);
  if (right == wrong || (active != number && active != -2)) {
    return right;
  }
  if (active == -2) {
    note_mutant(number);
    return right;
  }
  ++mutant_reached;
  return wrong;
}
}  // namespace simulated
extern "C" __attribute__((visibility("default"), weak)) void simulated_set_mutant(int number) {
  simulated::active_mutant = number;
  simulated::mutant_reached = 0;
}
extern "C" __attribute__((visibility("default"), weak)) long simulated_mutant_reached() {
  return simulated::mutant_reached;
}
"""


class Site(msgspec.Struct, frozen=True):
    """One mutation: a line of a file (counted from 1), the change, and the line that the switch selects."""

    number: int
    file: str
    line: int
    kind: str
    axis: str
    text: str  # the line as it was
    becomes: str

    @property
    def family(self) -> str:
        return FILES[self.file]


#: The file that lists them.
SITES: Final = "sites.json"

_IF = re.compile(r"^(\s*)((?:\} else )?if|while) \((.*)\) \{$")
_CALL = re.compile(
    r"^(\s+)([A-Za-z_][\w:]*(?:(?:\.|->)\w+|\([^()]*\)|\[[^\]]*\])*\((?:[^;{}]*)\));$"
)
_ASSIGN = re.compile(
    r"^(\s+)((?:\*|\+\+|--)?[A-Za-z_][\w]*(?:(?:\.|->)\w+|\[[^\]]*\]|\(\))*(?: [-+|&]?= [^;{}]+)?);$"
)
_RETURN = re.compile(r"^(\s+)return ([^;{}]+);$")
#: Parts of a condition or an expression, and what they become.
_SWAPS: Final = (
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "),
    (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" * ", " + "),
)  # fmt: skip
_NOT_MUTATED = (
    "on(Fault::",
    "TORCH_CHECK",
    "mutex",
    " lock(",
    "static_assert",
    "std::move(",
    "m.def(",  # done when the library is loaded, before a mutant is on
    "m.impl(",
    "#",
    "//",
)


def ways(line: str) -> Iterator[tuple[str, str, str]]:
    """The mutations of a line: kind, axis, and a template of the new line with ``@`` in the place of the number."""
    if any(part in line for part in ("static_assert", "#", "operator", "template", "constexpr")):
        return
    condition = _IF.match(line)
    if condition:
        indent, word, text = condition.groups()
        if text.startswith("on(Fault::") or " = " in text or ";" in text:
            return
        for value in ("false", "true") if word != "while" else ("false",):
            new = f"simulated::mutant_or(@, static_cast<bool>({text}), {value})"
            yield f"condition {value}", "conditions", f"{indent}{word} ({new}) {{"
        for old, other in _SWAPS:
            if text.count(old) == 1 and "on(Fault" not in text:
                wrong = text.replace(old, other)
                new = (
                    f"simulated::mutant(@) ? static_cast<bool>({wrong}) : static_cast<bool>({text})"
                )
                yield f"{old.strip()} is {other.strip()}", "operators", f"{indent}{word} ({new}) {{"
        return
    if any(part in line for part in _NOT_MUTATED):
        return
    answer = _RETURN.match(line)
    if answer:
        indent, text = answer.groups()
        if (
            any(op in text for op in (" == ", " != ", " < ", " > ", " <= ", " >= ", " && ", " || "))
            and "?" not in text
        ):
            yield (
                "answer turned around",
                "answers",
                f"{indent}return simulated::mutant(@) ? !({text}) : ({text});",
            )
        for old, other in _SWAPS[7:]:
            if text.count(old) == 1 and '"' not in text:
                wrong = text.replace(old, other)
                yield (
                    f"{old.strip()} is {other.strip()}",
                    "operators",
                    f"{indent}return simulated::mutant(@) ? ({wrong}) : ({text});",
                )
        if re.fullmatch(r"[\w.>()-]+", text) and text not in (
            "nullptr",
            "true",
            "false",
            "results",
            "result",
        ):
            yield (
                "zero for the answer",
                "answers",
                f"{indent}return simulated::mutant(@) ? decltype({text})() : ({text});",
            )
        return
    call, assigned = _CALL.match(line), _ASSIGN.match(line)
    if call or (assigned and ("=" in line or "++" in line or "--" in line)):
        text = line.strip()
        indent = line[: len(line) - len(line.lstrip())]
        if text.startswith(
            ("return", "throw", "delete", "using", "break", "continue", "std::lock", "TORCH")
        ):
            return
        kind = "call left out" if call else "assignment left out"
        yield kind, "statements", f"{indent}if (!simulated::mutant(@)) {{ {text} }}"
        for old, other in ((" += ", " -= "), (" -= ", " += "), (" + ", " - "), (" - ", " + ")):
            if text.count(old) == 1 and '"' not in text:
                wrong = text.replace(old, other)
                yield (
                    f"{old.strip()} is {other.strip()}",
                    "operators",
                    f"{indent}if (simulated::mutant(@)) {{ {wrong} }} else {{ {text} }}",
                )
        for old, other in ((", 1)", ", 2)"), (", -1)", ", -2)")):
            if old in text:
                wrong = text.replace(old, other)
                yield (
                    "counted twice",
                    "counters",
                    f"{indent}if (simulated::mutant(@)) {{ {wrong} }} else {{ {text} }}",
                )


def sites() -> list[Site]:
    """All mutations of all files, numbered in order."""
    found: list[Site] = []
    for file in FILES:
        lines = (build.SOURCES / file).read_text(encoding="utf-8").splitlines()
        left_out = {number for number, _ in unobserved(file, lines)}
        faulty = 0  # of a planted fault: the block at this indentation and deeper
        for number, line in enumerate(lines, 1):
            indent = len(line) - len(line.lstrip())
            if line.strip().startswith(("if (on(Fault::", "} else if (on(Fault::")):
                faulty = indent + 1
            elif line.strip() and faulty and indent < faulty:
                faulty = 0
            # What is continued on another line, or continues one, is no whole statement.
            before = lines[number - 2].rstrip() if number > 1 else ""
            whole = (
                before.endswith(("{", ";", "}", ":"))
                or not before
                or before.lstrip().startswith("//")
            )
            if faulty or not whole or indent < 2 or number in left_out:
                continue
            for kind, axis, becomes in ways(line):
                found.append(Site(len(found), file, number, kind, axis, line.strip(), becomes))
    return found


def write(folder: Path, chosen: list[Site]) -> None:
    """Write the sources with these mutations. Several mutations of one line are nested."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in build.SOURCES.iterdir():
        if path.suffix not in (".cpp", ".h"):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        by_line: dict[int, list[Site]] = {}
        for site in chosen:
            if site.file == path.name:
                by_line.setdefault(site.line, []).append(site)
        for line, here in by_line.items():
            lines[line - 1] = _together(lines[line - 1], here)
        text = "\n".join(lines) + "\n"
        if path.name in FILES:
            text = f'#include "mutants.h"\n{text}'
        target = folder / path.name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
    (folder / "mutants.h").write_text(_SWITCH, encoding="utf-8")


def _together(line: str, here: list[Site]) -> str:
    """One line with several mutations: conditions are nested, and statements become alternatives."""
    condition = _IF.match(line)
    if condition:
        indent, word, text = condition.groups()
        for site in here:
            inner = _IF.match(site.becomes.replace("@", str(site.number)))
            assert inner is not None
            text = inner.group(3).replace(
                f"static_cast<bool>({condition.group(3)})", f"static_cast<bool>({text})"
            )
        return f"{indent}{word} ({text}) {{"
    answer = _RETURN.match(line)
    if answer:
        indent, text = answer.groups()
        for site in here:
            wrong = site.becomes.split("? ", 1)[1].rsplit(" : (", 1)[0]
            text = f"simulated::mutant({site.number}) ? {wrong} : ({text})"
        return f"{indent}return {text};"
    text = line.strip()
    for site in here:
        new = site.becomes.strip().replace("@", str(site.number))
        if " else { " in new:
            text = f"{new.split(' else { ')[0]} else {{ {text} }}"
        else:
            text = f"{new.split(' { ')[0]} {{ {text} }}"
    return line[: len(line) - len(line.lstrip())] + text


def prepared() -> tuple[Path, list[Site]]:
    """The folder of sources that compile, with their mutations. Made once for each state of the sources, in minutes."""
    digest = hashlib.blake2b(digest_size=8)
    table = Path(__file__).with_name("unobserved.py")
    for path in [Path(__file__), table, *sorted(build.SOURCES.iterdir())]:
        digest.update(path.read_bytes())
    folder = cache_root() / "mutation" / f"{torch.__version__}-{digest.hexdigest()}"
    known = folder / SITES
    if known.exists():
        return folder, msgspec.json.decode(known.read_bytes(), type=list[Site])
    chosen = sites()
    for _ in range(8):
        write(folder, chosen)
        bad = _refused(folder)
        print(
            f"{len(chosen)} mutations, {len(bad)} lines do not compile", file=sys.stderr, flush=True
        )
        if not bad:
            known.write_bytes(msgspec.json.encode(chosen))
            return folder, chosen
        at = {(site.file, site.line) for site in chosen}
        # An error that stands at no mutation, but follows from one nearby.
        bad |= {(f, n + d) for f, n in bad - at for d in range(-15, 16)}
        chosen = [site for site in chosen if (site.file, site.line) not in bad]
    raise RuntimeError("the mutated sources of the simulated device do not compile")


def _refused(folder: Path) -> set[tuple[str, int]]:
    """The lines that the compiler rejects."""
    from devices.simulated.faults import header

    (folder / "fault_list.h").write_text(header(), encoding="utf-8")
    include = [*cpp_extension.include_paths(), *build.headers_of_kineto(), str(folder)]
    import sysconfig

    include.append(sysconfig.get_paths()["include"])
    units = ["unit_host.cpp", "unit_kernels.cpp", "unit_bindings.cpp"]
    running = [
        subprocess.Popen(
            [os.environ.get("CXX", "c++"), "-fsyntax-only", "-fmax-errors=0", *build.FLAGS, "-w",
             f"-DTORCH_EXTENSION_NAME={build.NAME}", *[f"-isystem{path}" for path in include[:-2]],
             f"-I{folder}", f"-isystem{include[-1]}", str(folder / unit)],
            stderr=subprocess.PIPE, text=True,
        )
        for unit in units
    ]  # fmt: skip
    found: set[tuple[str, int]] = set()
    for process in running:
        text = process.communicate()[1]
        found |= {
            # The include that was added is one line.
            (Path(name).name, int(line) - 1)
            for name, line in re.findall(
                r"^([^\s:]+\.cpp):(\d+):\d+: (?:fatal )?error", text, re.MULTILINE
            )
        }
        if process.returncode and not found:
            print(text[-3000:], file=sys.stderr)
            raise RuntimeError("the mutated sources of the simulated device do not compile")
    return found


if __name__ == "__main__":
    where, all_sites = prepared()
    print(where, len(all_sites))
