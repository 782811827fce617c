"""Finishing transactions that others left: any process that meets an unfinished transaction asks
its home, and brings the outcome to the logs that do not know it (COMMIT.md §9, X3 to X5; S50).

Only the home decides. A transaction that is undecided there is aborted once its timeout has passed,
by the store's clock; of two concurrent decisions, one commit comes first. If the home cannot be
read, or does not know the transaction, nothing is guessed: the last stable offset stays where it
is, and the reason is reported.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial

from clog.storage.append import offsets_of
from clog.storage.commit.committer import NothingToCommit, is_comparable, store_now_ms
from clog.storage.commit.handle import Handle
from clog.storage.config.units import with_times
from clog.storage.env import dataclass
from clog.storage.errors import ClogError, InvalidInputError, NotFoundError
from clog.storage.format import documents
from clog.storage.format.commits import Commit, Edit, Head, edit_of, read_commit
from clog.storage.format.documents import NONE
from clog.storage.format.transactions import (
    ABORTED,
    COMMITTED,
    PARTICIPANT,
    Ending,
    TransactionName,
    Unended,
    find_unended,
)
from clog.storage.format.writers import find_writer
from clog.storage.store.contract import together
from clog.storage.transactions.ids import (
    OPERATION,
    AlreadyThere,
    HeldBackError,
    ended_part,
    forgotten_home,
    overlapping,
    participant_id,
    state_of,
)

PATIENCE_MS = 10_000
"""How long the first append of a visible transaction waits for others to end."""
_LOGGER = logging.getLogger("clog.storage.transactions")


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction that has not ended.

    Attributes:
        id: the transaction id.
        epoch: how often the id had been taken over before.
        number: which of the epoch's transactions it is.
        state: ``open``: more records may come; ``prepared``: it waits for its home to decide;
            ``committed`` or ``aborted``: it is decided, but not all of its logs know the outcome.
        first_offsets: by partition, the first offset of an undecided record in the log.
        started_ms: when it began, in ms since 1970.
        timeout_ms: how long after that anyone may abort it.
        home: the URL of the log that decides; None: this one.
        held_offsets: by partition, from which offset on readers wait for its end: that of its first
            record, or a lower one, where another transaction begins that is shown whole.
    """

    id: str
    epoch: int
    number: int
    state: str
    first_offsets: Mapping[int, int] = field(default_factory=dict)
    started_ms: int = 0
    timeout_ms: int = 0
    home: str | None = None
    held_offsets: Mapping[int, int] = field(default_factory=dict)

    __repr__ = with_times


@dataclass(frozen=True, slots=True)
class Waiting:
    """A transaction that could not be finished, and why; ``is_stuck``: an operator must act."""

    info: TransactionInfo
    reason: str
    is_stuck: bool


def info_of(entry: Unended) -> TransactionInfo:
    """Returns an entry as users see it."""
    name = entry.name
    return TransactionInfo(
        *(name.id, name.epoch, name.number, entry.state, dict(entry.first)),
        *(entry.started_ms, entry.timeout_ms, entry.home_url, entry.holds),
    )


def finish_all(handle: Handle) -> list[Waiting]:
    """Finishes the transactions of a log if possible; returns the others. No request if none."""
    return [*_waiting(handle, handle.tip.head.unended, abort=False, force=False)]


def begin_visible(handle: Handle, append: Callable[[], None]) -> None:
    """Makes an append of a visible transaction. Where readers have waited for too long, it may not
    begin (S51): then this aborts the open ones whose timeout has passed, and tries again for
    `PATIENCE_MS`, with one GET for each try.
    """
    began_ms = handle.clock.monotonic_ms()
    wait_ms = 0
    while True:
        try:
            return append()
        except HeldBackError:
            if handle.clock.monotonic_ms() - began_ms > PATIENCE_MS:
                raise
        if not wait_ms:
            for _ in _waiting(handle, overlapping(handle.tip.head), abort=False, force=False):
                pass
        handle.clock.sleep_ms(int(handle.ids.uniform() * wait_ms))
        wait_ms = min(2 * wait_ms + 100, 1_000)
        handle.refresh()


def finish_left(handle: Handle, transaction_id: str, *, epoch: int) -> None:
    """Finishes, as far as possible now, the transactions that former holders of an id of this log
    left; ``epoch``: the new holder's. Transactions of newer holders are not touched.
    """
    left = _of_id(handle.tip.head, transaction_id, home=handle.standing.log_id)
    mine = [entry for entry in left if entry.name.epoch <= epoch]
    for waiting in _waiting(handle, mine, abort=True, force=False):
        _LOGGER.warning(
            "transaction %d of id %s of %s has not ended in all of its logs: %s",
            *(waiting.info.number, transaction_id, handle.store.url, waiting.reason),
        )


