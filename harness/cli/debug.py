"""``harness debug``: forward and back through a run, by a script or at a prompt."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from harness.cli.check import launchables
from harness.cli.options import (
    KERNEL_WORD,
    ConfigOptions,
    FiniteRange,
    NamedPath,
    config_options,
    given_options,
    group,
    refuse_seed_of_fifo,
    schedule_option,
    schedule_seed_option,
    seed_option,
    shape_option,
    together,
    uninitialised_option,
)
from harness.cli.running import launch_files_named, refuse_what_kernels_have
from harness.debug.adapter import Adapter
from harness.debug.commands import Commands, Quit
from harness.debug.debugger import Debugger
from harness.debug.protocol import over_standard_streams
from harness.debug.recording import record
from harness.emulator.memory.unwritten import Uninitialised
from harness.errors import UsageProblem
from harness.files import read_text_file
from harness.launch.launch_file import read_launch_file
from harness.launch.launching import EmulationOptions, Schedule
from harness.launch.spec import Launchable
from harness.problem import KINDS, Shape

PROMPT = "(debug) "


@dataclass(frozen=True)
class _How:
    inputs: str
    seed: int
    schedule: Schedule
    schedule_seed: int
    uninitialised: Uninitialised
    resident_clusters: int | None
    max_steps: int | None
    timeout: float | None

    @property
    def options(self) -> EmulationOptions:
        refuse_seed_of_fifo(self.schedule, self.uninitialised, "schedule_seed")
        return EmulationOptions(
            schedule=self.schedule,
            seed=self.schedule_seed,
            uninitialised=self.uninitialised,
            resident_clusters=self.resident_clusters,
            max_steps=self.max_steps,
            timeout=self.timeout,
        )


_how_options = group(
    "how",
    _How,
    click.option("--inputs", type=click.Choice(KINDS), default="integer", show_default=True, help="Values of A and B."),
    seed_option,
    schedule_option,
    schedule_seed_option,
    uninitialised_option("poison"),
    click.option("--resident-clusters", type=click.IntRange(1), help="Clusters resident at once.  [default: as fit]"),
    click.option("--max-steps", type=click.IntRange(1), help="Limit of warp instructions; a billion by default."),
    click.option("--timeout", type=FiniteRange(0, min_open=True), help="Seconds the run may take."),
)


_target_options = together(
    shape_option,
    config_options,
    click.option(
        "--ptx", metavar="FILE", type=NamedPath(path_type=Path), help="Debug this PTX with the kernel's launch plan."
    ),
    _how_options,
)


@click.command("debug")
@click.argument("what", type=KERNEL_WORD, required=False, metavar="KERNEL|FILE.mojo|LAUNCH.toml")
@_target_options
@click.option(
    "--script",
    metavar="FILE",
    type=NamedPath(path_type=Path),
    help="Carry out the commands of a file, one a line, and print what they say.  [default: ask for them]",
)
@click.option(
    "--adapter",
    is_flag=True,
    help="Be a Debug Adapter on standard input and output, for an editor, which names the target.",
)
def debug_command(
    what: str | None,
    shape: Shape,
    config: ConfigOptions,
    ptx: Path | None,
    how: _How,
    script: Path | None,
    adapter: bool,
) -> None:
    """Debug a run on the emulated GPU, forward and back.

    The run is recorded first; then every command is about a place in it. `why C[3,517]` says what has made an element
    and the first step at which it is wrong, `why-waits` who would have to arrive, `back wrong` goes to where it went
    wrong. `help` lists the commands.
    """
    if adapter:
        given = given_options(*(name for name in click.get_current_context().params if name not in ("adapter", "what")))
        if what is not None or given:
            named = ", ".join([*([what] if what is not None else []), *given])
            raise UsageProblem(f"{named}: with --adapter the editor's launch request names the target and its options")
        with over_standard_streams() as connection:
            Adapter(connection, _load).serve()
        return
    if what is None:
        raise UsageProblem("name what to debug: KERNEL, FILE.mojo or LAUNCH.toml; or --adapter for an editor")
    lines = _script(script) if script is not None else None
    commands = Commands(_debugger(what, shape, config, ptx, how))
    if lines is None:
        _ask(commands)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            click.echo(f"{PROMPT}{line.strip()}")
        try:
            said = commands.do(line)
        except Quit:
            return
        except UsageProblem as error:
            raise UsageProblem(f"{script}, line {number}: {error}") from error
        for text in said:
            click.echo(text)


def _load(words: list[str]) -> Debugger:
    """The debugger of a target and its options, as an editor names them."""

    @click.command("debug")
    @click.argument("what", type=KERNEL_WORD)
    @_target_options
    def load(what: str, shape: Shape, config: ConfigOptions, ptx: Path | None, how: _How) -> Debugger:
        return _debugger(what, shape, config, ptx, how)

    try:
        debugger: Debugger = load.main(words, prog_name="launch", standalone_mode=False)
    except click.ClickException as error:
        raise UsageProblem(error.format_message().replace("\n", " ")) from error
    return debugger


def _debugger(what: str, shape: Shape, config: ConfigOptions, ptx: Path | None, how: _How) -> Debugger:
    return Debugger(record(_launchable(what, shape, config, ptx, how), how.options))


def _launchable(what: str, shape: Shape, config: ConfigOptions, ptx: Path | None, how: _How) -> Launchable:
    files = launch_files_named((what,))
    if files:
        refuse_what_kernels_have(files[0])
        return read_launch_file(files[0])
    return launchables([what], shape, config, ptx, how.inputs, how.seed, ptxas=False)[0]


def _script(file: Path) -> list[str]:
    try:
        return read_text_file(file).splitlines()
    except OSError as error:
        raise UsageProblem(f"cannot read --script {file}: {error.strerror}; name a file of commands") from error
    except UnicodeDecodeError:
        raise UsageProblem(f"--script {file} is not text; write one command a line") from None


def _ask(commands: Commands) -> None:
    """Until quit, or the end of the input. What is typed wrongly is said, and asked for again."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline

            readline.set_completer_delims(" ")
            readline.set_completer(lambda text, n: [*(c for c in commands.names if c.startswith(text)), None][n])
            readline.parse_and_bind("tab: complete")
    click.echo("The run is recorded. help lists the commands; back goes back.")
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            return
        try:
            for text in commands.do(line):
                click.echo(text)
        except Quit:
            return
        except UsageProblem as error:
            click.echo(str(error))
