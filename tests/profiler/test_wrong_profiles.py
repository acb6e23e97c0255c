"""Profiles of the CPU that list something wrong: each is noticed by its case, which passes without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.suites import load
from conformance.suites.profiler import recording, sessions
from devices import registry
from devices.cell import CellKey, Outcome
from opinfo.device import Device, open_device
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import replaced

CLAUSE = "profiler.activity"
PROFILE = torch.profiler.profile

Answers = dict[str, Any]
#: What is wrong with the events of a name: the answers of their methods.
Change = Callable[[Any], Answers | None]


class Distorted:
    """An event of Kineto, some of whose methods answer otherwise."""

    def __init__(self, event: Any, answers: Answers) -> None:
        self._event, self._answers = event, answers

    def __getattr__(self, name: str) -> Any:
        if name in self._answers:
            return lambda: self._answers[name]
        return getattr(self._event, name)


def events(change: Change) -> Effect:
    """Another answer of some events; events for which ``change`` returns None are not listed."""

    def effect(call: KernelCall) -> Any:
        changed = ((event, change(event)) for event in call.honest())
        return [Distorted(event, answers) for event, answers in changed if answers is not None]

    return effect


def named(name: str, **answers: Any) -> Effect:
    return events(lambda event: answers if event.name() == name else {})


def without(name: str) -> Effect:
    return events(lambda event: None if event.name() == name else {})


def with_another(name: str) -> Effect:
    """One event more, of that name."""
    numbers = dict.fromkeys(("linked_correlation_id", "start_thread_id", "fwd_thread_id"), 0)
    numbers |= {"correlation_id": 10**9, "is_user_annotation": False}
    times = {"start_ns": 1, "duration_ns": 1, "sequence_nr": -1}
    answers = {"name": name, "device_type": torch.profiler.DeviceType.CPU, **numbers, **times}
    return lambda call: [*call.honest(), Distorted(None, answers)]


def shifted(name: str, after: str) -> Effect:
    """The event of a name begins where another ends."""

    def effect(call: KernelCall) -> Any:
        found = call.honest()
        ends = [e.start_ns() + e.duration_ns() for e in found if e.name() == after]
        return [
            Distorted(e, {"start_ns": ends[0]}) if ends and e.name() == name else e for e in found
        ]

    return effect


def sequence_of_backward(event: Any) -> Answers:
    wrong = event.name().startswith("autograd::engine::evaluate_function: Mul")
    return {"sequence_nr": event.sequence_nr() + 1} if wrong else {}


def forward_thread(event: Any) -> Answers:
    return {"fwd_thread_id": 0} if event.name().startswith("autograd::engine") else {}


def _after_the_first(**answers: Any) -> Effect:
    """Other answers of the events of later profiles."""
    results: list[Any] = []

    def effect(call: KernelCall) -> Any:
        if not any(each is call.first for each in results):
            results.append(call.first)
        found = call.honest()
        return found if len(results) == 1 else [Distorted(event, answers) for event in found]

    return effect


def _of_all_profiles() -> Effect:
    """A profile also lists what earlier ones did."""
    earlier: list[Any] = []

    def effect(call: KernelCall) -> Any:
        earlier.extend(call.honest())
        return [*earlier]

    return effect


# What the public methods answer


def functions(change: Callable[[Any], None]) -> Effect:
    """Another answer of ``events()``: each event is changed in its place."""

    def effect(call: KernelCall) -> Any:
        found = call.honest()
        for event in found:
            change(event)
        return found

    return effect


def _no_parent(event: Any) -> None:
    event.cpu_parent = None if event.name == "inner" else event.cpu_parent


def _longer(event: Any) -> None:
    event.time_range.end += 1e6 * (event.name == "aten::mm")


def _reversed_shapes(event: Any) -> None:
    event.input_shapes = list(event.input_shapes or [])[::-1]


def _no_memory(event: Any) -> None:
    if event.name in ("aten::mul", "aten::empty"):
        event.cpu_memory_usage = 0


def _of_freed_memory(event: Any) -> None:
    if event.name == "frees":
        event.cpu_memory_usage = 0


def _counts_once(call: KernelCall) -> Any:
    found = call.honest()
    for each in found:
        each.count = 1
    return found


def _swallows(call: KernelCall) -> Any:
    call.honest()
    return True


# What is exported


def _text(change: Callable[[str], str]) -> Effect:
    """Another text in the file of the exported trace."""

    def effect(call: KernelCall) -> Any:
        answer, path = call.honest(), Path(call.args[1])
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
        return answer

    return effect


def exported(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Effect:
    """Other events in the exported trace; those for which ``change`` returns None are left out."""

    def text(given: str) -> str:
        trace = json.loads(given)
        changed = map(change, trace["traceEvents"])
        return json.dumps({**trace, "traceEvents": [e for e in changed if e is not None]})

    return _text(text)


def _exported_later(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Effect:
    """Other events in the exported traces of all profiles but the first."""
    count = 0
    changed = exported(change)

    def effect(call: KernelCall) -> Any:
        nonlocal count
        count += 1
        return changed(call) if count > 1 else call.honest()

    return effect


def _ends_before_it_begins(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "dur": -1.0} if event.get("cat") == "user_annotation" else event


def _begins_early(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "ts": event["ts"] - 20_000} if event.get("name") == "second" else event


def _on_another_thread(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "tid": event["tid"] + 1} if event.get("name") == "aten::mm" else event


def _no_total(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("name") == "[memory]" and event["args"]["Bytes"] < 0:
        event["args"]["Total Allocated"] = 0
    return event


def _freed_elsewhere(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("name") == "[memory]" and event["args"]["Bytes"] < 0:
        event["args"]["Addr"] += 512
    return event


def _half_freed(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("name") == "[memory]" and event["args"]["Bytes"] < 0:
        event["args"]["Bytes"] //= 2
    return event


def _never_freed(event: dict[str, Any]) -> dict[str, Any] | None:
    freed = event.get("name") == "[memory]" and event["args"]["Bytes"] < 0
    return None if freed else event


def _twice(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("name") == "[memory]":
        event["args"]["Bytes"] *= 2
    return event


def _no_memory_at_all(event: dict[str, Any]) -> dict[str, Any] | None:
    return None if event.get("name") == "[memory]" else event


def _always_memory(event: dict[str, Any]) -> dict[str, Any]:
    about = {"Addr": 1, "Bytes": 1, "Device Type": 0, "Device Id": -1}
    memory = {
        "name": "[memory]",
        "ts": 1,
        "args": {**about, "Total Allocated": 1, "Total Reserved": 1},
    }
    return {**event, **memory} if event.get("name") == "aten::add" else event


def _slice(**wrong: Any) -> Effect:
    """Other fields of the slices of aten::mm."""
    return exported(lambda e: {**e, **wrong} if e.get("name") == "aten::mm" else e)


def _lacks(name: str, field: str) -> Effect:
    def change(event: dict[str, Any]) -> dict[str, Any]:
        wrong = event.get("name") == name and event.get("ph") == "X"
        return {key: value for key, value in event.items() if not (wrong and key == field)}

    return exported(change)


def _leaves_out(field: str, value: str) -> Effect:
    return exported(lambda e: None if e.get(field) == value else e)


def _longer_slices(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "dur": 1000 + event["dur"]} if event.get("cat") == "cpu_op" else event


def _other_arguments(**wrong: Any) -> Effect:
    return exported(lambda e: {**e, "args": wrong} if e.get("name") == "aten::mm" else e)


def _plain(call: KernelCall) -> Any:
    """The file of a compressed trace is not compressed."""
    profile, path = call.args
    return call.function(profile, path.replace(".gz", "")) or Path(path).write_text("{}")


def _later(call: KernelCall) -> Any:
    """A schedule that begins one step late."""
    return call.function(**{**call.kwargs, "skip_first": call.kwargs.get("skip_first", 0) + 1})


EVENTS, LISTED, EXPORT = (recording, "kineto_events"), (PROFILE, "events"), (PROFILE, "export_chrome_trace")  # fmt: skip
SCHEDULE = (sessions, "schedule")

#: Each wrong profile: the case that notices it, the function that answers wrongly, and the answer.
WRONG: dict[str, tuple[str, tuple[Any, str], Effect]] = {
    "a region ends early": ("nesting", EVENTS, named("outer", duration_ns=1)),
    "a region is not listed": ("nesting", EVENTS, without("first")),
    "an op is not listed": ("nesting", EVENTS, without("aten::relu")),
    "an op is listed twice": ("nesting", EVENTS, with_another("aten::neg")),
    "an op is listed in the next region": ("nesting", EVENTS, shifted("aten::linear", "second")),
    "an event has no parent": ("tree", LISTED, functions(_no_parent)),
    "an event is longer than its parent": ("tree", LISTED, functions(_longer)),
    "calls are not counted": ("averages", (PROFILE, "key_averages"), _counts_once),
    "shapes in another order": ("shapes_of_broadcast", LISTED, functions(_reversed_shapes)),
    "shapes of a view": ("shapes_of_a_view", LISTED, functions(_reversed_shapes)),
    "shapes of a list": (
        "shapes_of_a_list",
        LISTED,
        functions(lambda event: setattr(event, "input_shapes", [[3, 4]])),
    ),
    "numbers of backward": ("sequence_numbers", EVENTS, events(sequence_of_backward)),
    "no numbers": ("sequence_numbers", EVENTS, events(lambda event: {"sequence_nr": -1})),
    "thread of forward": ("sequence_numbers", EVENTS, events(forward_thread)),
    "no numbers in a second profile": (
        "sequence_numbers",
        EVENTS,
        _after_the_first(sequence_nr=-1),
    ),
    "two ops of one id": ("many_regions", EVENTS, named("level 33", correlation_id=0)),
    "all on one thread": ("threads", EVENTS, events(lambda event: {"start_thread_id": 1})),
    "another thread is left out": ("threads", EVENTS, without("other")),
    "an exception is swallowed": ("exception_ends_the_block", (PROFILE, "__exit__"), _swallows),
    "nothing before an exception": ("exception_ends_the_block", EVENTS, without("aten::add")),
    "an op that raises never ends": (
        "op_that_raises",
        EVENTS,
        named("aten::mm", duration_ns=10**12),
    ),
    "a deep region is not listed": ("many_regions", EVENTS, without("level 33")),
    "deep regions end early": ("many_regions", EVENTS, named("level 33", duration_ns=1)),
    "what another thread did before": ("thread_that_began_before", EVENTS, with_another("before")),
    "a schedule begins late": ("schedule_wait_warmup_active", SCHEDULE, _later),
    "steps that are not recorded": (
        "schedule_every_other_step",
        EVENTS,
        with_another("aten::add_"),
    ),
    "one trace for all cycles": ("handler_writes_each_cycle", SCHEDULE, _later),
    "the steps of another cycle": (
        "handler_writes_each_cycle",
        EXPORT,
        _text(lambda text: text.replace("ProfilerStep#3", "ProfilerStep#1")),
    ),
    "ops of earlier profiles": ("nothing_of_the_others", EVENTS, _of_all_profiles()),
    "ops of the first session": ("started_and_stopped", EVENTS, _of_all_profiles()),
    "an op of nothing": ("empty", EVENTS, with_another("aten::add")),
    "freed elsewhere": ("freed_where_allocated", EXPORT, exported(_freed_elsewhere)),
    "freed by half": ("freed_where_allocated", EXPORT, exported(_half_freed)),
    "never freed": ("freed_where_allocated", EXPORT, exported(_never_freed)),
    "twice the bytes": ("freed_where_allocated", EXPORT, exported(_twice)),
    "no memory": ("freed_where_allocated", EXPORT, exported(_no_memory_at_all)),
    "intermediate results are not freed": (
        "of_intermediate_results",
        EXPORT,
        exported(_never_freed),
    ),
    "the memory of an op": ("charged_to_the_op", LISTED, functions(_no_memory)),
    "memory that a region frees": ("charged_to_the_op", LISTED, functions(_of_freed_memory)),
    "memory that was not asked for": ("without_memory", EXPORT, exported(_always_memory)),
    "freed without a total": ("freed_where_allocated", EXPORT, exported(_no_total)),
    "no total in a later trace": ("freed_where_allocated", EXPORT, _exported_later(_no_total)),
    "a later region has a negative duration": (
        "has_what_the_profile_lists",
        EXPORT,
        _exported_later(_ends_before_it_begins),
    ),
    "a later region begins early": (
        "has_what_the_profile_lists",
        EXPORT,
        _exported_later(_begins_early),
    ),
    "a later op is on another thread": (
        "has_what_the_profile_lists",
        EXPORT,
        _exported_later(_on_another_thread),
    ),
    "no JSON": ("loads", EXPORT, _text(lambda text: text.replace('"aten::mm"', "aten::mm"))),
    "cut off": ("loads", EXPORT, _text(lambda text: text[:-20])),
    "not a number": ("loads", EXPORT, _slice(dur=float("nan"))),
    "a negative duration": ("loads", EXPORT, _slice(dur=-1.0)),
    "no begin": ("loads", EXPORT, _slice(ts=0)),
    "no duration": ("loads", EXPORT, _lacks("aten::mm", "dur")),
    "no category": ("loads", EXPORT, _lacks("aten::mm", "cat")),
    "an op is not exported": ("loads", EXPORT, _leaves_out("name", "aten::sum")),
    "a region is not exported": ("loads", EXPORT, _leaves_out("name", "region")),
    "an op less in the trace": (
        "has_what_the_profile_lists",
        EXPORT,
        _leaves_out("name", "aten::neg"),
    ),
    "other durations": ("has_what_the_profile_lists", EXPORT, exported(_longer_slices)),
    "not compressed": ("compressed", EXPORT, _plain),
    "names that break the trace": (
        "name_with_backslashes",
        EXPORT,
        _text(lambda text: text.replace("temp", '"temp"')),
    ),
    "regions without a name": (
        "name_in_another_script",
        EXPORT,
        _leaves_out("cat", "user_annotation"),
    ),
    "shapes in the trace": (
        "shapes_and_dtypes",
        EXPORT,
        _other_arguments(**{"Input Dims": [[4, 3], [5, 4]]}),
    ),
    "dtypes in the trace": (
        "shapes_and_dtypes",
        EXPORT,
        _other_arguments(**{"Input Dims": [[3, 4], [4, 5]], "Input type": ["double", "float"]}),
    ),
}


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    threads = torch.get_num_threads()
    yield open_device(registry.get("cpu"))
    torch.set_num_threads(threads)


def cases() -> dict[str, BehaviourCase]:
    """The cases that the CPU can run in this process."""
    suite = load("profiler")
    return {case.name: case for case in suite.cases if not (case.requires or case.own_process)}


def ran(case: BehaviourCase, device: Device) -> CellRecord:
    record = CellRecord(CellKey(CLAUSE, case.name, ""))
    run_case(case, record, device, DeviceLocator(device="cpu"))
    return record


#: Cases that fail on the CPU: torch writes a quote in the name of a region into the trace as it is.
FAILING = {"name_with_quotes", "name_like_json"}


@pytest.mark.parametrize("name", sorted(cases().keys() - FAILING))
def test_a_right_profile_passes(device: Device, name: str) -> None:
    record = ran(cases()[name], device)
    assert record.outcome() is Outcome.PASS, record.to_outcome().message


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_profile_is_noticed(device: Device, wrong: str) -> None:
    name, place, effect = WRONG[wrong]
    with replaced(*place, effect):
        record = ran(cases()[name], device)
    outcome = record.to_outcome()
    assert (record.outcome(), outcome.raises) == (Outcome.FAIL, None), outcome.message


def test_every_case_has_a_wrong_profile() -> None:
    tried = {name for name, _, _ in WRONG.values()}
    names = {case.check.__name__ for case in cases().values()}
    assert {cases()[name].check.__name__ for name in tried} == names


def test_what_is_not_met_stays_as_it_is(device: Device) -> None:
    with replaced(*EVENTS, lambda call: NOT_MET):
        assert ran(cases()["nesting"], device).outcome() is Outcome.PASS
