"""``nsys stats --format tsv`` and ``json`` say what ``csv`` says."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.nsys import stats_tables


def test_an_object_that_never_ends_is_given_up_with_bounded_memory() -> None:
    rows = stats_tables.JsonRows()
    list(rows.take("[\n"))
    for _ in range(40):
        assert list(rows.take('{"a": "' + "x" * (1 << 16) + "\n")) == []
        if rows.done:
            break
    assert rows.done
    assert rows.broken == 1


@given(
    st.lists(
        st.dictionaries(st.text(max_size=8), st.text() | st.integers() | st.none(), min_size=1),
        max_size=5,
    ),
    st.sampled_from([None, 1, 2]),
)
def test_any_array_of_objects_comes_back_whole(
    objects: list[dict[str, object]], indent: int | None
) -> None:
    rows = stats_tables.JsonRows()
    text = json.dumps(objects, indent=indent) + "\n"
    found = [row for line in text.splitlines(keepends=True) for row in rows.take(line)]
    wanted = [
        {key: "" if value is None else str(value) for key, value in one.items()} for one in objects
    ]
    assert (found, rows.broken, rows.done) == (wanted, 0, True)
