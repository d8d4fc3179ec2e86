"""A block of code whose steps are recorded in this process becomes a run of the store."""

import pytest

import perfctl
from perfctl.orchestrator.errors import RunFailed, UsageError

torch = pytest.importorskip("torch")


@pytest.fixture
def train():
    """Train a layer of 32 inputs and 64 outputs, whose optimizer exists before the block."""
    model = torch.nn.Linear(32, 64)
    optimizer, unused = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))

    def run(batch, steps=6):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(batch, 32)).square().mean().backward()
            optimizer.step()
        assert unused.param_groups, "an optimizer of an earlier cell, which still exists"

    return run


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_blocks_become_runs_that_one_ledger_compares_by_batch_size(tmp_path, train):
    places = {"store": tmp_path / "perfctl.db", "out": tmp_path}
    for batch in (8, 16):
        with perfctl.record(batch=batch, **places) as step:
            train(batch)
    rows = step.ledger().query("layer == 'model' and direction == 'forward'")
    assert dict(zip(rows.batch, rows.estimated_flops, strict=True)) == {
        batch: 2 * batch * 32 * 64 for batch in (8, 16)
    }
    assert (rows.time_ns > 0).all()

    with (  # the watch of the blocks before has ended, and this one sees the old optimizer
        pytest.raises(ZeroDivisionError),
        perfctl.record(batch=4, steps=50, **places) as step,
    ):
        train(4)
        raise ZeroDivisionError
    (run,) = (run for run in perfctl.runs(places["store"]) if run.batch_size == 4)
    assert (run.status, sum(row.phase == "step" for row in run.report.steps)) == ("partial", 6 - 1)
    assert step.run_id == run.id


def test_a_block_without_a_step_is_refused_and_nothing_is_stored(tmp_path):
    places = {"store": tmp_path / "perfctl.db", "out": tmp_path}
    with pytest.raises(RunFailed, match="no module was called"), perfctl.record(batch=4, **places):
        pass
    with pytest.raises(UsageError, match="`batch`"), perfctl.record(batch=0, **places):
        pass
    assert not perfctl.runs(places["store"])
