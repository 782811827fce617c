"""Damage to the local file: whatever changes in it, what is read is right (decision 0004)."""

import logging
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from clog.state import local_file
from clog.state import table as tables
from clog.storage import CorruptionError, StateFileError, StateTable


@pytest.fixture
def table_of(make_log, store, clock, tmp_path):
    """Returns a log, an open table of it that was refreshed several times, and what is in it."""
    log = make_log(partitions=2)
    right = {}

    def put(first, end, what):
        rows = {b"%05d" % (i * 7919 % 10_007): b"%s-%d" % (what, i) * 5 for i in range(first, end)}
        log.append([{"key": key, "value": value} for key, value in rows.items()])
        right.update(rows)

    put(0, 600, b"a")
    table = StateTable(store, tmp_path / "cache", clock=clock)
    put(300, 700, b"b")
    table.refresh()
    gone = sorted(right)[::7]
    log.append([{"key": key, "value": None} for key in gone])
    for key in gone:
        del right[key]
    table.refresh()
    yield log, table, right
    table.close()


def database(folder):
    (path,) = folder.glob("*.state")
    return path


def scan(table, prefix=None):
    try:
        return list(table.scan(prefix))
    except CorruptionError:
        return list(table.scan(prefix))


def check(table, right):
    """Looks up in all ways, in an order that differs each time."""
    absent = [b"", b"\xff", *(key + b"x" for key in sorted(right)[::40])]

    def get():
        assert {key: table.get(key) for key in sorted(right)[::9]}.items() <= right.items()
        assert [table.get(key) for key in absent] == [None] * len(absent)

    def get_many():
        assert table.get_many([*right, *absent]) == right

    def scans():
        assert scan(table) == sorted(right.items())
        assert len(table) == len(right)

    def prefixes():
        for prefix in (b"00", b"07", b"1"):
            assert scan(table, prefix) == sorted(
                row for row in right.items() if row[0].startswith(prefix)
            )

    asked = [get, get_many, scans, prefixes]
    random.shuffle(asked)
    for ask in asked:
        ask()


@pytest.mark.parametrize("size", [1, 512], ids=["bytes", "sectors"])
def test_damage_anywhere(table_of, store, clock, tmp_path, caplog, size):
    """A changed byte or sector of rows, keys, the index or the position."""
    _, table, right = table_of
    table.close()
    good = database(tmp_path / "cache").read_bytes()
    rng = random.Random(size)
    told = 0
    for n in range(60):
        at = rng.randrange(len(good)) if n % 3 else n * 2
        at = at // size * size
        bad = bytes(octet ^ rng.randrange(1, 256) for octet in good[at : at + size])
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").mkdir()
        path = tmp_path / "cache" / f"{table._file._name}.1.state"
        path.write_bytes(good[:at] + bad + good[at + size :])
        caplog.clear()
        with caplog.at_level(logging.WARNING), StateTable(store, path.parent, clock=clock) as again:
            check(again, right)
        told += ": its file is damaged: " in caplog.text
    assert told > 10  # Parts of it count no more.


def test_each_digit_of_the_position(table_of, store, clock, tmp_path, caplog):
    """A wrong offset would skip records, a wrong log start would hide rows; all are detected."""
    log, table, right = table_of
    table.close()
    path = database(tmp_path / "cache")
    good = path.read_bytes()
    log.append([{"key": key, "value": b"newest"} for key in sorted(right)[:20]])
    right |= dict.fromkeys(sorted(right)[:20], b"newest")
    begin, changed = good.rindex(b"[%d, " % local_file.SCHEMA), 0
    for at in range(begin, len(good)):
        if not (digit := good[at : at + 1]).isdigit():
            continue
        changed += 1
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        path.write_bytes(good[:at] + b"%d" % ((int(digit) + 1) % 10) + good[at + 1 :])
        with StateTable(store, path.parent, clock=clock) as again:
            assert again.get_many(right) == right
            assert len(again) == len(right)
    assert caplog.text.count(": its file is damaged: ") == changed > 50


