"""--format md and tex of ledger, show, compare and estimate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said
from tests.report.test_documents import sound

Perfctl = Callable[..., Said]
WORDS = [("ledger",), ("show", "1"), ("compare", "1", "2", "--anyway")]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_a_result_is_written_as_markdown_and_as_latex(
    perfctl: Perfctl, replayed: Path, words: tuple[str, ...]
) -> None:
    tex = perfctl(*words, "--store", replayed, "--format", "tex")
    assert tex.code == 0, tex.err
    assert sound(tex.out)
    markdown = perfctl(*words, "--store", replayed, "-f", "md")
    assert markdown.code == 0 and "\n| " in markdown.out and markdown.out.startswith("## ")
    assert sum(line.startswith("| ") for line in markdown.out.splitlines()) > 10


@pytest.mark.parametrize("words", [*WORDS, ("estimate", "mnist_cnn")], ids=lambda words: words[0])
def test_a_format_that_is_not_known_or_json_beside_it_is_refused(
    perfctl: Perfctl, words: tuple[str, ...]
) -> None:
    odd = perfctl(*words, "--format", "docx")
    assert (odd.code, odd.out) == (2, "") and "invalid value 'docx' for --format" in odd.err
    both = perfctl(*words, "--format", "md", "--json")
    assert (both.code, both.out) == (2, "") and "--json" in both.err


def test_an_estimate_is_a_table_of_its_layers_in_both(perfctl: Perfctl) -> None:
    tex = perfctl("estimate", "mlp:depth=2,width=64", "--format", "tex")
    layers = sound(tex.out)
    markdown = perfctl("estimate", "mlp:depth=2,width=64", "--format", "md")
    assert sum(line.startswith("| ") for line in markdown.out.splitlines()) == len(layers) + 1
