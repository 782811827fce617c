"""Which step of a transaction over several logs a commit is (COMMIT.md §9), told to the switch: the
code under test stays as it is.

A place is called after the step, the log, and how often this process has come there: "X2 kept 1";
"X4 for another" is done by who finishes what somebody else left.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import switch

STEPS = {
    "take_up": "takeover",
    "prepared_home": "X1",
    "prepared_part": "X2",
    "CommitRequest": "X3",
    "_decided_at_home": "X3 as an abort",
    "aborted_home": "X3 as an abort",
    "ended_part": "X4",
    "forgotten_home": "X5",
}


def watch() -> None:
    """Reports each step right before its commit is prepared."""
    from clog.storage.commit.handle import Handle
    from clog.storage.transactions import several as finishing

    commit: Callable[..., Any] = Handle.commit
    times: Counter[tuple[str, str]] = Counter()

    def watched(self: Handle, prepare: Callable[..., Any], *, operation: str) -> Any:
        step = STEPS.get(prepare.__qualname__.partition(".")[0])
        if step == "X4" and sys._getframe(1).f_globals is vars(finishing):  # noqa: SLF001
            step = "X4 for another"
        if step is not None:
            name = self.standing.root.url.rpartition("/")[2]
            times[step, name] += 1
            switch.reached(f"{step} {name} {times[step, name]}")
        return commit(self, prepare, operation=operation)

    Handle.commit = watched  # type: ignore[method-assign]
