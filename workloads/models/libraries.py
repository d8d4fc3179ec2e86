"""Models that a library names, built without weights: ``timm:NAME``, ``hf:NAME``,
``torchaudio:NAME``, ``diffusers:CLASS``.

After the name, ``:key=value,key=value`` overrides its config: ``hf:bert:num_hidden_layers=4``. A
config.json, or a folder with one, takes the place of a name of transformers or diffusers.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest.mock import patch

from perfctl.workloads.models.inputs import (
    infer_diffusers_inputs,
    infer_transformers_inputs,
    make_waveform_inputs,
)
from perfctl.workloads.models.source import (
    MODEL_ERRORS,
    ModelError,
    ModelInputs,
    ModelSource,
    build_model,
)
from perfctl.workloads.spec import get_first_error_line

if TYPE_CHECKING:
    import torch

EXTRAS = {"timm": "timm", "transformers": "hf", "torchaudio": "audio", "diffusers": "diffusers"}
"""Package -> the extra of perfctl that installs it."""
_WORDS = {"True": True, "False": False, "None": None}
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SECONDS = 10
"""How long the hub may take to answer."""

Settings = dict[str, Any]

_PADDED = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
"""Functions of transformers that look into a padding mask, their first parameter."""

_SETTING = "Check the settings after the name; the library's documentation lists them"

_OFF = "random parts off, so that every layer counts: {}"
_RANDOM = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment")
"""Settings that skip layers or mask inputs by chance in training."""


class LibraryReference(NamedTuple):
    """A model as a library names it, or the path of a config."""

    prefix: str
    """A key of LIBRARIES; "" for a path."""
    name: str
    settings: Settings
    """Overrides of its config."""
    config: Path | None
    """The config.json that ``name`` is, or that is in the folder ``name``."""

    @property
    def library(self) -> str:
        """A key of LIBRARIES; of a path, the library of its config. Raises ModelError for a config
        that cannot be read."""
        if self.prefix or self.config is None:
            return self.prefix
        return "diffusers" if "_class_name" in read_model_config(self.config) else "hf"

    def __str__(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.library}:{self.name}{':' if settings else ''}{settings}"


def parse_library_or_config_reference(text: str) -> LibraryReference | None:
    """Return the parts of a library's name or of the path of a config; None for anything else.
    Raises ModelError for overrides that are none."""
    library, colon, name_and_settings = text.partition(":")
    prefix = library if colon and library in LIBRARIES else ""
    name, settings = split_name_and_settings(name_and_settings if prefix else text)
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    config = path if path.suffix == ".json" and path.is_file() else None
    return (
        LibraryReference(prefix, name, settings, config) if prefix or config is not None else None
    )


def build_library_model(
    reference: LibraryReference, device: str, sequence_length: int | None
) -> ModelSource:
    """Return the model that a library makes of a reference. Raises ModelError."""
    if not reference.name:
        library = reference.library
        raise ModelError(f"'{library}:' lacks a model name", f"Write {library}:NAME")
    return LIBRARIES[reference.library](reference, device, sequence_length)


def split_name_and_settings(text: str) -> tuple[str, Settings]:
    """ "bert:hidden_size=512,num_hidden_layers=4" -> ("bert", {"hidden_size": 512,
    "num_hidden_layers": 4})."""
    name, colon, written = text.rpartition(":")
    if not colon or "=" not in written:
        return text, {}
    settings: Settings = {}
    for piece in re.split(r",(?=[\w.]+=)", written):
        key, _, value = piece.partition("=")
        if not re.fullmatch(r"[A-Za-z_][\w.]*", key) or not value:
            raise ModelError(
                f"'{piece}' in '{text}' is not key=value",
                "Use for example hidden_size=512,num_labels=2",
            )
        if key in settings:
            raise ModelError(f"{key} is given twice in '{text}'", "Set it once")
        settings[key] = _parse_setting_value(value)
    return name, settings


def _parse_setting_value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_model_config(path: Path) -> Settings:
    """Return a config.json. Raises ModelError for one that cannot be read."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        text = f"{path} cannot be read as a config ({get_first_error_line(error)})"
        raise ModelError(text, "Use a config.json of transformers or diffusers") from error
    if not isinstance(config, dict):
        raise ModelError(
            f"{path} contains no config", "Use a config.json of transformers or diffusers"
        )
    return cast(Settings, config)


def _import_model_library(package: str) -> Any:
    """Return the package. Raises ModelError when it is missing or does not work with this torch."""
    import torch

    if importlib.util.find_spec(package) is None:
        raise ModelError(f"{package} is not installed", f"pip install 'perfctl[{EXTRAS[package]}]'")
    try:
        return importlib.import_module(package)
    except MODEL_ERRORS as error:
        text = f"{package} cannot be imported ({get_first_error_line(error)})"
        raise ModelError(
            text, f"Install a {package} that fits torch {torch.__version__}", True
        ) from error


