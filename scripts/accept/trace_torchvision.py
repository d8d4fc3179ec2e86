"""Make the table of torchvision's models for the calculator:
``python scripts/accept/trace_torchvision.py [--check]``

Every classification model of the installed torchvision is traced without data (five minutes of one
core). The table holds for this version of torch and torchvision; with others installed, perfctl
traces models itself. Make it again when these versions or the tracing change: a test compares some
models of it with fresh traces. ``--check`` compares all of them, and writes nothing.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

import msgspec

from perfctl.orchestrator.commands.calculator import load_or_trace_models
from perfctl.orchestrator.predict.models.calculator import (
    TABLE,
    ModelCache,
    ModelTable,
    get_library_versions,
    load_shipped_model_table,
    parse_torchvision_model_names,
)

FILE = Path(__file__).resolve().parents[2] / "orchestrator" / "predict" / "models" / TABLE


def main() -> int:
    """Trace, then write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the table there is")
    asked = parser.parse_args()
    cache = ModelCache()
    names, _ = parse_torchvision_model_names("all", cache)
    models, failed = load_or_trace_models(names, lambda *said: print(*said, file=sys.stderr), cache)
    if failed:
        print(*failed, sep="\n")
        return 1
    records = {
        model.network.name.partition(":")[2]: msgspec.Raw(msgspec.json.encode(model))
        for model in models
    }
    table = ModelTable(get_library_versions(), names, records)
    if asked.check:
        same = table == load_shipped_model_table()
        print(
            "the table is what tracing gives"
            if same
            else "the table differs from what tracing gives: make it again"
        )
        return 0 if same else 1
    FILE.write_bytes(gzip.compress(msgspec.json.encode(table), 9, mtime=0))
    print(f"wrote {FILE.name}: {len(records)} models, {FILE.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
