"""All enclosing ranges by the sweep, against what the installed nsys says about the same export."""

import shutil
import subprocess
import sys

import pytest

from tests.make.scripts import load

REAL = (
    "nsys/sqlite/lowertri_la.sqlite",
    "nsys/sqlite/memfusion_report1.sqlite",
    "nsys/sqlite/quasiben_cudf.sqlite",
    "dlprof/odema_pytorch/no_relu_nsys_profile.sqlite",
)


@pytest.fixture(scope="module")
def comparison():
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    return load("proof/compare_nvtxkernsum.py")


def same(comparison, path):
    """Number of rows, all of them equal."""
    mine, theirs = comparison.from_sweep(path), comparison.from_nsys(path)
    assert mine == theirs
    return len(mine)


def generated(shared, folder, kernels, *options):
    out = folder / f"generated_{kernels}{len(options)}.sqlite"
    template = shared / "bench/schema_full.sqlite"
    script = shared / "bench/gen_nsys.py"
    command = [sys.executable, script, str(kernels), out, "--template", template, *options]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return out


@pytest.mark.parametrize(
    ("kernels", "options"), [(3_000, ()), (3_000, ("--unique-iters",)), (30_000, ())]
)
def test_generated_exports_give_the_rows_of_nvtxkernsum(
    kernels, options, comparison, shared, tmp_path
):
    assert same(comparison, generated(shared, tmp_path, kernels, *options)) > 500


@pytest.mark.parametrize("name", REAL)
def test_real_exports_give_the_rows_of_nvtxkernsum(name, comparison, reports, tmp_path):
    copy = tmp_path / "export.sqlite"  # nsys stats may write indices into the file that it reads
    shutil.copy(reports / name, copy)
    assert same(comparison, copy) >= 50
