"""What commands print with ``--json``: the record of each output, its JSON, and its JSON Schema.

A record is a dataclass or a NamedTuple. Its JSON is an object with a key for each field, and the
schema follows from the type hints; the docstring below a field, or of a property, describes the
key. Three attributes of the class say what differs:

- ``JSON_KEYS``: the fields and properties that are written, in order; "*" stands for all fields.
- ``JSON_NAMES``: field or property -> key, where the key has another name.
- ``JSON_INLINED``: fields that are records, and whose keys stand among those of this one.

A class whose JSON is described elsewhere (columns of the store) has a function ``json_schema``.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from textwrap import dedent
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from perfctl.orchestrator.options import DeclaredOption
from perfctl.records import paper

Record = TypeVar("Record")

FLOPS = "1 multiply-add counts as 2 FLOPs. null means a missing value, never 0."
OUTPUTS = {
    "runs": "orchestrator.commands.query:StoredRun[]",
    "show": "orchestrator.report.ledger.rows:ShownRun",
    "show-source": "records.report:SourceLine[]",
    "ledger": "orchestrator.report.ledger.rows:LedgerOutput",
    "compare": "orchestrator.report.compare.page:CompareOutput",
    "query": "orchestrator.commands.query:QueryRow[]",
    "doctor": "orchestrator.launch.machine.doctor:Finding[]",
    "prices": "orchestrator.predict.prices:PriceTable",
    "estimate": "orchestrator.report.estimate:EstimateOutput",
    "estimate-against": "orchestrator.estimate.peers:CounterComparison",
    "estimate-layer": "orchestrator.report.sheets:LayerSheets",
    "estimate-sheet": "orchestrator.report.sheets:NetworkSheets",
    "estimate-generation": "orchestrator.report.generation:GenerationOutput",
    "predict": "orchestrator.report.predict:PredictOutput",
    "predict-generation": "orchestrator.report.predict_generation:PredictGenerationOutput",
    "report": "orchestrator.commands.report:WrittenReport",
    "plot": "orchestrator.commands.plot:Plotted",
    "plot-list": "orchestrator.commands.plot:ChartName[]",
    "trace": "orchestrator.commands.export:Trace",
    "export": "orchestrator.commands.export:Exported",
    "export-dataset": "orchestrator.commands.export:Dataset",
    "calculator": "orchestrator.commands.calculator:CalculatorPage",
    "scrub": "orchestrator.ingest.scrub:ScrubOutput",
    "sweep": "orchestrator.ingest.sweep:Swept",
    "sweep-commands": "orchestrator.ingest.sweep:PlannedCommand[]",
    "ncu-cost": "orchestrator.ingest.sweep:NcuCost",
    "infer": "orchestrator.ingest.sweep:ModelSwept[]",
    "infer-commands": "orchestrator.ingest.sweep:ModelCommand[]",
    "speedup": "orchestrator.compare.speedup:NetworkSpeedup[]",
    "bench": "orchestrator.commands.bench:BenchResult",
    "bench-design": "orchestrator.commands.bench:BenchRequest",
    "bench-export": "orchestrator.commands.bench:ExportedPoints",
    "bench-show": "orchestrator.commands.bench:MeasuredPoints",
    "exercise-new": "orchestrator.commands.exercise:WrittenSheet",
    "exercise-check": "orchestrator.commands.exercise:MarkedClass",
    "prepare": "orchestrator.commands.prepare:Prepared",
    "slurm-render": "orchestrator.commands.slurm:Scripts",
    "slurm-ingest": "orchestrator.commands.slurm:IngestScripts",
    "slurm-submit": "orchestrator.launch.cluster.status:Submitted",
    "slurm-status": "orchestrator.launch.cluster.status:ArrayStatus",
    "slurm-gather": "orchestrator.ingest.gather:Gathered",
    "slurm-cancel": "orchestrator.launch.cluster.status:Cancelled",
    "image": "orchestrator.commands.prepare:ImageDefinition",
    "ingest": "orchestrator.commands.ingest:IngestOutput",
    "open": "orchestrator.commands.ingest:Opened",
    "mfu": "orchestrator.report.mfu:MfuOutput",
    "gate": "orchestrator.report.gate:GateOutput",
    "history": "orchestrator.compare.history:History",
}
"""Output -> module below ``perfctl`` and class of its record; [] for a list."""
VERSION = 2
"""Version of the outputs. Within a version keys are added only; one that goes, or changes its
meaning, type or unit, makes a new version."""

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


@dataclass(frozen=True, slots=True)
class JsonLists(Generic[Record]):
    """An object of lists that is too long to be held whole."""

    record: type[Record]
    batches: Callable[[Callable[[object], str]], Iterable[Mapping[str, Iterable[str]]]]
    """Maker of a value's JSON text -> list -> the texts of more of its values, batch by batch."""

    @property
    def names(self) -> tuple[str, ...]:
        """The lists, in order."""
        kind: Any = self.record
        return tuple(_map_fields_to_json_keys(kind).values())


