"""The study of inference at low batch: what its page says of runs and of reports made elsewhere."""

import re
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line as run_command
from perfctl.orchestrator.launch.sweep.study import (
    list_study_sweeps,
    read_study_definition,
    split_study_into_parts,
)
from perfctl.orchestrator.report.page.records import LONGEST
from perfctl.orchestrator.report.studies import inference_fields
from perfctl.orchestrator.report.studies.inference import build_inference_study
from perfctl.orchestrator.report.studies.records import assemble_study_view, render_study_markdown
from perfctl.records.report import Gap, Step, Summary
from tests.make import synthetic
from tests.studies.asking import ask, find_table

MS = 1_000_000


def answers(batch, compute, model="resnet18", images=200, **changes):
    """A timed run: steps of 5 ms loading, 1 ms copies and ``compute`` ms."""
    parts = (("step", 6 + compute), ("data", 5), ("copy", 1), ("inference", compute))
    rows = tuple(
        Step(number, phase, None, length * MS)
        for number in range(images // batch)
        for phase, length in parts
    )
    facts = {"model": model, "option:data": "imagenet", "weights": f"{model}_Weights"}
    scored = (
        Summary("images", images, "count"),
        Summary("images_skipped", 0, "count"),
        Summary("top1", 0.7, "ratio"),
        Summary("top5", 0.9, "ratio"),
    )
    given = {
        "mode": "infer",
        "profiler": "none",
        "workload": "torchvision_infer",
        "variant": f"model={model}",
        "summaries": scored,
        "steps": rows,
        "environment": facts,
        "origin": "measured",
    }
    return synthetic.make_run(batch, batch_size=batch, **{**given, **changes})


def page(*runs):
    content = read_study_definition("inference").content
    return assemble_study_view("inference", content, {"inference": build_inference_study(runs, {})})


def table(study, start):
    """Rows of the table whose caption starts so, by heading."""
    found = find_table(study, start)
    heads = [column.label for column in found.columns]
    texts = [[f"{cell.text} {cell.unit or ''}".rstrip() for cell in row] for row in found.rows]
    return [dict(zip(heads, row, strict=True)) for row in texts]


def test_all_models_are_in_one_chart_each_and_the_figures_agree_with_each_other():
    study = page(
        *(
            answers(batch, 10 * batch, model)
            for model in ("resnet18", "vgg11")
            for batch in (1, 5, 10)
        )
    )
    charts = [chart for chapter in study.chapters for chart in chapter.charts if chart]
    assert {
        "Latency p50, by batch size",
        "Images per second, by batch size",
        "Top-1, by batch size",
    } <= {one.title for one in charts}
    assert all("resnet18" in one.svg and "vgg11" in one.svg for one in charts)
    rows = table(study, "Every model")
    assert [(row["model"], row["batch"]) for row in rows] == [
        (m, b) for m in ("resnet18", "vgg11") for b in ("1", "5", "10")
    ]
    # batch 5: 1 ms of copies and 50 ms of computation; 56 ms a step with loading
    assert (rows[1]["p50"], rows[1]["images/s"]) == ("51.0 ms", f"{5 / 0.056:.1f}")
    assert table(study, "Images per second")[1]["images/s"] == rows[1]["images/s"]
    assert table(study, "Latency of a batch")[1]["p50"] == rows[1]["p50"]
    rate = {batch: batch / (0.006 + 0.01 * batch) for batch in (1, 10)}
    text = (
        f"The most images/s are: resnet18 {rate[10]:.1f} at batch 10 "
        f"({rate[10] / rate[1]:.1f}x batch 1); vgg11"
    )
    assert any(one.text.startswith(text) for one in study.findings)
    text = "The median latency is: resnet18 11.0 ms at batch 1 (p95 11.0 ms, 200 batches), "
    assert any(one.text.startswith(text) for one in study.findings)


def test_findings_are_short_and_point_at_a_chapter_of_the_page():
    study = page(*(answers(batch, 30, "a_model_with_a_very_long_name" * 4) for batch in (1, 20)))
    keys = {chapter.key for chapter in study.chapters}
    assert study.findings
    assert all(len(one.text) <= LONGEST and one.evidence in keys for one in study.findings)
    names = re.findall(
        r"charts/(\S+)-", render_study_markdown(study, [f"{key}-x.png" for key in keys])
    )
    assert set(names) == keys


def test_accuracy_has_its_interval_and_random_weights_give_none():
    study = page(answers(1, 10, images=3000))
    (row,) = table(study, "Top-1")
    assert (row["top-1"], row["top-5"], row["images"]) == ("70.0%", "90.0%", "3,000")
    low, high = (float(part) for part in re.findall(r"[\d.]+", row["95% interval"]))
    assert high - low == pytest.approx(
        2 * 196 * (0.7 * 0.3 / 3000) ** 0.5, abs=0.15
    )  # the normal interval is near here
    gaps = tuple(Gap(name, "not_available", "the weights are random") for name in ("top1", "top5"))
    bare = page(
        answers(
            1,
            10,
            summaries=(Summary("images", 200, "count"), Summary("top1", None, None)),
            gaps=gaps,
        )
    )
    assert "accuracy" not in {chapter.key for chapter in bare.chapters}
    assert "the weights are random" in dict(bare.missing)["top-1, top-5"]


def test_images_that_could_not_be_read_are_in_the_last_table_with_their_names():
    skipped = (
        Summary("images", 198, "count"),
        Summary("images_skipped", 2, "count"),
        Summary("top1", 0.5, "ratio"),
    )
    study = page(
        answers(
            1,
            10,
            summaries=skipped,
            gaps=(Gap("images", "unreadable", "2 images: cat.jpg: cut off"),),
        )
    )
    assert [chapter.key for chapter in study.chapters][-2:] == ["all", "missing"]
    assert table(study, "Every model")[0]["unreadable"] == "2"
    assert "cat.jpg" in table(study, "Images that could not")[0]["which and why"]
    assert any(one.text.startswith("2 images could not be read") for one in study.findings)


def test_a_part_that_failed_stays_on_the_page_and_says_why():
    study = page(
        answers(1, 10),
        answers(5, 10, status="failed", reason="out of memory", steps=(), summaries=()),
    )
    assert [row["status"] for row in table(study, "Every model")] == [
        "ok",
        "none: failed, out of memory",
    ]
    assert table(study, "Every model")[1]["p50"] == "–"
    assert ("resnet18, batch 5", "none: failed, out of memory") in study.missing


@pytest.fixture(scope="module")
def reports():
    """DLProf summaries whose line 15 is not the same figure, and readings of nvidia-smi beside
    them; see HOW.md there."""
    return Path(__file__).resolve().parent.parent / "data" / "inference-reports"


@pytest.fixture
def perfctl(tmp_path, monkeypatch, capsys):
    """Call a command in a folder of its own: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        code = run_command(["study", "inference", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_from_reports_alone_the_same_page_draws_what_they_hold(perfctl, reports):
    code, out, err = perfctl("--from", reports, "--out", "study")
    assert code == 0, err
    assert "Line 15 of dlprof_summary.csv differs by version" in out
    assert "latency, images/s and accuracy" in err
    by_name = (
        Path("study/tables") / "names-utilization-by-its-name-in-dlprof-s-summary.csv"
    ).read_text()
    folders = sorted(reports.glob("*_batch"))
    assert len(folders) == 6
    for folder in folders:
        lines = (folder / "dlprof_summary.csv").read_text().splitlines()
        stated = dict(line.split(",", 1) for line in lines if "," in line)
        model, batch, _ = folder.name.split("_")
        wanted = [stated["GPU Utilization %"], stated["Tensor Core Kernel Utilization %"]]
        (row,) = [row for row in by_name.splitlines() if row.startswith(f"{model},{batch},")]
        assert row.split(",")[2:5] == [stated["DLProf Version"].removeprefix("v"), *wanted]
        assert lines[14] in row
    charts = {path.name for path in Path("study/charts").iterdir()}
    assert {
        "utilization-gpu-sampled.png",
        "utilization-tensor.png",
        "memory-peak.png",
        "samples-memory.png",
    } <= charts
    text = Path("study/study.html").read_text()
    assert "<script>alert" not in text
    assert perfctl("--from", reports, "--out", "study")[0] == 0, "the same again goes on"
    refused = perfctl("--from", reports / "resnet152_1_batch", "--out", "study")
    assert (refused[0], refused[2].count("\n")) == (2, 1)
    assert "holds another study" in refused[2]
    assert perfctl("--from", "study/perfctl.db", "--out", "second")[0] == 0, (
        "a store is a source, too"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "names no model"),
        ("--models resnet18 --batches 1,x", "invalid value 'x' for --batches"),
        ("--models resnet18 --profiler perf", "--profiler: 'perf' is not known"),
        ("--from gone", "gone does not exist"),
    ],
)
def test_requests_that_make_no_sense_leave_nothing_behind(perfctl, words, said):
    pytest.importorskip("torchvision")
    code, _, err = perfctl(*words.split())
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert list(Path().iterdir()) == []


def test_every_batch_size_is_timed_and_only_the_ends_are_profiled(tmp_path):
    asked = ask("inference", tmp_path, quick=True, models="resnet18", device="cpu")
    planned = [(one.profiler, one.options.batches) for one in list_study_sweeps(asked)]
    assert planned == [("none", (1, 5, 20)), ("torch", (1, 20))]


def test_a_source_without_inference_is_refused(perfctl):
    recorded = Path(__file__).resolve().parent.parent / "data" / "recorded-cpu" / "torch"
    code, _, err = perfctl("--from", recorded, "--out", "study")
    assert code == 1
    assert "no run and no report of inference" in err.splitlines()[-1]


def test_the_parts_for_a_batch_system_are_commands_that_exist(perfctl):
    asked = ask("inference", Path("study"), quick=True, models="resnet18,vgg11", device="cpu")
    parts = split_study_into_parts(asked).parts
    assert [label for label, _ in parts] == [
        f"{model} {how}" for model in ("resnet18", "vgg11") for how in ("timed", "under torch")
    ]
    for _, words in parts[:1]:
        assert run_command([*words, "--dry-run"]) == 0


@pytest.mark.usefixtures("quick_sweeps")
def test_one_real_study_is_measured_resumed_and_written(perfctl, monkeypatch):
    pytest.importorskip("torchvision")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(inference_fields, "explain_cpu_contention", lambda runs: None)
    words = [
        "--quick",
        "--models",
        "squeezenet1_1",
        "--batches",
        "2",
        "--device",
        "cpu",
        "--out",
        "study",
    ]
    code, out, err = perfctl(*words)
    assert code == 0, err
    assert "The most images/s are: squeezenet1_1" in out
    text = Path("study/summary.md").read_text()
    assert "the weights are random" in text
    assert (
        "aten::"
        in (
            Path("study/tables")
            / "kernels-kernels-or-operators-by-name-the-15-slowest-of-each-run.csv"
        ).read_text()
    )
    code, again, err = perfctl(*words)
    assert (code, err.count("already complete, skipped")) == (0, 2)
    assert again == out
