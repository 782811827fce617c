"""Undecided records and ends, put into a log by hand: for tests of whatever reads or cleans it.

Each call is one commit with one edit, and nothing is asked that a transaction would ask. So states
can be made that only a crash leaves.
"""

from dataclasses import replace
from typing import Any

from clog.storage.append import partitions_of, put_records, records_of
from clog.storage.commit.appends import AppendRequest, Proposed
from clog.storage.commit.committer import NothingToCommit
from clog.storage.format.commits import Commit, Edit
from clog.storage.format.transactions import (
    ABORTED,
    COMMITTED,
    OPEN,
    PREPARED,
    Ending,
    Joining,
    TransactionName,
    Unended,
)
from clog.storage.log import Log


def name_of(log: Log, number: int = 0, transaction_id: str = "job") -> TransactionName:
    """Returns the name of a transaction whose home is the log."""
    return TransactionName(log.id, transaction_id, 0, number)


def append_undecided(
    log: Log,
    rows: list[dict[str, Any]],
    partition: int = 0,
    *,
    number: int = 0,
    timeout_ms: int = 1 << 40,
    home: str | None = None,
) -> None:
    """Appends records that are undecided. ``home``: the id of another log, which nobody finds."""
    handle = log.handle
    records, _, schema = records_of(handle, rows)
    parts = partitions_of(records, partition, handle.tip.head, url=log.url)
    objects = put_records(handle, records, parts, schema)
    request = AppendRequest(Proposed(tuple(objects)), handle.writer_pages, handle.ids)
    entry = Unended(name=name_of(log, number), state=OPEN, timeout_ms=timeout_ms)
    if home is not None:
        name = replace(entry.name, home=home)
        entry = replace(entry, name=name, state=PREPARED, home_url="memory://nowhere/at-all")

    def prepare(tip: Commit, time_ms: int) -> Edit:
        edit = request.prepare(tip, time_ms)
        assert isinstance(edit, Edit)
        joining = Joining(entry, 0, len(objects))
        return replace(edit, unended=(joining,))

    _commit(log, prepare)


def end(log: Log, *, number: int = 0, commit: bool) -> None:
    """Ends a transaction."""
    outcome = COMMITTED if commit else ABORTED
    _commit(log, lambda *_: Edit(ends=(Ending(name_of(log, number), outcome),)))


def _commit(log: Log, prepare: Any) -> None:
    done = log.handle.commit(prepare, operation="transaction")
    assert not isinstance(done, NothingToCommit)