def format_schema_name(output: str) -> str:
    """Return "perfctl.ledger/2", which an output that is an object states under "schema"."""
    return f"perfctl.{output}/{VERSION}"


def find_json_output_name(value: Any, candidates: Sequence[str] = ()) -> str | None:
    """Return the output that a record, or a list of records, is; None if it is none of OUTPUTS.
    An empty list is the list among ``candidates``."""
    if isinstance(value, JsonLists):
        return _find_json_output_name_by_class(value.record)
    if not isinstance(value, list):
        return _find_json_output_name_by_class(type(value))
    if value:
        return _find_json_output_name_by_class(type(value[0]), "[]")
    return next((name for name in candidates if OUTPUTS[name].endswith("[]")), None)


def _find_json_output_name_by_class(record_class: type, list_suffix: str = "") -> str | None:
    path = (
        f"{record_class.__module__.removeprefix('perfctl.')}:{record_class.__qualname__}"
        f"{list_suffix}"
    )
    return next((name for name, record in OUTPUTS.items() if record == path), None)


def list_annotated_json_outputs(function: Any) -> list[str]:
    """Return the outputs that a function returns, by its annotation."""
    hint = _resolve_type_hints(function).get("return")
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    names = [
        _find_json_output_name_by_class(get_args(kind)[0], "[]")
        if get_origin(kind) is list
        else _find_json_output_name_by_class(
            get_args(kind)[0] if get_origin(kind) is JsonLists else kind
        )
        for kind in kinds
        if kind is not None
    ]
    return [name for name in names if name is not None]