def abort_all(handle: Handle, transaction_id: str, *, force: bool) -> list[TransactionInfo]:
    """Aborts the undecided transactions of an id, whether or not their timeout has passed, and
    finishes the decided ones; returns all of them. See `Log.abort_transaction`.
    """
    found = _of_id(handle.refresh().head, transaction_id)
    if not found:
        raise NotFoundError(
            f'{handle.store.url} has no open transaction with id {transaction_id!r}; "clog'
            f' describe {handle.store.url} transactions" lists the open ones'
        )
    for left in _waiting(handle, found, abort=True, force=force):
        raise InvalidInputError(
            f"transaction {left.info.number} of id {transaction_id!r} of {handle.store.url} cannot"
            f" be ended: {left.reason}"
        )
    return [info_of(entry) for entry in found]


def _of_id(head: Head, transaction_id: str, home: str | None = None) -> list[Unended]:
    return [e for e in head.unended if e.name.id == transaction_id and home in (None, e.name.home)]


def _waiting(
    handle: Handle, entries: "list[Unended] | tuple[Unended, ...]", *, abort: bool, force: bool
) -> Iterator[Waiting]:
    for entry in entries:
        try:
            if entry.name.home == handle.standing.log_id:
                reason = _finish_home(handle, entry, abort=abort, force=force)
            else:
                reason = _finish_part(handle, entry, abort=abort, force=force)
        except (ClogError, FileNotFoundError) as e:
            reason = str(e)
        if reason == _not_due(entry):
            yield Waiting(info_of(entry), reason, is_stuck=False)
        elif reason is not None and _is_there(handle, entry.name):
            yield Waiting(info_of(entry), reason, is_stuck=True)


def _is_there(handle: Handle, name: TransactionName) -> bool:
    """Returns whether a transaction has not ended here, as far as that can be found out: a home
    forgets it once it has ended in all of its logs.
    """
    with suppress(ClogError, FileNotFoundError):  # The next one's turn comes all the same.
        handle.refresh()
    return find_unended(handle.tip.head.unended, name) is not None


def _finish_home(handle: Handle, entry: Unended, *, abort: bool, force: bool) -> str | None:
    """Decides in the home if that is due, and informs the participants; returns why it waits. With
    ``force``, participants that cannot be informed are given up: one that comes back finds the
    outcome in the state of the id as long as that has it, and after that nothing is guessed.
    """
    outcome = _decided_at_home(handle, entry.name, None, abort=abort)
    if outcome is None:
        return _not_due(entry)

    def tell(log_id: str, url: str) -> None:
        part = open_other(handle, url, log_id)
        _check_original(handle, part, entry.name, outcome)
        part.commit(ended_part(part, entry.name, outcome), operation=OPERATION)

    calls = [(handle.store, partial(tell, *named)) for named in entry.participants]
    away: list[str] = []
    for (_, url), e in zip(entry.participants, together(calls), strict=True):
        if isinstance(e, ClogError | FileNotFoundError):
            away.append(f"{url} could not be notified that it was {outcome}: {e}")
        elif e is not None:
            raise e
    if away and not force:
        remedy = "give access to it at that URL, or, if it no longer exists, abort by force"
        return f"{away[0]}; {remedy}"
    handle.commit(forgotten_home(entry.name, outcome), operation=OPERATION)
    return None


def _check_original(handle: Handle, part: Handle, name: TransactionName, outcome: str) -> None:
    """Raises if the home is a copy whose original says otherwise: the cleaner of a copy must not
    decide what the original has decided. No request if the home is at the URL that the participant
    knows.
    """
    entry = find_unended(part.tip.head.unended, name)
    url = handle.standing.root.url
    if entry is None or entry.home_url in (None, url):
        return
    try:
        original = open_other(part, str(entry.home_url), name.home)
    except NotFoundError:
        return  # The home was moved.
    if _outcome_at(original, name, part.standing.log_id) != outcome:
        raise NotFoundError(
            f"{entry.home_url}, which prepared it, has no such outcome; {url} seems to be a copy of"
            " that log, and must not decide"
        )


def _finish_part(handle: Handle, entry: Unended, *, abort: bool, force: bool) -> str | None:
    """Asks the home, and ends the transaction here accordingly; returns why it waits."""
    name, url, mine = entry.name, entry.home_url, handle.standing.log_id
    assert url is not None, "only an entry in the home has no URL"
    try:
        home = open_other(handle, url, name.home)
        outcome = _outcome_at(home, name, mine)
        if outcome is None and not _names(find_unended(home.tip.head.unended, name), mine):
            raise NotFoundError(
                f"{url} does not know transaction {name.number} of id {name.id!r} any more, as if"
                " that log had been restored from an older copy"
            )
    except (ClogError, FileNotFoundError) as e:
        if not force:
            return (
                f"its outcome cannot be read from its home: {e}; it stays undecided, and readers"
                " stop before its records; give access to the home at that URL, or, if the home"
                " no longer exists, abort it by force"
            )
        forced = ended_part(handle, name, ABORTED, forced=True)
        handle.commit(forced, operation=OPERATION)
        return None
    outcome = outcome or _decided_at_home(home, name, mine, abort=abort)
    if outcome is None:
        return _not_due(entry)
    handle.commit(ended_part(handle, name, outcome), operation=OPERATION)
    return None


