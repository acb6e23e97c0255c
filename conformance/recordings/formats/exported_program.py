"""Exported programs (``torch.export.save``, ``.pt2``). Only the JSON file with the graph is read, neither weights nor
samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.formats.wire import (
    EXPORTED_FORMATS,
    EXPORTED_LAYOUTS,
    EXPORTED_TYPES,
    ExportedGraph,
    ExportedModule,
    ExportedNode,
    ExportedProgram,
)
from conformance.recordings.wire import Place, RecordedTensor, Recording

if TYPE_CHECKING:
    from conformance.recordings.formats.schemas import Schema

TITLE: Final = "an exported program of torch.export.save"

_GRAPH: Final = re.compile(r"(^|/)(models/[^/]+|serialized_exported_program)\.json$")
_TARGET: Final = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)$")
_FRAME: Final = re.compile(r'File "([^"\n]*)", line (\d+)')
_TORCH: Final = re.compile(r"(^|/)torch/")


def takes(file: SourceFile) -> bool:
    """Returns True if a file is a zip archive that contains the graph of an exported program."""
    return file.is_zip and any(map(_GRAPH.search, file.members()))


def read(file: SourceFile) -> Recording:
    """Returns the calls of an exported program. Raises RecordingError if the archive is damaged."""
    from conformance.recordings.formats.collecting import CallCollector, Unknown
    from conformance.recordings.formats.decomposing import CallFacts, add_overload
    from conformance.recordings.formats.schemas import Unreadable, schema_by_name

    if not file.is_zip:
        raise file.damaged(f"expected {TITLE}, which is a zip archive; found {file.looks_like()}")
    name = next(filter(_GRAPH.search, file.members()), None)
    if name is None:
        raise file.damaged(f"expected {TITLE}; found {file.looks_like()}")
    module = file.decode(file.member(name), ExportedProgram, TITLE).graph_module
    values = _Values(module)
    calls = CallCollector(Unknown.RANGES)
    for node in module.graph.nodes:
        found = _TARGET.match(node.target)
        space, packet, overload = found.groups() if found else ("", "", "")
        full = f"{space}::{packet}" + (f".{overload}" if overload != "default" else "")
        schema = schema_by_name(full) if found else None
        if schema is None:
            calls.leave_out(f"{node.target[:60]}: torch has no such overload")
            continue
        try:
            arguments = {each.name: values.read(each.arg) for each in node.inputs}
        except (Unreadable, ValueError, LookupError, TypeError, AttributeError) as error:
            calls.leave_out(f"{schema.op}: an argument cannot be read ({error!s:.80})")
            continue
        values.follow(schema, arguments, node)
        unknown = frozenset({Unknown.SIZES}) if values.took_symbolic() else frozenset()
        add_overload(calls, schema, arguments, CallFacts(1, _place(node), unknown))
    return calls.recording(TITLE)


class _Values:
    """Looks up the tensors and sizes of a graph by name. Tensors that are views of one another get the same storage
    number."""

    def __init__(self, module: ExportedModule) -> None:
        self._graph: ExportedGraph = module.graph
        self._storages: dict[str, int] = {}
        specs = module.signature.input_specs
        arguments = (_inner(each.get("parameter"), "arg") for each in specs)
        names = (_inner(each, "name") for each in arguments)
        self._parameters = {each for each in names if isinstance(each, str)}
        self._symbolic = False

    def took_symbolic(self) -> bool:
        """Returns True if a size that was read since the last call of this method is symbolic."""
        found, self._symbolic = self._symbolic, False
        return found

    def read(self, document: Mapping[str, Any]) -> Any:
        """Returns an argument of a call, read from its entry in the JSON file. Raises Unreadable, ValueError,
        LookupError, TypeError or AttributeError if the entry is damaged."""
        from conformance.recordings.formats.schemas import Constant, Unreadable

        ((tag, value),) = document.items()
        if tag == "as_none":
            return None
        if tag == "as_tensor":
            return self._tensor(value["name"])
        if tag in ("as_tensors", "as_nested_tensors"):
            return [self._tensor(each["name"]) for each in value]
        if tag == "as_optional_tensor":
            return self.read(value)
        if tag in ("as_optional_tensors", "as_sym_ints"):
            read: Callable[[Any], Any] = self._integer if tag == "as_sym_ints" else self.read
            return [read(each) for each in value]
        if tag == "as_sym_int":
            return self._integer(value)
        codes = {
            "as_scalar_type": EXPORTED_TYPES,
            "as_layout": EXPORTED_LAYOUTS,
            "as_memory_format": EXPORTED_FORMATS,
        }
        if tag in codes:
            return Constant(codes[tag][value])
        if tag == "as_device":
            return Constant("device")
        if tag in ("as_float", "as_floats"):
            return [float(each) for each in value] if tag == "as_floats" else float(value)
        if tag in ("as_int", "as_ints", "as_bool", "as_bools", "as_string"):
            return value
        raise Unreadable(f"a value {tag}")

    def _tensor(self, name: str) -> RecordedTensor:
        found = self._graph.tensor_values[name]
        return RecordedTensor(
            dtype=EXPORTED_TYPES[found.dtype],
            shape=tuple(map(self._integer, found.sizes)),
            stride=tuple(map(self._integer, found.strides)),
            offset=self._integer(found.storage_offset),
            storage=self._storage(name),
            device=str(found.device.get("type", "")),
            requires_grad=found.requires_grad,
            parameter=name in self._parameters,
        )

    def _integer(self, document: Mapping[str, Any]) -> int:
        """Returns a size, read from its entry in the JSON file. For a symbolic size, returns the value that it had in
        the example inputs of the export."""
        if "as_name" in document:
            return self._integer(self._graph.sym_int_values[document["as_name"]])
        if "as_expr" in document:
            self._symbolic = True
            return self._integer(document["as_expr"]["hint"])
        number = document["as_int"]
        if type(number) is not int:
            raise ValueError(f"expected a whole number, found {number!r:.40}")
        return number

    def _storage(self, name: str) -> int:
        return self._storages.setdefault(name, len(self._storages))

    def follow(self, schema: Schema, arguments: Mapping[str, Any], node: ExportedNode) -> None:
        """Notes that the outputs of a call share storage with its arguments, where the schema declares them as views:
        such an output gets the storage number of the argument that it views."""
        for aliases, output in zip(schema.returned_aliases, node.outputs):
            owner = next((each for each in schema.arguments if each.aliases & aliases), None)
            base = arguments.get(owner.name) if owner is not None else None
            if not isinstance(base, RecordedTensor):
                continue
            for tag, value in output.items():
                for each in value if isinstance(value, list) else (value,):
                    if tag in ("as_tensor", "as_tensors") and isinstance(each, dict):
                        self._storages[str(each.get("name"))] = base.storage


def _inner(document: Any, key: str) -> Any:
    """Returns the value of a key in a JSON object; None if ``document`` is not an object or does not have the key."""
    return document.get(key) if isinstance(document, dict) else None


def _place(node: ExportedNode) -> Place:
    frames = _FRAME.findall(node.metadata.get("stack_trace", ""))
    own = [each for each in frames if not _TORCH.search(each[0])] or frames
    line = f"{own[-1][0]}:{own[-1][1]}" if own else ""
    modules = [
        each.split(",") for each in node.metadata.get("nn_module_stack", "").split(";") if each
    ]
    if not modules or any(len(each) < 3 for each in modules):
        return Place("", line)
    root, path = modules[0][-1].rpartition(".")[2], modules[-1][1]
    return Place(f"{root}.{path}" if path else root, line)
