"""An explicit-state model of order values: one partition, in which the record with the highest
order wins, and what a cleaner may remove from it.

Records arrive in every order. A pass is planned at one state and commits step by step, while others
append, and it may stop after any step; delete horizons pass at any time. After every step, the
table is compared with the records that arrived. Each rule can be left out (``Rules``): then an
invariant must be violated, and ``explore`` returns the shortest history that does so.

The invariants (S57):

- ``drop=False``: the table is that of the records with the highest orders, in whatever order they
  arrived, as long as none arrived after a tombstone of equal or higher order had been removed.
- ``drop=True``: the same, whenever they arrived, except for records that arrived late and found no
  record of their key: those appear nowhere, so no deleted key comes back.

Not modelled: records with one key and one order, for which nothing is guaranteed; several
partitions, which share nothing; masks and copies, which show the table; time, except that horizons
pass after they are set.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Rules:
    """The rules of a cleaner and a reader; without any one of them the model is wrong."""

    asks_above: bool = True
    """No tombstone is removed while its key has a record at or above the end of the covered range.
    """
    asks_dirty: bool = True
    """Nor while it has one between the first dirty offset and there: the pass may stop."""
    asks_again: bool = True
    """Nor if one arrived since that was checked."""
    as_pairs: bool = True
    """Removals are kept as pairs of order and end, not as the highest of each."""
    late_shield_none: bool = True
    """A late record's key counts as known only by a record that is not late itself."""
    decided_first: bool = True
    """Late records are settled by a separate commit, before any other record is removed."""
    readers_hide: bool = True
    """Readers do not show late records before that either."""


class Record(NamedTuple):
    """A record that arrives: ``dies`` is a tombstone."""

    key: str
    order: int
    dies: bool = False


class Row(NamedTuple):
    """A record in the log; ``horizon``: 0 none, 1 set, 2 passed."""

    offset: int
    record: Record
    horizon: int = 0


class Pass(NamedTuple):
    """The remaining work of a planned pass, in the order of offsets."""

    covered: int
    asked_end: int
    losers: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()
    late: tuple[int, ...] = ()


class State(NamedTuple):
    """A complete partition, and facts known only here: what may still arrive, the highest order of
    a removed tombstone, the records that arrived, and those of them that arrived late to no key.
    """

    rows: tuple[Row, ...]
    left: frozenset[Record]
    end: int = 0
    first_dirty: int = 0
    pairs: tuple[tuple[int, int], ...] = ()
    running: Pass | None = None
    gone: int = -1
    came: frozenset[Record] = frozenset()
    late: frozenset[Record] = frozenset()


@dataclass
class Found:
    """The result of a search."""

    states: int
    broken: list[str] | None


def is_late(row: Row, pairs: tuple[tuple[int, int], ...]) -> bool:
    """Returns whether the tombstone that hides a row may be gone."""
    return any(end <= row.offset and order >= row.record.order for order, end in pairs)


def shown(state: State, *, drop: bool, rules: Rules) -> dict[str, int]:
    """Returns what readers show: the order of each key's value."""
    rows = state.rows
    if drop and rules.readers_hide:
        known = {r.record.key for r in rows if not is_late(r, state.pairs)}
        rows = tuple(r for r in rows if r.record.key in known)
    return _table(r.record for r in rows)


def _table(records: Iterator[Record] | frozenset[Record]) -> dict[str, int]:
    best: dict[str, Record] = {}
    for record in records:
        if record.key not in best or best[record.key].order < record.order:
            best[record.key] = record
    return {key: r.order for key, r in best.items() if not r.dies}


def explore(
    records: tuple[Record, ...], rules: Rules = Rules(), *, drop: bool, states_max: int = 10**7
) -> Found:
    """Visits every state, the nearest first, until an invariant is violated."""
    start = State((), frozenset(records))
    before: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if shown(state, drop=drop, rules=rules) != _table(state.came - state.late):
            return Found(len(before), _history(before, state))
        assert len(before) <= states_max, "more states than were allowed for"
        for step, after in _steps(state, rules, drop=drop):
            if after not in before:
                before[after] = state, step
                waiting.append(after)
    return Found(len(before), None)


