"""What the commits of a log say of the transaction ids of `transactors`."""

from dataclasses import dataclass, field

from clog.storage.format.transactions import TRANSACTION, read_positions


@dataclass
class Taken:
    """What the commits say of the transaction ids.

    Attributes:
        states: by id the epoch and the item that comes next.
    """

    states: dict[str, tuple[int, int]] = field(default_factory=dict)

    def check(self, store, edit) -> None:
        """Hears of a commit: epochs rise one by one, and only the holder of the newest one commits,
        the item that is next.
        """
        for by in edit.writers:
            state = by.entry.transaction
            if by.entry.kind != TRANSACTION:
                continue
            job = by.entry.writer_id
            epoch, item = self.states.get(job, (-1, 0))
            positions = read_positions(store, state.positions)
            at = {name: mine[0].offset for name, mine in positions.items()}
            assert len(at) in (0, 1, 2) and len({*at.values()}) <= 1, f"{job} is at {at}"
            now = max(at.values(), default=0)
            done = state.committed
            if by.first == by.next and state.epoch != epoch:
                assert (state.epoch, now) == (epoch + 1, item), f"{job} is taken up as {state}"
                then = item
            else:
                assert state.epoch == epoch, f"epoch {state.epoch} of {job} commits after {epoch}"
                then = item + (done is not None and done.version == by.entry.version)
            assert now == then, f"{job} has done {item} items, and {now} are committed"
            self.states[job] = state.epoch, now
