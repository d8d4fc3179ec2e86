"""A real Apptainer image, built from the definition that perfctl renders, and real sweeps
inside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.images import check as images_check
from perfctl.orchestrator.launch.images import run
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.profilers.base import Command
from tests.launch import image_root

pytestmark = pytest.mark.xdist_group("nsys")

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
TRAIN = (
    "import sys, torch\nnet = torch.nn.Linear(4, 2)\nopt = torch.optim.SGD(net.parameters(), "
    "lr=0.1)\n"
    "for _ in range(6):\n    opt.zero_grad(); net(torch.ones(int(sys.argv[1]), "
    "4)).sum().backward(); opt.step()\n"
)


def perfctl(folder, *words, **environment):
    return subprocess.run(
        (sys.executable, "-m", "perfctl", *words),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def torch_from_here():
    """Options and variables that lend this machine's torch to the image."""
    packages = str(image_root.site_packages())
    return ("--bind", packages, "--bind", f"{LIBRARIES}:{LIBRARIES}:ro"), {
        "APPTAINERENV_PYTHONPATH": packages
    }


def test_a_script_runs_under_the_python_of_the_image_and_its_run_remembers_the_image(
    image, tmp_path
):
    binds, variables = torch_from_here()
    (tmp_path / "a b").mkdir()
    (tmp_path / "train.py").write_text(
        TRAIN + "import pathlib; pathlib.Path('where.txt').write_text(sys.prefix)\n"
    )
    sweep = ("-b", "2", "--steps", "2", "--warmup", "1", "--device", "cpu", "--out", "a b/runs")
    words = ("torch", "--image", str(image), *binds, *sweep, "--", "python", "train.py", "{batch}")
    done = perfctl(tmp_path, *words, **variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "where.txt").read_text() == "/opt/python"
    folder = next((tmp_path / "a b" / "runs").glob("torch-*/b2"))
    record = json.loads((folder / "run.json").read_text())
    assert record["environment"]["image"] == "perfctl.sif"
    assert record["environment"]["container"].startswith(("apptainer ", "singularity "))
    shown = perfctl(tmp_path, "show", "1", "--json", "--store", "a b/perfctl.db")
    assert shown.returncode == 0, shown.stderr
    assert "perfctl.sif" in shown.stdout
    assert "already complete, skipped" in perfctl(tmp_path, *words, **variables).stderr


def test_what_the_image_lacks_is_said_in_one_line_before_anything_runs(image, tmp_path):
    for profiler, name, lacks in (
        ("torch", image, "torch is not installed in the image perfctl.sif"),
        ("nsys", image, "nsys is not installed in the image perfctl.sif"),
        ("torch", image.parent / "root", "root has no perfctl"),
    ):
        done = perfctl(tmp_path, profiler, "--image", str(name), "--device", "cpu", "-b", "2")
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert lacks in done.stderr
        assert not (tmp_path / "perfctl-runs").exists()


def test_without_the_drivers_library_a_gpu_sweep_is_refused(image, tmp_path):
    if images_check.can_load_libcuda():
        pytest.skip("the driver's library is installed here, and --nv brings it in")
    packages = str(image_root.site_packages())
    words = ("--bind", packages, "--device", "cuda", "-b", "2")
    done = perfctl(
        tmp_path, "torch", "--image", str(image), *words, APPTAINERENV_PYTHONPATH=packages
    )
    assert done.returncode == 1
    assert "libcuda.so.1 is not in the image perfctl.sif" in done.stderr


def test_an_image_sees_its_own_environment_the_gpus_numbers_and_the_scratch_folder_and_no_packages_of_the_home_folder(
    image, tmp_path, monkeypatch
):
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / ".local" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "of_the_home_folder.py").touch()
    scratch.mkdir()
    (scratch / "data.bin").touch()
    for name, value in (
        ("SCRATCH", scratch),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("LD_LIBRARY_PATH", "/host"),
        ("MY_TOKEN", "x"),
    ):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("APPTAINERENV_MINE", "a b")
    # the runtime sets HOME from /etc/passwd
    monkeypatch.setenv("APPTAINERENV_PYTHONUSERBASE", str(home / ".local"))
    asks = (
        "import importlib.util, json, os, pathlib; "
        "print(json.dumps([os.environ.get('LD_LIBRARY_PATH', '').count('/host'), "
        "*map(os.environ.get, ('CUDA_VISIBLE_DEVICES', 'MY_TOKEN', 'MINE')), "
        "pathlib.Path(os.environ['SCRATCH'], 'data.bin').exists(), "
        "importlib.util.find_spec('of_the_home_folder') is not None]))"
    )

    def answers(name, of):
        command = run.open_container_image(str(of), [str(home)]).wrap_command(
            Command(("python3", "-c", asks), "profile"), (tmp_path,), tmp_path
        )
        out = tmp_path / name
        process_run.run_command(
            command,
            cwd=tmp_path,
            stdout=out,
            stderr=tmp_path / "e",
            scratch=tmp_path / "tmp",
            timeout_s=100,
        )
        return json.loads(out.read_text() or (tmp_path / "e").read_text())

    base = image.parent / "root"  # an image that was not made by perfctl
    assert answers("own", image) == answers("base", base) == [0, "1", None, "a b", True, False]
    monkeypatch.setenv("APPTAINERENV_PYTHONNOUSERSITE", "")
    assert answers("asked for", base) == [0, "1", None, "a b", True, True]
