"""Models that libraries name, against torch's FlopCounterMode and published figures, forward and
backward: one table.

    python scripts/proof/accuracy/accuracy_named.py [NAME ...] [--shared ../shared]

Nothing is downloaded: models have their default configs, no weights, and tensors on the meta
device. 1 multiply-add is 2 FLOPs; published figures are multiply-adds of one sample. A difference
over 1 % is followed by what explains it: a sum over the operators that ran, which has to close the
gap to 0.1 % (published: to the rounding, or 0.5 %). Exits 1 when one does not. Needs
perfctl[peers].
"""

from __future__ import annotations

import csv
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from accuracy_lines import parser_for
from accuracy_peers import as_counted, by_torch, total, unknown_to_torch

from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import Session, open_session
from perfctl.workloads.tracing import recorder

BATCH = 2
ALLOWED = 0.01
NAME = 67
"""Width of the first column."""
LEFT = {"torch": 0.001, "published": 0.005}
"""What an explanation may leave open."""
GROUPED = "torch counts the weights' gradient of grouped convolutions `groups` times"

TIMM = (
    "resnet50",
    "vgg16",
    "densenet121",
    "inception_v3",
    "inception_resnet_v2",
    "xception41",
    "legacy_seresnet50",
    "skresnet50",
    "resnest50d",
    "res2net50_26w_4s",
    "resnext50_32x4d",
    "resnetv2_50",
    "dpn68b",
    "hrnet_w18_small",
    "dla34",
    "ese_vovnet39b",
    "repvgg_b0",
    "mobileone_s1",
    "regnety_016",
    "nfnet_f0",
    "efficientnet_b0",
    "tf_efficientnetv2_s",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "mnasnet_100",
    "ghostnet_100",
    "mixnet_s",
    "rexnet_100",
    "cspresnet50",
    "tresnet_m",
    "selecsls42b",
    "hgnetv2_b0",
    "convnext_tiny",
    "convnextv2_nano",
    "convmixer_1024_20_ks9_p14",
    "inception_next_tiny",
    "repvit_m1_1",
    "mambaout_tiny",
    "focalnet_tiny_srf",
    "vit_base_patch16_224",
    "deit_small_patch16_224",
    "cait_xxs24_224",
    "beit_base_patch16_224",
    "eva02_tiny_patch14_224",
    "naflexvit_base_patch16_gap",
    "swin_tiny_patch4_window7_224",
    "swinv2_cr_tiny_224",
    "maxvit_tiny_tf_224",
    "coatnet_0_rw_224",
    "mvitv2_tiny",
    "hiera_tiny_224",
    "davit_tiny",
    "xcit_tiny_12_p16_224",
    "levit_128s",
    "volo_d1_224",
    "twins_svt_small",
    "pvt_v2_b1",
    "gcvit_xtiny",
    "edgenext_small",
    "mobilevit_s",
    "poolformer_s12",
    "caformer_s18",
    "efficientformer_l1",
    "efficientvit_b1",
    "fastvit_t8",
    "tiny_vit_5m_224",
    "crossvit_9_240",
    "convit_tiny",
    "pit_s_224",
    "nest_tiny",
    "vit_small_r26_s32_224",
    "halonet26t",
    "lambda_resnet26t",
    "mixer_b16_224",
    "gmlp_s16_224",
)
TRANSFORMERS = (
    "bert",
    "gpt2:class=GPT2LMHeadModel",
    "roberta",
    "t5",
    "vit",
    "distilbert:class=DistilBertForSequenceClassification",
    "clip",
    "whisper",
    "llama:num_hidden_layers=4,class=LlamaForCausalLM",
    "mistral:num_hidden_layers=2",
    "qwen2:num_hidden_layers=2,class=Qwen2ForCausalLM",
    "gemma:num_hidden_layers=2",
    "bart",
    "electra",
    "deberta-v2:num_hidden_layers=6",
    "albert",
    "segformer:class=SegformerForSemanticSegmentation",
    "detr",
    "wav2vec2",
    "hubert",
    "mamba:num_hidden_layers=4",
    "bloom",
    "opt",
    "xlnet",
    "big_bird",
    "fnet:hidden_size=256,intermediate_size=1024",
    "squeezebert",
    "swin",
    "convnext",
    "poolformer",
    "levit",
)
SD_UNET = "UNet2DConditionModel:cross_attention_dim=768,sample_size=64"
DIFFUSERS = (
    "UNet2DModel",
    SD_UNET,
    "AutoencoderKL",
    "VQModel",
    "DiTTransformer2DModel",
    "SD3Transformer2DModel:num_layers=4",
    "AutoencoderTiny",
)
TORCHAUDIO = (
    "wav2vec2_base",
    "hubert_base",
    "wavlm_base",
    "conv_tasnet_base",
    "Wav2Letter",
    "DeepSpeech:n_feature=40",
)
OF_PACKAGE: Mapping[str, tuple[str, ...]] = {
    "timm": tuple(f"timm:{name}" for name in TIMM),
    "transformers": tuple(f"hf:{name}" for name in TRANSFORMERS),
    "diffusers": tuple(f"diffusers:{name}" for name in DIFFUSERS),
    "torchaudio": tuple(f"torchaudio:{name}" for name in TORCHAUDIO),
}
EXTRAS = {"timm": "timm", "transformers": "hf", "diffusers": "diffusers", "torchaudio": "audio"}
INPUTS = {"torchaudio:DeepSpeech:n_feature=40": ("1x50x40",)}
"""Where the library does not say the input: channel x frames x features."""


