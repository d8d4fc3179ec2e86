"""JSON Schema (2020-12) made of records: their type hints give types, and the text below a field
its description."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from perfctl.records import paper

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
TRUTH: Schema = {"type": "boolean"}
_PLAIN = {str: TEXT, int: WHOLE, float: NUMBER, bool: TRUTH, type(None): {"type": "null"}}


def said(schema: Schema, description: str) -> Schema:
    """The schema with a description."""
    return {**schema, "description": description}


def maybe(schema: Schema, null: str | None = None) -> Schema:
    """The schema, or null; ``null``: what null means."""
    kind = schema.get("type")
    about = "; ".join(filter(None, (schema.get("description"), null and f"null: {null}")))
    more = {"description": about} if about else {}
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"], **more}
    if isinstance(kind, list):
        return {**schema, **more}
    return {"anyOf": [schema, {"type": "null"}], **more}


def array(items: Schema, description: str | None = None) -> Schema:
    """A list of these."""
    return {
        "type": "array",
        "items": items,
        **({"description": description} if description else {}),
    }


def mapping(values: Schema, description: str) -> Schema:
    """An object whose keys are data: "16" for a batch size."""
    return {"type": "object", "additionalProperties": values, "description": description}


def closed(fields: Mapping[str, Schema], description: str | None = None) -> Schema:
    """An object of exactly these keys."""
    about = {"description": description} if description else {}
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(fields),
        "additionalProperties": False,
        **about,
    }


def record(kind: Any, *, without: tuple[str, ...] = (), **more: Schema) -> Schema:
    """A dataclass or named tuple, as ``asdict`` writes it, with ``more`` keys."""
    return closed(
        {**{name: one for name, one in fields_of(kind).items() if name not in without}, **more}
    )


@cache
def fields_of(kind: Any) -> dict[str, Schema]:
    """Field of a dataclass or named tuple -> its schema."""
    names = (
        [field.name for field in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else list(getattr(kind, "_fields", ()))
    )
    # some modules import these for type checks only
    hints = get_type_hints(kind, localns=vars(paper))
    about = _described(kind)
    return {
        name: of(hints[name]) | ({"description": about[name]} if name in about else {})
        for name in names
    }


def members(kind: Any, *names: str) -> dict[str, Schema]:
    """Some fields and properties of a class -> their schemas."""
    return {name: _member(kind, name) for name in names}


def _member(kind: Any, name: str) -> Schema:
    if name in fields_of(kind):
        return fields_of(kind)[name]
    method = getattr(kind, name)
    method = getattr(method, "func", None) or method.fget
    return of(get_type_hints(method, localns=vars(paper))["return"])


def of(hint: Any) -> Schema:
    """The schema of a type hint; {} allows anything."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(inside)
    if origin is Literal:
        return {"type": "string", "enum": list(inside)}
    if origin is tuple and not (len(inside) == 2 and inside[1] is Ellipsis):
        return {"type": "array", "prefixItems": [of(one) for one in inside], "items": False}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": of(inside[1])}
    if (
        isinstance(origin, type) and issubclass(origin, (list, tuple, set, frozenset))
    ) or _is_sequence(origin):
        return array(of(inside[0]))
    if isinstance(hint, type) and issubclass(hint, PurePath):
        return TEXT
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return record(hint)
    return {}


def _is_sequence(origin: Any) -> bool:
    return getattr(origin, "__module__", "") == "collections.abc" and origin.__name__ in (
        "Sequence",
        "Collection",
        "Iterable",
    )


def _either(inside: tuple[Any, ...]) -> Schema:
    """Numbers of both kinds are a number; with None, the schema or null."""
    rest = [one for one in inside if one is not type(None)]
    several = NUMBER if set(rest) == {int, float} else {"anyOf": [of(one) for one in rest]}
    found = of(rest[0]) if len(rest) == 1 else several
    return maybe(found) if len(rest) < len(inside) else found


@cache
def _described(kind: Any) -> dict[str, str]:
    """Field -> the text below it in the source."""
    try:
        (body,) = (
            node
            for node in ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
            if isinstance(node, ast.ClassDef)
        )
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
    return found