def open_other(handle: Handle, url: str, log_id: str) -> Handle:
    """Opens another log at its URL."""
    root = handle.reach(url)
    try:
        other = Handle(root, clock=handle.clock, ids=handle.ids, reach=handle.reach)
    except NotFoundError as e:  # Its advice to create one would not help here.
        raise NotFoundError(f"there is no log at {url}: log {log_id} was deleted or moved") from e
    if other.standing.log_id != log_id:
        raise NotFoundError(
            f"another log is at {url}: {other.standing.log_id} in place of {log_id}, which was"
            " deleted or moved"
        )
    return other


def _outcome_at(home: Handle, name: TransactionName, part: str | None = None) -> str | None:
    """Returns the outcome of a transaction according to its home, None if that has none. For a
    ``part``, only if that log takes part: a home restored from an older copy gives the same epochs
    and numbers to other transactions. 1 GET if it was committed and is no longer listed.
    """
    head = home.tip.head
    entry = find_unended(head.unended, name)
    if entry is not None:
        return entry.state if entry.is_decided and _names(entry, part) else None
    state = state_of(home.writer_pages, head, name.id)
    if state is None or (state.epoch, state.number) < (name.epoch, name.number):
        return None
    last = (-1, -1) if state.committed is None else (state.committed.epoch, state.committed.number)
    if state.committed is not None and last == (name.epoch, name.number):
        if part is None:
            return COMMITTED
        before = read_commit(home.store, state.committed.version - 1).head
        return COMMITTED if _names(find_unended(before.unended, name), part) else None
    return ABORTED if last < (name.epoch, name.number) else None


def _names(entry: Unended | None, part: str | None) -> bool:
    return entry is not None and part in (None, *(log_id for log_id, _ in entry.participants))


def _decided_at_home(
    home: Handle, name: TransactionName, part: str | None, *, abort: bool
) -> str | None:
    """Returns the outcome; decides now after the timeout, or to ``abort``; None: too early."""
    entry = find_unended(home.tip.head.unended, name)
    if entry is None or entry.is_decided:
        return _outcome_at(home, name, part)
    if not abort and _age_ms(home, entry) <= entry.timeout_ms:
        return None

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        there = find_unended(tip.head.unended, name)
        if there is None or there.is_decided:
            return AlreadyThere()
        return Edit(ends=(Ending(name, ABORTED),))

    done = home.commit(prepare, operation=OPERATION)
    return ABORTED if isinstance(done, Commit) else _outcome_at(home, name, part)


def _age_ms(home: Handle, entry: Unended) -> int:
    """Returns how long ago a transaction began, by the store's times of the commit that brought it
    and of now, since its holder's clock may be days behind: a PUT, two LIST of one name and a
    DELETE. No request if it began within its timeout by this clock. An age below 0 means that this
    clock is behind, or the holder's was ahead.
    """
    age_ms = home.clock.now_ms() - entry.started_ms
    if 0 <= age_ms <= entry.timeout_ms or not is_comparable(home.clock):
        return age_ms
    found = home.store.list(documents.commit_path(entry.version))
    began_ms = next((commit.modified_ms for commit in found), NONE)
    now_ms = store_now_ms(home.store, clock=home.clock, ids=home.ids)
    if began_ms == NONE or now_ms is None:  # Deleted with its block, a day ago at least.
        return age_ms
    return now_ms - began_ms


def _not_due(entry: Unended) -> str:
    return (
        f"its holder may still commit it, until {entry.timeout_ms} ms after it began at"
        f" {entry.started_ms}"
    )


def found_part(handle: Handle, name: TransactionName) -> tuple[int, dict[int, tuple[int, int]]]:
    """Returns the version at which a participant got the records of a transaction, the last one
    committed under its id, and their offsets; no offsets if it got none. Up to 3 GET.
    """
    store, head = handle.store, handle.refresh().head
    entry = find_unended(head.unended, name)
    try:
        if entry is None:
            by = find_writer(handle.writer_pages, head, PARTICIPANT, participant_id(name))
            state = None if by is None else by.transaction
            last = (-1, -1) if state is None else (state.epoch, state.number)
            if by is None or last < (name.epoch, name.number):
                return handle.tip.version, {}
            if last > (name.epoch, name.number):
                raise NotFoundError(f"{store.url} has a later transaction of id {name.id!r}")
            entry = find_unended(read_commit(store, by.version - 1).head.unended, name)
        if entry is None:  # It ended without being prepared here.
            return handle.tip.version, {}
        edit = edit_of(store, read_commit(store, entry.version).record)
    except FileNotFoundError as e:
        raise NotFoundError(f"the version of {store.url} that has it has expired") from e
    mine = (joining for joining in edit.unended if joining.entry.name == name)
    return entry.version, offsets_of(pair for joining in mine for pair in edit.chunks_of(joining))
