"""The ledger of a store as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from perfctl.parsers.stored import Run


def ledger(store: Path | str | Iterable[Run] = "perfctl.db") -> pd.DataFrame:
    """One row a layer, direction and batch size: paper, counted, ratio, verdicts, time, what bounds it.

    ``store`` is a store's path (its newest run of each kind) or runs from ``perfctl.runs``. The columns are those of
    ``perfctl ledger --json``: FLOPs (1 multiply-add = 2), ``_ns``, ``_bytes`` and ``_per_s`` in their names, shares
    0..1, missing where it is not known (``counted_state`` and ``counted_why`` say why). ``verdicts`` holds a list of
    dictionaries, ``why`` their sentences in one text. Raises StoreError when there is no store.
    """
    import pandas as pd

    from perfctl.orchestrator.analyse.analysis import analyse
    from perfctl.orchestrator.analyse.grouping import studies
    from perfctl.orchestrator.report.ledger_rows import ledger_rows

    if isinstance(store, (str, Path)):
        from perfctl.orchestrator.cli.store_access import newest_runs

        store = newest_runs(Path(store))
    rows = list(ledger_rows([analyse(study) for study in studies(store)]))
    for row in rows:
        row["why"] = " ".join(verdict["sentence"] for verdict in row["verdicts"]) or None
    frame = pd.DataFrame(rows)
    floats = ("paper_flops", "counted_flops", "ratio", "unexplained", "time_ns", "share")
    return frame.astype({name: "float64" for name in floats if name in frame})
