"""Every finding of every recorded page is held against the section it leads to."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl import ingest
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs
from tests.report.evidence import unproved
from tests.sample import sample

ROOT = Path(__file__).parents[2]
PAGES = {
    "demo": ("tests/data/recorded-cpu/torch", "tests/data/recorded-cpu/nsys"),
    "study": ("examples/mnist_v100_study",),
    "inference": ("tests/data/inference-reports",),
    "kineto": ("tests/data/kineto-synthetic/trace.json",),
    "dlprof": ("tests/data/dlprof-synthetic",),
    "dlprof json": ("tests/data/dlprof-json-synthetic",),
    "nvprof": ("tests/data/nvprof-synthetic",),
    "ncu wide": ("tests/data/ncu-wide",),
    "ncu ragged": ("tests/data/ncu-ragged",),
    "ncu nvtx": ("tests/data/ncu-nvtx",),
}
REPORTS = (
    "nsys/sqlite/zx3xyy_cs336_result.sqlite",
    "nsys/sqlite/lowertri_la.sqlite",
    "nsys/sqlite/nsysai_mfu_2gpu_after.sqlite",
    "nsys/sqlite/beast_report1.sqlite",
    "nsys/sqlite/stellawava_report1.sqlite",
    "ncu/rep/cs599k_h100_silu_2025-04-21.ncu-rep",
    "kineto/llm/nanovllm_prefill.json.gz",
)


def page(paths, store):
    ingest(paths, store, jobs=1)
    with database.open_store_for_reading(store) as connection:
        runs = load_readable_runs(
            connection, read.list_run_ids(connection, latest_per_configuration=True)
        )
    return build_report_view(runs, generated_at="2026-11-20T21:06:57Z")


def held_against(view):
    for study in view.chapters:
        texts = [item.text for item in study.findings if isinstance(item, Finding)]
        assert len(set(texts)) == len(texts), "no finding twice"
        for item in study.findings:
            assert isinstance(item, Finding)
            assert not (lacking := unproved(item, study)), (
                f"{study.title}: {item.text} [{item.evidence}] lacks {lacking}"
            )
            assert len(item.first) <= LONGEST, item.first


@pytest.mark.parametrize("name", PAGES)
def test_every_number_of_a_finding_is_in_the_section_it_leads_to(name, tmp_path):
    held_against(page([ROOT / path for path in PAGES[name]], tmp_path / "perfctl.db"))


def test_a_number_that_no_cell_shows_is_found(tmp_path):
    (study,) = page([ROOT / path for path in PAGES["demo"]], tmp_path / "perfctl.db").chapters
    item = next(
        item
        for item in study.findings
        if isinstance(item, Finding) and "takes more time than any layer" in item.text
    )
    (shown, *_) = re.findall(r"\d+\.\d%", item.text)
    wrong = f"{float(shown[:-1]) + 61.7:.1f}%"
    assert unproved(replace(item, text=item.text.replace(shown, wrong)), study) == [wrong]
    assert unproved(replace(item, evidence="nowhere"), study) == ["there is no section nowhere"]


@pytest.mark.parametrize("name", sample(REPORTS, 3))
def test_every_number_of_a_finding_of_a_real_report_is_in_its_section(name, shared, tmp_path):
    path = shared / "reports" / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    held_against(page([path], tmp_path / "perfctl.db"))
