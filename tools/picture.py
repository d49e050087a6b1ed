"""Run the demo on a terminal and write its last screen as docs/images/demo.svg.

Run by `make picture`. The picture is what the program shows: nothing in it is written by hand.
"""

import io
import os
import pty
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
COMMAND = ("holdfast", "demo", "--act=queue")
COLUMNS, LINES = 108, 50  # so that no line of the demo is wrapped or cut
ERASE_LINE = b"\x1b[2K"  # begins each new frame of a live view
_BLACK, _WHITE = (13, 17, 23), (230, 237, 243)
_RED, _GREEN, _YELLOW = (255, 123, 114), (63, 185, 80), (210, 153, 34)
_BLUE, _MAGENTA, _CYAN = (88, 166, 255), (188, 140, 255), (57, 197, 207)
# A dark window can be read on light and on dark pages, also its dim texts.
THEME = TerminalTheme(
    _BLACK, _WHITE, [_BLACK, _RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, _WHITE]
)
# Rich's own template loads its font from a server of others. The readers' own fonts are enough,
# because every text has its length.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>holdfast demo</title>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
}}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    """Write the picture; return 1 if the demo fails."""
    os.environ |= {"TERM": "xterm-256color", "COLUMNS": f"{COLUMNS}", "LINES": f"{LINES}"}
    written = io.BytesIO()

    def record(terminal: int) -> bytes:
        output = os.read(terminal, 65536)
        written.write(output)
        return output

    program = str(Path(sys.executable).with_name(COMMAND[0]))
    if status := pty.spawn([program, *COMMAND[1:]], record):
        print(f"no picture: {' '.join(COMMAND)} ended with {os.waitstatus_to_exitcode(status)}")
        return 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(written.getvalue()))
    return 0


def draw(output: bytes) -> str:
    """Return what a terminal shows after the last frame of this output, as an SVG."""
    _, _, screen = output.rpartition(ERASE_LINE)
    console = Console(record=True, file=io.StringIO(), width=COLUMNS)
    console.print(f"$ {' '.join(COMMAND)}\n", style="bold", highlight=False)
    console.print(Text.from_ansi(screen.decode().replace("\r\n", "\n").rstrip()), "")
    return console.export_svg(title="", theme=THEME, code_format=TEMPLATE, unique_id="demo")


if __name__ == "__main__":
    sys.exit(main())
