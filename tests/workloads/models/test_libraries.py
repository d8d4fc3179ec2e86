"""Models that a library names: how a name is read, what a config says of the inputs, and what is
missing. Stand-ins for libraries."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.workloads.models import inputs, libraries
from perfctl.workloads.models.decoder import add_lm_head_class, read_decoder_facts
from perfctl.workloads.models.find import build_referenced_model
from perfctl.workloads.models.libraries import split_name_and_settings
from perfctl.workloads.models.source import ModelError

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")


def test_overrides_follow_the_last_colon_of_a_name():
    assert split_name_and_settings("bert:hidden_size=512,num_hidden_layers=4") == (
        "bert",
        {"hidden_size": 512, "num_hidden_layers": 4},
    )
    assert split_name_and_settings("./a:b/config.json") == ("./a:b/config.json", {})
    _, settings = split_name_and_settings(
        "x:depths=[2,2,6,2],act=gelu,bias=False,text_config.vocab_size=9,drop=0.5,none=None"
    )
    wanted = {
        "depths": [2, 2, 6, 2],
        "act": "gelu",
        "bias": False,
        "text_config.vocab_size": 9,
        "drop": 0.5,
        "none": None,
    }
    assert settings == wanted


@pytest.mark.parametrize("text", ["bert:=3", "bert:a=", "bert:a=1,a=2", "bert:a b=1"])
def test_an_override_that_is_no_pair_is_refused(text):
    with pytest.raises(ModelError):
        split_name_and_settings(text)


@pytest.mark.parametrize(
    ("library", "package", "extra"),
    [
        ("timm", "timm", "timm"),
        ("hf", "transformers", "hf"),
        ("torchaudio", "torchaudio", "audio"),
        ("diffusers", "diffusers", "diffusers"),
    ],
)
def test_a_missing_library_names_the_extra_that_brings_it(library, package, extra, monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == package else known(name, *more),
    )
    with pytest.raises(ModelError, match=f"{package} is not installed") as caught:
        build_referenced_model(f"{library}:anything")
    assert caught.value.remedy == f"pip install 'perfctl[{extra}]'"


def test_a_library_that_does_not_fit_this_torch_says_so(tmp_path, monkeypatch):
    (tmp_path / "torchaudio.py").write_text("raise RuntimeError('compiled with another CUDA')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    with pytest.raises(
        ModelError, match=r"torchaudio cannot be imported .compiled with another CUDA"
    ) as caught:
        build_referenced_model("torchaudio:wav2vec2_base")
    assert torch.__version__ in caught.value.remedy


class Words(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(10, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, 3)

    def forward(self, attention_mask=None, input_ids=None):
        return self.head(self.words(input_ids))

    @classmethod
    def _from_config(cls, config):
        return cls(config)


class Config(SimpleNamespace):
    model_type, attribute_map = "words", {"hidden_size": "hidden_size"}

    @classmethod
    def from_dict(cls, raw):
        one = cls(**({"hidden_size": 4, "max_position_embeddings": 64} | raw))
        if one.hidden_size % 2:
            raise ValueError("hidden_size must be even")
        return one


@pytest.fixture
def transformers(monkeypatch):
    """A library with one architecture, ``words``."""
    library: Any = ModuleType("transformers")
    library.__version__ = "5.0"
    library.__spec__ = importlib.util.spec_from_loader("transformers", None)
    library.logging = SimpleNamespace(set_verbosity_error=lambda: None)
    library.CONFIG_MAPPING = {"words": Config}
    library.AutoModel = SimpleNamespace(_model_mapping={Config: Words})
    library.Words = Words
    monkeypatch.setitem(sys.modules, "transformers", library)


@pytest.mark.usefixtures("transformers")
def test_an_architecture_is_its_default_config_and_says_so():
    found = build_referenced_model("hf:words", sequence_length=7)
    assert (found.inputs.shapes, found.inputs.dtypes, found.inputs.sequence) == (
        ((7,),),
        ("int64",),
        7,
    )
    assert {tensor.device.type for tensor in found.model.parameters()} == {"meta"}
    assert "default config of the architecture 'words', not of a trained model" in found.notes[0]
    assert tuple(found.model(torch.zeros(2, 7, dtype=torch.int64, device="meta")).shape) == (
        2,
        7,
        3,
    )


@pytest.mark.usefixtures("transformers")
def test_a_sequence_is_no_longer_than_the_positions_of_the_model():
    assert build_referenced_model("hf:words").inputs.shapes == ((64,),)
    assert build_referenced_model("hf:words:max_position_embeddings=4096").inputs.shapes == (
        (128,),
    )


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("name", ["hf:{}", "hf:{}/config.json", "{}", "{}/config.json"])
def test_a_local_config_is_taken_with_overrides(name, tmp_path):
    config = {
        "model_type": "words",
        "hidden_size": 6,
        "architectures": ["Words"],
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain, wider = (
        build_referenced_model(name.format(tmp_path)),
        build_referenced_model(f"{name.format(tmp_path)}:hidden_size=8"),
    )
    widths = [model.model.get_parameter("head.weight").shape[1] for model in (plain, wider)]
    assert widths == [6, 8]


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:words:hidden_sise=8", "has no 'hidden_sise'"),
        ("hf:words:hidden_size=3", "hidden_size must be even"),
        ("hf:words:class=Nothing", "no model class 'Nothing'"),
        ("hf:", "lacks a model name"),
        ("hf:./nowhere/config.json", "config.json not found"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(name, said):
    with pytest.raises(ModelError, match=said):
        build_referenced_model(name)


@pytest.mark.usefixtures("transformers")
def test_a_config_of_an_unknown_type_runs_no_code_of_the_hub(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "strange", "auto_map": {"AutoModel": "a.B"}})
    )
    with pytest.raises(ModelError, match="'strange' is not in transformers"):
        build_referenced_model(f"hf:{tmp_path}")


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (None, "the hub cannot be reached .no route"),
        (404, "no readable config.json of that name .HTTP 404"),
        (200, ""),
    ],
)
def test_of_the_hub_only_the_config_is_read(status, said, monkeypatch):
    asked: list[str] = []

    def get(url, **_):
        asked.append(url)
        if status is None:
            raise OSError("no route")
        return SimpleNamespace(
            status_code=status, json=lambda: {"model_type": "words", "hidden_size": 10}
        )

    hub: Any = ModuleType("huggingface_hub")
    hub.try_to_load_from_cache = lambda name, file: None
    hub.constants = SimpleNamespace(HF_HUB_OFFLINE=False, ENDPOINT="https://hub")
    session = SimpleNamespace(get=get)
    hub.utils = SimpleNamespace(get_session=lambda: session, build_hf_headers=dict)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    if status == 200:
        assert build_referenced_model("hf:some/words-base").model.get_parameter(
            "head.weight"
        ).shape == (3, 10)
    else:
        with pytest.raises(ModelError, match=said) as caught:
            build_referenced_model("hf:some/words-base")
        assert "hf:words for the default config" in caught.value.remedy, "offered, not taken"
    assert asked == ["https://hub/some/words-base/resolve/main/config.json"]


def test_a_broken_config_says_where(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        libraries.read_model_config(path)


def test_a_length_without_a_sequence_is_refused():
    with pytest.raises(UsageError, match="`seq` 5: mnist_cnn has no sequence input"):
        estimate_model_for_batches(Request("mnist_cnn", seq=5))


def _with_forward(text, **config):
    scope: dict[str, Any] = {}
    exec(f"class Model:\n    def forward(self, {text}): ...", scope)
    model = scope["Model"]()
    model.config = SimpleNamespace(**config)
    return model


def test_the_config_says_what_an_image_a_waveform_and_a_spectrum_are():
    image = inputs.infer_transformers_inputs(
        _with_forward("pixel_values", image_size=384, num_channels=1), None
    )
    assert image is not None
    assert image.shapes == ((1, 384, 384),)
    wave = inputs.infer_transformers_inputs(_with_forward("input_values"), 400)
    assert wave is not None
    assert (wave.shapes, wave.sequence) == (((400,),), 400)
    whisper = _with_forward(
        "input_features, decoder_input_ids",
        num_mel_bins=80,
        max_source_positions=1500,
        max_target_positions=448,
        is_encoder_decoder=True,
    )
    spectrum = inputs.infer_transformers_inputs(whisper, 10)
    assert spectrum is not None
    assert spectrum.shapes == ((80, 3000), (10,)), "two frames of the spectrum make one position"
    assert spectrum.dtypes == ("float32", "int64")
    assert inputs.infer_transformers_inputs(_with_forward("graph"), None) is None, (
        "nothing is guessed"
    )


def test_a_language_model_with_pictures_is_taken_with_text_alone_and_says_so():
    model = _with_forward("input_ids, pixel_values", image_token_id=3, max_position_embeddings=2048)
    found = inputs.infer_transformers_inputs(model, None)
    assert found is not None
    assert list(found.tensors) == ["input_ids"]
    assert "text alone" in found.note
    assert "2,048 positions" not in found.note
    longer = inputs.infer_transformers_inputs(model, 5000)
    assert longer is not None
    assert longer.note.endswith(". The model was made for 2,048 positions")


def test_a_diffusion_model_takes_noise_time_and_text():
    model = _with_forward("sample, timestep, encoder_hidden_states")
    model.config = {"in_channels": 4, "sample_size": 32, "cross_attention_dim": 768}
    found = inputs.infer_diffusers_inputs(model, None)
    assert found is not None
    assert found.shapes == ((4, 32, 32), (), (77, 768))
    other = _with_forward("sample, something_else")
    other.config = {"in_channels": 4}
    assert inputs.infer_diffusers_inputs(other, None) is None, "an input that nothing describes"


FILE = """
from torch import nn
def mlp(): return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
def lenet(): return nn.Sequential(nn.Conv2d(1, 6, 5), nn.Flatten(), nn.Linear(6 * 24 * 24, 10))
def pooled(): return nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10))
def attention(): return nn.TransformerEncoderLayer(8, 2)
def mixed(): return nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 8))
"""


def test_the_first_layer_says_the_input_where_it_can(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FILE)
    shapes = {
        name: build_referenced_model(f"{path}:{name}").inputs.shapes
        for name in ("mlp", "lenet", "pooled", "attention", "mixed")
    }
    assert shapes["mlp"] == ((8,),)
    assert shapes["lenet"] == ((1, 28, 28),), (
        "the only size with which 6 x 24 x 24 features come out"
    )
    assert shapes["pooled"] == ((3, 224, 224),)
    assert shapes["attention"] == shapes["mixed"] == (), "a sequence's length is not in the weights"
    assert "28 x 28 assumed" in build_referenced_model(f"{path}:lenet").inputs.note
    assert build_referenced_model(f"{path}:lenet").model.training, (
        "trying sizes changes nothing of the model"
    )


class Padded:
    def warn_if_padding_and_no_attention_mask(self, tokens, mask):
        raise AssertionError("it looked at the tokens")


def test_checks_of_values_are_answered_during_a_forward_and_asked_again_after_it(monkeypatch):
    base: Any = ModuleType("transformers.modeling_utils")
    base.PreTrainedModel = Padded
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", base)
    asks, data = torch.isfinite, torch.ones(2, 3, device="meta")
    with libraries.patch_transformers_value_checks():
        assert torch.isfinite(data).all()
        assert torch.isfinite(data).shape == (2, 3)
        assert not torch.isfinite(torch.tensor(float("inf")))
        Padded().warn_if_padding_and_no_attention_mask(data, None)
    assert torch.isfinite is asks
    with pytest.raises(AssertionError):
        Padded().warn_if_padding_and_no_attention_mask(data, None)


def test_timm_says_its_image_and_takes_another():
    pytest.importorskip("timm", reason="perfctl[timm]")
    found, larger = (
        build_referenced_model("timm:vit_tiny_patch16_224:depth=1"),
        build_referenced_model("timm:vit_tiny_patch16_224:depth=1,img_size=384"),
    )
    assert (found.inputs.shapes, larger.inputs.shapes) == (((3, 224, 224),), ((3, 384, 384),))
    tokens, width = 14 * 14 + 1, 192
    block = tokens * 12 * width * width + 2 * tokens * tokens * width
    macs = 14 * 14 * 3 * 16 * 16 * width + block + width * 1000
    counted = estimate_model_for_batches(
        Request("timm:vit_tiny_patch16_224:depth=1", mode="infer")
    ).batches[1]
    assert counted.forward.macs == macs
    with pytest.raises(ModelError, match="timm has no model 'vit_tini"):
        build_referenced_model("timm:vit_tini_patch16_224")


def _gpt2(tokens, width=64):
    layer = tokens * 12 * width * width + 2 * tokens * tokens * width
    return 2 * layer + tokens * width * 100


def _bart(tokens, width=32):
    attention = 4 * tokens * width * width + 2 * tokens * tokens * width
    return 3 * attention + 2 * (2 * tokens * width * 64)  # encoder 1, decoder 2 attentions


def _deberta(tokens, width=32):
    weights = 2 * (4 * width * width + 2 * width * 64)
    return tokens * weights + 2 * tokens * tokens * (width + width)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "macs"),
    [
        (
            "gpt2:class=GPT2LMHeadModel,num_hidden_layers=2,hidden_size=64,num_attention_heads=4,"
            "vocab_size=100",
            _gpt2,
        ),
        (
            "bart:encoder_layers=1,decoder_layers=1,d_model=32,encoder_attention_heads=2,"
            "decoder_attention_heads=2,encoder_ffn_dim=64,decoder_ffn_dim=64,vocab_size=50",
            _bart,
        ),
        (
            "deberta-v2:num_hidden_layers=2,hidden_size=32,num_attention_heads=2,"
            "intermediate_size=64",
            _deberta,
        ),
    ],
    ids=["a mask reads its positions", "a padding mask is all true", "it looks for padding"],
)
def test_a_model_of_transformers_that_looks_at_values_is_counted_by_hand(name, macs):
    pytest.importorskip("transformers", reason="perfctl[hf]")
    counted = estimate_model_for_batches(Request(f"hf:{name}", seq=16), (2,)).batches[2]
    assert (counted.problem, counted.forward.macs) == (None, 2 * macs(16))
    if macs is _gpt2:
        assert counted.backward.macs == 2 * counted.forward.macs


def test_an_encoder_decoder_without_a_class_is_refused_as_one():
    pytest.importorskip("transformers", reason="perfctl[hf]")
    name = add_lm_head_class(
        "hf:t5:d_model=32,d_kv=8,d_ff=64,num_layers=1,num_heads=4,vocab_size=50"
    )
    assert name.endswith(",class=T5ForConditionalGeneration")
    with pytest.raises(ModelError, match="an encoder-decoder, and MFU formulas apply to decoder-"):
        read_decoder_facts(build_referenced_model(name, "meta").model, name)


def test_a_model_of_diffusers_takes_a_config_and_says_what_it_was_given(tmp_path):
    pytest.importorskip("diffusers", reason="perfctl[diffusers]")
    config = {
        "_class_name": "UNet2DModel",
        "sample_size": 16,
        "block_out_channels": [32, 32],
        "down_block_types": ["DownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "UpBlock2D"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in (f"diffusers:{tmp_path}", str(tmp_path)):
        found = build_referenced_model(name)
        assert (type(found.model).__name__, found.inputs.shapes) == (
            "UNet2DModel",
            ((3, 16, 16), ()),
        )
        assert "timestep int64 batch" in found.inputs.note
    with pytest.raises(ModelError, match="diffusers has no model class 'UNet2D'") as caught:
        build_referenced_model("diffusers:UNet2D")
    assert "UNet2DModel" in caught.value.remedy


def test_layers_that_torchaudio_skips_by_chance_all_count(monkeypatch):
    library: Any = ModuleType("torchaudio")
    library.__spec__ = importlib.util.spec_from_loader("torchaudio", None)
    drops = []

    def base(encoder_layer_drop=0.1):
        drops.append(encoder_layer_drop)
        return nn.Linear(2, 2)

    library.models = SimpleNamespace(base=base)
    monkeypatch.setitem(sys.modules, "torchaudio", library)
    assert "encoder_layer_drop" in build_referenced_model("torchaudio:base").notes[0]
    assert drops == [0.0]
