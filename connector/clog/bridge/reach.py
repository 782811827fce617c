"""How logs of a bridge are reached: opened, made where there are none, and committed to."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

from clog.storage import Log, Transaction
from clog.storage.env import Clock, Ids, SystemClock, SystemIds, dataclass
from clog.storage.errors import CommitConflictError, CommitStateUnknownError, NotFoundError

_COMMITS: Final = 5
"""So often one commit is tried where others were faster, or its reply was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What all logs of a run are opened with, as of `Log.create`."""

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
        """Opens a log; where there is none, makes it as ``creation`` says, which is asked then."""
        try:
            return self.opened(url)
        except NotFoundError:
            pass
        return Log.create(
            url,
            storage_options=self.storage_options,
            clock=self.clock,
            exist_ok=True,  # Another one may have made it meanwhile: this one takes it up.
            ids=self.ids,
            single_writer=self.single_writer,
            **creation(),
        )


def committed(t: Transaction) -> int:
    """Commits; again where that is safe. Returns the version."""
    for left in reversed(range(_COMMITS)):
        try:
            return t.commit().version
        except (CommitConflictError, CommitStateUnknownError):
            if not left:
                raise
    raise AssertionError
