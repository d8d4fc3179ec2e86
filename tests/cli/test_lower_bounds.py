"""What the warning of lower bounds says of a recording of an H100."""

from pathlib import Path

RECORDINGS = Path(__file__).resolve().parent.parent / "data" / "h100"


def test_the_warning_of_lower_bounds_names_the_reason_that_the_counts_have(perfctl):
    """Every counter was collected: no counter tells what HFMA2 did."""
    assert perfctl("replay", RECORDINGS / "ncu-bf16").code == 0
    said = " ".join(perfctl("ledger").out.split())
    (line,) = (part for part in said.split("! ")[1:] if "are lower bounds" in part)
    assert line.startswith("The executed FLOPs of conv1 forward, ")
    why = "HFMA2 moves constants or multiplies halves, and no counter distinguishes them"
    assert f"and 5 more are lower bounds: {why}. " in line
