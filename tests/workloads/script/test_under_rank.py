"""Of the ranks of a launcher only one may run under a profiler; a stand-in for the profiler says whom it started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.workloads.script.test_launchers import DDP, perfctl
from tests.workloads.started import start

pytest.importorskip("torch")

PROFILER = """#!/bin/sh
echo "rank $RANK: $1" >>started.log
shift
exec "$@"
"""


@pytest.mark.parametrize(
    ("only", "started"), [((), ["rank 0: report", "rank 1: report.rank1"]), (("--under-rank", "0"), ["rank 0: report"])]
)
def test_only_the_rank_that_is_asked_for_starts_itself_under_the_profiler(
    tmp_path: Path, only: tuple[str, ...], started: list[str]
) -> None:
    (tmp_path / "ddp.py").write_text(DDP)
    program = tmp_path / "profiler"
    program.write_text(PROFILER)
    program.chmod(0o755)
    under = ("--under", json.dumps([str(program), "report{rank}"]), *only)
    launch = ("torchrun", "--standalone", "--nproc-per-node=2", "ddp.py", "8")
    done = start(tmp_path, sys.executable, *perfctl("8"), *under, "--record", "r.json", "--", *launch)
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "started.log").read_text().splitlines()) == started
    for record in ("r.json", "r.rank1.json"):
        assert json.loads((tmp_path / record).read_text())["status"] == "ok"