def test_damage_of_a_row_is_told(table_of, store, clock, tmp_path, caplog):
    """It says what happened, and never quotes the contents (S54)."""
    _, table, right = table_of
    table.close()
    path = database(tmp_path / "cache")
    data, key = path.read_bytes(), sorted(right)[50]
    path.write_bytes(data.replace(right[key], b"?" * len(right[key])))
    with caplog.at_level(logging.WARNING), StateTable(store, path.parent, clock=clock) as again:
        assert again.get(key) == right[key]
    told = f"rebuilding the state table of {store.url} in {path.parent}: its file is damaged: "
    assert f"{told}the xxh3_64 of a row does not match the stored one" in caplog.text
    assert key.decode() not in caplog.text


def overwrite(path, row):
    """Damages a file that another process has open."""
    at = path.read_bytes().rindex(row)  # Levels that became one are there, too.
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"?")


def test_what_another_process_built_is_damaged_too(table_of, store, clock, tmp_path):
    """The table continues with the other file, and rebuilds that one as well."""
    _, table, right = table_of
    key = sorted(right)[50]
    with StateTable(store, tmp_path / "cache", clock=clock) as other:
        for _ in range(2):
            overwrite(database(tmp_path / "cache"), right[key])
            assert table.get(key) == right[key]
        overwrite(database(tmp_path / "cache"), right[key])
        assert other.get(key) == right[key]


def test_a_disk_that_damages_each_file(table_of, tmp_path, monkeypatch):
    """It is reported as damage, not as an internal error."""
    _, table, right = table_of
    key = sorted(right)[50]
    build = tables.build

    def damaged(*args):
        built = build(*args)
        overwrite(database(tmp_path / "cache"), right[key])
        return built

    monkeypatch.setattr(tables, "build", damaged)
    overwrite(database(tmp_path / "cache"), right[key])
    with pytest.raises(CorruptionError, match="was damaged again each time"):
        table.get(key)
    assert table.get(sorted(right)[51]) == right[sorted(right)[51]]


def test_threads_that_meet_the_same_damage(table_of, tmp_path, monkeypatch, caplog):
    """The file is rebuilt once, whoever noticed the damage."""
    _, table, right = table_of
    key = sorted(right)[50]
    met = Barrier(4)
    mend = tables.Follower._mend

    def together(*args):
        met.wait()
        mend(*args)

    monkeypatch.setattr(tables.Follower, "_mend", together)
    overwrite(database(tmp_path / "cache"), right[key])
    with ThreadPoolExecutor(4) as threads, caplog.at_level(logging.WARNING):
        assert [*threads.map(table.get, [key] * 4)] == [right[key]] * 4
    assert caplog.text.count("rebuilding the state table") == 1


def linked(folder, suffix):
    """Moves the file with this suffix away, and puts a link to it in its place."""
    (path,) = folder.glob(f"*.{suffix}")
    theirs = folder.parent / f"theirs.{suffix}"
    path.rename(theirs)
    path.symlink_to(theirs)
    theirs.write_bytes(theirs.read_bytes() or b"theirs")
    return path, theirs, theirs.read_bytes()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_link_in_place_of_the_file_is_replaced(table_of, store, clock, tmp_path, is_open):
    """What is at its other end stays as it is, also if the table had it open."""
    log, table, right = table_of
    log.append([{"key": b"new", "value": b"1"}])
    if not is_open:
        table.close()
    path, theirs, before = linked(tmp_path / "cache", "state")
    if not is_open:
        table = StateTable(store, tmp_path / "cache", clock=clock)
    table.refresh()
    assert dict(table.scan()) == right | {b"new": b"1"}
    assert theirs.read_bytes() == before
    assert not path.is_symlink()
    table.close()


def test_a_link_in_place_of_the_lock_is_told(table_of, store, clock, tmp_path):
    """It is neither locked nor emptied; the table goes on once it is gone."""
    log, table, right = table_of
    log.append([{"key": b"new", "value": b"1"}])
    path, theirs, before = linked(tmp_path / "cache", "lock")
    with pytest.raises(StateFileError, match="is a symbolic link"):
        StateTable(store, tmp_path / "cache", clock=clock).refresh()
    assert theirs.read_bytes() == before
    path.unlink()
    table.refresh()
    assert dict(table.scan()) == right | {b"new": b"1"}
