"""What typer makes of declared commands; lists of commands in ``--help``, in groups and with whole
lines; and the options that errors name.

Errors raised outside ``cli`` name a field in backquotes: "`gpus` must be at least 1, got 0". A
Python user reads that as it is; the command line prints "--gpus must be at least 1, got 0".
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from perfctl.orchestrator.cli import console
from perfctl.orchestrator.errors import UsageError

if TYPE_CHECKING:
    from perfctl.orchestrator.commands.declare import Command as Declared
    from perfctl.orchestrator.commands.declare import Group
    from perfctl.orchestrator.options import Field


HEADINGS = (
    *("Input", "What to measure", "Memory", "Generation"),
    *("Profiler", "Output", "Prices", "Cluster"),
)
"""Of options in ``--help``, in this order."""
REST = " (more)"
"""After the heading of those options that few need."""
AFTER = "perfctl.after"
"""Key of the words after ``--`` in what a context holds."""
PASS_ON_CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of commands that pass options that they do not know on to the workload, which
checks them before anything runs."""
CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
"""The parameter for what was typed."""
OTHER_NAMES = {
    "batch_size": "batch",
    "layers": "layer",
    "seconds": "timeout",
}
"""Field -> the parameter of a command that has another name."""
_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")
METAVARS: Mapping[Any, str | None] = {
    bool: None,
    int: "N",
    float: "NUMBER",
    Path: "FILE",
    str: "TEXT",
}


