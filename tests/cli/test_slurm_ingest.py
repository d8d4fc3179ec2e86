"""Reports taken in by an array of jobs: the tasks run here by bash, as Slurm would run them."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.cli.test_ingest import NCU
from tests.ingest.test_ingest_jobs import DATA, rows


def rendered(perfctl):
    """Three tasks for reports of several kinds, one of them broken, in two folders."""
    Path("study").mkdir()
    for batch in (1, 2, 4, 8):
        Path(f"study/b{batch}.csv").write_text(NCU.format(count=batch))
    Path("study/copy_b1.csv").write_text(NCU.format(count=1))
    Path("broken.csv").write_text("no report at all\n")
    shutil.copytree(DATA / "ncu-logs", "logs")
    shutil.copytree(DATA / "recorded-cpu" / "torch", "recorded")
    assert perfctl("slurm ingest study recorded broken.csv logs --tasks 3").code == 0
    (folder,) = Path("perfctl-runs").iterdir()
    return folder


def run_task(folder, number):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM")
    }
    words = ["/bin/bash", folder / "array.sbatch", str(number)]
    subprocess.run(
        words, env=environment, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_the_merged_store_is_that_of_one_ingest_and_a_second_gather_adds_nothing(perfctl):
    folder = rendered(perfctl)
    lists = [path.read_text().splitlines() for path in sorted(folder.glob("files-*.txt"))]
    assert len(lists) == 3
    for number in range(3):
        run_task(folder, number)
    perfctl(f"slurm gather {folder} --store all.db --page page.html").ends(
        4, "1 task did not ingest all"
    )
    perfctl("ingest", "--files-from", made_list(lists), "--store", "one.db", "--jobs", 1)
    merged = rows(Path("all.db"))
    assert merged == rows(Path("one.db"))
    assert len(merged["kernel"]) > 4
    assert {path for (path,) in paths(merged)} >= {"study/b1.csv", "study/b8.csv"}
    again = perfctl(f"slurm gather {folder} --store all.db --page page.html")
    assert again.out.startswith("added 0 runs to all.db")
    assert rows(Path("all.db")) == merged


def made_list(lists):
    Path("all.txt").write_text("".join(f"{line}\n" for lines in lists for line in lines))
    return Path("all.txt")


def paths(tables):
    from perfctl.orchestrator.store import schema

    names = [name for name in schema.read_column_types("run") if name != "ingested_at"]
    return {(row[names.index("artifact")],) for row in tables["run"]}


def test_a_task_that_did_not_end_is_named_and_can_come_later(perfctl):
    folder = rendered(perfctl)
    run_task(folder, 0)
    said = perfctl(f"slurm gather {folder} --store all.db --page page.html")
    assert said.code == 4
    assert [number for number in range(3) if f"task {number} has not finished" in said.err] == [
        1,
        2,
    ]
    before = len(rows(Path("all.db"))["run"])
    for number in (1, 2):
        run_task(folder, number)
    perfctl(f"slurm gather {folder} --store all.db --page page.html")
    assert len(rows(Path("all.db"))["run"]) > before > 0


def test_what_an_ingest_array_cannot_do_is_refused_before_anything_is_written(perfctl):
    Path("b16_vs_b32.csv").write_text(NCU.format(count=1))
    Path("empty").mkdir()
    assert perfctl("slurm ingest empty").code == 2
    said = perfctl("slurm ingest b16_vs_b32.csv")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert not Path("perfctl-runs").exists()
    assert perfctl("ingest").code == 2


def test_a_list_of_paths_without_end_is_refused(perfctl):
    perfctl("ingest --files-from /dev/zero").ends(2, "this is no list of paths")
