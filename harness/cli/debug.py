"""``harness debug``: forward and back through a run, by a script or at a prompt."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from emugpu.cli.options import (
    FiniteRange,
    NamedPath,
    given_options,
    group,
    refuse_given,
    refuse_seed_of_fifo,
    schedule_option,
    schedule_seed_option,
    together,
    uninitialised_option,
)
from emugpu.debug.adapter import Adapter
from emugpu.debug.commands import Commands, Quit
from emugpu.debug.debugger import Debugger
from emugpu.debug.protocol import over_standard_streams
from emugpu.debug.recording import record
from emugpu.driver.gpu_model import gpu_model, gpu_names
from emugpu.driver.log import Log
from emugpu.driver.recording import OneLaunch
from emugpu.driver.server import run_program
from emugpu.driver.state import Gpu
from emugpu.emulator.names import short_name
from emugpu.errors import CannotRun, UsageProblem, needs
from emugpu.files import read_text_file
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from harness.cli.check import launchables
from harness.cli.options import ConfigOptions, config_options, seed_option, shape_option
from harness.cli.running import OF_KERNELS, one_launch_file, read_target, refuse_what_kernels_have
from harness.problem import KINDS, Shape

PROMPT = "(debug) "
MOST_NAMED = 20
"""Launches of a program in a message."""


@dataclass(frozen=True)
class _How:
    gpu: str
    launch: str
    ptx: Path | None
    inputs: str
    seed: int
    emulation: EmulationOptions


def _how(gpu: str, launch: str, ptx: Path | None, inputs: str, seed: int, schedule_seed: int, **emulation: Any) -> _How:
    return _How(gpu, launch, ptx, inputs, seed, EmulationOptions(seed=schedule_seed, **emulation))


_how_options = group(
    "how",
    _how,
    click.option("--gpu", type=click.Choice(gpu_names()), default="b200", show_default=True, help="GPU of a program."),
    click.option(
        "--launch",
        default="",
        metavar="N|KERNEL",
        help="Which launch of a program, from 0 on, or the first of a kernel.  [default: the last]",
    ),
    click.option(
        "--ptx", metavar="FILE", type=NamedPath(path_type=Path), help="Debug this PTX with the kernel's launch plan."
    ),
    click.option("--inputs", type=click.Choice(KINDS), default="integer", show_default=True, help="Values of A and B."),
    seed_option,
    schedule_option,
    schedule_seed_option,
    uninitialised_option("poison"),
    click.option("--resident-clusters", type=click.IntRange(1), help="Clusters resident at once.  [default: as fit]"),
    click.option("--max-steps", type=click.IntRange(1), help="Limit of warp instructions; a billion by default."),
    click.option("--timeout", type=FiniteRange(0, min_open=True), help="Seconds the run may take."),
)


_target_options = together(shape_option, config_options, _how_options)


@click.command("debug")
@click.argument("words", nargs=-1, metavar="KERNEL|FILE.mojo|LAUNCH.toml|-- PROGRAM [ARGUMENTS...]")
@_target_options
@click.option(
    "--script",
    metavar="FILE",
    type=NamedPath(path_type=Path),
    help="Carry out the commands of a file, one a line, and print what they say.  [default: ask for them]",
)
@click.option("--screen", is_flag=True, help="Fill the terminal: code, warps, mbarriers, a prompt, and keys for steps.")
@click.option(
    "--adapter",
    is_flag=True,
    help="Be a Debug Adapter on standard input and output, for an editor, which names the target.",
)
def debug_command(
    words: tuple[str, ...],
    shape: Shape,
    config: ConfigOptions,
    how: _How,
    script: Path | None,
    screen: bool,
    adapter: bool,
) -> None:
    """Debug a run on the emulated GPU, forward and back.

    The run is recorded first; then every command is about a place in it. `why C[3,517]` says what has made an element
    and the first step at which it is wrong, `why-waits` who would have to arrive, `back wrong` goes to where it went
    wrong. `help` lists the commands.
    """
    if adapter:
        given = [*words, *given_options(*(click.get_current_context().params.keys() - {"adapter", "words"}))]
        if given:
            named = ", ".join(given)
            raise UsageProblem(f"{named}: with --adapter the editor's launch request names the target and its options")
        with over_standard_streams() as connection:
            Adapter(connection, _load).serve()
        return
    if not words:
        raise UsageProblem(
            "name what to debug: KERNEL, FILE.mojo, LAUNCH.toml or -- PROGRAM; or --adapter for an editor"
        )
    if screen:
        _check_screen(script)
    lines = _script(script) if script is not None else None
    debugger = _debugger(words, shape, config, how)
    if screen:
        _fill_screen(debugger)
        return
    commands = Commands(debugger)
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

    @click.command("debug", add_help_option=False)
    @click.argument("words", nargs=-1, required=True)
    @_target_options
    def load(words: tuple[str, ...], shape: Shape, config: ConfigOptions, how: _How) -> Debugger:
        return _debugger(words, shape, config, how)

    try:
        parent = click.get_current_context()
        debugger: Debugger = load.main(words, prog_name="launch", standalone_mode=False, parent=parent)
    except click.ClickException as error:
        raise UsageProblem(error.format_message().replace("\n", " ")) from error
    return debugger


def _debugger(words: tuple[str, ...], shape: Shape, config: ConfigOptions, how: _How) -> Debugger:
    # What kind of thing is looked at decides which options mean something.
    words, is_program = read_target(words)
    refuse_seed_of_fifo(how.emulation.schedule, how.emulation.uninitialised, "schedule_seed")
    if is_program:
        why = f"{words[0]} is a program, which says itself what it launches"
        refuse_given(why, *OF_KERNELS, "ptx", "inputs", "seed", "resident_clusters")
        what = read_launch_file(_launch_of(words, how))
    else:
        refuse_given(f"{words[0]} is no program", "gpu", "launch")
        file = one_launch_file(words)
        if file is not None:
            refuse_what_kernels_have(file)
            what = read_launch_file(file)
        elif len(words) > 1:
            raise UsageProblem(f"debug looks at one kernel or launch file, and {len(words)} are named; name one")
        else:
            [what] = launchables(words, shape, config, how.ptx, how.inputs, how.seed, ptxas=False)
    return Debugger(record(what, how.emulation))


def _launch_of(words: tuple[str, ...], how: _How) -> Path:
    """Runs a program to its end; the launch file of the launch that is to be debugged, for as long as this command
    lasts.
    """
    folder = Path(click.get_current_context().find_root().with_resource(TemporaryDirectory(prefix="harness-debug-")))
    log = Log()
    recorder = OneLaunch(folder, how.launch)
    # As exec has it: programs that run well read memory that nobody has written, and do not use what they get.
    options = replace(how.emulation, uninitialised="report")
    code = run_program(words, Gpu(gpu_model(how.gpu), options, log, recorder), os.environ)
    if recorder.kept is not None:
        return recorder.kept
    made = ", ".join(f"{launch.number} {short_name(launch.kernel)}" for launch in log.launches[:MOST_NAMED])
    if not made:
        raise CannotRun(f"{words[0]} ended with code {code} and has launched nothing; there is nothing to debug")
    more = f" and {len(log.launches) - MOST_NAMED} more" if len(log.launches) > MOST_NAMED else ""
    raise UsageProblem(f"--launch {how.launch}: the program has no such launch; it has {made}{more}")


def _script(file: Path) -> list[str]:
    try:
        return read_text_file(file).splitlines()
    except OSError as error:
        raise UsageProblem(f"cannot read --script {file}: {error.strerror}; name a file of commands") from error
    except UnicodeDecodeError:
        raise UsageProblem(f"--script {file} is not text; write one command a line") from None


def _check_screen(script: Path | None) -> None:
    """Before anything is recorded."""
    if script is not None:
        raise UsageProblem(f"--script {script}: with --screen commands are typed; leave one of the two out")
    try:
        needs("debug")
    except CannotRun as error:
        raise UsageProblem(f"--screen: {error}") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageProblem("--screen: standard input and output are no terminal; leave it out, or take --script FILE")


def _fill_screen(debugger: Debugger) -> None:
    from emugpu.cli.debug_screen import DebugScreen

    screen = DebugScreen(debugger)
    screen.run()
    if screen.failure is not None:
        raise screen.failure


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
