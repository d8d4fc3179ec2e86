"""--format md and tex of ledger, show, compare and estimate."""

import pytest

from tests.report.test_documents import sound

LINES = ["ledger", "show 1", "compare 1 2 --anyway"]


@pytest.mark.parametrize("typed", LINES)
def test_a_result_is_written_as_markdown_and_as_latex(perfctl, replayed, typed):
    tex = perfctl(f"{typed} --store {replayed} --format tex").ok()
    assert sound(tex.out)
    markdown = perfctl(f"{typed} --store {replayed} -f md").ok()
    assert "\n| " in markdown.out and markdown.out.startswith("## ")
    assert sum(line.startswith("| ") for line in markdown.out.splitlines()) > 10


def test_an_estimate_is_a_table_of_its_layers_in_both(perfctl):
    tex = perfctl("estimate mlp:depth=2,width=64 --format tex")
    layers = sound(tex.out)
    markdown = perfctl("estimate mlp:depth=2,width=64 --format md")
    assert sum(line.startswith("| ") for line in markdown.out.splitlines()) == len(layers) + 1