class CommandList(TyperGroup):
    """A group of commands. Each has one whole line in the list: a line that is too long is wrapped,
    and not cut."""

    sections: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Heading -> its commands, in this order, with their lines; without any, one list of all."""

    def read(self, words: list[str]) -> list[str]:
        """Return the words of a command, which begin with its own, of those that were typed."""
        return words

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed."""
        leave_as_typed(self.get_params(ctx))
        return list(super().parse_args(ctx, self.read(args)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lists."""
        own = {name: line_of(one) for name, one in self.commands.items() if not one.hidden}
        sections = self.sections or {"Commands": own}
        wide = max((len(name) for lines in sections.values() for name in lines), default=0)
        for heading, lines in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(wide), line) for name, line in lines.items()])


def line_of(command: Any) -> str:
    """Return what a command does: its line in the list, else the first sentence of its help."""
    text = command.short_help or " ".join((command.help or "").partition("\n\n")[0].split())
    return str(text.partition(". ")[0].rstrip(".") + ".")


class Command(TyperCommand):
    """A command of perfctl."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as the documentation writes them: MODEL, [PATHS]..., whatever the release of
        typer does."""
        pieces = super().collect_usage_pieces(ctx)
        program = ["[-- COMMAND]"] if _takes_program(ctx) else []
        return [re.sub(r"^\{(.*)\}", r"\1", piece).upper() for piece in pieces] + program

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; the words after ``--`` go into ``ctx.meta[AFTER]`` if the command
        passes words on."""
        if _takes_program(ctx) and "--" in args:
            cut = args.index("--")
            args, ctx.meta[AFTER] = args[:cut], tuple(args[cut + 1 :])
        if getattr(self.callback, "is_declared", False):
            leave_as_typed(self.get_params(ctx))
        return list(super().parse_args(ctx, args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below the headings of their groups."""
        groups: dict[str, list[tuple[str, str]]] = {}
        params = self.get_params(ctx)
        panels = [getattr(param, "rich_help_panel", None) for param in params]
        without_panel = "Output" if any(panels) else "Options"
        for param, panel in zip(params, panels, strict=True):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            if param.param_type_name == "argument":  # typer adds a Python type
                name, panel = name.partition(" <")[0].upper(), "Arguments"
            groups.setdefault(panel or without_panel, []).append((name, text))
        order = ("Arguments", *HEADINGS, "Options", *(heading + REST for heading in HEADINGS))
        for heading in sorted(groups, key=order.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


def _takes_program(ctx: Any) -> bool:
    """Whether a program of the user's may follow ``--``."""
    return ctx.ignore_unknown_options and (ctx.obj is None or "program" in ctx.obj)


class _AsTyped:
    """Leaves what was typed as it is."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return it."""
        return value


def leave_as_typed(params: Sequence[Any]) -> None:
    """Keep typer from reading values, which :func:`_read_value` does: it imports pydantic for it, a
    quarter of what ``show`` takes. Releases of typer that read without it are left alone."""
    for param in params:
        if hasattr(param, "get_runtime_param"):
            param.get_runtime_param = _AsTyped


def called(application: Any, arguments: Sequence[str]) -> Any:
    """Return the command that ``arguments`` call, or the group if none of its commands is named;
    None if there is no such command."""
    import typer.main

    root: Any = typer.main.get_command(application)
    command, words = root, list(arguments)
    with suppress(UsageError):  # of a file that declares no command
        while words and hasattr(command, "get_command"):
            word, *words = command.read(words)
            inside = command.get_command(None, word)
            if inside is None:
                break
            command = inside
    return None if command is root else command


def with_flags(text: str, command: Any) -> str:
    """Return ``text`` with options of ``command`` instead of fields; a field that it does not
    take stays as it is."""
    if command is None or _FIELD.search(text) is None:
        return text
    flags = flags_of(command)
    for field, name in OTHER_NAMES.items():
        if name in flags:
            flags.setdefault(field, flags[name])
    if command.context_settings.get("ignore_unknown_options"):
        flags = _flags_of_workloads() | flags
    return _FIELD.sub(lambda match: flags.get(match[1], match[0]), text)


def flags_of(command: Any) -> dict[str, str]:
    """Return parameter -> its option, or the name of its place; of a group, those of its
    commands."""
    flags: dict[str, str] = {}
    for inside in getattr(command, "commands", {}).values():
        flags |= flags_of(inside)
    for param in command.params:
        option = next((word for word in param.opts if word.startswith("--")), str(param.opts[0]))
        if param.param_type_name == "argument":
            option = str(param.metavar or param.name.upper())
        flags |= {option.removeprefix("--").replace("-", "_"): option, param.name: option}
    return flags


def _flags_of_workloads() -> dict[str, str]:
    """Return the options of the built-in workloads, which sweeps pass on."""
    from perfctl.workloads.models import WORKLOADS
    from perfctl.workloads.run.options import describe

    texts = map(describe, WORKLOADS)
    options = {option for text in texts for option in re.findall(r"--[a-z][a-z0-9-]*", text)}
    return {option[2:].replace("-", "_"): option for option in options}


class Shown:
    """What goes on while ``command`` works, on stderr; fields are its options."""

    def __init__(
        self, command: Any, progress: Callable[[str, int, int, Path | None], None]
    ) -> None:
        self.command, self._progress = command, progress
        self.command_line = console.command_line()

    def note(self, text: str) -> None:
        """Print it."""
        console.note(text)

    def error(self, text: str) -> None:
        """Print it as an error."""
        console.error(with_flags(text, self.command))

    def progress(self, what: str, done: int, total: int, path: Path | None = None) -> None:
        """Show it on a terminal."""
        self._progress(what, done, total, path)

    def ask(self, question: str, default: str) -> str | None:
        """Return what is typed; None without a terminal."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        return str(typer.prompt(console.safe(question), default=default, err=True))

    def warning(self, text: str) -> None:
        """Print it as a warning."""
        console.warning(with_flags(text, self.command))


@contextmanager
def show_events(command: Any = None) -> Iterator[Shown]:
    """Show on stderr what goes on in the block, and how far it is."""
    from perfctl.orchestrator.cli import progress

    with progress.working() as steps:
        yield Shown(command, steps)


def add_declared(
    app: typer.Typer,
    name: str,
    line: str,
    declared: Declared[Any, Any] | Group,
    *,
    is_hidden: bool = False,
) -> None:
    """Add a declared command or group; ``line``: what it does, in the list of commands."""
    from perfctl.orchestrator.commands.declare import Group
    from perfctl.orchestrator.options import options_of

    if isinstance(declared, Group):
        app.add_typer(group_of(name, declared), short_help=line, hidden=is_hidden)
        return
    options_class: Any = declared.options
    filled = {one.option.filled_from for one in options_of(options_class)}
    settings = PASS_ON_CONTEXT | {"obj": filled} if "rest" in filled else None
    app.command(name, short_help=line, cls=Command, context_settings=settings)(
        function_of(declared)
    )


def group_of(name: str, group: Group) -> typer.Typer:
    """Return the typer application of declared commands below one word."""
    from perfctl.orchestrator.commands.declare import Group

    class Commands(CommandList):
        def read(self, words: list[str]) -> list[str]:
            return group.read(words)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            command = super().get_command(ctx, cmd_name)
            declared = group.find(cmd_name) if command is None else None
            if declared is None:
                return command
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            add_declared(alone, cmd_name, declared.line, declared)
            return typer.main.get_command(alone)

    app = typer.Typer(
        name=name, cls=Commands, no_args_is_help=True, rich_markup_mode=None, help=group.help
    )
    app.callback()(lambda: None)  # with one command, its word is still typed
    for word, command in group.commands.items():
        line = "" if isinstance(command, Group) else command.line
        add_declared(app, word, line, command, is_hidden=isinstance(command, Group))
    return app


def function_of(command: Declared[Any, Any]) -> Callable[..., None]:
    """Return the function that typer calls for a declared command: its parameters are the options,
    then --format (if its view is a document too) and --json."""
    from perfctl.orchestrator.cli import options
    from perfctl.orchestrator.options import options_of

    options_class: Any = command.options
    declared = {field.name: field for field in options_of(options_class)}

    def call(context: typer.Context, **typed: Any) -> None:
        as_json = typed.pop("as_json", False)
        form = console.form_of(typed.pop("form", None), as_json)
        asked = command.options(**values_of(declared, typed), **words_typed(declared, context))
        with show_events(context.command) as events:
            result = command.run(asked, events)
        if as_json:
            record = command.record(result)
            if record is not None:
                from perfctl.orchestrator.outputs import output_of

                console.as_json(record, output_of(record, outputs_of_command(command)))
        else:
            console.view(command.view(result), form, lambda text: with_flags(text, context.command))
        command.check(result, events)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [CONTEXT, *parameters_of(declared)]
    if command.has_document:
        parameters.append(inspect.Parameter("form", kind, annotation=options.Form, default=None))
    if command.has_json:
        schema = Annotated[bool, _schema_option(command)]
        for name, annotation in (("as_json", options.Json), ("json_schema", schema)):
            parameters.append(inspect.Parameter(name, kind, annotation=annotation, default=False))
    text = (inspect.getdoc(command.options) or "").partition("\n\nRaises ")[0]
    if command.examples:
        text += "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in command.examples)
    call.is_declared = True  # type: ignore[attr-defined]
    return with_parameters(call, parameters, text)


def words_typed(declared: Mapping[str, Field], context: typer.Context) -> dict[str, Any]:
    """Return the values of the fields that parts of the typed line fill."""
    parts = {"rest": tuple(context.args), "program": context.meta.get(AFTER)}
    return {
        name: console.command_line() if source == "line" else parts[source]
        for name, field in declared.items()
        if (source := field.option.filled_from)
    }


def with_parameters(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter], text: str
) -> Callable[..., None]:
    """Return the function with the parameters and the help that typer reads."""
    function.__doc__ = text
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def declared_by(*records: type[Any], but: Collection[str] = ()) -> dict[str, Field]:
    """Return the options of records by their names on the command line, except ``but``."""
    from perfctl.orchestrator.options import options_of

    kinds: Sequence[Any] = records
    options = (field for kind in kinds for field in options_of(kind))
    return {field.parameter: field for field in options if field.parameter not in but}


def parameters_of(declared: Mapping[str, Field]) -> list[inspect.Parameter]:
    """Return the parameters that typer reads, by name; if some are common, those that are not come
    below them in the help."""
    has_common = any(field.option.is_common for field in declared.values())
    parameters = []
    for name, field in declared.items():
        if field.option.filled_from:
            continue
        is_required = field.default is inspect.Parameter.empty
        is_first = field.option.is_common or is_required or not has_common
        annotation: Any = Annotated[_hint(field), _parameter(field, "" if is_first else REST)]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(name, kind, annotation=annotation, default=_typed(field))
        )
    return parameters


def values_of(declared: Mapping[str, Field], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of fields from what was typed for their parameters."""
    return {
        field.name: _value(field, typed[name])
        for name, field in declared.items()
        if not field.option.filled_from
    }


def outputs_of_command(command: Declared[Any, Any]) -> Sequence[str]:
    """Return the names of what ``--json`` prints."""
    from perfctl.orchestrator.outputs import outputs_of

    return command.outputs or outputs_of(command.record) or outputs_of(command.run)


def _schema_option(command: Declared[Any, Any]) -> Any:
    """The option --json-schema, which needs no other argument of the command."""

    def print_schema(is_asked: bool) -> None:
        if is_asked:
            from perfctl.orchestrator.outputs import schema_of_any

            console.as_json(schema_of_any(outputs_of_command(command)))
            raise typer.Exit

    return typer.Option(
        "--json-schema",
        callback=print_schema,
        is_eager=True,
        expose_value=False,
        help="Print the JSON Schema of what --json prints.",
    )


def _typed(field: Field) -> Any:
    """A default as one would type it: (16, 32) is "16,32"; nothing is None."""
    default = field.default
    if field.option.typed_default is not None:
        return field.option.typed_default
    if isinstance(default, tuple):
        return (",".join(map(str, default)) if field.option.parse else list(default)) or None
    return None if default is False and field.option.parse is not None else default


def _kind_of(field: Field) -> tuple[Any, bool]:
    """Return what each value of an option is, a key of METAVARS, and whether there are several."""
    kinds = (field.hint, *get_args(field.hint))
    several = next((kind for kind in kinds if get_origin(kind) in (Sequence, tuple)), None)
    if several is not None:
        item = get_args(several)[0]
        kinds = (item, *get_args(item))  # a Python user may also give the text of a path
    return next((kind for kind in METAVARS if kind in kinds), str), several is not None


def _hint(field: Field) -> Any:
    """Return the type that typer is told: words for an option that reads them in a way of its own,
    a list for several values."""
    if field.option.parse is not None:
        return str | None
    if not _kind_of(field)[1]:
        return field.hint
    kind: Any = _kind_of(field)[0]
    return list[kind] | None


def _parameter(field: Field, rest: str) -> Any:
    option = field.option
    if option.is_argument:
        return typer.Argument(help=option.help, metavar=option.metavar)
    kind, _ = _kind_of(field)
    word = field.name.replace("_", "-")
    is_switch = kind is bool and type(None) in get_args(field.hint)
    return typer.Option(
        *(option.names or (f"--{word}/--no-{word}" if is_switch else f"--{word}",)),
        help=option.help,
        metavar=option.metavar or ("TEXT" if option.parse is not None else METAVARS[kind]),
        rich_help_panel=option.group + rest,
    )


def _value(field: Field, typed: Any) -> Any:
    """Return what was typed as a value of the field."""
    if typed is None or typed == ():
        return field.default
    if isinstance(typed, list | tuple):
        return tuple(_read_value(field, word) for word in typed)
    return _read_value(field, typed)


def _read_value(field: Field, word: Any) -> Any:
    """Return a word as a value of the field; a default is one already. Raises UsageError."""
    option, (kind, _) = field.option, _kind_of(field)
    if not isinstance(word, str):
        return word
    if option.parse is not None:
        return option.parse(word)
    try:
        value = kind(word)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise UsageError(f"`{field.name}`: '{word}' is not {what}") from None
    if option.least is not None and value < option.least:
        raise UsageError(f"`{field.name}` must be at least {option.least:g}, got {word}")
    if option.most is not None and value > option.most:
        raise UsageError(f"`{field.name}` must be at most {option.most:g}, got {word}")
    return value
