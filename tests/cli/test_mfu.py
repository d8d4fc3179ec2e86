"""perfctl mfu from the command line's side: PaLM 540B by its dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Said

PALM = [
    "mfu",
    "--layers",
    118,
    "--hidden",
    18432,
    "--heads",
    48,
    "--head-dim",
    256,
    "--kv-heads",
    1,
    "--ffn",
    73728,
    "--gated",
    "--vocab",
    256_000,
    "--tied",
    "--parameters",
    540.35e9,
    "--tokens-per-second",
    238_300,
    "--gpus",
    6144,
    "--peak-tflops",
    275,
]
FLOPS = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
REMATERIALISED = FLOPS + 0.75 * 2 * 540.35e9 + 4 * 118 * 48 * 256 * 2048
SUPPLY = 6144 * 275e12


def test_the_table_has_mfu_and_hfu_of_palm(perfctl: Callable[..., Said]) -> None:
    found = perfctl(*PALM, "--recompute", "0.75")
    (row,) = (line.split() for line in found.out.splitlines() if line.startswith("palm "))
    assert row[1:4] == [
        f"{FLOPS:,.0f}",
        f"{238300 * FLOPS / SUPPLY:.1%}",
        f"{238300 * REMATERIALISED / SUPPLY:.1%}",
    ]
    words = " ".join(found.out.split())
    assert "75% of the forward GEMMs" in words
    assert "attention halved (causal) -0.5%" in words


def test_one_formula_comes_with_its_source(perfctl: Callable[..., Said]) -> None:
    found = perfctl(*PALM, "--formula", "6N").out
    assert "\npalm" not in found and "6N: 6 N (Kaplan" in found


def test_the_json_has_every_term(perfctl: Callable[..., Said]) -> None:
    found = perfctl(*PALM, "--reported", "46.2", "--json").json
    assert found["formulas"]["palm"]["flops_per_token"] == FLOPS
    assert found["formulas"]["palm"]["mfu"] == pytest.approx(238300 * FLOPS / SUPPLY)
    assert sum(found["formulas"]["6N"]["difference_by_term"].values()) == pytest.approx(
        found["formulas"]["6N"]["difference"]
    )
    assert found["reported"]["matches"][0]["explanation"] == "palm"
    assert found["formulas"]["palm"]["hfu"] is None


@pytest.mark.parametrize(
    ("reported", "said"),
    [("46.2", "palm, 46.23%"), ("57.8", "palm with 75% recomputing: HFU, not MFU, 57.83%")],
)
def test_a_reported_figure_is_explained(
    perfctl: Callable[..., Said], reported: str, said: str
) -> None:
    assert said in perfctl(*PALM, "--reported", reported, "--recompute", "0.75").out


def test_a_reported_figure_that_nothing_gives_is_said(perfctl: Callable[..., Said]) -> None:
    assert (
        "Reported 12.34%: no known formula gives this value. Closest: "
        in perfctl(*PALM, "--reported", "12.34").out
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--tokens-per-second is missing"),
        (["--tokens-per-second", 1], "no model. Name one"),
        (["--tokens-per-second", 1, "--hidden", 8], "--layers, --heads, --ffn, --vocab missing"),
        (
            ["hf:llama", "--tokens-per-second", 1, "--kv-heads", 8],
            "--kv-heads and a model exclude each other",
        ),
        (PALM[1:-2], "--device or --peak-tflops is needed"),
        ([*PALM[1:], "--device", "H100", "--peak-tflops", 1979], "sparse peak"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    perfctl: Callable[..., Said], words: list[object], said: str
) -> None:
    found = perfctl("mfu", *words)
    assert (found.code, found.out) == (2, "")
    assert said in found.err and found.err.count("\n") == 1


def test_a_reported_share_is_told_from_percent(perfctl: Callable[..., Said]) -> None:
    assert (
        "no known formula gives this value. The value is in percent: write 46.2 for a share of 0.462. "
        "Closest" in " ".join(perfctl(*PALM, "--reported", "0.462").out.split())
    )
    assert "in percent: write" not in perfctl(*PALM, "--reported", "12.34").out
