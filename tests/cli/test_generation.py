"""perfctl estimate --prompt from the command line's side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
FILE = Path(__file__).parents[1] / "data" / "scripts" / "language_model.py"
ASKED = ["estimate", f"{FILE}:mixture", "--prompt", "6", "--generate", "5"]


def test_both_phases_and_the_cache_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--kv-cache", "fp16", "--batch", "3"]) == 0
    out = capsys.readouterr().out
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert lines["decode"].split()[1:3] == ["5", "7-11"], "steps, tokens attended to"
    out = " ".join(out.split())
    each = 3 * 2 * 2 * 8 * 2
    assert (
        f"{each} B per token and sequence, float16: 3 layers x (tensor 0 2 x 8 + tensor 1 2 x 8) x 2 "
        "B" in out
    )
    assert f"{3 * 11 * each:,} B: 11 tokens, batch 3" in out
    assert "active per token" in out
    assert "2 of 6 in 3 layers" in out
    assert "1 multiply-add (MAC) is 2 FLOPs" in out


def test_json_has_every_layer_of_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--batches", "1,2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["batches"]
    for one in found.values():
        for phase in one["phases"]:
            assert phase["flops"] == sum(layer["flops"] for layer in phase["layers"])
            assert phase["bytes"] == sum(
                layer[name]
                for layer in phase["layers"]
                for name in ("weight_bytes", "cache_read_bytes", "cache_written_bytes")
            )
    assert found["2"]["kv_cache"]["bytes_at_end"] == 2 * found["1"]["kv_cache"]["bytes_at_end"]
    assert found["1"]["kv_cache"]["bytes_per_token"] * 11 == found["1"]["kv_cache"]["bytes_at_end"]


def test_layers_are_shown_on_request_and_a_part_of_the_model_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ASKED, "--all"]) == 0
    assert capsys.readouterr().out.count("blocks.2.attention.kv") == 2, "once a phase"
    assert run([*ASKED, "--layer", "blocks.1"]) == 0
    part = capsys.readouterr().out
    assert "blocks.1.attention.kv" in part
    assert "blocks.2" not in part
    assert "a token and sequence" not in part, "the cache is the model's, not the part's"


@pytest.mark.parametrize(
    ("form", "piece"),
    [
        ("md", "## Decode, by layer"),
        ("tex", "\\end{longtable}"),
        ("html", "<figcaption>Decode, by layer"),
    ],
)
def test_the_sheet_comes_in_every_format(
    form: str, piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASKED, "--sheet", "--format", form]) == 0
    out = capsys.readouterr().out
    assert piece in out
    assert "blocks.0.mlp.experts" in out.replace("\\_", "_")
    assert "total" in out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--kv-cache", "fp7"], "invalid value 'fp7' for --kv-cache"),
        (["--seq", "9"], "--seq and --prompt exclude each other"),
        (["--precision", "bf16"], "--precision bf16 is not available with --prompt"),
        (["--check", "9"], "--check and --prompt exclude each other"),
        (["--memory", "8GiB"], "--memory and --prompt exclude each other"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASKED, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_model_that_is_cast_whole_reads_half_the_bytes_and_does_the_same_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    totals = []
    for precision in ("fp32", "bf16-true"):
        assert run([*ASKED, "--precision", precision, "--json"]) == 0
        (batch,) = json.loads(capsys.readouterr().out)["batches"].values()
        totals.append(next(phase for phase in batch["phases"] if phase["name"] == "total"))
    whole, cast = totals
    assert cast["macs"] == whole["macs"]
    for name in ("weight_bytes", "cache_read_bytes", "cache_written_bytes"):
        assert cast[name] == whole[name] / 2 > 0


def test_steps_need_a_prompt_and_a_failure_shows_no_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["estimate", f"{FILE}:plain", "--generate", "5"]) == 2
    assert "--generate needs --prompt" in capsys.readouterr().err
    assert run(["estimate", f"{FILE}:Breaks", "--prompt", "5", "--generate", "5"]) != 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "not my style" in printed.err
