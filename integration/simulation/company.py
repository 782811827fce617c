"""Threads of one process that append at the same time, on one handle: group commit (COMMIT.md §2).

There are no threads. What each of them would do up to its place in the queue is done first, one
after the other; then each waits or leads, in their order. So the dice alone decide what happens.
"""

from actors import Actor, told

from clog.storage.append import AppendResult, _first_result, offsets_of
from clog.storage.commit.appends import (
    Appended,
    AppendRequest,
    Duplicate,
    Proposed,
    Waiting,
    Writer,
)
from clog.storage.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    StoreUnavailableError,
)

_WRITERS = ("thread-1", "thread-2")


class Company(Actor):
    """Plain appends, and some of two writers: the next sequence, repeated ones, and old ones."""

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self._count = self.site.logs.standing.newest * 1000

    def act(self) -> None:
        queue = self.log.handle._appends
        members = [self._member() for _ in range(2 + self.world.roll(4))]
        done = [bool(intent.commits) for intent, _, _ in members]
        queue._waiting.update(dict.fromkeys(waiting for _, _, waiting in members))
        try:
            for _, _, waiting in members:
                queue._lead(waiting)
        finally:
            queue._waiting.clear()
        intents = [intent for intent, _, _ in members]
        for (intent, last, waiting), happened in zip(members, done, strict=True):
            alone = intents.count(intent) == 1
            self._check(intent, last, waiting.outcome, happened=happened, alone=alone)

    def _member(self):
        """The intent, the last sequence of its writer before the group, and its place in line."""
        log, world, writer, last = self.log, self.world, None, -1
        if world.roll(3):
            writer_id = _WRITERS[world.roll(len(_WRITERS))]
            name = f"stream {writer_id}"
            last = self.oracle.last_sequence(name)
            sequence = max(0, last + 2 - world.roll(4))
            batch, name = world.batches_of(name, sequence)[0], f"{name} {sequence}"
            writer = Writer(writer_id, "stream", sequence, "query", str(sequence))
        else:
            self._count += 1
            batch, name = world.batch(), f"{self.name} {self._count}"
        intent = self.oracle.intent(name)
        self.putting = intent, batch.rows
        handle = log.handle
        stamp = handle.recent().version
        obj = batch.put(log, stamp=stamp)
        request = AppendRequest(Proposed((obj,), writer), handle.writer_pages, handle.ids)
        return intent, last, Waiting(request.prepare, request.append)

    def _check(self, intent, last: int, outcome, *, happened: bool, alone: bool) -> None:
        over = self.oracle.is_over
        if isinstance(outcome, InvalidInputError):
            sequence = int(intent.name.rpartition(" ")[2])
            newest = self.oracle.last_sequence(intent.name.rpartition(" ")[0])
            assert over or sequence < newest, f"{intent.name} is refused at {newest}, was {last}"
        elif isinstance(outcome, CommitConflictError | StoreUnavailableError):
            now = bool(intent.commits)
            assert now == happened or not alone, f"{intent.name} happened, and was told {outcome}"
        elif isinstance(outcome, Exception):
            if not isinstance(outcome, CommitStateUnknownError):
                raise outcome
        elif isinstance(outcome, Duplicate):
            told(self, intent, _first_result(self.log.handle.store, outcome))
        else:
            assert isinstance(outcome, Appended)
            assert not happened or over, f"{intent.name} happened again"
            told(self, intent, AppendResult(outcome.version, offsets_of(outcome.edit.add.chunks)))
