"""Published speeds of networks on one GPU (scripts/proof/accuracy/published.csv): each row can be
traced, read and believed."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.hardware.machines import GPUS, compute_peak_flops

FILE = Path(__file__).resolve().parents[2] / "scripts" / "proof" / "accuracy" / "published.csv"
COLUMNS = (
    "id device model mode precision layout engine batch input value unit statistic data gpus "
    "software source published licence note"
)
UNITS = {"images/s", "sequences/s", "tokens/s", "ms"}
ENGINES = {
    "pytorch eager",
    "pytorch compiled",
    "pytorch torchscript",
    "tensorrt",
    "tensorrt-llm",
    "vllm",
    "tensorflow",
    "tensorflow xla",
    "mxnet",
}
IMAGE = "3x224x224"
GMACS = {
    ("resnet50", IMAGE): 4.09,
    ("resnet152", IMAGE): 11.51,
    ("vgg16", IMAGE): 15.47,
    ("densenet161", IMAGE): 7.73,
    ("resnext101_32x4d", IMAGE): 7.99,
    ("seresnext101_32x4d", IMAGE): 7.99,
    ("efficientnet_b0", IMAGE): 0.39,
    ("efficientnet_b4", "3x380x380"): 4.2,
    ("wide_resnet50_2", IMAGE): 11.4,
    ("convnext_base", IMAGE): 15.4,
    ("swin_base_patch4_window7_224", IMAGE): 15.4,
    ("vit_base_patch16_224", IMAGE): 17.5,
}
"""10^9 multiply-adds of one forward pass, from the papers and torchvision's tables."""
WINOGRAD = 2.25
"""A 3x3 convolution over tiles of 2x2 outputs takes 36 multiplications directly and 16 by
Winograd's way; VGG has no other kind."""
HIGHEST_SHARE = 0.8
"""Of the dense peak. Whole networks on one GPU stay under it; a misread digit or a wrong board
does not."""
ENCODERS = {
    "bert-base-uncased": (12, 768),
    "bert-large-uncased": (24, 1024),
    "roberta-base": (12, 768),
    "roberta-large": (24, 1024),
    "gpt2": (12, 768),
}
"""Layers, width."""
PARAMETERS = {"Llama-2-7b-hf": 6.7e9, "Llama-3.1-8B": 8.0e9, "gpt-j-6b": 6.0e9}


def read():
    with FILE.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


ROWS = read()
NAMED = {gpu.name: gpu for gpu in GPUS}


def peak(gpu, precision):
    """Dense FLOP/s of the fastest path that takes ``precision``: libraries may do fp16 products
    in fp32."""
    paths = compute_peak_flops(gpu)
    return max(
        paths.get(path, 0.0)
        for path in (
            f"tensor {precision}",
            *({"fp32": ["fp32"], "fp16": ["fp16", "fp32"]}.get(precision, [])),
        )
    )


def encoder_flops(layers, width, length):
    """Forward FLOPs of one sequence: 12 width^2 weights a layer, and scores and values of
    attention. 1 multiply-add is 2."""
    return 2 * layers * (12 * width**2 * length + 2 * length**2 * width)


def flops_per_second_of(row):
    """FLOP/s that the row says were reached; None for a model without a figure by hand."""
    name = row["model"].rpartition(":")[2].rpartition("/")[2]
    value, times = float(row["value"]), 3 if row["mode"] == "train" else 1
    if name in PARAMETERS:
        prompt, generated = (int(number) for number in re.findall(r"\d+", row["input"]))
        per_token = 2 * PARAMETERS[name] * (prompt + generated) / generated
        if row["unit"] == "tokens/s":
            return value * per_token
        if row["statistic"] == "time to first token":
            return 2 * PARAMETERS[name] * prompt * int(row["batch"] or 1) / value * 1e3
        return None
    if name in ENCODERS:
        sample = encoder_flops(*ENCODERS[name], int(row["input"]))
        if row["unit"] == "tokens/s":
            sample /= int(row["input"])
    elif (name, row["input"]) in GMACS:
        sample = 2e9 * GMACS[name, row["input"]] / (WINOGRAD if name == "vgg16" else 1)
    else:
        return None
    rate = int(row["batch"]) / value * 1e3 if row["unit"] == "ms" else value
    return times * sample * rate


def test_every_row_has_the_same_columns_and_its_own_name():
    assert list(ROWS[0]) == COLUMNS.split()
    assert len({row["id"] for row in ROWS}) == len(ROWS) >= 250
    assert not [row["id"] for row in ROWS if None in row or None in row.values()]


@pytest.mark.parametrize(
    "column", ["source", "published", "licence", "statistic", "software", "data", "model", "input"]
)
def test_no_row_leaves_out_where_it_comes_from_or_what_it_is(column):
    assert not [row["id"] for row in ROWS if not row[column].strip()]


def test_dates_are_years_or_months_and_files_name_their_version():
    assert not [
        row["id"]
        for row in ROWS
        if not re.fullmatch(r"20\d\d(-(0[1-9]|1[0-2]))?", row["published"])
    ]
    assert not [
        row["id"]
        for row in ROWS
        if not re.search(r" @ [0-9a-f]{12}|^https://|found by its text", row["source"])
    ]


def test_devices_units_and_settings_are_ones_that_perfctl_knows():
    assert {row["device"] for row in ROWS} <= set(NAMED)
    assert len({row["device"] for row in ROWS}) >= 12
    assert {row["unit"] for row in ROWS} == UNITS
    assert {row["engine"] for row in ROWS} <= ENGINES
    assert {row["mode"] for row in ROWS} == {"train", "infer"}
    assert {row["layout"] for row in ROWS} == {"nchw", "nhwc", ""}
    assert {row["gpus"] for row in ROWS} == {"1"}
    assert {row["model"].partition(":")[0] for row in ROWS} == {"torchvision", "timm", "hf"}


def test_a_row_without_a_batch_says_why():
    assert not [
        row["id"]
        for row in ROWS
        if not row["batch"] and not re.search("in-flight batching|requests a second", row["note"])
    ]
    assert not [row["id"] for row in ROWS if row["batch"] and int(row["batch"]) < 1]


def test_no_precision_runs_on_a_chip_without_it():
    assert not [row["id"] for row in ROWS if peak(NAMED[row["device"]], row["precision"]) == 0]


def test_no_speed_is_near_or_above_the_dense_peak_of_its_device():
    shares = {
        row["id"]: made / peak(NAMED[row["device"]], row["precision"])
        for row in ROWS
        if (made := flops_per_second_of(row))
    }
    assert len(shares) > 300
    assert not {name: share for name, share in shares.items() if share >= HIGHEST_SHARE}


def test_most_speeds_grow_with_the_batch():
    """Rates of one table at the largest batch are above those at the smallest, or a digit
    was misread."""
    tables: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for row in ROWS:
        if (
            row["batch"]
            and row["model"].partition(":")[2] not in PARAMETERS
            and "prompt" not in row["input"]
        ):
            rate = (
                int(row["batch"]) / float(row["value"])
                if row["unit"] == "ms"
                else float(row["value"])
            )
            same = tuple(
                row[key]
                for key in (
                    "device",
                    "model",
                    "mode",
                    "precision",
                    "layout",
                    "engine",
                    "input",
                    "software",
                    "note",
                )
            )
            tables.setdefault(same, []).append((int(row["batch"]), rate))
    ordered = {key: sorted(points) for key, points in tables.items() if len(points) > 2}
    assert len(ordered) > 30
    assert not [key for key, points in ordered.items() if points[-1][1] <= points[0][1]]
