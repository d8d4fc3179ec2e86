"""What other FLOP counters say of 20 models, and why they differ: the table of
``perfctl estimate MODEL --against torch,fvcore,thop,deepspeed,torchinfo``.

    python scripts/proof/accuracy/accuracy_against.py [MODEL ...] [--counters NAME,NAME]

Forward pass of one sample; models have random weights, and nothing is downloaded. A cell is a
counter's figure as a share of perfctl's in the same unit, then the reasons of the differences, the
largest first, each with its share of perfctl's figure. "NOT EXPLAINED" marks a difference over
0.5 % that no rule gives exactly, and makes the exit code 1. Needs perfctl[peers].
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from accuracy_lines import parser_for

from perfctl.orchestrator.estimate.peers import (
    COUNTERS,
    CounterResult,
    compare_estimate_with_flop_counters,
)
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import open_session
from perfctl.orchestrator.estimate.sheets.reasons import UNEXPLAINED

MODELS = (
    *(
        f"torchvision:{name}"
        for name in (
            "alexnet",
            "vgg11",
            "resnet50",
            "mobilenet_v2",
            "densenet121",
            "convnext_tiny",
            "vit_b_16",
            "swin_t",
        )
    ),
    *(
        f"timm:{name}"
        for name in (
            "resnetv2_50",
            "efficientnet_b0",
            "mixer_b16_224",
            "deit_small_patch16_224",
            "regnety_016",
            "ghostnet_100",
        )
    ),
    *(f"hf:{name}" for name in ("bert", "gpt2", "t5", "llama", "vit", "whisper")),
)
ALLOWED = 0.005
"""Share of perfctl's figure that may stay unexplained."""


def main() -> int:
    """Print the table; return 1 if a difference is not explained."""
    parser = parser_for(__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--counters", default=",".join(COUNTERS), metavar="NAME,NAME")
    options = parser.parse_args()
    counters = options.counters.split(",")
    print(f"| model | GMAC | {' | '.join(counters)} |\n|---|---|{'---|' * len(counters)}")
    is_complete = True
    for model in options.models:
        compared = compare_estimate_with_flop_counters(open_session(Request(model)), 1, counters)
        cells = [" ".join(describe_count(count)) for count in compared.counts]
        is_complete &= "NOT EXPLAINED" not in " ".join(cells)
        gmac = sum(compared.macs.values()) / 1e9
        print(f"| {model} | {gmac:.3f} | {' | '.join(cells)} |", flush=True)
    return not is_complete


def describe_count(count: CounterResult) -> Iterator[str]:
    """Yield the share of perfctl's figure, and each reason with its own."""
    if count.total is None or not count.estimate:
        yield count.problem or "no estimate"
        return
    yield f"{count.total / count.estimate:.4f}"
    for reason, amount, layers in count.differences:
        share = amount / count.estimate
        is_open = reason == UNEXPLAINED and abs(share) > ALLOWED
        suffix = f" in {layers[0]} and others" if reason == UNEXPLAINED else ""
        yield f"{'NOT EXPLAINED' if is_open else reason} {share:+.2%}{suffix};"


if __name__ == "__main__":
    sys.exit(main())
