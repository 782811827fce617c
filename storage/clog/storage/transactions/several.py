"""The participants of one transaction: from its holder's side (COMMIT.md §9, X1, X2, X4).

Between X1 and X3 anything may fail, and nothing has happened: the holder tries again, or aborts,
and whoever comes by after the timeout aborts as well. After X3 it is committed: a participant that
cannot be reached then hears of it from whoever finishes it (`finishing`).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from clog.storage.append import offsets_of
from clog.storage.commit.committer import NothingToCommit, Prepare
from clog.storage.commit.handle import Handle
from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
)
from clog.storage.format import documents
from clog.storage.format.chunks import TransactionName
from clog.storage.format.commits import Commit, edit_of, read_commit
from clog.storage.format.producers import find_writer
from clog.storage.format.transactions import PARTICIPANT
from clog.storage.format.undecided import UNENDED_MAX, find_unended
from clog.storage.transactions.id_states import OPERATION, AlreadyCommitted, Number
from clog.storage.transactions.undecided import (
    Part,
    ended_part,
    forgotten_home,
    name_of,
    participant_id,
    prepared_home,
    prepared_part,
)

_Nothing = TypeVar("_Nothing", bound=NothingToCommit)
CROWDED = UNENDED_MAX // 2
PARTICIPANTS_BYTES_MAX = 4 << 10
"""Of their ids and URLs as JSON: the home repeats them in each commit until all have ended."""


def found_part(handle: Handle, name: TransactionName) -> tuple[int, dict[int, tuple[int, int]]]:
    """Returns at which version a participant got the records of a transaction, the one that was
    committed last under its id, and the offsets they have; no offsets where it got none. Up to 3
    GET.

    Raises:
        NotFoundError: the log does not say any more.
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
                raise NotFoundError(f"{store.url} knows a later transaction of id {name.id!r}")
            entry = find_unended(read_commit(store, by.version - 1).head.unended, name)
        if entry is None:  # It ended without being prepared here.
            return handle.tip.version, {}
        edit = edit_of(store, read_commit(store, entry.version).record)
    except FileNotFoundError as e:
        raise NotFoundError(f"the version of {store.url} that has it expired") from e
    mine = (joining for joining in edit.unended if joining.entry.name == name)
    return entry.version, offsets_of(pair for joining in mine for pair in edit.chunks_of(joining))


class Several:
    """The participants of one transaction.

    Attributes:
        is_tried: the home may have heard of it.
        ended: whether all participants have heard of the outcome.
    """

    def __init__(self, handle: Handle, ours: Number, timeout_ms: int) -> None:
        self._handle = handle
        self._ours = ours
        self._timeout_ms = timeout_ms
        self._parts: dict[str, Part] = {}
        self.is_tried = False
        self.ended = False

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def name(self) -> TransactionName:
        """Names the transaction in all of its logs."""
        return name_of(self._handle, self._ours)

    def part(self, handle: Handle) -> Part:
        """Returns what the transaction appends to a log.

        Raises:
            InvalidInputError: there would be too many, or it was given under two names.
        """
        part = Part(handle)
        known = self._parts.get(handle.standing.log_id, part)
        if known.url != part.url:
            raise InvalidInputError(
                f"{part.url} and {known.url} are one log, {handle.standing.log_id}, or copies of"
                " one; give it one name in a transaction"
            )
        if handle.standing.log_id == self._handle.standing.log_id:
            raise InvalidInputError(
                f"{part.url} is the log in which the transaction was begun, or a copy of it; append"
                " to that one without log=…"
            )
        named = [[log_id, p.url] for log_id, p in self._parts.items()]
        named.append([handle.standing.log_id, part.url])
        if len(documents.body_json({"participants": named})) > PARTICIPANTS_BYTES_MAX:
            raise InvalidInputError(
                f"the names of {len(named)} logs are longer than {PARTICIPANTS_BYTES_MAX} bytes;"
                " use fewer logs in a transaction"
            )
        return self._parts.setdefault(handle.standing.log_id, part)

    @property
    def parts(self) -> list[Part]:
        """What is appended, by participant; those that only were mentioned take no part."""
        return [part for part in self._parts.values() if part.objects]

    def prepare(
        self, check_time: Callable[[], None], closable: set[TransactionName]
    ) -> AlreadyCommitted | None:
        """Does X1 and X2, or what is left of them; tells if all is committed already."""
        home = prepared_home(
            self._handle,
            self._ours,
            self.parts,
            timeout_ms=self._timeout_ms,
            closable=closable,
            check_time=check_time,
        )
        self.is_tried = True
        done = _committed(self._handle, home)
        if isinstance(done, AlreadyCommitted):
            return done
        closable.clear()
        for part in self.parts:
            prepare = prepared_part(
                part,
                self.name,
                self._handle.standing.root.url,
                timeout_ms=self._timeout_ms,
                check_time=check_time,
            )
            _committed(part.handle, prepare)
        return None

    def finish(self, outcome: str) -> Mapping[str, int]:
        """Does X4 where it can; returns the versions of the participants, by URL. X5, too, where
        the home's list is long: of many ids each would stay in it until its next transaction.
        """
        versions: dict[str, int] = {}
        for part in self.parts:
            with suppress(ClogError):  # It is decided; who comes by later finishes it.
                done = part.handle.commit(
                    ended_part(part.handle, self.name, outcome), operation=OPERATION
                )
                assert isinstance(done, Commit | NothingToCommit)
                versions[part.url] = part.handle.tip.version
        self.ended = len(versions) == len(self.parts)
        if self.ended and len(self._handle.tip.head.unended) > CROWDED:
            with suppress(ClogError):
                self._handle.commit(forgotten_home(self.name, outcome), operation=OPERATION)
        return versions


def _committed(handle: Handle, prepare: Prepare[_Nothing]) -> Commit | _Nothing:
    """Commits; what is in the way by the version that the handle knows may be gone by now."""
    try:
        return handle.commit(prepare, operation=OPERATION)
    except CommitConflictError:
        known = handle.tip.version
        if handle.refresh().version == known:
            raise
    return handle.commit(prepare, operation=OPERATION)
