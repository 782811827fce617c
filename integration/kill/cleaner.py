"""The cleaner as an operator runs it, `clog cleaner` of both logs, or of those that are named, with
eyes on its groups and on the transactions that it finishes.

    python cleaner.py WORLD [LOG …]
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import switch

switch.arm()

import steps  # noqa: E402
from world import LOGS, World  # noqa: E402

from clog.cleaner.passes import rewriter  # noqa: E402


def watch_groups() -> None:
    """Reports the place between two groups of one pass."""
    rewrite: Callable[..., Any] = rewriter.Rewriter.rewrite
    last: list[object] = [None]

    def watched(self: rewriter.Rewriter, *args: Any) -> Any:
        if last[0] is self:
            switch.reached("between groups")
        last[0] = self
        return rewrite(self, *args)

    rewriter.Rewriter.rewrite = watched


def main() -> None:
    world = World.load(sys.argv[1])
    watch_groups()
    steps.watch()
    os.environ["CLOG_STORAGE_OPTIONS"] = json.dumps(world.storage_options)
    backoff = ("--config", "log.cleaner.backoff.ms=250")
    urls = [world.url_of(name) for name in sys.argv[2:] or LOGS]  # of `history` it only coalesces
    sys.argv[1:] = ["cleaner", *urls, "--json", *backoff]
    from clog.cli import main as clog

    clog()


if __name__ == "__main__":
    main()
