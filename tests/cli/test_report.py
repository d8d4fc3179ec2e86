"""perfctl report where there is nothing to put on a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_sweep_that_is_not_there_is_named_and_the_store_not_called_empty(
    perfctl: Callable[..., Any], recorded: Path
) -> None:
    assert perfctl("ingest", recorded / "torch" / "b16").code == 0
    done = perfctl("report", "--sweep", "7")
    assert (done.code, done.out) == (1, "")
    assert (
        "perfctl.db: no run belongs to sweep 7. Run 'perfctl runs --json' to list the sweep_id of each run"
        in done.err
    )
    assert perfctl("runs", "--json").json[0]["sweep_id"] == 1
    assert perfctl("report", "--sweep", "1").code == 0
