"""Records become JSON by their fields, and their schema says the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from perfctl.orchestrator.outputs import build_type_schema, convert_to_json


class Point(NamedTuple):
    """A NamedTuple is an object as well, not a list."""

    x: int
    y: float | None = None
    """In metres."""


@dataclass(frozen=True, slots=True)
class Drawing:
    JSON_KEYS = ("*", "size")
    JSON_NAMES: ClassVar = {"place": "folder", "size": "points"}
    JSON_INLINED = ("origin",)

    origin: Point
    place: Path
    by_name: Mapping[str, tuple[Point, ...]]
    state: Annotated[str, {"new": "", "old": ""}]
    mode: Literal["a", "b"] = "a"

    @property
    def size(self) -> int:
        """How many points."""
        return sum(map(len, self.by_name.values()))


DRAWING = Drawing(Point(1), Path("here"), {"a": (Point(2, 0.5),)}, "new")
JSON = {
    "x": 1,
    "y": None,
    "folder": Path("here"),
    "by_name": {"a": [{"x": 2, "y": 0.5}]},
    "state": "new",
    "mode": "a",
    "points": 1,
}


def test_a_record_is_an_object_of_its_keys_renamed_computed_and_inlined() -> None:
    assert convert_to_json(DRAWING) == JSON
    assert list(convert_to_json(DRAWING)) == list(JSON)


def test_the_schema_has_the_same_keys_and_the_docstrings_as_descriptions() -> None:
    schema = build_type_schema(Drawing)
    assert list(schema["properties"]) == schema["required"] == list(JSON)
    assert schema["properties"]["y"] == {"type": ["number", "null"], "description": "In metres."}
    assert schema["properties"]["points"]["description"] == "How many points."


@pytest.mark.parametrize(
    ("key", "value"),
    [("x", "1"), ("y", "far"), ("state", "other"), ("mode", "c"), ("by_name", {"a": [1]})],
)
def test_a_value_of_another_type_does_not_hold_to_it(key: str, value: object) -> None:
    validator = Draft202012Validator(build_type_schema(Drawing))
    good = JSON | {"folder": "here"}
    assert validator.is_valid(good)
    assert not validator.is_valid(good | {key: value})
    assert not validator.is_valid({name: good[name] for name in good if name != key})
