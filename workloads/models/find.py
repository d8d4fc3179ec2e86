"""Build a model without data from a name: ``mnist_cnn``, ``mnist_cnn:conv2=32,128,5,1``,
``torchvision:resnet152`` or ``resnet152``, ``resnet:depth=26,width=32``, ``timm:NAME`` and the
other libraries of ``libraries``, ``config.json``, ``package.module:factory``, ``file.py:factory``.
torch is imported when a model is built.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from perfctl.workloads.models import WORKLOADS, families
from perfctl.workloads.models.inputs import infer_inputs_from_first_layer
from perfctl.workloads.models.libraries import (
    LIBRARIES,
    build_library_model,
    parse_library_or_config_reference,
)
from perfctl.workloads.models.plan import parse_model_family, plan_model
from perfctl.workloads.models.source import (
    MODEL_ERRORS,
    ModelError,
    ModelInputs,
    ModelSource,
    build_model,
)
from perfctl.workloads.models.torchvision import (
    build_torchvision_without_weights,
    find_torchvision_input_shape,
)
from perfctl.workloads.spec import (
    RaisingArgumentParser,
    SpecError,
    WorkloadError,
    WorkloadOptions,
    add_declared_options,
    get_first_error_line,
)

if TYPE_CHECKING:
    import torch


def build_referenced_model(
    reference: str,
    device: str = "meta",
    model_arguments: Sequence[str] = (),
    sequence_length: int | None = None,
) -> ModelSource:
    """Build the model ``reference`` on ``device``; ``model_arguments``: options of a built-in
    workload. Raises ModelError.

    sequence_length: length of its sequences (tokens, samples of a waveform), for a library's model;
    None takes a usual one.
    """
    if (built_in := split_workload_reference(reference)) is not None:
        name, options = built_in
        return replace(
            _build_from_workload(name, device, (*model_arguments, *options)), name=reference
        )
    if parse_model_family(reference) is not None:
        return _build_from_family(reference, device)
    if (reference_parts := parse_library_or_config_reference(reference)) is not None:
        return build_library_model(reference_parts, device, sequence_length)
    module, colon, factory = reference.rpartition(":")
    if module == "torchvision" or (not colon and _is_torchvision_model_name(reference)):
        return _build_from_torchvision(factory, device)
    if not colon:
        libraries = f"torchvision:NAME, {':NAME, '.join(LIBRARIES)}:NAME"
        remedy = (
            f"Use one of these, {libraries}, resnet:depth=26,width=32 (or vgg, inception, mlp), "
            "package.module:factory or file.py:factory"
        )
        raise ModelError(
            f"unknown model '{reference}'; built-in models: {', '.join(WORKLOADS)}", remedy
        )
    model = build_model(_load_model_factory(module, factory), reference, device)
    return ModelSource(model, reference, infer_inputs_from_first_layer(model))


def _is_torchvision_model_name(name: str) -> bool:
    with suppress(ImportError):
        from torchvision.models import list_models

        return name in list_models()
    return False


def split_workload_reference(reference: str) -> tuple[str, tuple[str, ...]] | None:
    """Return ("mnist_cnn", its own options as words of a command line) for a built-in workload;
    None for anything else.

    Of "mnist_cnn:conv2=32,128,5,1" the options are "--conv2=32,128,5,1": a value may have commas.
    """
    name, colon, settings = reference.partition(":")
    if name not in WORKLOADS or (
        colon
        and (parse_model_family(name) or name in ("torchvision", "families") or "=" not in settings)
    ):
        return None
    options: list[str] = []
    for piece in filter(None, (part.strip() for part in settings.split(","))):
        key, equals, value = piece.partition("=")
        if equals or not options:
            options.append(f"--{key.strip().replace('_', '-')}{equals}{value.strip()}")
        else:
            options[-1] += f",{piece}"
    return name, tuple(options)


def _build_from_workload(name: str, device: str, model_arguments: Sequence[str]) -> ModelSource:
    import torch

    workload, parser = WORKLOADS[name], RaisingArgumentParser(add_help=False)
    parameters = [option.name for option in fields(workload.Own)]
    for option in model_arguments:
        parameter = option.removeprefix("--").partition("=")[0].replace("-", "_")
        if option.startswith("--") and parameter not in parameters:
            problem = f"{name} has no parameter '{parameter}'"
            raise ModelError(problem, f"It has {', '.join(parameters) or 'none'}")
    try:
        add_declared_options(parser, workload.Own)
        settings = workload.Own(**vars(parser.parse_args(list(model_arguments))))
        if hasattr(settings, "samples"):
            settings.samples = min(settings.samples, 4)  # only the shape of one is needed
        parts = workload.build(WorkloadOptions(batch_size=1), settings)
    except (WorkloadError, SpecError) as error:
        problem = str(error).removeprefix("argument --")
        raise ModelError(f"{name}: {problem}", "Or use torchvision:NAME") from error
    (shape, dtype), target = [
        (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for tensor in map(torch.as_tensor, parts.train_data[0])
    ]
    inputs = ModelInputs.from_positional_shapes([shape], dtype)
    optimizer = None if parts.optimizer is None else _describe_optimizer(parts.optimizer)
    return ModelSource(parts.model.to(device), name, inputs, parts.loss, target, optimizer)


def _build_from_family(reference: str, device: str) -> ModelSource:
    from torch.nn.functional import cross_entropy

    try:
        planned = plan_model(reference)
    except SpecError as error:
        raise ModelError(str(error), "For example vgg:depth=11,kernel=5") from error
    model = build_model(lambda: families.build_planned_model(planned), planned.spec, device)
    optimizer = _describe_optimizer(families.make_optimizer(planned, model))
    inputs = ModelInputs.from_positional_shapes([planned.input_shape])
    return ModelSource(model, planned.spec, inputs, cross_entropy, ((), "int64"), optimizer)


def _describe_optimizer(optimizer: torch.optim.Optimizer) -> tuple[str, dict[str, Any]]:
    """Its class and settings, without torch's choice of implementation (foreach)."""
    return type(optimizer).__name__, {
        key: value for key, value in optimizer.defaults.items() if key != "foreach"
    }


