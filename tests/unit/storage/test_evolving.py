"""What lives on while a log evolves (S61): what was read or opened before shows what it showed, and
what follows the log shows the values that were appended since, unchanged.
"""

import pyarrow as pa
import pytest
from tests.unit.evolutions import EVOLUTIONS, x_of

from clog.storage import InvalidInputError, Log, StateStore, StateTable, snapshot
from clog.storage.types.columns import as_type

REFUSED = "was (widened|renamed|dropped)"
by_evolution = pytest.mark.parametrize("evolution", EVOLUTIONS, ids=str)


def values(batches):
    return [x_of(row["value"]) for batch in batches for row in batch.to_pylist()]


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
        log.append([evolution.record_since(3, evolution.after)])
        (last,) = values([next(followed)])
        assert last == evolution.after or not evolution.shows_what_it_gets
        assert values(table.to_batches()) == values(records) == [evolution.before]
        assert x_of(table.get(1)) == evolution.before
        for at in (version - 1, cut):
            assert values(log.table(at=at).to_batches()) == [evolution.before]
        newest = log.table()
        shown = evolution.shown
        if evolution.is_made_again:
            with pytest.raises(InvalidInputError, match=rf"{REFUSED} .* after rollback\(\)"):
                store.commit()
            store.rollback()
            store.put(5, {evolution.now: shown if evolution.is_moved else evolution.before})
        store.commit()
        state.refresh()
        for key in (1, 3):
            assert x_of(state.get(key)) == x_of(store.get(key)) == x_of(newest.get(key))
        assert x_of(newest.get(1)) == x_of(state.get(5)) == x_of(store.get(5)) == shown
        if evolution.shows_what_it_gets:
            assert x_of(newest.get(3)) == evolution.after
    followed.close()


@by_evolution
def test_a_writer_that_missed_it_appends_what_it_was_given(evolution, tmp_path):
    """S62: values are refused, and rounded, by the newest schema only."""
    log = evolution.create(str(tmp_path / "log"))
    other = Log.open(log.url)
    log.evolve(**evolution.change)
    other.append(iter([evolution.record_since(3, evolution.after)]))
    found = values(log.read())
    assert len(found) == 2
    assert found[1] == evolution.after or not evolution.shows_what_it_gets


def test_rows_of_names_that_are_gone_are_refused_whoever_missed_it(tmp_path):
    """S62: so is a value for a field that is dropped, by a handle that made the records before."""
    log = Log.create(str(tmp_path / "log"), 1, key="id", like=[{"id": 1, "a": 1, "b": 2}])
    other = Log.open(log.url)
    log.evolve(rename={"a": "c", "id": "key_of_it"}, drop=["b"], add={"note": pa.string()})
    for gone in ({"key_of_it": 1, "a": 1}, {"key_of_it": 1, "b": 1}, {"id": 1, "c": 1}):
        with pytest.raises(InvalidInputError, match=r"column (a|b|id) is not in the log's schema"):
            other.append([gone])
    other.append([{"key_of_it": 1, "c": 1, "note": "n"}])
    assert log.table().to_pylist() == [{"key_of_it": 1, "c": 1, "note": "n"}]


@by_evolution
@pytest.mark.parametrize("kind", ["deferred", "visible", "several"])
def test_a_transaction_that_missed_it_rounds_nothing(evolution, kind, tmp_path):
    """S62: it commits what it was given, or nothing, and says why; in the log in which it began,
    and in another one.
    """
    log = evolution.create(str(tmp_path / "log"))
    home = log if kind != "several" else evolution.create(str(tmp_path / "home"))
    other, changes = Log.open(log.url), [evolution.change]
    given = evolution.after if evolution.shows_what_it_gets else evolution.before
    shown = given if evolution.shows_what_it_gets else evolution.shown

    def committed():
        with home.transaction("t", visible=kind == "visible") as t:
            made = evolution.record if changes else evolution.record_since
            first = evolution.before if changes or not evolution.is_moved else evolution.shown
            t.append([made(3, first)], log=log)
            for change in changes:
                other.evolve(**change)
            changes.clear()
            t.append([evolution.record_since(4, given)], log=log)
        return values(other.read())

    if evolution.is_made_again and kind != "visible":
        with pytest.raises(InvalidInputError, match=f"{REFUSED} .* in another one"):
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
        others = "with records other than those in version|is not in the log's schema"
        with pytest.raises(InvalidInputError, match=others):
            handle.append([evolution.record(4, evolution.before)], producer=("p", 1))


@pytest.mark.parametrize("evolution", [e for e in EVOLUTIONS if not e.is_moved], ids=str)
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
