"""Models that a library names, built without weights: ``timm:NAME``, ``hf:NAME``,
``torchaudio:NAME``, ``diffusers:CLASS``.

After the name, ``:key=value,key=value`` overrides its config: ``hf:bert:num_hidden_layers=4``. A
config.json, or a folder with one, takes the place of a name of transformers or diffusers.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.workloads.models import inputs
from perfctl.workloads.models.source import MODEL_ERRORS, ModelError, Source, build_model
from perfctl.workloads.spec import first_line

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

_RANDOM = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment")
"""Settings that skip layers or mask inputs by chance in training."""


def find_in(library: str, rest: str, device: str, seq: int | None) -> Source:
    """The model ``rest`` of a library in LIBRARIES. Raises ModelError."""
    name, settings = split(rest)
    if not name:
        raise ModelError(f"'{library}:' lacks a model name", f"Write {library}:NAME")
    return LIBRARIES[library](name, settings, device, seq)


def config_file(text: str) -> Path | None:
    """The config.json that ``text`` is, or that is in the folder ``text``; None where it is no
    such path."""
    path = Path(text)
    if path.is_dir() and (path / "config.json").is_file():
        return path / "config.json"
    return path if path.suffix == ".json" and path.is_file() else None


def find_config(reference: str, device: str, seq: int | None) -> Source | None:
    """The model of a local config, with overrides after it; None where ``reference`` is no path
    of one."""
    name, settings = split(reference)
    path = config_file(name)
    if path is None:
        return None
    return (_diffusers if "_class_name" in read_config(path) else _transformers)(
        name, settings, device, seq
    )


def split(text: str) -> tuple[str, Settings]:
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
        settings[key] = _value(value)
    return name, settings


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_config(path: Path) -> Settings:
    """A config.json. Raises ModelError for one that cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        text = f"{path} cannot be read as a config ({first_line(error)})"
        raise ModelError(text, "Use a config.json of transformers or diffusers") from error
    if not isinstance(found, dict):
        raise ModelError(
            f"{path} contains no config", "Use a config.json of transformers or diffusers"
        )
    return found


def _import(package: str) -> Any:
    """The package. Raises ModelError when it is missing or does not work with this torch."""
    import torch

    if importlib.util.find_spec(package) is None:
        raise ModelError(f"{package} is not installed", f"pip install 'perfctl[{EXTRAS[package]}]'")
    try:
        return importlib.import_module(package)
    except MODEL_ERRORS as error:
        text = f"{package} cannot be imported ({first_line(error)})"
        raise ModelError(
            text, f"Install a {package} that fits torch {torch.__version__}", True
        ) from error


def _lazy(package: Any, look: Callable[[], Any]) -> Any:
    """What ``look`` takes from a package that imports its parts late; None when it is not there.
    Raises ModelError."""
    try:
        return look()
    except AttributeError:
        return None
    except MODEL_ERRORS as error:
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        text = f"{package.__name__} {package.__version__} cannot import it ({_in_one_line(first)})"
        raise ModelError(
            text, "Install what is missing, or remove the package that does not fit", True
        ) from error


def _unknown(what: str, name: str, known: Iterable[str]) -> ModelError:
    close = get_close_matches(name, list(known), 5, 0.5)
    return ModelError(
        f"{what} '{name}'", f"Similar: {', '.join(close)}" if close else "Check the name"
    )


def _said(library: str, name: str, settings: Settings) -> str:
    more = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{library}:{name}{':' if more else ''}{more}"


def _source(
    model: torch.nn.Module,
    name: str,
    taken: inputs.Inputs | None,
    *notes: str,
    files: tuple[Path, ...] | None = (),
) -> Source:
    if taken is None:
        return Source(model, name, notes=tuple(filter(None, notes)), files=files)
    if taken.names:
        _call_by_name(model, taken.names)
    both = tuple(filter(None, (*notes, taken.note)))
    return Source(
        model, name, taken.shapes, taken.dtypes, notes=both, sequence=taken.sequence, files=files
    )


