"""The debugger in a whole terminal, used by Textual's pilot, which needs none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from click.testing import CliRunner
from test_debugger import LAUNCHES, MATMUL

import emugpu.errors
from emugpu.cli.main import main
from emugpu.debug import Debugger, debug

textual = pytest.importorskip("textual")

from textual.pilot import Pilot  # noqa: E402
from textual.widgets import Input, RichLog, Static  # noqa: E402

from emugpu.cli.debug_screen import DebugScreen, ListingView  # noqa: E402

pytestmark = pytest.mark.slow

DATA = LAUNCHES.parent


@pytest.fixture(scope="module")
def recorded() -> Debugger:
    return debug(MATMUL)


@pytest.fixture
def screen(recorded) -> DebugScreen:
    return DebugScreen(Debugger(recorded.recording))


def use(screen: DebugScreen, session: Callable[[Pilot], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with screen.run_test(size=(160, 50)) as pilot:
            await pilot.pause()
            await session(pilot)

    asyncio.run(whole())


async def type_command(pilot: Pilot, command: str) -> None:
    """Each key takes time: of a command the last letter is typed."""
    pilot.app.query_one(Input).value = command[:-1]
    await pilot.press("colon", "end", command[-1], "enter", "escape")
    await pilot.pause()


def said(screen: DebugScreen) -> list[str]:
    return [line.text.rstrip() for line in screen.query_one(RichLog).lines]


def marked(screen: DebugScreen) -> str:
    """The line that is shown as the current one, as it is drawn."""
    listing = screen.query_one(ListingView)
    [line] = [
        segment.text
        for y in range(listing.size.height)
        for segment in listing.render_line(y)
        if segment.style is not None and segment.style.reverse
    ]
    return line


def test_keys_step_forward_and_back(screen):
    async def session(pilot):
        await pilot.press("s", "s", "s")
        await pilot.pause()
        visited = screen.debugger.position
        line = marked(screen)
        assert line.split()[0] == str(screen.debugger.site_at(visited).line)
        await pilot.press("s")
        await pilot.pause()
        assert screen.debugger.position > visited
        await pilot.press("S")
        await pilot.pause()
        assert screen.debugger.position == visited and marked(screen) == line
        await pilot.press("c")
        await pilot.pause()
        assert screen.debugger.position == len(screen.debugger.recording)
        assert "(debug) continue" in said(screen) and "the program has ended" in said(screen)
        await pilot.press("C")
        await pilot.pause()
        assert screen.debugger.position == 0

    use(screen, session)


def test_a_command_is_typed_and_the_panes_follow(screen):
    async def session(pilot):
        await type_command(pilot, "break line 167")
        await type_command(pilot, "continue")
        assert marked(screen).split()[0] == "167"
        [stop] = screen.debugger.breakpoints
        listing = screen.query_one(ListingView)
        dots = [y for y in range(listing.size.height) if next(iter(listing.render_line(y))).text.strip()]
        assert [y + listing.scroll_offset.y + 1 for y in dots] == [167]
        warps, barriers = (str(screen.query_one(f"#{name}", Static).render()) for name in ("warps", "barriers"))
        assert "warp 0 of CTA 0" in warps and "phase 0, pending: " in barriers
        await type_command(pilot, f"delete {stop}")
        await pilot.click(ListingView, offset=(10, 1 + dots[0]))
        await pilot.pause()
        [target] = screen.debugger.breakpoints.values()
        assert target.what == "line 167"

    use(screen, session)


def test_the_source_is_shown_and_by_a_key_the_ptx(tmp_path):
    """CUDA C++ with .loc."""
    text = (LAUNCHES / "nvcc_calls.toml").read_text(encoding="utf-8")
    (tmp_path / "calls.toml").write_text(
        text.replace("../cuda/calls.ptx", str(DATA / "cuda" / "calls_debug.ptx")), encoding="utf-8"
    )
    code = (DATA / "cuda" / "calls.cu").read_text(encoding="utf-8").splitlines()
    number, line = next((n, line) for n, line in enumerate(code, 1) if "atomicAdd" in line)
    screen = DebugScreen(debug(tmp_path / "calls.toml"))

    async def session(pilot):
        await type_command(pilot, f"break calls.cu:{number}")
        await type_command(pilot, "continue")
        assert marked(screen).split(maxsplit=1) == [str(number), line.strip()]
        listing = screen.query_one(ListingView)
        [dot] = [y for y in range(listing.size.height) if next(iter(listing.render_line(y))).text.strip()]
        assert dot + listing.scroll_offset.y + 1 == number
        await pilot.press("p")
        await pilot.pause()
        assert marked(screen).split()[0] == str(screen.debugger.site_at(screen.debugger.position).line)

    use(screen, session)


def test_a_bad_command_says_its_line_and_the_session_goes_on(screen):
    async def session(pilot):
        await type_command(pilot, "why C[1,64]")
        assert "C[1,64]: no such element; the shape of C is [256, 64]" in said(screen)
        await type_command(pilot, "whither")
        assert "'whither' is not a command; help lists them" in said(screen)
        await pilot.press("question_mark")
        await pilot.pause()
        assert any("what made an element" in line for line in said(screen))

    use(screen, session)


@pytest.mark.parametrize("keys", ["q", "colon q u i t enter", "colon w h y ctrl+c"])
def test_it_is_left(screen, keys):
    async def session(pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        assert not screen.is_running

    use(screen, session)
    assert screen.failure is None


def test_an_error_of_this_program_ends_it_and_is_passed_on(screen, monkeypatch):
    monkeypatch.setattr(Debugger, "step", lambda *_: 1 / 0)

    async def session(pilot):
        await pilot.press("s")
        await pilot.pause()

    use(screen, session)
    assert isinstance(screen.failure, ZeroDivisionError)


def test_without_a_terminal_or_the_library_it_is_one_line(monkeypatch, tmp_path):
    def refused(*words: str) -> str:
        done = CliRunner().invoke(main, ["debug", "--screen", *words, str(MATMUL)])
        assert done.exit_code == 2 and done.stderr.count("\n") == 1
        return done.stderr

    assert "standard input and output are not a terminal" in refused()
    assert "leave one of the two out" in refused("--script", str(tmp_path / "commands"))
    monkeypatch.setattr(emugpu.errors, "find_spec", lambda package: None)
    assert "textual is not installed" in refused() and "'emugpu[debug]'" in refused()