@dataclass(frozen=True, slots=True)
class Published:
    """Giga multiply-adds of one sample as somebody published them."""

    gmac: float
    rounding: float
    """Half of the last digit."""
    source: str
    counter: str = ""
    """What counted, where it is known to count by other rules: "fvcore", "thop"."""


_ELSEWHERE = {
    "hf:vit": Published(17.5, 0.05, "https://github.com/microsoft/Swin-Transformer, DeiT-B"),
    "hf:swin": Published(4.5, 0.05, "https://github.com/microsoft/Swin-Transformer, Swin-T"),
    "hf:convnext": Published(4.5, 0.05, "https://github.com/facebookresearch/ConvNeXt, ConvNeXt-T"),
    "hf:poolformer": Published(1.8, 0.05, "https://github.com/sail-sg/poolformer, PoolFormer-S12"),
    "hf:levit": Published(0.406, 0.0005, "https://arxiv.org/abs/2104.01136, table 3, LeViT-128"),
    "hf:bert": Published(
        22.5 / 2, 0.025, "https://arxiv.org/abs/2004.02984, table 1: 22.5 GFLOPs for 128 tokens"
    ),
    "diffusers:DiTTransformer2DModel": Published(
        119, 0.5, "https://github.com/facebookresearch/DiT, DiT-XL/2 256 x 256"
    ),
    f"diffusers:{SD_UNET}": Published(
        338.749194240,
        0,
        "https://github.com/Nota-NetsPresso/BK-SDM/issues/53, U-Net of Stable Diffusion 1.4",
        "thop",
    ),
}
"""The default config of each is the model that the source names."""


def available() -> tuple[list[str], list[str]]:
    """(Names of the models whose library can be imported, a line for each library that cannot)."""
    names, lines = [], []
    for package, mine in OF_PACKAGE.items():
        try:
            import_module(package)
        except (ImportError, OSError, RuntimeError) as error:
            why = " ".join(str(error).split())[:120]
            lines.append(
                f"{package}: left out {len(mine)} models ({why}); pip install "
                f"'perfctl[{EXTRAS[package]}]'"
            )
        else:
            names += mine
    return names, lines


def timm_results(folder: Path) -> dict[tuple[str, int], Published]:
    """(Model, image size) -> what timm's benchmark of inference printed; {} without its files.

    timm counts with fvcore (benchmark.py there), one sample, rounded to 0.01.
    """
    found: dict[tuple[str, int], Published] = {}
    for file in sorted(folder.glob("benchmark-infer-*.csv"), reverse=True):
        with file.open(encoding="utf-8", newline="") as text:
            for row in csv.DictReader(text):
                if row["infer_gmacs"]:
                    key = row["model"], int(row["infer_img_size"])
                    found.setdefault(
                        key, Published(float(row["infer_gmacs"]), 0.005, file.name, "fvcore")
                    )
    return found


def published(
    name: str, sizes: Iterable[int], of_timm: Mapping[tuple[str, int], Published]
) -> Published | None:
    """What somebody published about a model with an input of these sizes; None where nothing
    is known."""
    library, _, rest = name.partition(":")
    return of_timm.get((rest, [*sizes][-1])) if library == "timm" else _ELSEWHERE.get(name)


@dataclass
class Row:
    """One model: its line, the lines that explain it, and how each comparison ended."""

    name: str
    cells: str = ""
    lines: list[str] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    """Comparison ("forward", "backward", "published") -> "same", "explained" or "failed"."""


def inputs_of(session: Session, batch: int) -> tuple[Any, ...]:
    shapes = session.facts.inputs
    return recorder.make_zero_inputs(
        [shape.insert_batch(batch) for shape in shapes], [shape.dtype for shape in shapes], "meta"
    )


