"""The full-screen debugger shows the code, warps, mbarriers, and the output of the commands.

It is only a view: each key is a command of `emugpu.debug.commands`, and the panes show the state of the same debugger.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, RichLog, Static

from emugpu.debug.commands import Commands, Quit
from emugpu.debug.debugger import Debugger
from emugpu.errors import ReportedError

KEYS = (
    ("s", "step", "back step", "step"),
    ("n", "next", "back next", "line"),
    ("c", "continue", "back", "continue"),
    ("f", "continue finding", "back finding", "finding"),
    ("w", "continue wrong", "back wrong", "wrong"),
)
"""Each key, its command, the command of its capital (which goes back), and their name in the bottom line."""
HERE = Style(reverse=True)
STOP = Style(color="red", bold=True)
MOST_COLUMNS = 500
"""Most columns shown of a line of code."""


class ListingView(ScrollView):
    """The lines of a file. The current line and the lines with breakpoints are marked; a click sets a breakpoint."""

    def __init__(self) -> None:
        super().__init__(id="listing")
        self._lines: Sequence[str] = ()
        self._here = 0
        self._stops: Set[int] = frozenset()

    def show(self, lines: Sequence[str], here: int, stops: Set[int]) -> None:
        """Shows lines. ``here`` is the current line, from 1, or 0 if there is none; ``stops`` are the lines with
        breakpoints.
        """
        self._lines, self._here, self._stops = lines, here, stops
        self.virtual_size = Size(min(MOST_COLUMNS, max(map(len, lines), default=0) + 10), len(lines))
        if here:
            self.scroll_to(y=max(0, here - self.size.height // 2), animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        number = y + self.scroll_offset.y + 1
        if number > len(self._lines):
            return Strip.blank(self.size.width)
        mark = Segment("\N{BLACK CIRCLE}" if number in self._stops else " ", STOP)
        text = self._lines[number - 1].expandtabs(4)[:MOST_COLUMNS]
        line = Segment(f"{number:>6}  {text}", HERE if number == self._here else None)
        left = self.scroll_offset.x
        return Strip([mark, line]).extend_cell_length(left + self.size.width).crop(left, left + self.size.width)

    def on_click(self, event: events.Click) -> None:
        at, app = event.get_content_offset(self), self.app
        if at is not None and isinstance(app, DebugScreen):
            app.do(f"break {app.place_of(at.y + self.scroll_offset.y + 1)}")


class DebugScreen(App[None]):
    """A session of the debugger. ``failure`` is the error that ended it before the user did."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    ListingView, VerticalScroll, RichLog, Input { border: round $primary; }
    #code { width: 3fr; }
    #state { width: 2fr; }
    ListingView { height: 3fr; }
    RichLog { height: 2fr; }
    """
    BINDINGS: ClassVar = [
        *(Binding(key, f"command({to!r})", what, key_display=f"{key}/{key.upper()}") for key, to, _, what in KEYS),
        *(Binding(key.upper(), f"command({back!r})", show=False) for key, _, back, _ in KEYS),
        Binding("colon", "focus('prompt')", "type", key_display=":"),
        Binding("escape", "focus('listing')", show=False),
        Binding("p", "switch", "PTX"),
        Binding("question_mark", "command('help')", "help"),
        Binding("q", "command('quit')", "quit"),
        Binding("ctrl+c", "command('quit')", show=False, priority=True),
    ]  # fmt: skip

    def __init__(self, debugger: Debugger) -> None:
        super().__init__()
        self.debugger = debugger
        self.failure: Exception | None = None
        self._commands = Commands(debugger)
        self._source = ""
        """The name of the shown file in .loc, or empty if the PTX is shown."""
        self._prefers_source = True

    def compose(self) -> ComposeResult:
        with Horizontal():
            with Vertical(id="code"):
                yield ListingView()
                yield RichLog(wrap=True, min_width=0)
            with Vertical(id="state"):
                for name in ("warps", "barriers"):
                    with VerticalScroll() as pane:
                        pane.border_title = name
                        yield Static(id=name, markup=False)
        yield Input(id="prompt", placeholder="a command, as why C[0,0]; Escape leaves it; capitals of the keys go back")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(ListingView).focus()
        self.query_one(RichLog).border_title = "output"
        self.call_after_refresh(self._show)

    def action_command(self, line: str) -> None:
        self.do(line)

    def action_switch(self) -> None:
        """Switches between the source and the PTX."""
        self._prefers_source = not self._prefers_source
        self._show()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        submitted.input.clear()
        self.do(submitted.value)

    def do(self, line: str) -> None:
        """Executes a command. Shows it first, because some commands run the machine again."""
        self.query_one(RichLog).write(Text(f"(debug) {line}", "bold"))
        self.call_after_refresh(self._carry_out, line)

    def _carry_out(self, line: str) -> None:
        try:
            try:
                output = [Text(text) for text in self._commands.do(line)]
            except ReportedError as error:
                output = [Text(str(error), "red")]
            for text in output:
                self.query_one(RichLog).write(text)
            self._show()
        except Quit:
            self.exit()
        except Exception as error:
            self.failure = error
            self.exit()

    # ---- the panes ----

    def place_of(self, line: int) -> str:
        """Returns a line of the shown file as a place for a breakpoint."""
        return f"{self._source}:{line}" if self._source else f"line {line}"

    def _show(self) -> None:
        d, listing = self.debugger, self.query_one(ListingView)
        site = d.site_at(d.position)
        if not self._prefers_source:
            self._source = ""
        elif site is not None:
            self._source = site.source.rpartition(":")[0]
        file = d.source_file(self._source) if self._source else None
        if file is not None:
            lines: Sequence[str] = file.read_text(encoding="utf-8", errors="replace").splitlines()
        else:
            self._source, lines = "", d.recording.code_at(d.position).kernel.text
        listing.border_title = self._source or d.recording.what.ptx.name
        listing.border_subtitle = next(d.where()).replace("[", r"\[")
        stops = {self._line_of(position) for stop in d.breakpoints.values() for position in stop.positions}
        listing.show(lines, self._line_of(d.position), stops)
        of = f" cta {d.warp[1]}" if d.warp else ""
        for name in ("warps", "barriers"):
            self.query_one(f"#{name}", Static).update("\n".join(self._commands.do(name + of)))

    def _line_of(self, position: int) -> int:
        """Returns the shown line of an event, or 0 if it has none."""
        site = self.debugger.site_at(position)
        if site is None or not self._source:
            return 0 if site is None else site.line
        file, _, line = site.source.rpartition(":")
        return int(line) if file == self._source else 0