def _look_up_lazy_attribute(package: Any, look: Callable[[], Any]) -> Any:
    """Return what ``look`` takes from a package that imports its parts late; None when it is not
    there. Raises ModelError."""
    try:
        return look()
    except AttributeError:
        return None
    except MODEL_ERRORS as error:
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        reason = _format_error_line(first)
        text = f"{package.__name__} {package.__version__} cannot import it ({reason})"
        raise ModelError(
            text, "Install what is missing, or remove the package that does not fit", True
        ) from error


def _make_unknown_name_error(problem: str, name: str, names: Iterable[str]) -> ModelError:
    close = get_close_matches(name, list(names), 5, 0.5)
    return ModelError(
        f"{problem} '{name}'", f"Similar: {', '.join(close)}" if close else "Check the name"
    )


def patch_forward_for_keyword_inputs(
    model: torch.nn.Module, map_inputs_to_names: Callable[..., Mapping[str, Any]]
) -> None:
    """From now on, calls of the model pass its inputs as the parameters that
    ``map_inputs_to_names`` says. The model and its layers keep their types."""
    forward = model.forward

    def forward_by_name(*inputs: Any) -> Any:
        with patch_transformers_value_checks():
            return forward(**map_inputs_to_names(*inputs))

    model.forward = forward_by_name


@contextmanager
def patch_transformers_value_checks() -> Iterator[None]:
    """During the block, transformers takes each sample for one whole sequence, as it is here,
    without looking at values.

    Seen in transformers 5.23: its decoders compare position_ids, to find several sequences packed
    into one sample, and look whether a padding mask is all true; its encoders warn of padding
    tokens, and detection models look in training whether all activations are finite. Here the
    answers are None, yes, no warning, yes; tensors without data have no values to look at. A mask
    does not change the multiply-adds: the whole square of scores is counted.
    """
    import torch

    isfinite = torch.isfinite

    def isfinite_or_true_on_meta(value: torch.Tensor) -> Any:
        if not value.is_meta:
            return isfinite(value)
        return isfinite(value.new_zeros((1,), device="cpu")).expand(value.shape)

    def call_without_padding_mask(
        function: Any, padding_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return function(None, *args, **kwargs)

    masks, models = (
        sys.modules.get(f"transformers.{name}") for name in ("masking_utils", "modeling_utils")
    )
    replacements: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch, "isfinite", isfinite_or_true_on_meta),
        (
            getattr(models, "PreTrainedModel", None),
            "warn_if_padding_and_no_attention_mask",
            lambda *_: None,
        ),
        (masks, "find_packed_sequence_indices", lambda *_: None),
        *(
            (masks, name, partial(call_without_padding_mask, getattr(masks, name, None)))
            for name in _PADDED
        ),
    ]
    with ExitStack() as stack:
        for owner, name, replacement in replacements:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, replacement))
        yield


def _build_timm_model(
    reference: LibraryReference, device: str, sequence_length: int | None
) -> ModelSource:
    timm = _import_model_library("timm")
    name, settings = reference.name, reference.settings
    if not timm.is_model(name):
        raise _make_unknown_name_error("timm has no model", name, timm.list_models())
    model = build_model(
        lambda: timm.create_model(name, pretrained=False, **settings),
        str(reference),
        device,
        _SETTING,
    )
    channels, *sides = timm.data.resolve_data_config(dict(settings), model=model)["input_size"]
    if (side := settings.get("img_size")) is not None:
        sides = (side, side) if isinstance(side, int) else side
    shape = (settings.get("in_chans", channels), *sides)
    return ModelSource(model, str(reference), ModelInputs.from_positional_shapes([shape]))


def _build_transformers_model_with_inputs(
    reference: LibraryReference, device: str, sequence_length: int | None
) -> ModelSource:
    source = build_transformers_model(reference, device)
    return _add_inputs_passed_by_name(
        source, infer_transformers_inputs(source.model, sequence_length)
    )


def _add_inputs_passed_by_name(source: ModelSource, inputs: ModelInputs | None) -> ModelSource:
    """Return the model with its inputs, which it takes by name from now on."""
    if inputs is None:
        return source
    patch_forward_for_keyword_inputs(
        source.model, lambda *values: dict(zip(inputs.tensors, values, strict=False))
    )
    return replace(source, inputs=inputs)


