"""perfctl mfu from the command line's side: PaLM 540B by its dimensions."""

PALM = (
    "mfu --layers 118 --hidden 18432 --heads 48 --head-dim 256 --kv-heads 1 "
    "--ffn 73728 --gated --vocab 256000 --tied --parameters 540.35e9 "
    "--tokens-per-second 238300 --gpus 6144 --peak-tflops 275"
)


def test_a_reported_share_is_told_from_percent(perfctl):
    assert (
        "no known formula gives this value. The value is in percent: write 46.2 for a share of 0.462. "
        "Closest" in " ".join(perfctl(f"{PALM} --reported 0.462").out.split())
    )
    assert "in percent: write" not in perfctl(f"{PALM} --reported 12.34").out


def test_one_formula_comes_with_its_source(perfctl):
    found = perfctl(f"{PALM} --formula 6N").out
    assert "\npalm" not in found and "6N: 6 N (Kaplan" in found