def convert_to_json(value: Any) -> Any:
    """Return ``value`` with objects in place of records, as ``json.dumps`` takes it."""
    kind: Any = type(value)
    if keys := _map_fields_to_json_keys(kind):
        inlined = getattr(kind, "JSON_INLINED", ())
        json: dict[str, Any] = {}
        for attribute, key in keys.items():
            part = convert_to_json(getattr(value, attribute))
            json |= part if attribute in inlined else {key: part}
        return json
    if isinstance(value, Mapping):
        return {key: convert_to_json(part) for key, part in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [convert_to_json(part) for part in value]


@cache
def _map_fields_to_json_keys(kind: Any) -> dict[str, str]:
    """Return field or property -> key of a record, in order; nothing for another class."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    names = names or list(getattr(kind, "_fields", ()))
    keys = getattr(kind, "JSON_NAMES", {})
    chosen = getattr(kind, "JSON_KEYS", ("*",))
    written = [name for choice in chosen for name in (names if choice == "*" else [choice])]
    return {name: keys.get(name, name) for name in written}


def build_output_schema(output: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one of OUTPUTS."""
    path, is_list, _ = OUTPUTS[output].partition("[]")
    record = pkgutil.resolve_name(f"perfctl.{path}")
    schema = build_type_schema(record)
    if is_list:
        schema = {"type": "array", "items": schema}
    else:
        stated = {"const": format_schema_name(output), "description": "version of this schema"}
        schema["properties"] = {"schema": stated, **schema["properties"]}
        schema["required"] = ["schema", *schema["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{format_schema_name(output).replace('/', ':')}",
        "title": f"perfctl {output.replace('-', ', ')} --json, version {VERSION}",
        **schema,
        "description": f"{inspect.getdoc(record)} {FLOPS}",
    }


def build_alternatives_schema(outputs: Sequence[str]) -> dict[str, Any]:
    """Return the JSON Schema of a command that prints one of these outputs."""
    if len(outputs) == 1:
        return build_output_schema(outputs[0])
    return {"anyOf": [build_output_schema(output) for output in outputs]}


def build_type_schema(hint: Any) -> dict[str, Any]:
    """Return the schema of a type hint; {} allows anything. ``Annotated[str, words]`` is one of
    these words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**build_type_schema(arguments[0]), "enum": list(arguments[1])}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        options = [build_type_schema(option) for option in arguments]
        if all(option.keys() == {"type"} for option in options):
            return {"type": [option["type"] for option in options]}
        return {"anyOf": options}
    if origin is tuple and arguments[-1] is not ...:
        return {
            "type": "array",
            "prefixItems": list(map(build_type_schema, arguments)),
            "items": False,
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": build_type_schema(arguments[1])}
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return {"type": "array", "items": build_type_schema(arguments[0])}
    if hint is Path:
        return {"type": "string"}
    if hasattr(hint, "json_schema"):
        return dict(hint.json_schema())
    return (
        _build_record_schema(hint)
        if isinstance(hint, type) and _map_fields_to_json_keys(hint)
        else {}
    )


def _build_record_schema(kind: type) -> dict[str, Any]:
    hints = _resolve_type_hints(kind)
    texts = _read_field_docstrings(kind)
    properties: dict[str, Any] = {}
    for name, key in _map_fields_to_json_keys(kind).items():
        if name not in hints:
            method = getattr(kind, name)
            method = method.func if isinstance(method, cached_property) else method.fget
            hints[name] = _resolve_type_hints(method)["return"]
            texts[name] = inspect.getdoc(method) or ""
        schema = build_type_schema(hints[name])
        if name in getattr(kind, "JSON_INLINED", ()):
            properties |= schema["properties"]
        else:
            text = " ".join(texts.get(name, "").split())
            properties[key] = schema | ({"description": text} if text else {})
    return build_object_schema(properties)


def _resolve_type_hints(definition: Any) -> dict[str, Any]:
    # some modules import the records of paper for type checks only
    names = vars(paper) | vars(sys.modules[definition.__module__])
    hints = get_type_hints(definition, localns=names, include_extras=True)
    for base in getattr(definition, "__orig_bases__", ()):
        variables = getattr(get_origin(base), "__parameters__", ())
        types_of = dict(zip(variables, get_args(base), strict=True)) if variables else {}
        for name, hint in hints.items():
            if isinstance(hint, TypeVar):
                hints[name] = types_of[hint]
            elif parameters := getattr(hint, "__parameters__", ()):
                hints[name] = hint[tuple(types_of[variable] for variable in parameters)]
    return hints


def build_object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object of exactly these keys."""
    required = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def build_options_schema(options: Iterable[DeclaredOption]) -> dict[str, Any]:
    """Return the schema of an object with these options of a command, each as one types it."""
    properties, required = {}, []
    for field in options:
        option, default = field.option, field.option.typed_default or field.default
        typed = {"type": ["string", "integer"]} if option.parse else build_type_schema(field.hint)
        facts = {"minimum": option.least, "maximum": option.most, "description": option.help}
        facts["default"] = default if isinstance(default, str | int | float) else None
        stated = {key: fact for key, fact in facts.items() if fact is not None}
        properties[field.name] = typed | stated
        required += [field.name] if default is inspect.Parameter.empty else []
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | {"required": required}


def build_column_schema(
    json_type: str, meaning: str, unit: str = "-", null_meaning: str = "never"
) -> dict[str, Any]:
    """Return the schema of a column of a table. ``json_type``: its JSON type; ``null_meaning``:
    what null means."""
    text = meaning if unit == "-" else f"{meaning} ({unit})"
    if null_meaning == "never":
        return {"type": json_type, "description": text}
    return {"type": [json_type, "null"], "description": f"{text}; null: {null_meaning}"}


def _read_field_docstrings(kind: type) -> dict[str, str]:
    """Return field -> the docstring below it in the source."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    texts = _read_field_docstrings(base) if is_dataclass(base := kind.__base__) else {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant):
                texts[field.target.id] = str(text.value)
    return texts