def build_transformers_model(
    reference: LibraryReference, device: str, auto_class_names: tuple[str, ...] = ("AutoModel",)
) -> ModelSource:
    """Return a model of transformers, without its inputs. The first of its notes names its class.
    Raises ModelError.

    auto_class_names: where its class is looked for when neither ``class=`` nor the config names
    one.
    """
    library = _import_model_library("transformers")
    library.logging.set_verbosity_error()
    title, settings = str(reference), dict(reference.settings)
    class_name = settings.pop("class", None)
    raw, origin, files = _load_hf_config(reference, library.CONFIG_MAPPING)
    kind = raw.get("model_type")
    if kind not in library.CONFIG_MAPPING:
        problem = (
            f"its model_type '{kind}' is not in transformers {library.__version__}"
            if kind
            else "it has no model_type"
        )
        raise ModelError(
            f"hf:{reference.name}: {problem}",
            "perfctl does not run code from the hub. Use file.py:factory for such a model",
        )
    config = _make_config_with_settings(library.CONFIG_MAPPING[kind], raw, settings, title)
    text_config = getattr(config, "text_config", None)
    switched_off = sorted(
        {name for part in (config, text_config) for name in _disable_cache_and_random_parts(part)}
    )
    class_name = class_name or next(iter(raw.get("architectures") or ()), None)
    headless = auto_class_names == ("AutoModel",)
    if class_name:
        model_class = _look_up_lazy_attribute(library, lambda: getattr(library, class_name))
    else:
        # An encoder-decoder is in the list of decoders too, as its decoder alone.
        is_encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
        ordered = sorted(
            auto_class_names, key=lambda name: ("Seq2Seq" in name) != is_encoder_decoder
        )
        list_name = next(
            (name for name in ordered if type(config) in getattr(library, name)._model_mapping),
            None,
        )
        if list_name is None:
            kind_of_model = "without a head" if headless else "that generates"
            raise ModelError(
                f"{title}: transformers names no model {kind_of_model} for it",
                f"Set it: {title}:class=NAME",
            )
        model_class = _look_up_lazy_attribute(
            library, lambda: getattr(library, list_name)._model_mapping[type(config)]
        )
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if not hasattr(model_class, "_from_config"):
        problem = f"transformers {library.__version__} has no model class"
        raise _make_unknown_name_error(problem, str(class_name), dir(library))
    model = build_model(lambda: model_class._from_config(config), title, device, _SETTING)
    choice = (
        ""
        if class_name
        else f"{', without a head' if headless else ''} (class=NAME selects another)"
    )
    notes = [f"model: {type(model).__name__}{choice}, from {origin}"]
    if switched_off:
        notes.append(_OFF.format(", ".join(switched_off)))
    return ModelSource(model, title, notes=tuple(notes), files=files)


def _disable_cache_and_random_parts(config: Any) -> Iterator[str]:
    """Set a config for one whole pass: no cache of keys and values, nothing by chance. The names of
    what was by chance."""
    if getattr(config, "use_cache", False):
        config.use_cache = False
    for name in _RANDOM:
        if value := getattr(config, name, None):
            setattr(config, name, type(value)(0))
            yield name


def _make_config_with_settings(kind: Any, raw: Settings, settings: Settings, title: str) -> Any:
    """Return the config with ``settings`` in it, made at once, so that what follows from them
    follows."""
    try:
        base = kind.from_dict(dict(raw))
        for key in settings:
            part = base
            for name in key.split("."):
                if not hasattr(part, name):
                    problem = f"{title}: the config of {kind.model_type} has no"
                    raise _make_unknown_name_error(problem, key, vars(part))
                part = getattr(part, name)
        merged = copy.deepcopy(raw)
        for key in ("dtype", "torch_dtype"):
            merged.pop(key, None)
        for key, value in settings.items():
            *path, last = key.split(".")
            part = merged
            for name in path:
                part = part.setdefault(name, {})
            part[last if path else getattr(base, "attribute_map", {}).get(last, last)] = value
        return kind.from_dict(merged)
    except ModelError:
        raise
    except MODEL_ERRORS as error:
        text = (
            f"{title}: its config is invalid ({type(error).__name__}: {_format_error_line(error)})"
        )
        raise ModelError(
            text, "Check that the sizes fit together, for example heads and hidden_size"
        ) from error


def _format_error_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _load_hf_config(
    reference: LibraryReference, architectures: Mapping[str, Any]
) -> tuple[Settings, str, tuple[Path, ...] | None]:
    """Return (The config, where it comes from, its files or None where it came over the network).
    Raises ModelError."""
    name, path = reference.name, reference.config
    if path is not None:
        return read_model_config(path), str(path), (path,)
    if name in architectures:
        origin = f"the default config of the architecture '{name}', not of a trained model"
        return {"model_type": name}, origin, ()
    if not _HUB_NAME.fullmatch(name) or Path(name).is_dir() or name.endswith(".json"):
        raise ModelError(
            f"hf:{name}: config.json not found",
            "Use a config.json, a folder with one, or a name on the hub",
        )
    config, files = _load_hub_config(name, architectures)
    return config, f"config.json of {name} on the hub", files


