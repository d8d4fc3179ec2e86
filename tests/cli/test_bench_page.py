"""perfctl report on a bench: one part for many networks, which says what it leaves out."""

import pytest

from perfctl.orchestrator.report.page.sections import WHOLE
from tests.cli.plain_runs import Row, store


def rows(networks, slower=1.0):
    """Networks of one family at two batch sizes."""
    return [
        Row(
            f"mlp:depth={depth}",
            batch,
            tuple(slower * depth * batch * each for each in (1.0, 1.1, 1.2)),
            threads=1,
        )
        for depth in range(2, 2 + networks)
        for batch in (4, 8)
    ]


@pytest.mark.parametrize("networks", [WHOLE, WHOLE + 2])
def test_many_networks_share_one_part_and_few_have_their_own(perfctl, tmp_path, networks):
    store(tmp_path / "perfctl.db", rows(networks))
    perfctl("report").ok()
    page = (tmp_path / "perfctl-report.html").read_text(encoding="utf-8")
    shared = networks > WHOLE
    assert page.count("<article") == (1 if shared else networks)
    assert ("commands of a network, use perfctl report --run ID" in page) == shared
    assert (f"{2 * networks} of {networks} networks" in page) == shared


def test_of_a_points_runs_the_fastest_is_in_the_page_as_in_bench_show(perfctl, tmp_path):
    networks = WHOLE + 1
    store(tmp_path / "perfctl.db", [*rows(networks), *rows(networks, slower=3.0)])
    found = perfctl("report --json").json
    assert found["runs"] == list(range(1, 2 * networks + 1))
    shown = perfctl("bench show --json").json
    assert len(shown["points"]) == 2 * networks
    perfctl(f"report --run {found['runs'][0]} --out network.html").ok()
    assert "bench, training" not in (tmp_path / "network.html").read_text(encoding="utf-8")
