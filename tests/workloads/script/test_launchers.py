"""A script that starts further processes: loader workers are left alone, the ranks of a launcher
each leave a record."""

import json
import sys
from pathlib import Path

import pytest

from tests.workloads.started import start

torch = pytest.importorskip("torch")

SCRIPT = str(Path(__file__).resolve().parents[2] / "data" / "scripts" / "mnist.py")


def perfctl(batch):
    words = f"-m perfctl.workloads --batch {batch} --steps 2 --warmup 1 --annotate record_function"
    return tuple(words.split())


WORDS = (SCRIPT, *["--batch-size", "4", "--batches", "5", "--workers", "1", "--start-method"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory, forks):
    """What the script does by itself, however its workers start."""
    done = forks.run(tmp_path_factory.mktemp("alone"), *WORDS, "fork")
    assert done.returncode == 0 and done.stdout
    return done


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_start_as_they_would_and_are_not_watched(tmp_path, forks, alone, method):
    def run(*argv):  # a worker that is spawned starts as its parent did
        return (
            forks.run(tmp_path, *argv)
            if method == "fork"
            else start(tmp_path, sys.executable, *argv)
        )

    done = run(*perfctl("4"), "--record", "r.json", "--", *WORDS, method)
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, alone.stderr)
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "ok"


DDP = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(int(sys.argv[1]), 4)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(model.module.weight.sum().item())
dist.destroy_process_group()
"""


def trained(ranks, batch):
    """What DDP prints, worked out in one process: rank 0's model, the mean of all
    ranks' gradients."""
    models, data = [], []
    for rank in range(ranks):
        torch.manual_seed(rank)
        models.append(torch.nn.Linear(4, 2))
        data.append([torch.randn(batch, 4) for _ in range(4)])
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
    for step in zip(*data, strict=True):
        optimizer.zero_grad()
        for part in step:
            (models[0](part).square().mean() / ranks).backward()
        optimizer.step()
    return float(models[0].weight.detach().sum())


TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2", "ddp.py", "8")
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes=2", "ddp.py", "8")
PROFILER = """#!/bin/sh
echo "rank $RANK: $1" >>started.log
shift
exec "$@"
"""
"""Stands in for a profiler, and says whom it started."""


@pytest.mark.parametrize(
    ("launch", "only", "started"),
    [
        (TORCHRUN, (), ["rank 0: report", "rank 1: report.rank1"]),
        (TORCHRUN, ("--under-rank", "0"), ["rank 0: report"]),
        (ACCELERATE, ("--under-rank", "0"), ["rank 0: report"]),
    ],
    ids=[
        "torchrun, every rank under the profiler",
        "torchrun, one of them",
        "accelerate, one of them",
    ],
)
def test_a_launcher_starts_every_rank_under_perfctl_and_those_asked_for_under_the_profiler(
    tmp_path, launch, only, started
):
    pytest.importorskip({"torchrun": "torch", "accelerate": "accelerate"}[launch[0]])
    (tmp_path / "ddp.py").write_text(DDP)
    program = tmp_path / "profiler"
    program.write_text(PROFILER)
    program.chmod(0o755)
    under = ("--under", json.dumps([str(program), "report{rank}"]), *only)
    trace = ("--window", "torch", "--trace", "t.json")
    done = start(
        tmp_path, sys.executable, *perfctl("8"), *under, *trace, "--record", "r.json", "--", *launch
    )
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "started.log").read_text().splitlines()) == started
    assert float(done.stdout) == pytest.approx(trained(ranks=2, batch=8), rel=1e-5)
    for rank, record, trace in (("0", "r.json", "t.json"), ("1", "r.rank1.json", "t.rank1.json")):
        found = json.loads((tmp_path / record).read_text())
        assert (found["status"], found["workload"], found["variant"]) == ("ok", "ddp.py", "{batch}")
        assert (found["environment"]["rank"], found["environment"]["world_size"]) == (rank, "2")
        assert (tmp_path / trace).exists()


def test_accelerate_that_is_missing_is_one_line(tmp_path, capsys, monkeypatch):
    from perfctl.workloads.__main__ import main

    for name in ("accelerate", *(name for name in sys.modules if name.startswith("accelerate."))):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["--", "accelerate", "launch", "train.py"]) == 2
    said = capsys.readouterr().err
    assert (len(said.splitlines()), "pip install accelerate" in said) == (1, True)