def _load_hub_config(
    name: str, architectures: Iterable[str]
) -> tuple[Settings, tuple[Path, ...] | None]:
    """config.json of a model on the hub, from the local cache (its files) or the network. No other
    file is ever loaded."""
    hub = importlib.import_module("huggingface_hub")
    cached = hub.try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        # models--NAME/snapshots/REVISION/config.json; refs/main names the revision
        return read_model_config(Path(cached)), (
            Path(cached),
            Path(cached).parents[2] / "refs" / "main",
        )
    base = name.rpartition("/")[2].lower()
    near = max(
        (kind for kind in architectures if re.match(rf"{re.escape(kind)}(?![a-z])", base)),
        key=len,
        default=None,
    )
    default = f", or hf:{near} for the default config of that architecture" if near else ""
    remedy = f"Use a local config.json, hf:PATH/config.json{default}"
    if hub.constants.HF_HUB_OFFLINE:
        raise ModelError(f"hf:{name}: not in the local cache, and HF_HUB_OFFLINE is set", remedy)
    url = f"{hub.constants.ENDPOINT}/{name}/resolve/main/config.json"
    try:
        headers = hub.utils.build_hf_headers()
        answer = hub.utils.get_session().get(
            url, headers=headers, timeout=_SECONDS, follow_redirects=True
        )
        config = answer.json() if answer.status_code == 200 else None
    except MODEL_ERRORS as error:
        raise ModelError(
            f"hf:{name}: the hub cannot be reached ({_format_error_line(error)})", remedy
        ) from error
    if not isinstance(config, dict):
        text = (
            f"hf:{name}: the hub has no readable config.json of that name (HTTP "
            f"{answer.status_code})"
        )
        raise ModelError(text, remedy)
    return config, None


def _build_torchaudio_model(
    reference: LibraryReference, device: str, sequence_length: int | None
) -> ModelSource:
    models = _import_model_library("torchaudio").models
    name, settings = reference.name, reference.settings
    factory = getattr(models, name, None)
    if name.startswith("_") or not callable(factory):
        names = [key for key in dir(models) if not key.startswith("_")]
        raise _make_unknown_name_error("torchaudio has no model", name, names)
    notes: tuple[str, ...] = ()
    if (drop := "encoder_layer_drop") in inspect.signature(factory).parameters:
        settings, notes = {**settings, drop: 0.0}, (_OFF.format(drop),)
    model = build_model(lambda: factory(**settings), str(reference), device, _SETTING)
    kind = type(model).__name__
    channels = {"Wav2Vec2Model": None, "ConvTasNet": 1, "Wav2Letter": 1, "HDemucs": 2}
    inputs = (
        make_waveform_inputs(channels[kind], sequence_length) if kind in channels else ModelInputs()
    )
    return ModelSource(model, str(reference), inputs, notes=notes)


def _build_diffusers_model(
    reference: LibraryReference, device: str, sequence_length: int | None
) -> ModelSource:
    library = _import_model_library("diffusers")
    library.utils.logging.set_verbosity_error()
    name, path = reference.name, reference.config
    raw = {} if path is None else read_model_config(path)
    if path is not None:
        name = str(raw.get("_class_name", ""))
    model_class: Any = (
        _look_up_lazy_attribute(library, lambda: getattr(library, name)) if name else None
    )
    if not hasattr(model_class, "from_config") or not hasattr(model_class, "forward"):
        names = [key for key in dir(library) if "Model" in key or "Autoencoder" in key]
        missing = name or f"(no _class_name in {path})"
        raise _make_unknown_name_error("diffusers has no model class", missing, names)
    settings = {key: value for key, value in raw.items() if not key.startswith("_")}
    settings |= reference.settings
    model = build_model(lambda: model_class(**settings), str(reference), device, _SETTING)
    origin = path or f"the default config of {name}, not of a trained model"
    files = () if path is None else (path,)
    source = ModelSource(
        model, str(reference), notes=(f"model: {name}, from {origin}",), files=files
    )
    return _add_inputs_passed_by_name(source, infer_diffusers_inputs(model, sequence_length))


LIBRARIES: Mapping[str, Callable[[LibraryReference, str, int | None], ModelSource]] = {
    "timm": _build_timm_model,
    "hf": _build_transformers_model_with_inputs,
    "torchaudio": _build_torchaudio_model,
    "diffusers": _build_diffusers_model,
}
