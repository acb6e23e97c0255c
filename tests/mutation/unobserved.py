"""Lines of the simulated device's sources that are not mutated, because no program can tell whether they do what they should, or
because no contract of torch says what they should do.

A line is left out for what it is, never because no clause notices its mutants: a line that does what torch documents belongs
to the clauses, and a survivor there asks for a case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_FAULTS: Final = "serves planted faults only: without a fault nothing reads it, or it does not run"
_LOADED: Final = "done when the library is loaded, before a mutant is on"
_TOOLS: Final = "a primitive with which the tests hold a stream, keep it busy or make it fail: no part of the device"
_UNDOCUMENTED: Final = "torch.cuda.memory._snapshot documents no such field"
_OWN: Final = "a number of this device alone: torch.cuda.host_memory_stats has none of the name"
_OPTIONAL: Final = "a trace need not have it: profiler.activity judges what is there, and no document of torch asks for it"
_EITHER: Final = "torch leaves it to the backend whether a capture goes on after a refused call"
_DRAWING: Final = (
    "the text of the drawing that debug_dump writes: torch documents only that it writes a file"
)
_LAZY: Final = "copies a copy-on-write storage, which only the private torch._lazy_clone makes"
_CHOICE: Final = "how much memory is requested from the system for a block is the allocator's own choice: torch documents no size"
_MESSAGE: Final = (
    "the reason in the text of an error: torch documents that the call raises, and no text"
)


class Lines(NamedTuple):
    """Lines of a file that match a pattern, or, if ``body`` is true, the bodies of the functions whose first line does."""

    file: str
    pattern: str
    reason: str
    body: bool = False


UNOBSERVED: Final = (
    Lines("activity.cpp", r"all\.launches_before = |all\.thread = |all\.last_launched = |first = false", _FAULTS),
    Lines("activity.cpp", r"(bool (was_queued|is_lost)|void misreport)\(", _FAULTS, body=True),
    Lines("activity.cpp", r"misreport\(|if \(first && on\(|launches_\.clear\(\)|if \(!is_lost\(", _FAULTS),
    Lines("activity.cpp", r"address = static_cast<char\*>\(address\) \+ kMinBlock", _FAULTS),
    Lines("event.cpp", r"Event\* event_of_all\(", _FAULTS, body=True),
    Lines("event.cpp", r"recorded_on = ", _FAULTS),
    Lines("event_ipc.cpp", r"early\(\)", _FAULTS),
    Lines("graph.cpp", r"void forget_exception\(", _FAULTS, body=True),
    Lines("graph.cpp", r"nested_|forget\(\);|stop_emptying\(\)|refuse_to_draw\(", _FAULTS),
    Lines("generator.cpp", r"refuses_to_draw = |refuse_to_draw\(", _FAULTS),
    Lines("copy.cpp", r"Queue& unseen_queue\(", _FAULTS, body=True),
    Lines("copy.cpp", r"if \(spoilt\)|target\.zero_\(\)|sleep_for|if \(forgets_conjugate\)|_set_conj\(false\)", _FAULTS),
    Lines("kernel.cpp", r"void Kernel::run_faulty\(", _FAULTS, body=True),
    Lines("kernel.cpp", r"hold_inputs\(|move_at_replay\(", _FAULTS),
    Lines("stream.cpp", r"bool Queue::overwritten\(", _FAULTS, body=True),
    Lines("allocator.cpp", r"size_t segment_size\(", _CHOICE, body=True),
    Lines("kernel.cpp", r"if \(why\.empty\(\)\)|why = \"it returns", _MESSAGE),
    Lines("allocator.cpp", r"if \(\(leaks \|\| given_away\)|if \(!leaks && ", _FAULTS),
    Lines("bindings.cpp", r"device_memory\(each\)\.set_fraction", _FAULTS),
    Lines("bindings.cpp", r"(register|add)_\w+\((true|m|)\);|m\.doc\(\)", _LOADED),
    Lines("hooks.cpp", r"RegisterPrivateUse1HooksInterface|setHostAllocator", _LOADED),
    Lines("bindings.cpp", r"sleep_for|reached_? ?=|reached->set|mark->wait", _TOOLS),
    Lines("bindings_memory.cpp", r'made\["(time_us|is_expandable|external_annotations)"\]', _UNDOCUMENTED),
    Lines("bindings_memory.cpp", r'made\["segment_pool_id"\] = py::make_tuple\(event', _UNDOCUMENTED),
    Lines("bindings_memory.cpp", r'made\["requested_size"\] = requested', _UNDOCUMENTED),
    Lines("pinned.cpp", r"stats\.reuses;", _OWN),
    Lines("bindings_memory.cpp", r'made\["num_reuses"\]', _OWN),
    Lines("activity.cpp", r"getResourceInfos\(\)", _OPTIONAL, body=True),
    Lines("activity.cpp", r"flow\.id = ", _OPTIONAL),  # without a number there is no arrow
    Lines("activity.cpp", r"annotate\(linked|handleDeviceInfo|addMetadata|buffer_->span = |status_ = ", _OPTIONAL),
    Lines("capture.cpp", r"->invalidate\(|if \(mine != nullptr\)", _EITHER),
    Lines("replay.cpp", r"std::string drawing_of\(", _DRAWING, body=True),
    Lines("allocator_torch.cpp", r"void copy_data\(", _LAZY, body=True),
)  # fmt: skip


def unobserved(file: str, lines: Sequence[str]) -> Iterator[tuple[int, Lines]]:
    """Yields the lines of a file, counted from 1, that are not mutated, each with the entry that says why."""
    for entry in UNOBSERVED:
        if entry.file != file:
            continue
        for number, line in enumerate(lines, 1):
            if re.search(entry.pattern, line):
                yield number, entry
                if entry.body:
                    yield from ((inner, entry) for inner in _body(lines, number))


def _body(lines: Sequence[str], first: int) -> Iterator[int]:
    """Yields the numbers of the lines up to the end of the function whose first line has the number ``first``."""
    outer = lines[first - 1]
    end = outer[: len(outer) - len(outer.lstrip())] + "}"
    for number in range(first + 1, len(lines) + 1):
        if lines[number - 1].startswith(end):
            return
        yield number
