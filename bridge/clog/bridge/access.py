"""How a bridge opens its logs, creates them if they do not exist, cuts and commits to them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final

from clog.storage import (
    Clock,
    CommitConflictError,
    CommitStateUnknownError,
    Cut,
    Ids,
    Log,
    NotFoundError,
    SystemClock,
    SystemIds,
    Transaction,
    drop_snapshot,
    snapshot,
)
from clog.storage.spi import dataclass

_COMMITS: Final = 5
"""How often a commit is tried that lost a race or whose reply was lost."""
_KEEP_MS: Final = 86_400_000
"""A cut whose process was killed is removed after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The arguments with which a run opens all its logs; see `Log.create`."""

    storage_options: Mapping[str, object] | None = field(default=None, repr=False)
    single_writer: bool = False
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)

    def opened(self, url: str) -> Log:
        """Opens a log."""
        return Log.open(
            *(url, self.storage_options, self.clock),
            ids=self.ids,
            single_writer=self.single_writer,
        )

    def made(self, url: str, creation: Callable[[], dict[str, Any]]) -> Log:
        """Opens a log; if it does not exist, creates it with the arguments ``creation()``."""
        try:
            return self.opened(url)
        except NotFoundError:
            pass
        return Log.create(
            url,
            storage_options=self.storage_options,
            clock=self.clock,
            exist_ok=True,  # Another process may have created it by now.
            ids=self.ids,
            single_writer=self.single_writer,
            **creation(),
        )

    @contextmanager
    def cut(self, home: str, name: str) -> Iterator[Cut]:
        """Names a cut of a home, and drops it at the end of the block."""
        options, single_writer = self.storage_options, self.single_writer
        found = snapshot(
            *(home, name, _KEEP_MS, options),
            clock=self.clock,
            ids=self.ids,
            single_writer=single_writer,
        )
        try:
            yield found
        finally:
            drop_snapshot(home, name, options, single_writer=single_writer)


def committed(t: Transaction) -> int:
    """Commits, and retries where that is safe; returns the version."""
    for left in reversed(range(_COMMITS)):
        try:
            return t.commit().version
        except (CommitConflictError, CommitStateUnknownError):
            if not left:
                raise
    raise AssertionError