def _call_by_name(model: torch.nn.Module, names: tuple[str, ...]) -> None:
    """From now on, ``model(*given)`` passes its inputs by these names. The model and its layers
    keep their types."""
    forward = model.forward

    def by_name(*given: Any) -> Any:
        with one_sequence():
            return forward(**dict(zip(names, given, strict=False)))

    model.forward = by_name


@contextmanager
def one_sequence() -> Iterator[None]:
    """During the block, transformers takes each sample for one whole sequence, as it is here,
    without looking at values.

    Seen in transformers 5.23: its decoders compare position_ids, to find several sequences packed
    into one sample, and look whether a padding mask is all true; its encoders warn of padding
    tokens, and detection models look in training whether all activations are finite. Here the
    answers are None, yes, no warning, yes; tensors without data have no values to look at. A mask
    does not change the multiply-adds: the whole square of scores is counted.
    """
    import torch

    masks, models = (
        sys.modules.get(f"transformers.{name}") for name in ("masking_utils", "modeling_utils")
    )
    base = getattr(models, "PreTrainedModel", None)
    wanted: list[tuple[Any, str, Callable[[Any], Callable[..., Any]]]] = [
        (torch, "isfinite", lambda looks: partial(_finite, looks)),
        (base, "warn_if_padding_and_no_attention_mask", lambda warns: _no_answer),
        (masks, "find_packed_sequence_indices", lambda looks: _no_answer),
        *((masks, name, lambda looks: partial(_without_padding, looks)) for name in _PADDED),
    ]
    known = [
        (owner, name, getattr(owner, name), make)
        for owner, name, make in wanted
        if hasattr(owner, name)
    ]
    for owner, name, looks, make in known:
        setattr(owner, name, make(looks))
    try:
        yield
    finally:
        for owner, name, looks, _ in known:
            setattr(owner, name, looks)


def _no_answer(*_: Any) -> None:
    return None


def _finite(looks: Callable[..., Any], value: torch.Tensor) -> Any:
    """Whether each value is finite: yes, where the tensor has no values."""
    return (
        looks(value.new_zeros((1,), device="cpu")).expand(value.shape)
        if value.is_meta
        else looks(value)
    )


def _without_padding(looks: Callable[..., Any], padding_mask: Any, *more: Any, **named: Any) -> Any:
    return looks(None, *more, **named)


def _timm(name: str, settings: Settings, device: str, seq: int | None) -> Source:
    timm = _import("timm")
    if not timm.is_model(name):
        raise _unknown("timm has no model", name, timm.list_models())
    said = _said("timm", name, settings)
    model = build_model(
        lambda: timm.create_model(name, pretrained=False, **settings), said, device, _SETTING
    )
    size = tuple(timm.data.resolve_data_config(dict(settings), model=model)["input_size"])
    if (side := settings.get("img_size")) is not None:
        size = (size[0], *((side, side) if isinstance(side, int) else side))
    size = (settings.get("in_chans", size[0]), *size[1:])
    return _source(model, said, inputs.Inputs((size,), ("float32",)))


def _transformers(name: str, settings: Settings, device: str, seq: int | None) -> Source:
    model, said, notes, files = transformers_model(name, settings, device)
    return _source(model, said, inputs.of_transformers(model, seq), *notes, files=files)


