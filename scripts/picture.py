"""Draws docs/images/describe.svg: what `clog describe` shows of a log that is being cleaned.

python scripts/picture.py
"""

import io
import re
import tempfile
from pathlib import Path

from click.testing import CliRunner
from rich.console import Console
from rich.text import Text

from clog.cleaner import Cleaner
from clog.cli.app import app
from clog.storage import Log

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "describe.svg"
WIDTH = 100
APPENDS, ROWS, KEYS = 14, 6_000, 20_000
CLEANED_AFTER = (3, 9)


def main() -> None:
    """Makes a log, and draws the upper part of what the command says."""
    with tempfile.TemporaryDirectory() as folder:
        fill(f"{folder}/orders")
        environment = {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
        runner = CliRunner(env=environment)
        shown = runner.invoke(app, ["describe", f"{folder}/orders"], color=True).stdout
    picture, _, _ = shown.replace(f"{folder}/", "").partition("\n\n\x1b[3mConfiguration")
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(picture))
    svg = console.export_svg(title="clog describe orders")
    # Readers' own fixed-width fonts do; a picture should fetch nothing.
    PICTURE.write_text(re.sub(r"\s*@font-face {.*?}", "", svg, flags=re.DOTALL))


def fill(url: str) -> None:
    """Orders that change, in an order that looks like none."""
    config = {"segment.bytes": 200_000, "min.cleanable.dirty.ratio": 0.3}
    log = Log.create(url, partitions=3, config=config)
    for number in range(APPENDS):
        keys = ((number * ROWS + i) * 7919 % 104_729 % KEYS for i in range(ROWS))
        log.append([{"key": f"order-{key}", "value": f"state {number} of {key}"} for key in keys])
        if number in CLEANED_AFTER:
            Cleaner(log).run_once()


if __name__ == "__main__":
    main()
