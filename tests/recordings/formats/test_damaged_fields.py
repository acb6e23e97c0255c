"""Files of every format in which a field is missing or has another value: each is read, or refused in one sentence."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.recordings.formats import read
from conformance.recordings.source import RecordedSource
from conformance.recordings.wire import RecordingError, encode_recording
from tests.recordings.formats.writers import execution_trace, kineto, recorded

EXAMPLES_FOLDER = Path(__file__).with_name("examples")
#: Stands for a field that is left out.
LEFT_OUT = object()
#: Values that a field should not have.
VALUES = (
    *(
        LEFT_OUT,
        None,
        True,
        0,
        -1,
        1.5,
        2**63 - 1,
        2**63,
        -(2**70),
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        "x",
        "inf",
        "<None>",
        "Tensor(float)",
        "GenericList[Tensor(float)]",
        "[None]",
        "[1,",
        "aten::add",
    ),
    *([], [1], [[1]], [None], ["x"], {}, {"a": 1}),
)


def small_program() -> None:
    x = torch.ones(4, 6)
    torch.cat([x[1:].T, x[:1].T], 1).add_(2, alpha=3)
    x.sum(1).index_select(0, torch.tensor([1, 2]))


class Documents(dict[str, Any]):
    """The content of an undamaged file of each format, as JSON. Failures do not print it."""

    def __repr__(self) -> str:
        return ", ".join(self)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    folder = tmp_path_factory.mktemp("written")
    trace = json.loads(execution_trace(small_program, folder / "et.json").read_text())
    profile = json.loads(kineto(small_program, folder / "kineto.json").read_text())
    events = profile["traceEvents"]
    profile["traceEvents"] = [each for each in events if "::" in each.get("name", "")]
    lines = encode_recording(recorded(small_program)).splitlines()
    yaml = pytest.importorskip("yaml")
    return Documents(
        recording=list(map(json.loads, lines)),
        execution_trace=trace,
        kineto=profile,
        msprobe=json.loads((EXAMPLES_FOLDER / "dump.json").read_text()),
        exported_program=json.loads((EXAMPLES_FOLDER / "model.json").read_text()),
        spyre=yaml.safe_load((EXAMPLES_FOLDER / "spyre.yaml").read_text()),
    )


def fields_of(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each object or list of a document with each of its keys."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield document, key
        if isinstance(value, (dict, list)):
            yield from fields_of(value)


def write(form: str, document: Any, folder: Path) -> Path:
    path = folder / ("dump.json" if form == "msprobe" else f"damaged.{form}")
    text = json.dumps(document)  # which is YAML, too
    if form == "recording":
        text = "\n".join(map(json.dumps, document))
    if form != "exported_program":
        path.write_text(text)
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/models/model.json", text)
    return path


def read_and_draw(path: Path, form: str) -> None:
    source = RecordedSource(read(path, form), "0")
    source.of_any_values()
    for each in [*source.subjects().values()][:5] if form == "recording" else ():
        source.samples(each, next(iter(each.dtypes)))


@pytest.mark.parametrize(
    "form",
    ["recording", "execution_trace", "kineto", "msprobe", "exported_program", "spyre"],
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_another_value_of_a_field_is_read_or_refused_in_one_sentence(
    form: str, data: st.DataObject, documents: Documents, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(documents[form]))
    fields = [*fields_of(document)]
    holder, key = fields[data.draw(st.integers(0, len(fields) - 1))]
    value = data.draw(st.sampled_from(VALUES))
    if value is LEFT_OUT:
        del holder[key]
    else:
        holder[key] = value
    path = write(form, document, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about fake tensors of odd sizes
        try:
            read_and_draw(path, form)
        except RecordingError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["Input Dims", "Input Strides"])
@pytest.mark.parametrize("value", [3, True, None])
def test_a_geometry_that_is_no_list_is_a_damaged_profile(
    name: str, value: Any, documents: Documents, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(documents["kineto"]))
    event = next(each for each in document["traceEvents"] if each["name"] == "aten::cat")
    event["args"][name][0] = value
    path = write("kineto", document, tmp_path)
    if (name, value) == ("Input Strides", None):
        assert read(path, "kineto").calls  # they are unknown
        return
    with pytest.raises(RecordingError, match="the arguments of aten::cat: "):
        read(path, "kineto")


@pytest.mark.parametrize("arg", [None, [], "x", {}, {"name": 3}])
def test_a_damaged_signature_of_a_program_is_no_error(
    arg: Any, documents: Documents, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(documents["exported_program"]))
    specs = document["graph_module"]["signature"]["input_specs"]
    next(each for each in specs if "parameter" in each)["parameter"]["arg"] = arg
    assert read(write("exported_program", document, tmp_path), "exported_program").calls


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("kwargs", "<None>", "Expected `object`"),
        ("args", {}, "Expected `array`"),
        ("shape", [-1], "no tensor has the sizes"),
        ("stride", [1, 1, 1, 1], "4 strides of a tensor of 2 dimensions"),
    ],
)
def test_a_damaged_line_of_a_recording_is_named(
    field: str, value: Any, said: str, documents: Documents, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(documents["recording"]))
    number = next(n for n, each in enumerate(document) if len(each.get("tensors", ())) == 1)
    line = document[number]
    (line if field in line else line["tensors"][0])[field] = value
    with pytest.raises(RecordingError, match=f"line {number + 1}: .*{said}"):
        read(write("recording", document, tmp_path), "recording")
