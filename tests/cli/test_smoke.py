"""Every command once, on one small database: exit code, files written, first line of output."""

import shutil
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import COMMANDS

SIZES = "--layers 2 --hidden 64 --heads 4 --ffn 128 --vocab 500"
CALLS = (
    ("doctor", 0, "", "On this machine you can"),
    ("nsys --device cpu --batches 2 --dry-run", 0, "", "nsys profile --trace=nvtx,osrt "),
    ("ncu --device cuda --batches 2 --dry-run", 0, "", "ncu --force-overwrite --export "),
    ("torch --device cpu --batches 2 --dry-run", 0, "", " mnist_cnn --batch 2 --record "),
    ("dlprof --device cuda --batches 2 --dry-run", 0, "", "dlprof --mode=simple "),
    ("infer --models resnet18 --device cpu --batches 2 --dry-run", 0, "", "--model resnet18"),
    ("speedup --help", 0, "", "Usage: perfctl speedup [OPTIONS]"),
    ("study", 0, "", "Usage: perfctl study [OPTIONS] COMMAND"),
    ("replay torch --batches 16 --store own.db --out own", 0, "own own.db", "mnist_cnn, training"),
    ("prepare --help", 0, "", "Usage: perfctl prepare [OPTIONS] DATASET ARCHIVE"),
    ("open torch/b16 --no-browser", 0, "", "mnist_cnn, training, fp32"),
    ("ingest torch/b16 --store own.db", 0, "own.db", "torch/b16: run 1: 127 ranges, 163 op"),
    ("runs", 0, "", "run  tool   workload   batch "),
    ("show 1", 0, "", "mnist_cnn, training, fp32   "),
    ("query 'SELECT count(*) AS runs FROM run'", 0, "", "runs"),
    ("export", 0, "perfctl-export", "Wrote perfctl-export (ledger)"),
    ("trace 1", 0, "trace-run1.json.gz", "Wrote trace-run1.json.gz (42 ranges)"),
    ("scrub torch/b16/run.json --out copy.json", 0, "copy.json", "Wrote copy.json"),
    ("ledger", 0, "", "mnist_cnn, training, fp32 · 2 batch sizes · "),
    ("report", 0, "perfctl-report.html", "Wrote perfctl-report.html ("),
    ("serve --help", 0, "", "Usage: perfctl serve [OPTIONS] [FOLDER]"),
    ("mcp --help", 0, "", "Usage: perfctl mcp [OPTIONS]"),
    ("plot step", 0, "step.pdf", "Wrote step.pdf"),
    ("compare torch torch", 0, "", "A  torch: 2 runs, batch 16, 32, "),
    ("history", 0, "", "No change in 2 points"),
    ("gate gate.json --update --runs torch", 0, "gate.json", "Wrote gate.json: 154 quantities "),
    ("estimate mlp:depth=3,width=16", 0, "", "mlp:depth=3,width=16, training, batch 1, fp32"),
    (
        f"mfu --tokens-per-second 1000 --peak-tflops 100 {SIZES}",
        0,
        "",
        "MFU 0.0039% by PaLM",
    ),
    ("predict mlp:width=16 --batch 8 --device T4", 0, "", "mlp:width=16, training with sgd, bat"),
    ("calculator --models none", 0, "calculator.html", "Wrote calculator.html ("),
    ("exercise new --for Ada --topic linear", 0, "sheet.md", "Wrote sheet.md (7 questions)"),
    ("bench show", 1, "", "no benchmark measurements found"),
    ("slurm render nsys --batches 2", 0, "perfctl-runs", "Wrote perfctl-runs/slurm-mnist_cnn-"),
    ("image render", 0, "perfctl.def", "Wrote perfctl.def"),
)
"""What is typed, its exit code, the files that it leaves, a part of the first line."""


def test_every_command_is_called():
    assert {typed.split()[0] for typed, *_ in CALLS} == set(COMMANDS)


@pytest.mark.parametrize(("typed", "code", "files", "line"), CALLS)
def test_a_command_ends_as_it_should(perfctl, replayed, recorded, typed, code, files, line):
    shutil.copy(replayed, "perfctl.db")
    Path("torch").symlink_to(recorded / "torch")
    answer = perfctl(typed)
    assert answer.code == code, answer.err
    assert line in (answer.out or answer.err).splitlines()[0]
    names = {path.name for path in Path().iterdir() if not path.name.endswith(("-wal", "-shm"))}
    assert names == {"perfctl.db", "torch", *files.split()}
