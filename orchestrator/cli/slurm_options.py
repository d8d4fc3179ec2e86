"""The options of a cluster's jobs, said once. What is left out comes from perfctl.toml."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from perfctl.orchestrator.launch.slurm_site import Site

Text = str | None
Texts = list[str] | None
Switch = bool | None


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """As typed; the fields are those of Site."""

    partition: Annotated[Text, typer.Option(help="Partition of the tasks.")] = None
    account: Annotated[Text, typer.Option(help="Account that pays.")] = None
    qos: Annotated[Text, typer.Option(help="Quality of service.")] = None
    constraint: Annotated[Text, typer.Option(help="Features that a node must have.")] = None
    gres: Annotated[Text, typer.Option(help="What each task gets. Default: gpu:1, with --device cpu nothing.")] = None
    time: Annotated[Text, typer.Option(help="Time limit of a task, as Slurm writes it: 00:30:00.")] = None
    mem: Annotated[Text, typer.Option(help="Memory of a task: 16G.")] = None
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores of a task.")] = None
    exclusive: Annotated[Switch, typer.Option(help="Nodes to oneself.")] = None
    array_limit: Annotated[int | None, typer.Option(min=1, help="Tasks that may run at the same time.")] = None
    stop_before: Annotated[
        int | None, typer.Option(min=1, help="Seconds before the time limit when the profiler is stopped. Default: 60.")
    ] = None
    module: Annotated[Texts, typer.Option(help="Module to load; may be repeated.")] = None
    before: Annotated[Texts, typer.Option(help="Shell line before the profiler; may be repeated.")] = None
    after: Annotated[Texts, typer.Option(help="Shell line after it, whatever happened; may be repeated.")] = None
    sbatch: Annotated[Texts, typer.Option(help="Further #SBATCH line; may be repeated.")] = None
    image: Annotated[Text, typer.Option(help="Apptainer image that holds perfctl and the profiler.")] = None
    bind: Annotated[Texts, typer.Option(help="Folder to bind into the image; may be repeated.")] = None
    srun: Annotated[Switch, typer.Option(help="Start each task by srun.")] = None
    disable_dcgm: Annotated[Switch, typer.Option(help="Add #SBATCH --disable-dcgm, which some sites know.")] = None
    dcgm_pause: Annotated[
        Switch, typer.Option(help="dcgmi profile --pause before each task, and --resume after it.")
    ] = None
    perfctl: Annotated[
        Text, typer.Option(help="How nodes call perfctl. Default: this one; in an image, python3 -m perfctl.")
    ] = None
    gather_partition: Annotated[Text, typer.Option(help="Partition of the gather job. Default: --partition.")] = None
    template: Annotated[
        Text, typer.Option(help="Template of your site for the array's script; pbs and lsf are there.")
    ] = None
    gather_template: Annotated[Text, typer.Option(help="Template of your site for the gather script.")] = None

    def site(self) -> Site:
        """The same, repeated options as tuples."""
        from perfctl.orchestrator.launch.slurm_site import Site

        typed: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: tuple(value) for name, value in typed.items() if isinstance(value, list)}
        return Site(**(typed | lists))
