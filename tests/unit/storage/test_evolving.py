"""What lives on while a log evolves (S61): what was read or opened before shows what it showed, and
what follows the log shows the values that were appended since, unchanged.
"""

import pyarrow as pa
import pytest
from tests.unit.evolutions import EVOLUTIONS

from clog.storage import InvalidInputError, Log, StateStore, StateTable, snapshot
from clog.storage.types.columns import as_type

by_evolution = pytest.mark.parametrize("evolution", EVOLUTIONS, ids=str)


def values(batches):
    return [row["value"]["x"] for batch in batches for row in batch.to_pylist()]


@by_evolution
def test_what_lives_on_while_a_log_evolves(evolution, tmp_path):
    """S61: a `Table`, `Records`, a follower, state and a cut, all from before it."""
    log = evolution.create(str(tmp_path / "log"))
    cut = snapshot(log.url, "before", keep_ms=86_400_000)
    table, records = log.table(), log.read()
    followed = iter(log.reader("r").follow(poll_ms=1))
    assert values([next(followed)]) == [evolution.before]
    with (
        StateTable(log.url, tmp_path / "table") as state,
        StateStore(log.url, tmp_path / "store", "s") as store,
    ):
        store.put(5, {"x": evolution.before})
        version = Log.open(log.url).evolve(**evolution.change) and log.version - 1
        log.append([evolution.record(3, evolution.after)])
        assert values([next(followed)]) == [evolution.after] or evolution.later is not None
        assert values(table.to_batches()) == values(records) == [evolution.before]
        assert table.get(1)["x"] == evolution.before
        for at in (version - 1, cut):
            assert values(log.table(at=at).to_batches()) == [evolution.before]
        newest = log.table()
        if evolution.is_unrounded:
            with pytest.raises(InvalidInputError, match=r"was widened .* after rollback\(\)"):
                store.commit()
            store.rollback()
            store.put(5, {"x": evolution.before})
        store.commit()
        state.refresh()
        for key in (1, 3):
            shown = newest.get(key)["x"]
            assert state.get(key)["x"] == store.get(key)["x"] == shown
        assert newest.get(1)["x"] == state.get(5)["x"] == store.get(5)["x"] == evolution.shown
        if evolution.later is None:
            assert newest.get(3)["x"] == evolution.after
    followed.close()


@by_evolution
def test_a_writer_that_missed_it_appends_what_it_was_given(evolution, tmp_path):
    """S62: values are refused, and rounded, by the newest schema only."""
    log = evolution.create(str(tmp_path / "log"))
    other = Log.open(log.url)
    log.evolve(**evolution.change)
    other.append(iter([evolution.record(3, evolution.after)]))
    found = values(log.read())
    assert len(found) == 2
    assert found[1] == evolution.after or evolution.later is not None


@by_evolution
@pytest.mark.parametrize("kind", ["deferred", "visible", "several"])
def test_a_transaction_that_missed_it_rounds_nothing(evolution, kind, tmp_path):
    """S62: it commits what it was given, or nothing, and says why; in the log in which it began,
    and in another one.
    """
    log = evolution.create(str(tmp_path / "log"))
    home = log if kind != "several" else evolution.create(str(tmp_path / "home"))
    other, changes = Log.open(log.url), [evolution.change]
    given = evolution.after if evolution.later is None else evolution.before
    shown = given if evolution.later is None else evolution.shown

    def committed():
        with home.transaction("t", visible=kind == "visible") as t:
            t.append([evolution.record(3, evolution.before)], log=log)
            for change in changes:
                other.evolve(**change)
            changes.clear()
            t.append([evolution.record(4, given)], log=log)
        return values(other.read())

    if evolution.is_unrounded and kind != "visible":
        with pytest.raises(InvalidInputError, match=r"was widened .* in another one"):
            committed()
        assert values(other.read()) == [evolution.shown]
    assert committed() == [evolution.shown, evolution.shown, shown]


@by_evolution
def test_a_repetition_by_a_producer_is_known_after_it(evolution, tmp_path):
    """S78: the same rows, for another schema, are the same records; other rows are not."""
    log = evolution.create(str(tmp_path / "log"))
    other = Log.open(log.url)
    x = 0.1 if evolution.name == "rounded" else evolution.before
    rows = [evolution.record(3, x)]
    first = log.append(rows, producer=("p", 1))
    other.evolve(**evolution.change)
    for handle in (log, other, Log.open(log.url)):
        again = handle.append(rows, producer=("p", 1))
        assert (again.duplicate, again.offsets) == (True, first.offsets)
        with pytest.raises(InvalidInputError, match="with records other than those in version"):
            handle.append([evolution.record(4, evolution.before)], producer=("p", 1))


@by_evolution
def test_a_column_is_never_read_by_an_earlier_schema(evolution, tmp_path):
    """S61: whether its values would fit does not matter. What it has by a later one, it keeps."""
    log = evolution.create(str(tmp_path / "log"))
    (before,) = log.read()
    log.evolve(**evolution.change)
    (after,) = log.read()
    for name in ("key", "value"):
        old, new = before.column(name), after.column(name)
        assert as_type(old, new.type).equals(new)
        if old.type == new.type or evolution.told is None:
            assert as_type(new, old.type).equals(old)
            continue
        with pytest.raises(InvalidInputError, match=r"cannot be read as .*; read again"):
            as_type(new, old.type)
        with pytest.raises(InvalidInputError):
            as_type(new.slice(0, 0), old.type)
    assert as_type(pa.array([1], pa.uint64()), pa.decimal128(20, 0)).type == pa.decimal128(20, 0)
