"""Records survive the way to JSON and back exactly, by the types of their fields."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.orchestrator.actions.estimate import Facts
from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.records import codec
from perfctl.records.paper import Allocation, LayerCall, MemoryTrace, ModuleSeen, OpShape, Traced


class Pair(NamedTuple):
    left: int | None
    right: tuple[float, str] = (0.0, "")


@dataclass(frozen=True)
class Whole:
    pairs: tuple[Pair, ...]
    named: dict[str, object] = field(default_factory=dict)
    either: int | str | None = None
    by_size: dict[int, list[bool]] = field(default_factory=dict)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)
PAIRS = st.builds(Pair, st.none() | st.integers(), st.tuples(st.floats(allow_nan=False), st.text()))
WHOLES = st.builds(
    Whole,
    st.lists(PAIRS).map(tuple),
    st.dictionaries(st.text(), ANYTHING),
    st.none() | st.integers() | st.text(),
    st.dictionaries(st.integers(), st.lists(st.booleans())),
)


@given(WHOLES)
def test_a_record_comes_back_equal_and_of_the_same_types(record: Whole) -> None:
    carried = codec.decode(json.loads(json.dumps(codec.encode(record, Whole))), Whole)
    assert carried == record
    assert repr(carried) == repr(record)  # == takes 1 for True and 1.0


@pytest.mark.parametrize(
    "kind",
    [Allocation, Facts, LayerCall, MemoryTrace, ModuleSeen, OpShape, Request, Traced],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_what_is_kept_is_of_a_kind_that_json_can_carry(kind: type) -> None:
    codec.codec_of(kind)


class _Odd(NamedTuple):
    sizes: set[int]


@dataclass
class _Hidden:
    sizes: int = field(init=False, default=1)


@pytest.mark.parametrize("kind", [_Odd, _Hidden, bytes, complex, frozenset[int]], ids=str)
def test_a_kind_that_json_cannot_carry_is_refused(kind: Any) -> None:
    with pytest.raises(codec.CodecError):
        codec.codec_of(kind)


@pytest.mark.parametrize(
    "record",
    [
        Whole((Pair(True),)),
        Whole((Pair(1, (1, "")),)),
        Whole((), {"": {1, 2}}),
        Whole((), {}, 1.5),  # type: ignore[arg-type]
        Whole([]),
        Whole((), Counter()),
        Whole((), {"": b""}),
        Whole((Pair(1, (1.0, "", 2)),)),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_value_of_another_type_than_its_field_is_refused_rather_than_changed(
    record: Whole,
) -> None:
    with pytest.raises(codec.CodecError):
        codec.encode(record, Whole)


@pytest.mark.parametrize(
    "data",
    [None, 5, "x", [], [1], [[], {}, None, []], [[], [], [7, 1], []], {"pairs": []}],
    ids=repr,
)
def test_json_of_something_else_is_refused(data: Any) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode(data, Whole)
