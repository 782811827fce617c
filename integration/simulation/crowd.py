"""An application of many writer ids: more than a head keeps, so that most are in a page of older
ones, and come back, in new pages and out of them again.

Each id has writers of all kinds, which have nothing to do with one another. Each sends the next
sequence, or repeats one late: the last is answered as the first time, an older one is refused, or,
of a batch application, skipped (as in Delta).
"""

from actors import Actor, told

from clog.storage.commit.appends import Writer
from clog.storage.errors import (
    CommitConflictError,
    InvalidInputError,
    StoreUnavailableError,
)

_IDS = 3
_KINDS = ("producer", "stream", "txn")


class Crowd(Actor):
    """All of them, one after the other."""

    may_be_off = True

    def act(self) -> None:
        world = self.world
        writer_id, kind = f"crowd-{world.roll(_IDS)}", _KINDS[world.roll(len(_KINDS))]
        name = f"{kind} {writer_id}"
        log, last = self.log, self.oracle.last_sequence(name)
        choice = world.roll(4) if last >= 0 else 0
        sequence = last + 1 if choice < 2 else last if choice == 2 else world.roll(last + 1)
        intent = self.oracle.intent(f"{name} {sequence}")
        happened = len(intent.commits)
        try:
            result = self._send(log, kind, writer_id, sequence, intent)
        except InvalidInputError:
            over = self.oracle.is_over
            assert over or (sequence < last and kind != "txn"), (
                f"{intent.name} is refused at {last}"
            )
            return
        except (CommitConflictError, StoreUnavailableError) as e:  # Perhaps it slept for days.
            now = len(intent.commits)
            assert now == happened, f"{intent.name} happened, and was told {e}"
            return
        if sequence == last + 1 or sequence == last:
            assert result.duplicate == (sequence == last) or self.oracle.is_over, f"{intent.name}"
            told(self, intent, result)
        else:
            assert kind == "txn" and result.duplicate, f"{intent.name} is taken after {last}"

    def _send(self, log, kind: str, writer_id: str, sequence: int, intent):
        (batch, *_) = self.world.batches_of(f"{kind} {writer_id}", sequence)
        self.putting = intent, batch.rows
        if kind == "producer":
            return log.append(batch.table, batch.partition, producer=(writer_id, sequence))
        stamp, query = log.handle.recent().version, "query" if kind == "stream" else None
        obj = batch.put(log, stamp=stamp)
        return log.append_objects([obj], Writer(writer_id, kind, sequence, query, str(sequence)))
