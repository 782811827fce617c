"""Damage of the local file: whatever changes in it, what is read is right (decision 0004)."""

import logging
import random
import shutil
import sqlite3

import pytest

from clog.storage import CorruptionError, StateTable


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
    (path,) = folder.glob("*.sqlite3")
    return path


def scan(table, prefix=None):
    try:
        return list(table.scan(prefix))
    except CorruptionError:
        return list(table.scan(prefix))


def check(table, right):
    """Asks in all ways, in an order that differs each time."""
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
    """A byte that changed, or a sector: of rows, keys, what leads to them, and the position."""
    _, table, right = table_of
    table.close()
    good = database(tmp_path / "cache").read_bytes()
    rng = random.Random(size)
    told = 0
    for n in range(60):
        at = rng.randrange(len(good)) if n % 3 else rng.randrange(len(good) // 16384) * 16384 + n
        at = at // size * size
        bad = bytes(octet ^ rng.randrange(1, 256) for octet in good[at : at + size])
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").mkdir()
        path = tmp_path / "cache" / f"{table._file._name}.1.sqlite3"
        path.write_bytes(good[:at] + bad + good[at + size :])
        caplog.clear()
        with caplog.at_level(logging.WARNING), StateTable(store, path.parent, clock=clock) as again:
            check(again, right)
        told += ": its file is damaged: " in caplog.text
    assert told > 20


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("value = x'00'", "the xxh3_64 of the row at offset"),
        ("timestamp = 1", "the xxh3_64 of the row at offset"),
        ("key = key || x'00'", "the row before the one at offset"),
        ("tag = x'00'", "the row before the one at offset"),
        ("value = null", "a row has fields of other types"),
        ("partition = 'x'", "a row has fields of other types"),
    ],
)
def test_damage_of_a_row_is_told(table_of, store, clock, tmp_path, caplog, change, told):
    """What happened, where, and never what is in it (S54)."""
    _, table, right = table_of
    table.close()
    key, texts = sorted(right)[50], []
    with sqlite3.connect(database(tmp_path / "cache"), isolation_level=None) as connection:
        connection.execute(f"update state set {change} where key = ?", (key,))
    connection.close()
    for ask in (
        lambda t: (t.get(key), t.get(key[:-1] + bytes([key[-1] - 1]) + b"~")),
        lambda t: t.get_many([key, key + b"\x00", key + b"~", sorted(right)[51]]),
        scan,
    ):
        copy = tmp_path / f"copy-{id(ask)}"
        shutil.copytree(tmp_path / "cache", copy)
        caplog.clear()
        with caplog.at_level(logging.WARNING), StateTable(store, copy, clock=clock) as again:
            ask(again)
            check(again, right)
        if "tag" not in change or ask is scan:
            assert f"rebuilding the state table of {store.url} in {copy}: " in caplog.text
            assert "its file is damaged: " in caplog.text
        assert key.decode() not in caplog.text
        texts.append(caplog.text)
    assert told in "".join(texts)


def test_damage_is_not_deleted_as_old(table_of, store, clock, tmp_path, caplog):
    """A row whose offset changed does not go with those below the log start."""
    log, table, right = table_of
    table.close()
    with sqlite3.connect(database(tmp_path / "cache"), isolation_level=None) as connection:
        connection.execute("update state set offset = 0 where key = ?", (max(right),))
    connection.close()
    log.delete_records({0: 3, 1: 3})
    expected = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    with caplog.at_level(logging.WARNING), StateTable(store, tmp_path / "cache", clock=clock) as t:
        check(t, expected)
    assert "the xxh3_64 of the row at offset 0 of" in caplog.text


def test_a_journal_that_lost_what_was_entered(table_of, store, clock, tmp_path, caplog):
    """What a killed process leaves: its journal, most of it in the file already. Where its damage
    hides the newer part, SQLite would show old pages beside new ones.
    """
    _, _, right = table_of
    path = database(tmp_path / "cache")
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(passive)").fetchall()
    kept = shutil.copytree(tmp_path / "cache", tmp_path / "kept")
    connection.close()
    journal = kept / f"{path.name}-wal"
    data = journal.read_bytes()
    page = 24 + connection_page(path)
    told = []
    for frame in range((len(data) - 32) // page):
        copy = tmp_path / f"copy-{frame}"
        copy.mkdir()
        shutil.copy(kept / path.name, copy)
        at = 32 + frame * page + 500
        (copy / journal.name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        caplog.clear()
        with caplog.at_level(logging.WARNING), StateTable(store, copy, clock=clock) as again:
            check(again, right)
        told.append("its journal ends at version" in caplog.text)
    assert told == sorted(told)
    assert not told[0]  # Nothing of the journal is left, and all of it is in the file.
    assert told[-1]


def connection_page(path):
    return int.from_bytes(path.read_bytes()[16:18])
