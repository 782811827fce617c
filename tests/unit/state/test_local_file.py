"""The local file by itself (decision 0069), compared with a dict, however its parts are divided."""

import json
import os
import random
import struct
import tracemalloc
from array import array
from contextlib import nullcontext

import pytest
from xxhash import xxh3_64_intdigest

from clog.state import local_file
from clog.state.local_file import COLUMNS, DamagedCacheError, LocalFile, Position, sorted_pieces
from clog.storage import CorruptionError, InvalidInputError, Log, StateTable
from clog.storage.numpy_arrays import of_bytes, of_numbers

pa = pytest.importorskip("pyarrow")
KINDS = pa.int32(), pa.int64(), pa.int64()


def at(version, starts=None):
    starts = starts or {0: 0, 1: 0}
    return Position("log", version, f"commit {version}", {0: version, 1: version}, starts)


def batch_of(rows):
    keys, *numbers, values = zip(*rows, strict=True)
    columns = [of_bytes(keys), *map(of_numbers, numbers, KINDS), of_bytes(values)]
    return pa.RecordBatch.from_arrays(columns, names=COLUMNS)


def build(path, rows, position=None, step=7):
    batches = [batch_of(rows[i : i + step]) for i in range(0, len(rows), step)]
    LocalFile.build(path, position or at(0), sorted_pieces(batches))
    return LocalFile(path)


@pytest.fixture
def small(monkeypatch):
    """Several runs, marks, buckets and reads of few rows each."""
    monkeypatch.setattr(local_file, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(local_file, "_MARK_ROWS", 4)
    monkeypatch.setattr(local_file, "_BUCKET_ROWS", 2)
    monkeypatch.setattr(local_file, "_PART_ROWS", 20)
    monkeypatch.setattr(local_file, "_SCAN_BYTES", 300)
    monkeypatch.setattr(local_file, "_AT_ONCE", 5)


def check(file, right, starts):
    """``right`` has partition, offset, time and value by key and partition."""
    live = {
        key: (time, partition, value)
        for (key, partition), (offset, time, value) in right.items()
        if value is not None and offset >= starts[partition]
    }
    rows = sorted(
        (key, time, partition, value)
        for (key, partition), (offset, time, value) in right.items()
        if value is not None and offset >= starts[partition]
    )
    found = list(file.rows(file.shown()))
    assert sorted(found) == rows
    assert [row[0] for row in found] == sorted(row[0] for row in rows)
    for key in {key for key, _ in right} | {b"", b"absent", b"\xff"}:
        assert sorted(file.rows_of(key)) == sorted(row[1:] for row in rows if row[0] == key)
    for low in random.sample(sorted(live), min(3, len(live))):
        high = low + b"\xff"
        part = list(file.rows(file.shown(), low, high))
        assert part == [row for row in found if low <= row[0] < high]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("small")
def test_it_is_a_dict(tmp_path, seed):
    """Rows that appear, change, disappear, fall below a log start, and are in two partitions; one
    level or several, entered or rebuilt.
    """
    rng = random.Random(seed)
    random.seed(seed)
    keys = [rng.randbytes(rng.choice((0, 1, 3, 20, 400))) for _ in range(120)]
    path, starts, right, offset = tmp_path / "0.state", {0: 0, 1: 0}, {}, 0

    def some(count):
        nonlocal offset
        rows = {}
        for key in rng.choices(keys, k=count):
            offset += 1
            value = None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 5, 300)))
            rows[key, rng.choice((0, 0, 0, 1))] = (offset, rng.randrange(100), value)
        right.update(rows)
        return [(key, p, *numbers) for (key, p), numbers in rows.items()]

    file = build(path, [row for row in some(60) if row[4] is not None])
    right = {key: row for key, row in right.items() if row[2] is not None}
    other = LocalFile(path)
    for version in range(1, 25):
        waiting = sorted(some(rng.choice((0, 3))))
        rows = [some(rng.choice((0, 1, 30))) for _ in range(rng.choice((1, 2)))]
        newest = {row[:2]: row for row in [r for part in rows for r in part]}
        if rng.random() < 0.1:
            starts = {**starts, 0: max(0, offset - 100)}
        position = at(version, starts)
        file.apply(position, waiting, [list(newest.values())], nullcontext())
        check(file, right, starts)
        check(other, right, starts)
        assert other.shown().position == position
        assert len(file.shown().levels) <= 6
        if version % 8 == 0:
            path = tmp_path / f"{version}.state"
            LocalFile.build(path, position, file.pieces())
            older, file = file, LocalFile(path)
            check(file, right, starts)
            check(older, right, starts)
            other = LocalFile(path)