def compare(name: str, of_timm: Mapping[tuple[str, int], Published]) -> Row:
    row = Row(name)
    try:
        session = open_session(Request(name, INPUTS.get(name, ())))
    except PerfctlError as error:
        row.cells, row.ends = f"{error}", {"forward": "failed"}
        return row
    found, model = session.estimate_batch(BATCH), session.source.model
    if found.problem is not None:
        row.cells, row.ends = found.problem, {"forward": "failed"}
        return row
    model.zero_grad(set_to_none=True)
    theirs = by_torch(model, inputs_of(session, BATCH))
    strange = unknown_to_torch(found)
    more: dict[str, list[tuple[str, int]]] = {"forward": [], "backward": []}
    if theirs.beside.grouped:
        more["backward"].append((GROUPED, -theirs.beside.grouped))
    for kind, flops in strange.items():
        for way, count in zip(more, flops, strict=True):
            more[way] += [(f"torch has no formula for {kind}", count)] if count else []
    pairs = (
        ("forward", found.forward, theirs.forward),
        ("backward", found.backward, theirs.backward),
    )
    for way, own, other in pairs:
        at_least = "at least " if own.is_lower_bound else ""
        row.cells += (
            f"{at_least + format(own.flops, ','):>28}{own.flops / other - 1 if other else 1:>+9.2%}"
        )
        row.ends[way] = settle(row, way, own.flops, other, more[way])
        if own.is_lower_bound:
            row.lines.append(
                f"    {way}: not counted: {', '.join(kind for kind, _ in own.missing)}"
            )
    said = published(name, session.facts.inputs[0].sizes, of_timm)
    if said is not None:
        beside_published(row, session, said)
    return row


def settle(row: Row, way: str, own: int, other: int, more: list[tuple[str, int]]) -> str:
    """ "same" within 1 %; "explained" where what the other counts differently closes the gap."""
    if abs(own - other) <= ALLOWED * other:
        return "same"
    expected = other + sum(count for _, count in more)
    rest = own / expected - 1 if expected > 0 else 1.0
    said = "; ".join(f"{text}: {count:+,} FLOP" for text, count in more) or "no explanation"
    row.lines.append(f"    {way}: {said}; {rest:+.3%} left")
    return "explained" if abs(rest) <= LEFT["torch"] else "failed"


def beside_published(row: Row, session: Session, said: Published) -> None:
    """One sample in eval, as who published counted."""
    session.request = replace(session.request, mode="infer")
    found = session.estimate_batch(1)
    own = found.forward.macs / 1e9
    apart = own / said.gmac - 1
    row.cells += f"{own:>12.4f}{said.gmac:>10.6g}{apart:>+9.2%}"
    if abs(apart) <= ALLOWED:
        row.ends["published"] = "same"
        return
    terms = as_counted(said.counter, session.source.model, inputs_of(session, 1), found)
    theirs = own + total(terms)
    rest = theirs - said.gmac
    text = "; ".join(f"{text} {count:+.4f}" for text, count in terms)
    counted = (
        f"{said.counter} counts otherwise: {text} = {theirs:.4f}"
        if text
        else "no other rule is known"
    )
    row.lines.append(
        f"    published: {counted}, {rest / said.gmac:+.2%} left; theirs is rounded to "
        f"+-{said.rounding:g} ({said.source})"
    )
    good = abs(rest) <= max(LEFT["published"] * said.gmac, said.rounding * 1.0001)
    row.ends["published"] = "explained" if good else "failed"


def summary(rows: list[Row], seconds: float) -> str:
    libraries = Counter(row.name.partition(":")[0] for row in rows)
    parts = []
    for way in ("forward", "backward", "published"):
        ends = Counter(row.ends[way] for row in rows if way in row.ends)
        count = sum(ends.values())
        parts.append(
            f"{way} {count}: {ends['same']} within 1 %, {ends['explained']} explained, "
            f"{ends['failed']} failed"
        )
    models = ", ".join(f"{count} {library}" for library, count in libraries.items())
    return f"{len(rows)} models ({models}). {'. '.join(parts)}. {seconds:.0f} s of CPU"


def main(names: list[str], shared: Path) -> int:
    """Print a line for each model, what explains it, and a last line that counts; 1 when a
    difference has no explanation."""
    begun = time.process_time()
    there, left_out = available()
    folder = shared / "datasets" / "timm"
    of_timm = timm_results(folder)
    if not of_timm:
        left_out.append(
            f"No results of timm in {folder}: no published figures for its models; say where they "
            "are with --shared"
        )
    print("\n".join(left_out))
    print(
        f"{'model':<{NAME}}{'forward FLOP':>28}{'torch':>9}{'backward FLOP':>28}{'torch':>9}"
        f"{'GMAC':>12}{'published':>10}"
    )
    rows = []
    for name in names or there:
        row = compare(name, of_timm)
        rows.append(row)
        print("\n".join([f"{row.name:<{NAME}}{row.cells}", *row.lines]), flush=True)
    print(summary(rows, time.process_time() - begun))
    return int(any("failed" in row.ends.values() for row in rows))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = parser_for(__doc__, "datasets/timm")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="timm:resnet50, hf:bert, ...; all of the table when none is given",
    )
    given = parser.parse_args()
    sys.exit(main(given.names, given.shared))
