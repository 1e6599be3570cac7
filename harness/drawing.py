"""Writes a drawing as SVG, from top to bottom, in colours that follow the reader's light or dark mode."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

Colours = Mapping[str, tuple[str, str]]
"""Names of classes that fill a box, each with its colour on a light and on a dark page."""
PAPER: Colours = {
    "page": ("#ffffff", "#0d1117"),
    "ink": ("#1b1f24", "#e6edf3"),
    "soft": ("#57606a", "#9aa4ae"),
    "line": ("#d0d7de", "#30363d"),
}
"""The colours of every drawing. ``soft`` is for less important text."""
FONT = 'ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif'


class Drawing:
    """A drawing to which elements are added. ``y`` is the place of the next one."""

    def __init__(self, y: float) -> None:
        self.elements: list[str] = []
        self.y = y

    def text(self, x: float, content: str, style: str = "", down: float = 0) -> None:
        """Adds text, ``down`` below y."""
        named = f' class="{style}"' if style else ""
        self.elements.append(f'<text x="{x:g}" y="{self.y + down:g}"{named}>{escape(content)}</text>')

    def box(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """Adds a rectangle. ``title`` is the text shown under the mouse."""
        start = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" class="{style}"'
        self.elements.append(f"{start}><title>{escape(title)}</title></rect>" if title else f"{start}/>")

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.elements.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="rule"/>')

    def svg(self, width: float, title: str, description: str, colours: Colours, style: str) -> str:
        """Returns the file, as high as its content. ``title`` and ``description`` are for screen readers. ``style`` is
        more CSS.
        """
        height = self.y + 8
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
                f'height="{height:g}" role="img" aria-labelledby="title description">',
                f'<title id="title">{escape(title)}</title>',
                f'<desc id="description">{escape(description)}</desc>',
                f"<style>{_css({**PAPER, **colours})}{style}</style>",
                f'<rect width="{width:g}" height="{height:g}" class="page"/>',
                *self.elements,
                "</svg>\n",
            ]
        )


def _css(colours: Colours) -> str:
    light, dark = ("".join(f"--{name}: {pair[n]}; " for name, pair in colours.items()) for n in (0, 1))
    fills = "".join(f".{name} {{ fill: var(--{name}); }} " for name in colours)
    return (
        f"\nsvg {{ {light}color-scheme: light dark; }}\n"
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark}}} }}\n"
        f"{fills}\ntext {{ font: 13px {FONT}; fill: var(--ink); }}\n"
        ".rule { stroke: var(--line); }\n"
    )
