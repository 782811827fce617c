"""Proposals: appends that others may commit, as documents (FORMAT.md §21, `combining`).

A proposal is self-contained: the objects need not be read to commit them. Its name gives its
author, the number of the operation, and a version at which that was known not to be applied.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated

from clog.storage.commit.appends import Proposed
from clog.storage.commit.committer import APPEND
from clog.storage.env import dataclass
from clog.storage.format import documents
from clog.storage.format.documents import Natural, Text, reading, record, seq
from clog.storage.format.transactions import Combined
from clog.storage.store.contract import Store, StoredObject

_APPENDS = seq(record(Proposed))
PROPOSED_CHUNKS_MAX = 1024
"""An append of more chunks is not proposed: it races, and commits proposals along with itself."""
_NAMES_BYTES_MAX = 512
"""Bytes of everything else in a proposal."""
TURN = "turn"
"""The kind of a proposal that asks for a version to itself."""
ELIGIBLE_MS = 60_000
"""A proposal is not committed later than this after it was posted: none takes effect days later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An operation of an author, as it is posted.

    Attributes:
        author, number: the operation.
        attempt: how often it was posted before.
        stamp: a version at which its author knew that it was not applied.
        since: the stamp with which it was first posted.
        until_ms: commits after this time must not include it.
        kind: an append, or a turn.
        takes_ms: of a turn, how long a try to commit takes its author.
        appends: what it appends.
    """

    author: Annotated[str, documents.AUTHOR]
    number: Natural
    attempt: Natural = 0
    stamp: Natural
    since: Natural
    until_ms: Natural
    kind: Text = APPEND
    takes_ms: Natural = 0
    appends: Annotated[tuple[Proposed, ...], _APPENDS] = ()

    @property
    def path(self) -> str:
        return documents.proposal_path(self.stamp, self.author, self.number, self.attempt)

    def is_of(self, writers: Collection[tuple[str, str]]) -> bool:
        """Returns whether it is an append of one of these writers, given as kind and id."""
        named = (one.writer for one in self.appends if one.writer is not None)
        return any((writer.kind, writer.writer_id) in writers for writer in named)


_PROPOSAL = record(Proposal)


def is_small(appends: Sequence[Proposed]) -> bool:
    """Returns whether these appends fit into a proposal; a commit may be larger."""
    if sum(one.chunks for one in appends) > PROPOSED_CHUNKS_MAX:
        return False
    size = len(documents.body_json({"appends": _APPENDS.write(tuple(appends))}))
    return size <= documents.BODY_BYTES_MAX["proposal"] - _NAMES_BYTES_MAX


def encode_proposal(proposal: Proposal) -> bytes:
    """Returns the bytes of a proposal's document."""
    return documents.encode("proposal", _PROPOSAL.write(proposal))


def read_proposal(store: Store, path: str, partitions: int) -> Proposal:
    """Returns the proposal of this name, checked for a log with that many partitions; one GET."""
    body = documents.get(store, "proposal", path)
    with reading(f"{path} of {store.url}"):
        found: Proposal = _PROPOSAL.read(body)
        for one in found.appends:
            one.checked(partitions)
        paths = [obj.ref.path for one in found.appends for obj in one.objects]
        if len(set(paths)) < len(paths):
            raise ValueError("it names an object twice")
        if found.path != path:
            raise ValueError("it is not the proposal that its name says")
        return found


@dataclass(frozen=True, slots=True)
class Waits:
    """How long authors wait for an answer, according to the names of proposals and the newest head.

    Attributes:
        waiting: unanswered operations that were posted within the last minute.
        oldest_ms: how long the first of them has waited; 0 if there is none.
        answered: operations with a remembered answer and a proposal that still exists.
        median_ms, longest_ms: how long these waited for their answer.
    """

    waiting: int = 0
    oldest_ms: int = 0
    answered: int = 0
    median_ms: int = 0
    longest_ms: int = 0


def waits_of(files: Iterable[StoredObject], combined: Combined | None, *, now_ms: int) -> Waits:
    """Returns how long the proposals with these files have waited. Differences between the clocks
    of the store and the committers lengthen or shorten the times.
    """
    answers = {} if combined is None else {a.author: a for a in combined.authors}
    posted: dict[tuple[str, int], list[int]] = {}
    for found in files:
        if (parts := documents.proposal_of(found.path)) is not None:
            posted.setdefault((parts[1], parts[2]), []).append(found.modified_ms)
    waiting: list[int] = []
    waited: list[int] = []
    for (author, number), times in posted.items():
        answer = answers.get(author)
        if answer is not None and answer.number == number:
            waited.append(max(0, answer.time_ms - min(times)))
        elif (answer is None or answer.number < number) and now_ms - max(times) <= ELIGIBLE_MS:
            waiting.append(max(0, now_ms - min(times)))
    return Waits(
        waiting=len(waiting),
        oldest_ms=max(waiting, default=0),
        answered=len(waited),
        median_ms=sorted(waited)[len(waited) // 2] if waited else 0,
        longest_ms=max(waited, default=0),
    )