def transformers_model(
    name: str, settings: Settings, device: str, lists: tuple[str, ...] = ("AutoModel",)
) -> tuple[torch.nn.Module, str, tuple[str, ...], tuple[Path, ...] | None]:
    """(A model of transformers, its name as given, what was assumed, the files it is made from).
    Raises ModelError.

    lists: where its class is looked for when neither ``class=`` nor the config names one.
    """
    library = _import("transformers")
    library.logging.set_verbosity_error()
    said, settings = _said("hf", name, settings), dict(settings)
    wanted = settings.pop("class", None)
    raw, where, files = _hf_config(name, library.CONFIG_MAPPING)
    kind = raw.get("model_type")
    if kind not in library.CONFIG_MAPPING:
        what = (
            f"its model_type '{kind}' is not in transformers {library.__version__}"
            if kind
            else "it has no model_type"
        )
        raise ModelError(
            f"hf:{name}: {what}",
            "perfctl does not run code from the hub. Use file.py:factory for such a model",
        )
    config = _configured(library.CONFIG_MAPPING[kind], raw, settings, said)
    off = sorted(
        {
            name
            for part in (config, getattr(config, "text_config", None))
            for name in _switched_off(part)
        }
    )
    architecture = wanted or next(iter(raw.get("architectures") or ()), None)
    if architecture:
        made = _lazy(library, lambda: getattr(library, architecture))
    else:
        # An encoder-decoder is in the list of decoders too, as its decoder alone.
        ordered = sorted(
            lists,
            key=lambda at: ("Seq2Seq" in at) != bool(getattr(config, "is_encoder_decoder", False)),
        )
        known = next(
            (at for at in ordered if type(config) in getattr(library, at)._model_mapping), None
        )
        if known is None:
            wanted_kind = "without a head" if lists == ("AutoModel",) else "that generates"
            raise ModelError(
                f"{said}: transformers names no model {wanted_kind} for it",
                f"Set it: {said}:class=NAME",
            )
        made = _lazy(library, lambda: getattr(library, known)._model_mapping[type(config)])
    made = made[0] if isinstance(made, tuple) else made
    if made is None or not hasattr(made, "_from_config"):
        raise _unknown(
            f"transformers {library.__version__} has no model class",
            str(architecture),
            dir(library),
        )
    model = build_model(lambda: made._from_config(config), said, device, _SETTING)
    taken = (
        ""
        if architecture
        else f"{', without a head' if lists == ('AutoModel',) else ''} (class=NAME selects another)"
    )
    random = f"random parts off, so that every layer counts: {', '.join(off)}" if off else ""
    return (
        model,
        said,
        tuple(filter(None, (f"model: {type(model).__name__}{taken}, from {where}", random))),
        files,
    )


def _switched_off(config: Any) -> Iterator[str]:
    """Set a config for one whole pass: no cache of keys and values, nothing by chance. The names of
    what was by chance."""
    if getattr(config, "use_cache", False):
        config.use_cache = False
    for name in _RANDOM:
        if value := getattr(config, name, None):
            setattr(config, name, type(value)(0))
            yield name


def _configured(kind: Any, raw: Settings, settings: Settings, said: str) -> Any:
    """The config with ``settings`` in it, made at once, so that what follows from them follows."""
    try:
        base = kind.from_dict(dict(raw))
        for key in settings:
            at = base
            for part in key.split("."):
                if not hasattr(at, part):
                    raise _unknown(f"{said}: the config of {kind.model_type} has no", key, vars(at))
                at = getattr(at, part)
        merged = json.loads(
            json.dumps(
                {key: value for key, value in raw.items() if key not in ("dtype", "torch_dtype")}
            )
        )
        for key, value in settings.items():
            *path, last = key.split(".")
            at = merged
            for part in path:
                at = at.setdefault(part, {})
            at[last if path else getattr(base, "attribute_map", {}).get(last, last)] = value
        return kind.from_dict(merged)
    except ModelError:
        raise
    except MODEL_ERRORS as error:
        text = f"{said}: its config is invalid ({type(error).__name__}: {_in_one_line(error)})"
        raise ModelError(
            text, "Check that the sizes fit together, for example heads and hidden_size"
        ) from error


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _hf_config(
    name: str, known: Mapping[str, Any]
) -> tuple[Settings, str, tuple[Path, ...] | None]:
    """(The config, where it comes from, its files or None where it came over the network).
    Raises ModelError."""
    path = config_file(name)
    if path is not None:
        return read_config(path), str(path), (path,)
    if name in known:
        return (
            {"model_type": name},
            f"the default config of the architecture '{name}', not of a trained model",
            (),
        )
    if not _HUB_NAME.fullmatch(name) or Path(name).is_dir() or name.endswith(".json"):
        raise ModelError(
            f"hf:{name}: config.json not found",
            "Use a config.json, a folder with one, or a name on the hub",
        )
    found, files = _hub_config(name, known)
    return found, f"config.json of {name} on the hub", files


