"""Models that libraries name, against torch's FlopCounterMode on the same model and inputs, forward and backward: one table.

    python scripts/accuracy/accuracy_named.py [NAME ...]

Nothing is downloaded: models have their default configs, no weights, and tensors on the meta device. 1 multiply-add is 2 FLOPs in
both. Exits 1 when a difference over 1 % is not explained. Needs perfctl[timm] and perfctl[hf].
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from perfctl.orchestrator.actions.estimate import Request, open_session
from perfctl.workloads.tracing import recorder
from perfctl.workloads.tracing.gradients import tensors_in

BATCH = 2
TIMM = (
    "resnet50", "vit_base_patch16_224", "efficientnet_b0", "convnext_tiny", "swin_tiny_patch4_window7_224", "mobilenetv3_large_100",
    "regnety_016", "densenet121", "deit_small_patch16_224", "mixer_b16_224", "resnext50_32x4d", "maxvit_tiny_tf_224",
    "coatnet_0_rw_224", "eva02_tiny_patch14_224", "nfnet_f0",
)  # fmt: skip
TRANSFORMERS = (
    "bert", "gpt2:class=GPT2LMHeadModel", "roberta", "t5", "vit", "distilbert:class=DistilBertForSequenceClassification", "clip",
    "whisper", "llama:num_hidden_layers=4,class=LlamaForCausalLM", "wav2vec2",
)  # fmt: skip
NAMES = (*(f"timm:{name}" for name in TIMM), *(f"hf:{name}" for name in TRANSFORMERS))
GROUPED = "FlopCounterMode does not divide the weights' gradient of grouped convolutions by the groups"
CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d", "conv1d", "conv2d", "conv3d")


def by_torch(model: Any, inputs: tuple[Any, ...]) -> tuple[int, int]:
    """FLOPs forward and backward."""
    model.train()
    with FlopCounterMode(display=False) as counter:
        output = model(*inputs)
    forward = counter.get_total_flops()
    ends = [end for end in tensors_in(output) if end.requires_grad and end.is_floating_point()]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return forward, counter.get_total_flops()


def surplus(model: Any, found: Any) -> int:
    """What FlopCounterMode counts too much in backward: the weights' gradient of a grouped convolution, groups times."""
    groups = {path: getattr(module, "groups", 1) for path, module in model.named_modules()}
    mine = (call for call in found.calls if call.direction == "grad_weight" and call.kind in CONVOLUTIONS)
    return sum((groups.get(call.layer, 1) - 1) * (call.flops or 0) for call in mine)


def main(names: tuple[str, ...]) -> int:
    """Print a line for each model; 1 when a difference has no explanation."""
    failed = 0
    print(f"{'model':<58}{'forward FLOP':>20}{'torch':>8}{'backward FLOP':>20}{'torch':>8}")
    for name in names:
        session = open_session(Request(name))
        found, model = session.at(BATCH), session.source.model
        if found.problem is not None:
            failed += 1
            print(f"{name:<58}{found.problem}")
            continue
        model.zero_grad(set_to_none=True)
        shapes, dtypes = [shape.at(BATCH) for shape in session.shapes], [shape.dtype for shape in session.shapes]
        theirs = by_torch(model, recorder.make_inputs(shapes, dtypes, "meta"))
        pairs = ((found.forward.flops, theirs[0]), (found.backward.flops, theirs[1]))
        cells = "".join(f"{own:>20,}{(own / other - 1 if other else 1):>+8.2%}" for own, other in pairs)
        print(f"{name:<58}{cells}", flush=True)
        more = surplus(model, found)
        for way, (own, other), known in zip(("forward", "backward"), pairs, (0, more), strict=True):
            if abs(own - other) > 0.01 * other:
                rest = own / (other - known) - 1
                failed += abs(rest) > 0.01
                print(
                    f"    {way}: {GROUPED}; {known:,} FLOP of it: {rest:+.2%} without"
                    if known
                    else f"    {way}: {rest:+.2%}"
                )
    return int(failed > 0)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(
        description="Compare perfctl's FLOPs with torch's counter on models that libraries name."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="timm:resnet50, hf:bert, ...; all of the table when none is given"
    )
    sys.exit(main(tuple(parser.parse_args().names) or NAMES))
