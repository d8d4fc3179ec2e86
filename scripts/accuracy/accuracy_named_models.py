"""The models of ``accuracy_named.py``, and what others published about them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

TIMM = (
    "resnet50", "vgg16", "densenet121", "inception_v3", "inception_resnet_v2", "xception41", "legacy_seresnet50", "skresnet50",
    "resnest50d", "res2net50_26w_4s", "resnext50_32x4d", "resnetv2_50", "dpn68b", "hrnet_w18_small", "dla34", "ese_vovnet39b",
    "repvgg_b0", "mobileone_s1", "regnety_016", "nfnet_f0", "efficientnet_b0", "tf_efficientnetv2_s", "mobilenetv2_100",
    "mobilenetv3_large_100", "mnasnet_100", "ghostnet_100", "mixnet_s", "rexnet_100", "cspresnet50", "tresnet_m", "selecsls42b",
    "hgnetv2_b0", "convnext_tiny", "convnextv2_nano", "convmixer_1024_20_ks9_p14", "inception_next_tiny", "repvit_m1_1",
    "mambaout_tiny", "focalnet_tiny_srf", "vit_base_patch16_224", "deit_small_patch16_224", "cait_xxs24_224",
    "beit_base_patch16_224", "eva02_tiny_patch14_224", "naflexvit_base_patch16_gap", "swin_tiny_patch4_window7_224",
    "swinv2_cr_tiny_224", "maxvit_tiny_tf_224", "coatnet_0_rw_224", "mvitv2_tiny", "hiera_tiny_224", "davit_tiny",
    "xcit_tiny_12_p16_224", "levit_128s", "volo_d1_224", "twins_svt_small", "pvt_v2_b1", "gcvit_xtiny", "edgenext_small",
    "mobilevit_s", "poolformer_s12", "caformer_s18", "efficientformer_l1", "efficientvit_b1", "fastvit_t8", "tiny_vit_5m_224",
    "crossvit_9_240", "convit_tiny", "pit_s_224", "nest_tiny", "vit_small_r26_s32_224", "halonet26t", "lambda_resnet26t",
    "mixer_b16_224", "gmlp_s16_224",
)  # fmt: skip
TRANSFORMERS = (
    "bert", "gpt2:class=GPT2LMHeadModel", "roberta", "t5", "vit", "distilbert:class=DistilBertForSequenceClassification", "clip",
    "whisper", "llama:num_hidden_layers=4,class=LlamaForCausalLM", "mistral:num_hidden_layers=2",
    "qwen2:num_hidden_layers=2,class=Qwen2ForCausalLM", "gemma:num_hidden_layers=2", "bart", "electra",
    "deberta-v2:num_hidden_layers=6", "albert", "segformer:class=SegformerForSemanticSegmentation", "detr", "wav2vec2", "hubert",
    "mamba:num_hidden_layers=4", "bloom", "opt", "xlnet", "big_bird", "fnet:hidden_size=256,intermediate_size=1024",
    "squeezebert", "swin", "convnext", "poolformer", "levit",
)  # fmt: skip
SD_UNET = "UNet2DConditionModel:cross_attention_dim=768,sample_size=64"
DIFFUSERS = ("UNet2DModel", SD_UNET, "AutoencoderKL", "VQModel", "DiTTransformer2DModel", "SD3Transformer2DModel:num_layers=4",
             "AutoencoderTiny")  # fmt: skip
TORCHAUDIO = ("wav2vec2_base", "hubert_base", "wavlm_base", "conv_tasnet_base", "Wav2Letter", "DeepSpeech:n_feature=40")
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
    "hf:bert": Published(22.5 / 2, 0.025, "https://arxiv.org/abs/2004.02984, table 1: 22.5 GFLOPs for 128 tokens"),
    "diffusers:DiTTransformer2DModel": Published(119, 0.5, "https://github.com/facebookresearch/DiT, DiT-XL/2 256 x 256"),
    f"diffusers:{SD_UNET}": Published(
        338.749194240, 0, "https://github.com/Nota-NetsPresso/BK-SDM/issues/53, U-Net of Stable Diffusion 1.4", "thop"
    ),
}  # fmt: skip
"""The default config of each is the model that the source names."""


def available() -> tuple[list[str], list[str]]:
    """(Names of the models whose library can be imported, a line for each library that cannot)."""
    names, lines = [], []
    for package, mine in OF_PACKAGE.items():
        try:
            import_module(package)
        except (ImportError, OSError, RuntimeError) as error:
            why = " ".join(str(error).split())[:120]
            lines.append(f"{package}: left out {len(mine)} models ({why}); pip install 'perfctl[{EXTRAS[package]}]'")
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
                    found.setdefault(key, Published(float(row["infer_gmacs"]), 0.005, file.name, "fvcore"))
    return found


def published(name: str, sizes: Iterable[int], of_timm: Mapping[tuple[str, int], Published]) -> Published | None:
    """What somebody published about a model with an input of these sizes; None where nothing is known."""
    library, _, rest = name.partition(":")
    return of_timm.get((rest, [*sizes][-1])) if library == "timm" else _ELSEWHERE.get(name)
