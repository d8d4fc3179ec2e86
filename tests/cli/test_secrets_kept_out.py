"""A report, a command line or a program's own words may hold secrets: the store, the page and what
is said hold none."""

import json
import os
import shutil

import pytest

from tests.cli.conftest import sql
from tests.make import nsys_sqlite as nsys_secrets
from tests.make.nsys_sqlite import NsysBuilder

TOKEN = "hf_" + "abcdefghijklmnopqrstuvwx"
LOGIN = "https://bob:hunter22@git.example/net"
OWN = (TOKEN, "hunter22", "s3cretw0rd", "0123456789abcdef0123")


def everywhere(folder):
    """The store, its log, and the page."""
    return b"".join(
        file.read_bytes() for file in (*folder.glob("perfctl.db*"), *folder.glob("*.html"))
    )


@pytest.mark.parametrize("generation", ["2020.3", "2024.2", "2026.1"])
def test_a_process_environment_in_a_report_reaches_neither_store_nor_page(
    perfctl, tmp_path, generation
):
    nsys_secrets.with_environment(tmp_path / "report.sqlite", generation)
    said = perfctl("ingest report.sqlite --batch 16").ok()
    page = perfctl("report").ok()
    kept = everywhere(tmp_path)
    for value in nsys_secrets.VALUES:
        assert value.encode() not in kept, value
        assert value not in said.out + said.err + page.err, value


def test_secrets_in_names_reach_neither_store_nor_page_nor_terminal(perfctl, tmp_path):
    builder = NsysBuilder()
    builder.range(f"fetch {LOGIN}", 0, 900)
    builder.range("perfctl:step:0", 1, 800)
    builder.launch(40, name=f"gemm({TOKEN})")
    builder.launch(60, name="gemm(int)")
    builder.write(tmp_path / "report.sqlite")
    assert perfctl("ingest report.sqlite --batch 16").code == 0
    assert perfctl("report").code == 0
    shown = perfctl("show 1").out + perfctl("query 'SELECT name FROM kernel'").out
    assert "gemm((removed))" in shown
    kept = everywhere(tmp_path)
    for value in OWN[:2]:
        assert value.encode() not in kept
        assert value not in shown
    assert ("fetch https://bob:(removed)@git.example/net",) in sql("SELECT name FROM range")


def test_secrets_of_a_run_reach_neither_store_nor_page_nor_what_is_said(
    perfctl, tmp_path, recorded
):
    folder = tmp_path / "b16"
    shutil.copytree(recorded / "torch" / "b16", folder)
    record, workload = (
        json.loads((folder / name).read_text()) for name in ("run.json", "workload.json")
    )
    record["commands"] = [["python", "train.py", "--hf-token", TOKEN, "--password=s3cretw0rd"]]
    record |= {"status": "partial", "reason": f"401 for {LOGIN}"}
    workload["options"] |= {"wandb_api_key": OWN[3]}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "workload.json").write_text(json.dumps(workload))
    said = perfctl("ingest b16").ok()
    assert perfctl("report").code == 0
    shown = said.out + perfctl("show 1").out + perfctl("show 1 --json").out
    kept = everywhere(tmp_path)
    for value in OWN:
        assert value.encode() not in kept, value
        assert value not in shown, value
    assert "https://bob:(removed)@git.example/net" in shown.replace("\n", "").replace(" ", "")


def test_the_process_environment_of_perfctl_itself_is_kept_nowhere(
    perfctl, tmp_path, recorded, monkeypatch
):
    monkeypatch.setenv("MY_OWN_SETTING", "private-life-of-mine")
    assert perfctl(f"replay {recorded / 'torch'} --batches 16").code == 0
    assert perfctl("report").code == 0
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"private-life-of-mine" not in file.read_bytes(), file
    assert os.environ["MY_OWN_SETTING"]