@pytest.mark.usefixtures("small")
def test_keys_and_values_of_a_mebibyte(tmp_path):
    """Long rows beside short ones; rows longer than what a scan reads at once, and than a piece."""
    rows = [(bytes([i]) * (1 << 20 if i % 2 else 3), 0, i, i, bytes(1 << 20)) for i in range(5)]
    file = build(tmp_path / "0.state", rows)
    assert [row[0] for row in file.rows(file.shown())] == [row[0] for row in rows]
    for key, *_, value in rows:
        assert file.rows_of(key)[0][2] == value
    assert file.rows_of(b"\x01" * ((1 << 20) - 1)) == []
    file.apply(at(1), [], [[(rows[1][0], 0, 9, 9, None)]], nullcontext())
    assert file.rows_of(rows[1][0]) == []


@pytest.mark.usefixtures("small")
def test_a_scan_holds_one_long_row_at_a_time(tmp_path):
    """Each of many runs has a next row: only the keys of those are held, not the values."""
    value = bytes(50_000)
    file = build(
        tmp_path / "0.state", [(b"%02d" % (i * 7 % 60), 0, i, i, value) for i in range(60)]
    )
    shown = file.shown()
    assert len(shown.levels[0].runs) >= 8
    tracemalloc.start()
    try:
        assert sum(len(row[3]) for row in file.rows(shown)) == 60 * len(value)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(value)
    finally:
        tracemalloc.stop()


@pytest.fixture
def levels(tmp_path):
    """A file with a base and two levels after it, and its contents."""
    rows = [(b"%05d" % i, i % 2, i, i, b"old-%d" % i * 9) for i in range(300)]
    file = build(tmp_path / "0.state", rows, step=200)
    changed = [(b"%05d" % i, i % 2, 1_000 + i, 1, b"new-%d" % i * 9) for i in range(0, 300, 5)]
    file.apply(at(1), [], [changed], nullcontext())
    file.apply(
        at(2), [], [[(b"%05d" % i, i % 2, 2_000 + i, 2, None) for i in (3, 5)]], nullcontext()
    )
    assert len(file.shown().levels) == 3
    return file, tmp_path / "0.state", {r[0]: r[3] for r in file.rows(file.shown())}


def test_each_changed_byte_is_told_or_of_no_matter(levels):
    """Whichever byte of the file differs, what is read is right, or is not read at all."""
    _, path, right = levels
    good = path.read_bytes()
    rng = random.Random(1)
    told, asked = 0, [b"%05d" % i for i in range(300)]
    part = {key: value for key, value in right.items() if b"00107" <= key < b"00140"}
    asks = (
        (lambda f: {r[0]: r[3] for r in f.rows(f.shown())}, right),
        (lambda f: {key: rows[0][2] for key in asked if (rows := f.rows_of(key))}, right),
        (lambda f: {r[0]: r[3] for r in f.rows(f.shown(), b"00107", b"00140")}, part),
    )
    places = {*range(local_file.HEADER_BYTES), *rng.sample(range(len(good)), 150)}
    for place in sorted(places):
        path.write_bytes(
            good[:place] + bytes([good[place] ^ rng.randrange(1, 256)]) + good[place + 1 :]
        )
        for ask, expected in asks:
            try:
                opened = LocalFile(path)
                found = ask(opened)
            except DamagedCacheError:
                told += 1
            else:
                assert found == expected or opened.shown().position.version < 2
    assert told > 150


def test_a_key_that_leads_a_scan_astray_is_told(tmp_path):
    """The start of a scan is found by keys that have not been compared with their checksums yet:
    rows between a wrong place and the right one are never left out.
    """
    file = build(tmp_path / "0.state", [(b"%03d" % i, 0, i, i, b"-" * 9) for i in range(250)])
    right, good = list(file.rows(file.shown(), b"150", b"160")), file._path.read_bytes()
    told = 0
    for i in range(140, 250):
        file._path.write_bytes(good.replace(b"%03d---" % i, b"0%02d---" % (i % 100)))
        try:
            assert list(file.rows(file.shown(), b"150", b"160")) == right
        except DamagedCacheError:
            told += 1
    assert told > 10


