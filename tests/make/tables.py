"""Tables of cases: one row for each case, with a name in plain words where its values do not say
enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def table(names: str, rows: Mapping[str, Any] | Iterable[Any]) -> pytest.MarkDecorator:
    """Return the mark that runs a test once per row; ``names`` are those of the row's values.

    With one name, a row is the value.
    """
    is_named = isinstance(rows, Mapping)
    values, ids = (rows.values(), list(rows)) if is_named else (rows, None)
    return pytest.mark.parametrize(",".join(names.split()), list(values), ids=ids)
