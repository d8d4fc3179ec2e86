"""perfctl ingest --guess-layers: from a report without ranges to rows that are marked
as guessed."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import sql
from tests.make.known_network import mnist, step
from tests.make.nsys_sqlite import NsysBuilder

pytest.importorskip("torch", reason="torch is not installed")


def report(folder, truth, *, layer=None):
    """A synthetic nsys export of these launches; one of them inside a layer's range where ``layer``
    is given."""
    builder = NsysBuilder()
    for number, ((name, x, y), _) in enumerate(truth):
        builder.call(number + 1, 100 * number, 100 * number + 2)
        builder.kernel(number + 1, 100 * number + 10, name=name, gridX=x, gridY=y, gridZ=1)
    if layer:
        builder.range(layer, 0, 50)
    return builder.write(folder / "report.sqlite")


OPTIONS = ("--workload", "mnist_cnn", "--batch", 64, "--guess-layers")
PLACES = "SELECT layer, direction, layer_source FROM kernel ORDER BY launch"


def test_guessed_layers_are_marked_in_the_store_and_on_the_page(perfctl):
    truth = step(mnist(64)) * 3
    assert perfctl("ingest", report(Path(), truth), *OPTIONS).code == 0
    found = sql(PLACES)
    assert [row[:2] for row in found] == [place for _, place in truth]
    assert {source for layer, _, source in found if layer} == {"guessed"}
    (gap,) = sql("SELECT state, reason FROM gap WHERE quantity = 'kernel.layer'")
    assert gap[0] == "ambiguous" and "from the order and shape of the network's layers" in gap[1]
    assert perfctl("report").code == 0
    (page,) = Path().rglob("*.html")
    text = page.read_text()
    assert "guessed the layer for" in text and "from the order and shape of" in text


def test_the_estimate_runs_in_a_new_interpreter(perfctl, monkeypatch):
    """OpenMP threads that torch started before a fork are missing in the fork: it would hang."""

    def refuse():
        raise AssertionError("forked after torch ran")

    monkeypatch.setattr("os.fork", refuse)
    path = report(Path(), step(mnist(64)) * 3)
    assert perfctl("ingest", path, *OPTIONS).code == 0


def test_a_ledger_of_runs_without_layers_says_how_to_get_them(perfctl):
    path = report(Path(), step(mnist(64)) * 3)
    assert perfctl(f"ingest {path} --workload mnist_cnn --batch 64").code == 0
    without = perfctl("ledger")
    assert (without.code, without.out, without.err.count("\n")) == (1, "", 1)
    assert "no run has layer information" in without.err and "--guess-layers --again" in without.err
    assert perfctl("ingest", path, "--expect", "nosuch*: flops=2*batch").code == 0
    unmatched = perfctl("ledger").err
    assert "matches --expect 'nosuch*'" in unmatched and "layer information" not in unmatched
    assert perfctl("ingest", path, *OPTIONS, "--again").code == 0
    assert re.search("conv2 +forward", perfctl("ledger").out)