@pytest.mark.parametrize("place", [0, 3, 100, 249])
@pytest.mark.usefixtures("small")
def test_a_row_in_the_place_of_another_is_told(tmp_path, place):
    """As when a disk writes a sector to the wrong place: its checksum is right, but a key is
    missing.
    """
    rows = [(b"%03d" % i, 0, i, i, b"-" * 20) for i in range(250)]
    path = tmp_path / "0.state"
    file = build(path, rows, step=250)
    (size,) = {len(key) + len(value) + local_file._ROW.size for key, *_, value in rows}
    ends = [run.at + size * n for run in file.shown().levels[0].runs for n in range(run.rows)]
    good = path.read_bytes()
    for other in {1, 50, 99, 101, 248} - {place}:
        row = good[ends[other] : ends[other] + size]
        path.write_bytes(good[: ends[place]] + row + good[ends[place] + size :])
        for ask in (
            lambda: file.rows_of(b"%03d" % place),
            lambda: list(file.rows(file.shown())),
            lambda: list(file.pieces()),
        ):
            with pytest.raises(DamagedCacheError, match="in the place of another"):
                ask()
    path.write_bytes(good)
    assert len(list(file.rows(file.shown()))) == 250


@pytest.mark.parametrize("is_there", [True, False])
def test_a_hash_across_two_entries_is_none(tmp_path, is_there):
    """That of the second key is the end of an entry, and the beginning of the third one's hash."""
    keys = [b"0", b"17431", b"4005"]
    hashes = [xxh3_64_intdigest(key) for key in keys]
    assert hashes == sorted(hashes)
    assert hashes[1] & 0xFFFF_FFFF == hashes[2] << 8 & 0xFFFF_FFFF
    file = build(
        tmp_path / "0.state", [(key, 0, 1, 1, b"1") for key in keys if is_there or key != keys[1]]
    )
    row = [(1, 0, b"1")]
    assert [file.rows_of(key) for key in keys] == [row, row * is_there, row]


def test_each_end_that_is_gone_is_told(levels):
    """A truncated file, also one truncated while it is open: no process crashes."""
    file, path, _ = levels
    size = path.stat().st_size
    for end in sorted({*range(size - 200, size, 7), *range(0, size, 997)}, reverse=True):
        os.truncate(path, end)
        with pytest.raises(DamagedCacheError):
            LocalFile(path)
    with pytest.raises(DamagedCacheError):
        list(file.rows(file.shown()))


