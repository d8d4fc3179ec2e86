"""A script that ran by itself and under perfctl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.forked import PERFCTL, Forks


class Ran(NamedTuple):
    code: int
    out: str
    err: str
    record: dict[str, Any]
    alone: tuple[int, str]

    @property
    def steps(self) -> list[int]:
        return [row["number"] for row in self.record["steps"] if row["phase"] == "step"]

    @property
    def gaps(self) -> dict[str, str]:
        return {
            gap["quantity"]: gap["reason"]
            for gap in self.record["gaps"]
            if not gap["quantity"].startswith("memory")
        }


def run_both(forks: Forks, script: Path, text: str, options: str) -> Ran:
    """Run the script under perfctl with ``options``, then by itself."""
    folder, record = script.parent, script.with_suffix(".json")
    script.write_text(text)
    own = ("--batch", "6", "--warmup", "2", "--annotate", "record_function", *options.split())
    done = forks.run(folder, *PERFCTL, *own, "--record", record.name, "--", script.name)
    alone = forks.run(folder, script.name)
    return Ran(*done, json.loads(record.read_text()), (alone.returncode, alone.stdout))
