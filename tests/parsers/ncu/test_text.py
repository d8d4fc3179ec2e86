"""Console text of ncu: both generations, made and from real runs, beside the CSV of the same."""

import shutil
import subprocess

import pytest

from perfctl.parsers import sniff
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import text as ncu_text
from tests.make.files import read, write

TEXT = """\
[42] app@127.0.0.1
  k(int) (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    ----------- ----------- ------------
    Metric Name Metric Unit Metric Value
    ----------- ----------- ------------
    Duration             us       203.62
    ----------- ----------- ------------

"""


def test_text_is_recognised_also_behind_a_long_log(tmp_path):
    parser = sniff(write(tmp_path / "ncu.txt", "step 1\n" * 20000 + TEXT))
    assert parser is not None
    assert parser.name == "ncu console text"


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["  GPU : NVIDIA A100-PCIE-40GB (Compute 8.0, 108 SMs)"] * 2, "NVIDIA A100-PCIE-40GB"),
        (["Device 0: Tesla T4"], "Tesla T4"),
        (["Detected GPU: Tesla V100-PCIE-32GB (SM 8.0)"], "Tesla V100-PCIE-32GB"),
        (["Using CUDA device 0: NVIDIA A40"], "NVIDIA A40"),
        (["Detected GPU: Tesla V100-PCIE-32GB (SM 7.0)"], None),
        (["device: NVIDIA GeForce RTX 5070 (sm_120), 48 SMs"], None),
        (["GPU: NVIDIA A40", "GPU: NVIDIA A100"], None),
        (["GPU memory: 4 GB", "running on NVIDIA A40"], None),
    ],
    ids=[
        "said twice",
        "alone",
        "detected",
        "in use",
        "another SM",
        "of another capability",
        "two names",
        "none named so",
    ],
)
def test_the_gpu_is_named_by_the_program_only_if_nothing_contradicts_it(lines, name, tmp_path):
    report = read(tmp_path, "\n".join([*lines, TEXT]))
    (device,) = report.devices
    assert (device.name, device.compute_capability) == (name, "8.0")
    notes = [item.text for item in report.diagnostics if "own output" in item.text]
    assert len(notes) == (name is not None)


@pytest.mark.parametrize(
    ("text", "is_ncu"),
    [
        ("    Section: S\n    ------ ----\n", True),
        ("    Section: S\n    Metric Name  x\n", True),
        ("    Section: S\n    INF  words\n", True),
        ("    Section: S\n    INF words\n", False),
        ("x\n         Section: S\n    ------\n", False),
        (f"  {'-' * 20} --- ---\n", True),
        (f"  {'-' * 19} --- ---\n", False),
        ("  Metric Name   Metric Unit   Metric Value\n", True),
        ("Metric Name Metric Unit Metric Value\n", False),
        ('"ID","Process ID"\n    Section: S\n    ------ ----\n', False),
        ("", False),
        ("    Section: S\n    ------ ----\n\0", False),
    ],
)
def test_console_text_is_told_by_a_section_with_its_table_or_rule_or_by_a_wide_ruler(
    text, is_ncu, tmp_path
):
    assert ncu_text.sniff(write(tmp_path / "ncu.txt", text), text.encode()) is is_ncu


# Damage


def _imported(path, tmp_path, *options):
    """What the installed ncu prints of a report."""
    tool = shutil.which("ncu")
    if tool is None:
        pytest.skip("ncu is not installed")
    made = tmp_path / ("-".join(options).replace("/", "_") or "text")
    with made.open("wb") as file:
        done = subprocess.run(
            [tool, "--import", str(path), *options], stdout=file, check=False, timeout=600
        )
    if done.returncode:
        pytest.skip("the installed ncu cannot read this report")
    return made


def _facts(counters):
    return sorted(counters, key=repr)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lashi_profile", ("--details-all", "--print-rule-details")),
        ("montecarlo_profile", ("--print-fp",)),
    ],
)
def test_the_details_page_as_text_and_as_csv_are_the_same_records(reports, tmp_path, name, options):
    source = reports / "ncu" / "rep" / f"{name}.ncu-rep"
    text = ncu_text.parse(_imported(source, tmp_path, "--page", "details", *options))
    table = ncu_csv.parse(
        _imported(source, tmp_path, "--page", "details", *options, "--csv", "--print-units", "auto")
    )
    assert list(text.kernels) == list(table.kernels)
    assert _facts(text.counters) == _facts(table.counters)