def _hub_config(name: str, known: Iterable[str]) -> tuple[Settings, tuple[Path, ...] | None]:
    """config.json of a model on the hub, from the local cache (its files) or the network. No other
    file is ever loaded."""
    hub = importlib.import_module("huggingface_hub")
    cached = hub.try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        # models--NAME/snapshots/REVISION/config.json; refs/main names the revision
        return read_config(Path(cached)), (Path(cached), Path(cached).parents[2] / "refs" / "main")
    base = name.rpartition("/")[2].lower()
    near = max(
        (kind for kind in known if re.match(rf"{re.escape(kind)}(?![a-z])", base)),
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
        found = answer.json() if answer.status_code == 200 else None
    except MODEL_ERRORS as error:
        raise ModelError(
            f"hf:{name}: the hub cannot be reached ({_in_one_line(error)})", remedy
        ) from error
    if not isinstance(found, dict):
        text = (
            f"hf:{name}: the hub has no readable config.json of that name (HTTP "
            f"{answer.status_code})"
        )
        raise ModelError(text, remedy)
    return found, None


def _torchaudio(name: str, settings: Settings, device: str, seq: int | None) -> Source:
    models = _import("torchaudio").models
    factory, names = (
        getattr(models, name, None),
        [key for key in dir(models) if not key.startswith("_")],
    )
    if name not in names or not callable(factory):
        raise _unknown("torchaudio has no model", name, names)
    said, drop, random = _said("torchaudio", name, settings), "encoder_layer_drop", ""
    if drop in inspect.signature(factory).parameters:
        settings, random = (
            {**settings, drop: 0.0},
            f"random parts off, so that every layer counts: {drop}",
        )
    model = build_model(lambda: factory(**settings), said, device, _SETTING)
    kind = type(model).__name__
    channels = {"Wav2Vec2Model": None, "ConvTasNet": 1, "Wav2Letter": 1, "HDemucs": 2}
    return _source(
        model, said, inputs.of_waveform(channels[kind], seq) if kind in channels else None, random
    )


def _diffusers(name: str, settings: Settings, device: str, seq: int | None) -> Source:
    library = _import("diffusers")
    library.utils.logging.set_verbosity_error()
    said, path = _said("diffusers", name, settings), config_file(name)
    raw = read_config(path) if path is not None else {}
    wanted = str(raw.get("_class_name", "")) if path is not None else name
    made = _lazy(library, lambda: getattr(library, wanted)) if wanted else None
    if made is None or not hasattr(made, "from_config") or not hasattr(made, "forward"):
        names = [key for key in dir(library) if "Model" in key or "Autoencoder" in key]
        raise _unknown(
            "diffusers has no model class", wanted or f"(no _class_name in {path})", names
        )
    where = (
        str(path) if path is not None else f"the default config of {wanted}, not of a trained model"
    )
    given = {key: value for key, value in raw.items() if not key.startswith("_")} | settings
    model = build_model(lambda: made(**given), said, device, _SETTING)
    files = () if path is None else (path,)
    return _source(
        model, said, inputs.of_diffusers(model, seq), f"model: {wanted}, from {where}", files=files
    )


LIBRARIES: Mapping[str, Callable[[str, Settings, str, int | None], Source]] = {
    "timm": _timm,
    "hf": _transformers,
    "torchaudio": _torchaudio,
    "diffusers": _diffusers,
}
