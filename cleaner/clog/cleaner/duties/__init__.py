"""The duties of a round besides passes, a module or a function each.

A *duty* (`Duty`) is a row of a round (`log_round`): what is `due`, which depends on a `Work` alone,
and a function that does it. Whether or not its caller asked before, `run` evaluates `due` at the
very version that it changes, within its commit (`commit_due`). A dry run only evaluates `due`, each
time on what the duties before it would leave (`Work.after`). A dry run and a real run therefore
make the same plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.config.log_config import LogConfig, with_defaults
from clog.storage.env import dataclass
from clog.storage.format.commits import Commit, Edit, Head
from clog.storage.format.manifest import Manifest, apply
from clog.storage.store.contract import Store

_Plan = TypeVar("_Plan")


@dataclass(frozen=True, slots=True)
class Work:
    """A log as a duty sees it, and what the duty works with.

    Args:
        handle: the log.
        now_ms: the wall clock's time.
        given_store: the handle's own store, metered; None: that store itself.
        defaults: the process's configs (S45).
        planned: the log's manifest: in a dry run, what it would be; None: the tip's.
        through: what was committed after this version has to wait; None: nothing has to.
    """

    handle: Handle
    now_ms: int
    given_store: Store | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    planned: Manifest | None = None
    through: int | None = None

    @property
    def store(self) -> Store:
        return self.handle.store if self.given_store is None else self.given_store

    @property
    def head(self) -> Head:
        return self.handle.tip.head if self.planned is None else self.planned.head

    @property
    def manifest(self) -> Manifest:
        return self.handle.manifest() if self.planned is None else self.planned

    @property
    def config(self) -> LogConfig:
        """The log's effective configs: its own, then the cleaner's defaults (S42, S45)."""
        return with_defaults(self.head.config, self.defaults)

    def after(self, edit: Edit) -> "Work":
        """Returns the work as an edit would leave it; raises CorruptionError if it does not fit."""
        manifest = self.manifest
        time_ms = max(self.now_ms, manifest.time_ms)
        return replace(self, planned=apply(manifest, edit, commit_id="", time_ms=time_ms))


@dataclass(frozen=True, slots=True)
class Duty:
    """A duty of a round.

    Args:
        due: what is due in the log as it is or would be; nothing if that is empty.
        run: does what is due until nothing is; returns what it did.
        counts: what of that is added to the log's totals.
        every_ms: minimum interval between two runs.
        asked: the caller must check `due` before `run`, which does not.
        of_version: a cheap check of a version: if it finds nothing, the duty is skipped until the
            next version; None: there is no such check.
        reads_records: damage of these stops no other duty; it is raised at the round's end (S28).
    """

    name: str
    due: Callable[[Work], Any] = lambda _: True
    run: Callable[[Work], Any] = lambda _: None
    counts: Callable[[Any], Mapping[str, int]] = lambda _: {}
    every_ms: int = 0
    asked: bool = False
    of_version: Callable[[Work], Any] | None = None
    reads_records: bool = False


def commit_due(
    work: Work, operation: str, due: Callable[[Work], _Plan], edit: Callable[[Work, _Plan], Edit]
) -> _Plan:
    """Commits what is due at the tip, if anything is; returns it. The tip is asked before a commit
    is begun, and by each try of the commit.
    """
    found = due(work)

    def prepare(_tip: Commit, _ms: int) -> Edit | NothingToCommit:
        nonlocal found
        found = due(work)
        return edit(work, found) if found else NothingToCommit()

    if found:
        work.handle.commit(prepare, operation=operation)
    return found