def _build_from_torchvision(name: str, device: str) -> ModelSource:
    try:
        from torchvision import models
    except ImportError as error:
        text = f"torchvision cannot be imported ({get_first_error_line(error)})"
        raise ModelError(text, "pip install 'perfctl[torch]'") from error
    if name not in models.list_models():
        close = get_close_matches(name, models.list_models(), 5)
        remedy = f"Similar: {', '.join(close)}" if close else "Check the name"
        raise ModelError(f"torchvision has no model '{name}'", remedy)
    size = find_torchvision_input_shape(name)
    images = 2 if name.startswith("raft") else 1
    inputs = ModelInputs.from_positional_shapes((size,) * images if size else ())
    return ModelSource(
        build_torchvision_without_weights(name, device), f"torchvision:{name}", inputs
    )


def _load_model_factory(path: str, name: str) -> Callable[[], Any]:
    import torch

    module = load_python_file(Path(path)) if path.endswith(".py") else _import_model_module(path)
    factory = getattr(module, name, None)
    if factory is None:
        names = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_")
        ][:8]
        remedy = f"It has: {', '.join(names)}" if names else "Check the name"
        raise ModelError(f"{path} has no '{name}'", remedy)
    if isinstance(factory, torch.nn.Module) or not callable(factory):
        return lambda: factory
    return factory  # type: ignore[no-any-return]


def _import_model_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except MODEL_ERRORS as error:
        problem = f"{type(error).__name__}: {get_first_error_line(error)}"
        text = f"module {name} cannot be imported ({problem})"
        raise ModelError(text, "Check the name and the environment", True) from error


def load_python_file(path: Path) -> ModuleType:
    """Run a Python file as a module; its own folder comes first where it imports.
    Raises ModelError."""
    if not path.is_file():
        raise ModelError(f"file {path} does not exist", "Check the path")
    spec = importlib.util.spec_from_file_location(f"perfctl_model_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except MODEL_ERRORS as error:
        text = f"{path} cannot be run ({type(error).__name__}: {get_first_error_line(error)})"
        raise ModelError(text, "Run it with python to see the traceback", True) from error
    return module
