"""Tables of cases: a name in plain words for each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def table(names: str, rows: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Return the mark that runs a test once per row; ``names`` are those of the row's values.

    With one name, a row is the value.
    """
    return pytest.mark.parametrize(names.split(), list(rows.values()), ids=list(rows))
