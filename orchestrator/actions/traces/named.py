"""Which traces may be kept, by the name of the model."""

from __future__ import annotations

from pathlib import Path

from perfctl.orchestrator.actions.estimate_request import Request
from perfctl.orchestrator.actions.traces.kept import Kept, kept_for


def kept_traces(request: Request) -> Kept | None:
    """What is kept of a request; None where its traces must be made each time.

    That is where it runs with values (any device but meta), for a built-in workload that takes published weights, and
    where :mod:`.key` or :mod:`.user_code` cannot say what the trace depends on.
    """
    from perfctl.workloads.models import torchvision
    from perfctl.workloads.models.find import workload_of
    from perfctl.workloads.models.libraries import LIBRARIES, config_file, split
    from perfctl.workloads.models.plan import family_of

    model, built_in = request.model, workload_of(request.model)
    if request.device != "meta" or (built_in is not None and built_in[0] == torchvision.NAME):
        return None
    place, _, rest = model.partition(":")
    if built_in is not None or family_of(model) is not None or place == "torchvision":
        return kept_for(request)
    config = config_file(split(rest if place in LIBRARIES else model)[0])
    if place in LIBRARIES or config is not None:
        return kept_for(request, files=() if config is None else (config,))
    place = model.rpartition(":")[0]
    if place.endswith(".py"):
        path = Path(place)
        return kept_for(request, module=f"perfctl_model_{path.stem}", beside=path.absolute().parent)
    return kept_for(request, module=place, beside=Path.cwd()) if place else None
