"""Export the ncu reports of ranks above 0 as CSV, after the run: only then is the number of
ranks known.

``python -m perfctl.orchestrator.launch.profilers.rank_tables report.ncu-rep`` runs where ncu
is installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from perfctl.orchestrator.launch.profilers.ncu import make_ncu_csv_export_command


def export_rank_reports_as_csv(arguments: Sequence[str] | None = None) -> int:
    """Write report.rank1.csv beside report.rank1.ncu-rep, and so on; skip reports that ncu
    cannot export."""
    (name,) = sys.argv[1:] if arguments is None else arguments
    first = Path(name)
    for report in sorted(first.parent.glob(f"{first.stem}.rank*{first.suffix}")):
        table = report.with_suffix(".csv")
        done = subprocess.run(
            make_ncu_csv_export_command(report, table), stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            table.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(export_rank_reports_as_csv())
