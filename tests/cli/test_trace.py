from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import parse

Perfctl = Callable[..., Any]


def events(path: Path, phase: str = "X") -> list[dict[str, Any]]:
    content = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return [event for event in content["traceEvents"] if event["ph"] == phase]


@pytest.fixture
def store(tmp_path: Path, hostile: Any) -> Path:
    return Path(hostile.store(tmp_path / "perfctl.db"))


def test_a_steps_kernels_copies_and_ranges_stand_where_they_ran(perfctl: Perfctl, store: Path, hostile: Any) -> None:
    assert perfctl("trace", "--run", 1, "--step", 0, "--out", "t.json").code == 0
    found = {event["name"]: event for event in events(Path("t.json"))}
    assert set(found) == {hostile.FORMULA, hostile.ESCAPES, "Memcpy HtoD", "outer", "inner"}, "not the next step's"
    kernel, copy, inner = found[hostile.FORMULA], found["Memcpy HtoD"], found["inner"]
    zero = 900  # the outer range begins first
    assert (kernel["ts"], kernel["dur"]) == ((1000 - zero) / 1000, 500 / 1000)
    assert (kernel["pid"], kernel["tid"]) == (copy["pid"], copy["tid"]), "the same stream"
    assert (inner["ts"], inner["dur"], inner["tid"]) == (0.1, 0.3, 11)
    assert inner["pid"] != kernel["pid"]
    assert kernel["args"] | {"layer": "conv1", "direction": "forward", "grid": [4, 2, 1]} == kernel["args"]
    assert copy["args"]["bytes"] == 4096


def test_a_kernel_whose_length_is_not_known_is_an_instant_and_one_of_no_length_is_0(
    perfctl: Perfctl, store: Path, hostile: Any
) -> None:
    perfctl("trace", "--run", 1, "--step", 0, "--out", "t.json")
    assert [event["name"] for event in events(Path("t.json"), "i")] == [hostile.MARKUP]
    assert next(event for event in events(Path("t.json")) if event["name"] == hostile.ESCAPES)["dur"] == 0


def test_lines_are_named_by_gpu_stream_and_thread(perfctl: Perfctl, store: Path) -> None:
    perfctl("trace", "--run", 1, "--out", "t.json", "--whole")
    names = {event["args"]["name"] for event in events(Path("t.json"), "M")}
    assert names == {"host", "GPU 0", "stream 7", "thread 11"}


def test_a_cpu_run_gives_its_ranges_which_our_own_parser_reads_back(perfctl: Perfctl, replayed: Path) -> None:
    assert perfctl("trace", "--run", 1, "--step", 1, "--store", replayed).code == 0
    back = parse(Path("trace-run1.json.gz"))
    shown = perfctl("show", 1, "--json", "--store", replayed).json
    wanted = [(r["name"], r["duration_ns"]) for r in shown["ranges"] if r["step"] == 1]
    assert wanted
    found = [(span.name, span.duration_ns) for span in back.ranges]
    assert sorted(name_and_length for name_and_length in found if name_and_length in wanted) == sorted(wanted)


def test_a_real_gpu_trace_comes_back_with_the_same_kernels(perfctl: Perfctl, reports: Path) -> None:
    source = reports / "kineto" / "tracelens_h100_Falconsai_vit.json.gz"
    perfctl("ingest", source)
    assert perfctl("trace", "--run", 1, "--whole", "--out", "t.json.gz").code == 0
    old, new = parse(source), parse(Path("t.json.gz"))

    def facts(report: Any) -> list[tuple[Any, ...]]:
        return [(k.name, k.duration_ns, k.device_index, k.stream, k.grid_x, k.block_x) for k in report.kernels]

    assert facts(old)
    assert sorted(facts(new), key=str) == sorted(facts(old), key=str)
    assert sorted(copy.bytes for copy in new.copies) == sorted(copy.bytes for copy in old.copies)


def test_the_last_step_is_taken_where_none_is_named(perfctl: Perfctl, store: Path) -> None:
    assert perfctl("trace", "--run", 1, "--json").json["step"] == 1


def test_the_same_step_gives_the_same_bytes(perfctl: Perfctl, store: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        perfctl("trace", "--run", 1, "--out", name)
    assert Path("a.json.gz").read_bytes() == Path("b.json.gz").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--run", 1, "--step", 9), "no step 9. It has 0, 1"),
        (("--run", 9), "no run 9"),
        (("--run", 1, "--out", "t.txt"), "does not end with .json or .json.gz"),
        (("--run", 1, "--whole", "--step", 0), "Choose one"),
        (("--run", 1, "--out", "there.json"), "--force"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    perfctl: Perfctl, store: Path, words: tuple[object, ...], said: str
) -> None:
    Path("there.json").write_text("mine")
    answer = perfctl("trace", *words)
    assert answer.code in (1, 2)
    assert said in answer.err
    assert Path("there.json").read_text() == "mine"


def test_a_run_without_times_says_which_profiler_has_them(perfctl: Perfctl, store: Path) -> None:
    import sqlite3

    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE kernel_launch SET start_ns = NULL")
        db.execute("DELETE FROM range")
        db.execute("DELETE FROM copy")
    said = perfctl("trace", "--run", 1)
    assert said.code == 1
    assert "perfctl nsys" in said.err