def _history(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    steps: list[str] = []
    while (came := before[state]) is not None:
        state, step = came
        steps.append(step)
    return steps[::-1]


def _steps(state: State, rules: Rules, *, drop: bool) -> Iterator[tuple[str, State]]:
    for record in state.left:
        if drop or record.order > state.gone:
            yield f"append {record}", _appended(state, record)
    if any(r.horizon == 1 for r in state.rows):
        rows = tuple(r._replace(horizon=2 if r.horizon else 0) for r in state.rows)
        yield "horizons come", state._replace(rows=rows)
    if state.running is None:
        for covered in range(state.first_dirty, state.end + 1):
            yield f"plan a pass up to {covered}", _planned(state, covered, rules, drop=drop)
    else:
        yield "stop the pass", state._replace(running=None)
        yield from _committed(state, state.running, rules, drop=drop)


def _appended(state: State, record: Record) -> State:
    late = state.late
    if record.order <= state.gone:
        here = {r.record for r in state.rows} - late
        if record.key not in {r.key for r in here}:
            late |= {record}
    return state._replace(
        rows=(*state.rows, Row(state.end, record)),
        left=state.left - {record},
        end=state.end + 1,
        came=state.came | {record},
        late=late,
    )


def _planned(state: State, covered: int, rules: Rules, *, drop: bool) -> State:
    below = [r for r in state.rows if r.offset < covered]
    late: tuple[int, ...] = ()
    suspects = {r for r in below if is_late(r, state.pairs)} if drop else set()
    if suspects:
        if rules.late_shield_none:
            known = {r.record.key for r in below if not is_late(r, state.pairs)}
            late = tuple(r.offset for r in below if r in suspects and r.record.key not in known)
        else:
            late = tuple(
                r.offset
                for r in below
                if r in suspects and not any(o.record.key == r.record.key for o in below if o != r)
            )
        if rules.decided_first:
            return state._replace(running=Pass(covered, state.end, late=late or (-1,)))
    below = [r for r in below if r.offset not in late]
    best: dict[str, Row] = {}
    for r in below:
        if r.record.key not in best or best[r.record.key].record.order < r.record.order:
            best[r.record.key] = r
    losers = tuple(sorted([r.offset for r in below if best[r.record.key] != r] + list(late)))
    asked = {r.record.key for r in state.rows if r.offset >= covered} if rules.asks_above else set()
    if rules.asks_dirty:
        asked |= {r.record.key for r in below if r.offset >= state.first_dirty}
    expired = tuple(
        r.offset
        for r in best.values()
        if r.record.dies and r.horizon == 2 and r.record.key not in asked
    )
    return state._replace(running=Pass(covered, state.end, losers, tuple(sorted(expired))))


def _committed(state: State, run: Pass, rules: Rules, *, drop: bool) -> Iterator[tuple[str, State]]:
    if run.late:
        rows = tuple(r for r in state.rows if r.offset not in run.late)
        decided = state._replace(rows=rows, pairs=_raised(state.pairs, run.covered), running=None)
        yield "decide who is late", _planned(decided, run.covered, rules, drop=drop)
        return
    todo = sorted({*run.losers, *run.expired})
    if not todo:
        rows = tuple(
            r._replace(horizon=r.horizon or int(r.record.dies)) if r.offset < run.covered else r
            for r in state.rows
        )
        ended = state._replace(rows=rows, first_dirty=max(run.covered, state.first_dirty))
        yield "end the pass", ended._replace(running=None, pairs=_raised(state.pairs, run.covered))
        return
    # A group of one row, with the horizons that it sets, or all that is left.
    for group in {todo[0], todo[-1]}:
        yield f"commit up to {group}", _taken(state, run, group, rules)


def _taken(state: State, run: Pass, group: int, rules: Rules) -> State:
    going = [r for r in state.rows if r.offset in run.expired and r.offset <= group]
    keys = {r.record.key for r in going}
    if rules.asks_again and any(
        r.record.key in keys for r in state.rows if r.offset >= run.asked_end
    ):
        return state._replace(running=None)
    gone = {*run.losers, *run.expired}
    rows = tuple(
        r._replace(horizon=r.horizon or int(r.record.dies)) if r.offset <= group else r
        for r in state.rows
        if r.offset > group or r.offset not in gone
    )
    pairs = state.pairs
    for r in going:
        pairs = (*pairs, (r.record.order, state.end))
    if going and not rules.as_pairs:
        pairs = ((max(order for order, _ in pairs), state.end),)
    left = run._replace(
        losers=tuple(o for o in run.losers if o > group),
        expired=tuple(o for o in run.expired if o > group),
    )
    highest = max([state.gone, *(r.record.order for r in going)])
    return state._replace(rows=rows, pairs=tuple(sorted(pairs)), running=left, gone=highest)


def _raised(pairs: tuple[tuple[int, int], ...], decided: int) -> tuple[tuple[int, int], ...]:
    """Returns the pairs, once rows below ``decided`` are no longer checked: one for all that end
    there.
    """
    below = [order for order, end in pairs if end <= decided]
    above = [pair for pair in pairs if pair[1] > decided]
    return tuple(sorted([*([(max(below), decided)] if below else []), *above]))
