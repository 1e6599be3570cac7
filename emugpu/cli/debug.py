"""The command ``emugpu debug`` goes forward and back through a run, by a script or at a prompt.

`debugging` makes such a command for other kernels from a command that loads them. The arguments and options of that
command say what is debugged; its function records the run and returns the debugger:

    @click.command("debug")
    @click.argument("kernel", required=False)
    @recording_options
    def load(kernel: str | None, emulation: Emulation) -> Debugger:
        return Debugger(record(launchable(kernel), emulation.options))

    debug_command = debugging(load)
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from emugpu.cli.emulation import Emulation, emulation_options
from emugpu.cli.options import NamedPath, given_options, refuse_given
from emugpu.cli.target import gpu_option, is_program, only_launch_file
from emugpu.cli.verify import with_ptx
from emugpu.debug.adapter import Adapter
from emugpu.debug.commands import Commands, Quit
from emugpu.debug.debugger import Debugger
from emugpu.debug.protocol import over_standard_streams
from emugpu.debug.recording import record
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import Log
from emugpu.driver.recording import OneLaunch
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.emulator.names import short_name
from emugpu.errors import CannotRun, UsageProblem, needs
from emugpu.files import read_text_file
from emugpu.launch.launch_file import read_launch_file

PROMPT = "(debug) "
MOST_NAMED = 20
"""Most launches of a program that a message names."""

recording_options = emulation_options(
    "accumulation",
    "resident-clusters",
    "max-steps",
    "uninitialised",
    strict=False,
    jobs=False,
    timeout=False,
    several=False,
)


def debugging(load: click.Command) -> click.Command:
    """Returns the command that debugs what another command loads. It has the arguments and options of that command,
    none of which may be required.
    """

    def session(script: Path | None, screen: bool, adapter: bool, **target: Any) -> None:
        context = click.get_current_context()
        if adapter:
            _serve(load, context)
            return
        if screen:
            _check_screen(script)
        lines = _script(script) if script is not None else None
        assert load.callback is not None
        debugger: Debugger = load.callback(**target)
        if screen:
            _fill_screen(debugger)
        elif script is not None and lines is not None:
            _follow(Commands(debugger), script, lines)
        else:
            _ask(Commands(debugger))

    how = [
        click.Option(
            ["--script"],
            metavar="FILE",
            type=NamedPath(path_type=Path),
            help="Execute the commands of a file, one per line, and print their output.  [default: ask for them]",
        ),
        click.Option(
            ["--screen"],
            is_flag=True,
            help="Use the whole terminal: code, warps, mbarriers, a prompt, and keys for steps.",
        ),
        click.Option(
            ["--adapter"],
            is_flag=True,
            help="Run as a Debug Adapter on standard input and output for an editor, which names the target.",
        ),
    ]
    return click.Command(load.name, params=[*load.params, *how], callback=session, help=load.help)


def _serve(load: click.Command, context: click.Context) -> None:
    """Serves an editor, which names the target. Refuses a target on the command line."""
    given = given_options(*(name for name in context.params if name != "adapter"))
    if given:
        named = ", ".join(given)
        raise UsageProblem(f"{named}: with --adapter the editor's launch request names the target and its options")

    def debugger_of(words: list[str]) -> Debugger:
        try:
            found: Debugger = load.main(words, prog_name="launch", standalone_mode=False, parent=context)
        except click.ClickException as error:
            raise UsageProblem(error.format_message().replace("\n", " ")) from error
        return found

    with over_standard_streams() as connection:
        Adapter(connection, debugger_of).serve()


@click.command("debug", add_help_option=False)
@click.argument("words", nargs=-1, metavar="LAUNCH.toml|-- PROGRAM [ARGUMENTS...]")
@gpu_option
@click.option(
    "--launch",
    default="",
    metavar="N|KERNEL",
    help="Number of the launch in a program, from 0, or a kernel for its first launch.  [default: the last]",
)
@click.option(
    "--ptx", metavar="FILE.ptx", type=NamedPath(path_type=Path), help="Debug this PTX with the launches of LAUNCH.toml."
)
@recording_options
def _load(words: tuple[str, ...], gpu: str, launch: str, ptx: Path | None, emulation: Emulation) -> Debugger:
    """Debug a run on the emulated GPU, forward and back.

    The run is recorded first; then every command is about a place in it. `why C[3,517]` shows what computed an element
    and the first step at which it is wrong, `why-waits` shows which arrival is missing, `back wrong` goes to the step
    where it went wrong. `help` lists the commands.
    """
    if not words:
        raise UsageProblem("name what to debug: LAUNCH.toml or -- PROGRAM; or --adapter for an editor")
    emulation.refuse_several_schedules("one run is recorded")
    options = emulation.options
    # Some options apply only to launch files, others only to programs.
    if is_program(words):
        options = emulation.for_program()
        why = f"{words[0]} is a program, which makes its own launches"
        refuse_given(why, "ptx")
        emulation.refuse(why, "resident-clusters")
        file = _launch_of(words, gpu, launch, emulation)
    else:
        refuse_given(f"{words[0]} is not a program", "gpu", "launch")
        file = only_launch_file(words)
    return Debugger(record(with_ptx(read_launch_file(file), ptx), options))


debug_command = debugging(_load)


def _launch_of(words: tuple[str, ...], gpu: str, launch: str, emulation: Emulation) -> Path:
    """Runs a program to its end. Returns the launch file of the launch to debug; the file exists as long as this
    command runs.
    """
    folder = Path(click.get_current_context().find_root().with_resource(TemporaryDirectory(prefix="emugpu-debug-")))
    log = Log()
    recorder = OneLaunch(folder, launch)
    code = run_program(words, SharedGpu(gpu_model(gpu), emulation.for_program(), log, recorder), os.environ)
    if recorder.kept is not None:
        return recorder.kept
    made = ", ".join(f"{one.number} {short_name(one.kernel)}" for one in log.launches[:MOST_NAMED])
    if not made:
        raise CannotRun(f"{words[0]} ended with code {code} and has launched nothing; there is nothing to debug")
    more = f" and {len(log.launches) - MOST_NAMED} more" if len(log.launches) > MOST_NAMED else ""
    raise UsageProblem(f"--launch {launch}: the program has no such launch; its launches are {made}{more}")


def _script(file: Path) -> list[str]:
    try:
        return read_text_file(file).splitlines()
    except OSError as error:
        raise UsageProblem(f"cannot read --script {file}: {error.strerror}; name a file of commands") from error
    except UnicodeDecodeError:
        raise UsageProblem(f"--script {file} is not text; write one command a line") from None


def _follow(commands: Commands, script: Path, lines: list[str]) -> None:
    """Executes the lines of a script, and shows each with its output."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            click.echo(f"{PROMPT}{line.strip()}")
        try:
            output = commands.do(line)
        except Quit:
            return
        except UsageProblem as error:
            raise UsageProblem(f"{script}, line {number}: {error}") from error
        for text in output:
            click.echo(text)


def _check_screen(script: Path | None) -> None:
    """Refuses --screen if it cannot work, before anything is recorded."""
    if script is not None:
        raise UsageProblem(f"--script {script}: with --screen commands are typed; leave one of the two out")
    try:
        needs("debug")
    except CannotRun as error:
        raise UsageProblem(f"--screen: {error}") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageProblem("--screen: standard input and output are not a terminal; leave it out, or use --script FILE")


def _fill_screen(debugger: Debugger) -> None:
    from emugpu.cli.debug_screen import DebugScreen

    screen = DebugScreen(debugger)
    screen.run()
    if screen.failure is not None:
        raise screen.failure


def _ask(commands: Commands) -> None:
    """Reads and executes commands until quit or the end of the input. A mistyped command gets a message, and the prompt
    returns.
    """
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
