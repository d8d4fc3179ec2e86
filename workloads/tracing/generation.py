"""Trace one step of generation: the prompt, or one more token after a cache of keys and values.
Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from perfctl.records.paper import CacheTensor, StepTrace, TracedStep
from perfctl.records.precision import PRECISIONS
from perfctl.workloads.models.generation import TextGenerator
from perfctl.workloads.models.source import MODEL_ERRORS
from perfctl.workloads.tracing import composites, operations, recorder
from perfctl.workloads.tracing.traffic import ReadTrafficCounter


@dataclass(frozen=True, slots=True)
class GenerationStepTracer:
    """Traces the steps of one model at one batch size. Inputs are zeros; shapes alone matter."""

    generator: TextGenerator
    batch: int
    prompt: int
    device: str = "meta"
    cached: bool = True
    """False: no cache, so every step takes all tokens so far."""
    precision: str = "fp32"
    """A name of PRECISIONS that has no autocast."""

    def __post_init__(self) -> None:
        if (weights := PRECISIONS[self.precision].weights) is not None:
            self.generator.model.to(getattr(torch, weights))

    def trace_prefill(self) -> StepTrace:
        """Prefill: the whole prompt in one call."""
        generator = self.generator
        tokens = generator.count_decoder_prefill_tokens(self.prompt)
        return self._trace_call(
            generator.make_call_arguments(
                self.batch, tokens, self.prompt, self.device, use_cache=self.cached
            )
        )

    def trace_decode_step(self, token_number: int) -> StepTrace:
        """Return the step whose token is number ``token_number`` of the decoder: those before it
        are in the cache, or are run again."""
        generator, device = self.generator, self.device
        try:
            before = token_number - 1 if self.cached else 1
            arguments = generator.make_call_arguments(
                self.batch, before, self.prompt, device, use_cache=self.cached
            )
            arguments = recorder.cast_float32_inputs(arguments, PRECISIONS[self.precision].weights)
            output = None
            if self.cached or generator.encoder:
                with composites.run_without_compilation(), torch.no_grad(), _MetaRunningMode():  # type: ignore[no-untyped-call]
                    output = generator.model.eval()(arguments)
        except MODEL_ERRORS as error:
            return StepTrace(TracedStep((), (), recorder.explain_model_error(error, ""), None))
        tokens = 1 if self.cached else token_number
        return self._trace_call(
            generator.make_call_arguments(
                self.batch,
                tokens,
                self.prompt,
                device,
                previous_output=output,
                use_cache=self.cached,
            )
        )

    def _trace_call(self, arguments: dict[str, Any]) -> StepTrace:
        generator, outputs = self.generator, []
        cache_before = arguments.get(generator.cache or "")
        before = dict(iterate_cache_tensors(cache_before))
        versions = {name: tensor._version for name, tensor in before.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in before.items()}
        watch = ReadTrafficCounter()
        watch.watch_tensors(generator.model.parameters(), False)
        watch.watch_tensors(before.values(), True)
        handle = generator.model.register_forward_hook(
            lambda module, args, output: outputs.append(output)
        )
        try:
            traced = recorder.trace_step(
                generator.model,
                (arguments,),
                mode="infer",
                traffic_counter=watch,
                precision=self.precision,
            )
        finally:
            handle.remove()
        if not outputs or not self.cached:
            return StepTrace(traced, watch.traffic_by_layer)
        after = dict(iterate_cache_tensors(generator.get_output_kv_cache(outputs[-1])))
        cache = tuple(
            CacheTensor(
                name,
                watch.get_first_reading_layer(before[name]) if name in before else None,
                shapes.get(name),
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
                before.get(name) is not tensor or versions[name] != tensor._version,
            )
            for name, tensor in after.items()
        )
        return StepTrace(traced, watch.traffic_by_layer, cache)


class _MetaRunningMode(TorchDispatchMode):
    """Runs operators as a trace does, on meta also those without a meta kernel, and
    records nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = f"{func.namespace}.{func._schema.name.partition('::')[2]}"
        return operations.run_operator_or_meta_substitute(func, name, args, kwargs or {})


def iterate_cache_tensors(cache: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of every tensor of floating-point values of a cache: in tuples, lists,
    dictionaries and objects."""
    yield from _iterate_float_tensors_with_paths(cache, "", set())


def _iterate_float_tensors_with_paths(
    value: Any, name: str, visited: set[int]
) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.numel() and value.dim() and (value.is_floating_point() or value.is_complex()):
            yield name, value
        return
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [(str(index), part) for index, part in enumerate(value)]
    elif (
        hasattr(value, "__dict__")
        and not isinstance(value, (type, nn.Module))
        and not callable(value)
    ):
        parts = list(vars(value).items())
    else:
        return
    if id(value) not in visited:
        visited.add(id(value))
        for key, part in parts:
            yield from _iterate_float_tensors_with_paths(
                part, f"{name}.{key}" if name else key, visited
            )
