"""What ncu's reports hold besides counts, as the commands show it: advice, instruction mixes,
source lines."""

from pathlib import Path

import pytest

from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run
from perfctl.records.report import Advice, Counter, Kernel, Report, SourceCounter

MIX = "sass__inst_executed_per_opcode"
LONG = "Words about occupancy " * 20


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """One run of two kernels, the first launched twice."""
    monkeypatch.chdir(tmp_path)
    report = Report(
        "ncu",
        Path("r.ncu-rep"),
        "ncu report",
        kernels=[
            Kernel(0, "gemm(int)", "gemm"),
            Kernel(1, "gemm(int)", "gemm"),
            Kernel(2, "relu(int)", "relu"),
        ],
        counters=[
            Counter(0, f"{MIX}[FFMA]", 60, "inst"),
            Counter(0, f"{MIX}[MOV]", 20, "inst"),
            Counter(0, MIX, 80, "inst"),
            Counter(1, f"{MIX}[FFMA]", 15, "inst"),
            Counter(1, f"{MIX}[LDG]", 5, "inst"),
        ],
        advice=[
            Advice(2, "Tail", "OPT", "Wave 3 is partial", 0.25, "global"),
            Advice(0, "Limit", "OPT", LONG + "17", 0.1, "local"),
            Advice(1, "Limit", "OPT", LONG + "23", 0.4, "local"),
            Advice(0, "Seen", "INF", "Fine <as> it is"),
        ],
        source_counters=[
            SourceCounter(0, 0, "FFMA", "/src/gemm.cu", 12, 60, 1920, 30, "wait"),
            SourceCounter(2, 16, "MOV", None, None, 20, 640, 10, None),
        ],
    )
    with database.open_store_for_writing(Path("perfctl.db")) as connection:
        sweep = SweepFacts("s", "ingest", None, None)
        write_run(connection, sweep, RunFacts("ncu", "ok", "ingested"), report)


@pytest.mark.usefixtures("stored")
def test_advice_is_shown_by_its_estimated_speed_up_with_launches_that_say_the_same_as_one(perfctl):
    text = " ".join(perfctl("show 1").out.split())
    places = [
        text.index(words)
        for words in (
            "Limit OPT gemm 2 40.0% local Words",
            "Tail OPT relu 1 25.0% global Wave 3",
            "Seen INF gemm",
        )
    ]
    assert places == sorted(places)
    assert text.count("Limit OPT") == 1
    assert {one["estimated_speedup"] for one in perfctl("show 1 --json").json["advice"]} == {
        0.25,
        0.1,
        0.4,
        None,
    }
    assert "gemm 2 100 FFMA 75.0%, MOV 20.0%, LDG 5.0%" in text


@pytest.mark.usefixtures("stored")
def test_source_lines_are_shown_with_the_most_samples_first(perfctl):
    said = " ".join(perfctl("show 1 --source").out.split())
    assert "gemm gemm.cu:12 1 FFMA 60 30 75.0% wait" in said
    assert "relu +0x10 1 MOV 20 10 25.0%" in said
    first, second = perfctl("show 1 --source --json").json
    assert (first["file"], first["line"], first["thread_inst_executed"]) == (
        "/src/gemm.cu",
        12,
        1920,
    )
    assert (second["file"], second["address"], second["samples"]) == (None, 16, 10)


def test_a_run_without_source_lines_says_why_and_how_to_get_them(perfctl):
    Path("r.csv").write_text(
        '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"0","1","gemm","a__b.sum","inst","1"\n'
    )
    assert perfctl("ingest r.csv --source").code == 0
    said = perfctl("show 1 --source")
    assert said.code == 1
    assert said.err.strip() == (
        "perfctl: run 1 has no counters of source lines: only .ncu-rep files contain counters per "
        "instruction. perfctl ingest FILE.ncu-rep --source --again"
    )
    assert perfctl("ingest r.csv --again").code == 0
    assert (
        "run 2 has no counters of source lines: they were not ingested"
        in perfctl("show 2 --source").err
    )


def test_a_report_file_s_source_lines_go_into_the_store_when_asked_for(perfctl, reports):
    pytest.importorskip("ncu_report")
    path = reports / "ncu/rep/lashi_profile.ncu-rep"
    assert perfctl(f"ingest {path} --source").code == 0
    lines = perfctl("show 1 --source --json").json
    assert sum(line["inst_executed"] for line in lines) == sum(
        row["value"]
        for row in perfctl(
            "query", "SELECT value FROM counter WHERE name = 'inst_executed'", "--json"
        ).json
    )
    assert {Path(line["file"]).name for line in lines} == {"readWriteOffset.cu"}