def test_every_kill_in_the_middle_of_a_write(levels, tmp_path, monkeypatch):
    """L1 to L5: after each write, and after each byte of the header, the file is as before or as
    after, and the next process continues from there.
    """
    file, path, right = levels
    before, copies, write = path.read_bytes(), [path.read_bytes()], os.pwrite

    def pwrite(number, data, place):
        data = bytes(data)
        for cut in {len(data) // 2, *(range(len(data)) if place < local_file.HEADER_BYTES else ())}:
            write(number, data[:cut], place)
            copies.append(path.read_bytes())
        done = write(number, data, place)
        copies.append(path.read_bytes())
        return done

    monkeypatch.setattr(os, "pwrite", pwrite)
    waiting = [(b"00003", 1, 3_003, 3, b"back")]
    file.apply(
        at(3), waiting, [[(b"x", 0, 3_001, 3, b"1"), (b"00000", 0, 3_000, 3, None)]], nullcontext()
    )
    monkeypatch.undo()
    after = {
        key: value
        for key, value in (right | {b"00003": b"back", b"x": b"1"}).items()
        if key != b"00000"
    }
    assert (
        path.read_bytes()[local_file.HEADER_BYTES : len(before)]
        == before[local_file.HEADER_BYTES :]
    )
    seen = set()
    for i, copy in enumerate(copies):
        left = tmp_path / f"copy-{i}.state"
        left.write_bytes(copy)
        again = LocalFile(left)
        found = {row[0]: row[3] for row in again.rows(again.shown())}
        assert found == (after if again.shown().position.version == 3 else right)
        seen.add(again.shown().position.version)
        again.apply(at(4), [], [[(b"y", 1, 4_000, 4, b"2")]], nullcontext())
        assert {row[0]: row[3] for row in again.rows(again.shown())} == found | {b"y": b"2"}
        assert left.stat().st_size == again.shown().end  # Nothing is left of what was cut short.
    assert seen == {2, 3}
    assert len(copies) > 60


def test_who_has_it_open_is_told_of_another(levels):
    """And those of what is entered, without a separate check."""
    file, path, _ = levels
    other = LocalFile(path)
    scan = other.rows(other.shown())
    assert next(scan)[0] == b"00000"
    file.apply(at(3), [], [[(b"00001", 1, 3_000, 3, b"3")]], nullcontext())
    assert other.rows_of(b"00001") == [(3, 1, b"3")]
    assert {row[0]: row[3] for row in scan}[b"00001"] == b"old-1" * 9
    local_file.leave(path)
    for ask in (lambda: other.rows_of(b"00001"), lambda: file.rows_of(b"00001")):
        with pytest.raises(DamagedCacheError, match="it was replaced by a new one"):
            ask()


def test_it_stays_small(tmp_path, monkeypatch):
    """Dead data is a bounded part of the file, and there are few levels."""
    monkeypatch.setattr(local_file, "SMALL_BYTES", 20_000)
    rows = [(b"%05d" % i, 0, i, i, b"x" * 50) for i in range(1_000)]
    path = tmp_path / "0.state"
    file, built = build(path, rows, step=1_000), 0
    for version in range(1, 200):
        changed = [
            (b"%05d" % (i * 7919 % 1_000), 0, version * 1_000 + i, 1, b"y" * 50) for i in range(20)
        ]
        file.apply(at(version), [], [changed], nullcontext())
        if file.is_due():
            built += 1
            path = tmp_path / f"{version}.state"
            LocalFile.build(path, at(version), file.pieces())
            file = LocalFile(path)
        assert len(file.shown().levels) <= 7
        assert path.stat().st_size < 10 * 100 * 1_000
    assert 0 < built < 20
    assert len(list(file.rows(file.shown()))) == 1_000


def test_long_rows_become_one_level_a_piece_at_a_time(tmp_path, monkeypatch):
    """A run has fewer of those than there are rows with a known place: the whole state is never in
    memory.
    """
    monkeypatch.setattr(local_file, "PIECE_BYTES", 20_000)
    rows = [(b"%03d" % (7 * i % 200), 0, i, i, bytes([i]) * 1_000) for i in range(200)]
    file = build(tmp_path / "0.state", rows)
    pieces = list(file.pieces())
    assert max(sum(map(len, piece.rows.to_pylist())) for piece in pieces) < 50_000
    keys = [key for piece in pieces for key in piece.keys.to_pylist()]
    assert keys == sorted(row[0] for row in rows)
    LocalFile.build(tmp_path / "1.state", at(0), pieces)
    newer = LocalFile(tmp_path / "1.state")
    assert {key: newer.rows_of(key)[0][2] for key in keys} == {row[0]: row[4] for row in rows}


def test_small_batches_are_measured_once(monkeypatch):
    """A log of many small commits is not measured again with each of them."""
    measured = []

    class Rows:
        def __init__(self, rows):
            self.rows = rows

        @property
        def nbytes(self):
            measured.append(self)
            return 100

    encoded = local_file._encoded
    monkeypatch.setattr(
        local_file,
        "_encoded",
        lambda batch: local_file.Piece(batch.column("key"), Rows(batch), encoded(batch).numbers),
    )
    monkeypatch.setattr(local_file, "_sorted", lambda some, _: len(some))
    one = batch_of([(b"a", 0, 0, 0, b"")])
    assert list(sorted_pieces([one] * 50)) == [50]
    assert len(measured) == 50


HUGE = 1 << 62
ODD = {
    "of a later schema": lambda footer: [footer[0] + 1, *footer[1:], "more"],
    "of a later schema, short": lambda footer: {"schema": footer[0] + 1},
    "no JSON": lambda _: b"\xff{",
    "deep": lambda _: b"[" * 100_000,
    "a version that is text": lambda footer: [*footer[:2], "x", *footer[3:]],
    "types of no schema": lambda footer: [*footer[:5], {"a": 1}, *footer[6:]],
    "no levels": lambda footer: [*footer[:-1], None],
    "a level of 4 EiB": lambda footer: [*footer[:-1], [[0, HUGE, 1]]],
    "a level before the file": lambda footer: [*footer[:-1], [[-1, 8, 1]]],
    "a level behind 8 EiB": lambda footer: [*footer[:-1], [[2 * HUGE, 8, 1]]],
}
DIRECTORIES = {
    "empty": b"",
    "cut": b"abc",
    "of very many runs": array("Q", [0, 0, HUGE]).tobytes(),
    "of very many buckets": array("Q", [0, HUGE, 0]).tobytes(),
    "of too many buckets": array("Q", [0, 40, 0]).tobytes(),
    "of very many rows": array("Q", [0, 0, 1, 0, 100, HUGE, 0, 0, 1, 2]).tobytes(),
}


def rewrite(path, change, directory=None):
    """Makes another footer valid, as a program could that knows the format and its checksums."""
    with path.open("r+b", buffering=0) as file:
        number, (at, size, _) = local_file._slot_of(os.pread(file.fileno(), 128, 0))
        footer = json.loads(os.pread(file.fileno(), size, at))
        out = local_file._Appender(file.fileno(), at + size)
        if directory is not None:
            digest = local_file.xxh3_64_intdigest(directory)
            footer[-1] = [[out.put(directory), len(directory), digest]]
        body = change(footer)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        place = out.put(body), len(body), local_file.xxh3_64_intdigest(body)
        local_file._point(out, number + 1, place)


@pytest.mark.parametrize(
    ("change", "directory"),
    [*((odd, None) for odd in ODD.values()), *((list, one) for one in DIRECTORIES.values())],
    ids=[*ODD, *(f"a directory {name}" for name in DIRECTORIES)],
)
def test_a_file_of_a_stranger_is_built_anew(tmp_path, change, directory):
    """With correct checksums: written by a later release, or by an attacker."""
    log = Log.create(str(tmp_path / "log"), 1)
    log.append([{"key": b"a", "value": b"1"}])
    StateTable(log.url, tmp_path / "cache").close()
    (path,) = (tmp_path / "cache").glob("*.state")
    rewrite(path, change, directory)
    with StateTable(log.url, tmp_path / "cache") as table:
        assert dict(table.scan()) == {b"a": b"1"}
    assert not path.exists()


@pytest.mark.parametrize("ask", [lambda t: {b"a": t.get(b"a")}, lambda t: dict(t.scan())])
def test_a_row_of_a_partition_that_the_log_lacks(tmp_path, ask):
    """This is damage too, even with correct checksums, and the file is rebuilt."""
    log = Log.create(str(tmp_path / "log"), 1)
    log.append([{"key": b"a", "value": b"1"}])
    StateTable(log.url, tmp_path / "cache").close()
    (path,) = (tmp_path / "cache").glob("*.state")
    good = path.read_bytes()
    row = struct.pack("<IIiq", 1, 1, 0, 0)
    at = good.index(row)
    body = struct.pack("<IIiq", 1, 1, 7, 0) + good[at + len(row) : at + len(row) + 10]
    digest = local_file.xxh3_64_intdigest(body).to_bytes(8, "little")
    path.write_bytes(good[: at - 8] + digest + body + good[at + len(body) :])
    with StateTable(log.url, tmp_path / "cache") as table:
        try:
            found = ask(table)
        except CorruptionError:  # A scan that had begun says so.
            found = ask(table)
        assert found == {b"a": b"1"}
    assert not path.exists()


def test_a_scan_that_begins_after_close_is_told(tmp_path):
    """In the user's terms, not as a bad descriptor."""
    log = Log.create(str(tmp_path / "log"), 1)
    log.append([{"key": b"a", "value": b"1"}])
    table = StateTable(log.url, tmp_path / "cache")
    rows = table.scan()
    table.close()
    with pytest.raises(InvalidInputError, match="was closed; open it again"):
        next(rows)
