"""What clog writes is what FORMAT.md specifies: a second reader finds the same, in two ways."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import independent_reader as ir
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agreement import agree, as_row, chunks_of, delivered
from hypothesis import given, settings
from hypothesis import strategies as st

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.layout import coalesce
from clog.storage import Log, ManualClock
from clog.storage.administration import reset_times
from clog.storage.commit import committer
from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError
from clog.storage.format import chunks as bitmap
from clog.storage.format import columns, commits, writers
from clog.storage.format import manifest as snapshots
from clog.storage.format.chunks import Chunk, ChunkHorizon, Replacement
from clog.storage.format.commits import Edit
from clog.storage.format.documents import NONE
from clog.storage.objects.composing import write_rewritten
from clog.storage.read import copy
from clog.storage.types import columns as typed
from clog.storage.types.columns import REWRITTEN_SCHEMA
from clog_testing.strategies import placed_records

START_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path):
    return tmp_path / "log"


def create(root, partitions=2, **config):
    """A log on disk with a manual clock."""
    names = {name.replace("_", "."): value for name, value in config.items()}
    clock, ids = ManualClock(START_MS), SeededIds(5)
    return Log.create(str(root), partitions, names, clock=clock, ids=ids)


def rows(*values, key="k", **more):
    """Records with the keys k0, k1, …."""
    return [{"key": f"{key}{i}", "value": value, **more} for i, value in enumerate(values)]


def rewrite(log, p, keep, base, end, *, horizons=None, segments=None):
    """Commits a replacement of ``[base, end)`` by one object with the offsets to keep."""
    kept = [row for row in delivered(log, p, start=base, end=end) if row[0] in keep]
    columns = {
        "key": [row[2] for row in kept],
        "value": [row[3] for row in kept],
        "headers": [[{"key": k, "value": v} for k, v in row[4]] or None for row in kept],
        "timestamp": pa.array([row[1] for row in kept]).cast(pa.timestamp("us", "UTC")),
        "offset": [row[0] for row in kept],
        "delete_horizon": [(horizons or {}).get(row[0]) for row in kept],
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=REWRITTEN_SCHEMA)
    ids = log.handle.ids
    (obj,) = write_rewritten(
        log.handle.store, [batch], partition=p, stamp=log.version, new_id=ids.new_id
    )
    (facts,) = obj.chunks
    old = [c for s in log.handle.manifest().segments[p] for c in s.chunks if base <= c.base < end]
    first = kept[0][0] if obj.ref.dense else base
    chunk = Chunk(
        *(obj.ref, 0, obj.ref.rows, first, end, facts.size_bytes),
        *(facts.first_timestamp_ms, facts.max_timestamp_ms, facts.tombstones),
        *(max(c.version for c in old), NONE, facts.horizon_min, facts.horizon_max),
    )
    sources = tuple(c.identity for c in old)
    replacement = Replacement(p, base, end, sources, (chunk,), segments)
    log.handle.commit(lambda *_: Edit(replace=(replacement,)), operation="clean")
    return chunk


def test_an_empty_log(root):
    """Only version 0; nothing to read."""
    state = agree(root, create(root, partitions=3))
    assert (state["version"], state["end"]) == (0, [0, 0, 0])


@pytest.mark.parametrize("partitioner", ["xxh3", "murmur2"])
def test_keys_are_where_the_partitioner_puts_them(root, partitioner):
    """FORMAT.md §5.6."""
    log = create(root, partitions=7, partitioner=partitioner)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", *(f"key {i} \u00fc".encode() for i in range(99))]
    log.append([{"key": key, "value": "x"} for key in keys])
    state = agree(root, log)
    found = {row[2]: p for p in range(7) for row in ir.records(root, state, p)}
    assert found == {key: ir.partition_of(key, state["log"]) for key in keys}


def test_the_table(root):
    """FORMAT.md §8: the last record of each key at or above the log start, without tombstones."""
    log = create(root, partitions=1)
    for value in ("1", None, "2"):
        log.append([{"key": "a", "value": value}, {"key": f"b{value}", "value": value}])
    log.delete_records({0: 2})
    state = agree(root, log)
    mine = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    assert ir.table(root, state, 0) == mine == {b"a": b"2", b"b2": b"2"}


def test_keys_values_and_headers_of_every_kind(root):
    """Null is not an empty value (S4); headers repeat, some without a value; any bytes."""
    log = create(root)
    log.append(rows(None, b"", b"\x00\xff", "ü" * 300))
    log.append([{"key": b"", "value": b"1"}, {"key": "ü", "value": None}], partition=[1, 0])
    log.append(rows("a", headers=[("h", b"1"), ("h", None), ("", b"")]) + rows("b"))
    log.append(rows(b"x" * 100_000, "c", timestamp=7))
    agree(root, log)


def test_records_without_key(root):
    """S5: allowed if the log is not compacted."""
    log = create(root, cleanup_policy="delete")
    log.append([{"key": None, "value": b"1"}, {"key": None, "value": None}])
    agree(root, log)


def test_log_append_time(root):
    """FORMAT.md §3.3: one time for all rows, from the commit on in which the config says so."""
    log = create(root)
    log.append(rows("a", "b", timestamp=5))
    log.alter({"message.timestamp.type": "LogAppendTime"})
    log.handle.clock.advance(77)
    log.append(rows("c", "d", timestamp=9))
    log.alter({"message.timestamp.type": None})
    log.append(rows("e", "f", timestamp=11))
    state = agree(root, log)
    times = {row[1] for p in range(2) for row in ir.records(root, state, p)}
    assert times == {5_000, (START_MS + 77) * 1_000, 11_000}


def test_starts_in_the_middle_of_a_chunk(root):
    """S36: what is below the log start offset is not returned, though its rows are there."""
    log = create(root)
    for n in range(3):
        log.append(rows(*"abcdefgh", key=f"{n}-"))
    log.delete_records({0: 5, 1: 9})
    log.delete_records({0: -1})
    log.append(rows(*"xyz"))
    state = agree(root, log)
    assert [row[0] for row in ir.records(root, state, 1)][:1] == [9]
    assert all(log.start_offsets()[p] == state["start"][p] for p in range(2))


def test_segments_sealed_by_hand_by_size_and_by_chunks(root):
    """S7, S8: rolls within appends, and separate seals."""
    log = create(root, segment_bytes="120", segment_jitter_ms="50")
    for n in range(9):
        log.append(rows(*"abcdefghij"))
        if n % 4 == 1:
            log.roll(n % 2)
    state = agree(root, log)
    assert min(map(len, state["segments"])) > 2
    assert any(state["jitter_ms"])


def test_many_commits_with_snapshots_and_pages(root, monkeypatch):
    """FORMAT.md §3.1, §4: every version is read in both ways, and as clog reads it."""
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 900)
    monkeypatch.setattr(snapshots, "PAGE_CHUNKS_MIN", 4)
    log = create(root, partitions=3)
    for n in range(50):
        log.append(rows(*"abcd", key=f"{n}-"))
        if n % 5 == 4:
            log.roll()
        if n == 30:
            log.delete_records({1: 12})
    agree(root, log)
    assert len(list((ir.folder(root) / "snapshots").iterdir())) > 4
    assert len(list((ir.folder(root) / "pages").iterdir())) > 2
    for version in range(log.version):
        state = ir.replay(root, version)
        assert ir.manifest(state) == ir.manifest(ir.from_snapshot(root, version))
        manifest = log.handle.manifest_at(version)
        for p, segments in enumerate(manifest.segments):
            mine = [chunks_of(s) for s in state["segments"][p]]
            theirs = [(s.base, s.next, s.created_ms, [*map(as_row, s.chunks)]) for s in segments]
            assert mine == theirs


def test_times_that_were_set_back(root, monkeypatch):
    """FORMAT.md §3.2: also those of segments in pages; a record's timestamp stays as it is."""
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 500)
    monkeypatch.setattr(snapshots, "PAGE_CHUNKS_MIN", 3)
    log = create(root, message_timestamp_type="LogAppendTime", segment_chunks="1")
    log.append(rows("early"))
    ahead = Log.open(str(root), clock=ManualClock(2 * START_MS), ids=SeededIds(6))
    for n in range(12):
        ahead.append(rows(f"late {n}"), partition=0)
    log.append(rows("still late"))
    assert agree(root, log)["time_ms"] == 2 * START_MS
    assert START_MS - 1000 < reset_times(log.handle) <= START_MS
    now_ms = log.handle.clock.now_ms()  # turns were taken meanwhile
    state = agree(root, log)
    assert state["time_ms"] == now_ms
    times = {row[1] for p in range(2) for row in ir.records(root, state, p)}
    assert times == {START_MS * 1000, now_ms * 1000}
    assert reset_times(log.handle) == 0
    log.append(rows("in time"))
    assert agree(root, log)["time_ms"] == now_ms


def test_cleaning_under_pages(root, monkeypatch):
    """An edit of segments that are in a page removes them from it only for that partition."""
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 900)
    monkeypatch.setattr(snapshots, "PAGE_CHUNKS_MIN", 4)
    log = create(root)
    for n in range(40):
        log.append(rows(*"abcd", key="ab"[n % 2]))
        if n % 3 == 2:
            log.roll()
    reopened = Log.open(str(root), clock=log.handle.clock, ids=SeededIds(6))
    segment = reopened.handle.manifest().segments[0][2]
    offsets = range(segment.base + 1, segment.next, 2)
    tile = ((segment.base, segment.next, segment.created_ms),)
    rewrite(reopened, 0, offsets, segment.base, segment.next, segments=tile)
    for n in range(12):
        reopened.append(rows(*"abcd", key=f"{n}-"))
    agree(root, reopened)


def test_dead_rows(root, monkeypatch):
    """FORMAT.md §5.4: inline, in files, in pages, kept by merges, one replaced by another."""
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 900)
    monkeypatch.setattr(snapshots, "PAGE_CHUNKS_MIN", 4)
    log = create(root, partitions=1, object_bytes="1000", segment_bytes="3000")
    cleaner = Cleaner(log)
    log.append([{"key": f"k{i:03}", "value": "x" * (i % 9)} for i in range(200)])
    log.roll()
    kinds = set()
    for n in range(10):
        monkeypatch.setattr(bitmap, "INLINE_BYTES_MAX", 1024 * (n % 2))
        log.append([{"key": f"k{i:03}", "value": f"{n}"} for i in (n, 60 + n * 7)])
        log.roll()
        log.append([{"key": "other", "value": None if n % 3 else "x"}])
        cleaner.run_once(force=True)
        state = agree(root, log)
        chunks = [c for s in state["segments"][0] for c in s["chunks"]]
        kinds |= {name for c in chunks for name in c.get("dead", ())}
    assert {"bits", "path"} <= kinds
    assert len({row[2] for row in ir.records(root, state, 0)}) == 201
    assert any(r[0].endswith(".dead") for r in state["released"])


def test_an_edit_in_a_document_of_its_own(root, monkeypatch):
    """FORMAT.md §3.3: `edit_at`, also if later commits carry it along."""
    monkeypatch.setattr(commits, "INLINE_EDIT_BYTES_MAX", 200)
    log = create(root)
    for n in range(6):
        log.append(rows(*"abc", key=f"{n}-"))
    agree(root, log)
    assert len(list((ir.folder(root) / "edits").iterdir())) == 6


def test_more_writers_than_a_head_holds(root):
    """FORMAT.md §3.4: none is dropped."""
    log = create(root)
    for n in range(140):
        log.append(rows("a"), producer=(f"producer-{n % 100}", n))
    state = agree(root, log)
    assert len(state["writers"]) == 100
    assert state["older"]["level"] == 0
    assert log.append(rows("a"), producer=("producer-50", 50)).duplicate


def test_heads_with_the_columns_of_some_partitions(root, monkeypatch):
    """FORMAT.md §3.4: the others are in a document; every version, and the next one is due."""
    monkeypatch.setattr(columns, "INLINE_PARTITIONS_MAX", 8)
    monkeypatch.setattr(committer, "SNAPSHOT_EDIT_BYTES_MIN", 900)
    log = create(root, partitions=20, segment_chunks="2")
    for n in range(40):
        log.append(rows("v"), partition=n % 4)
        if n == 20:
            log.append(rows(*"v" * 20), partition=range(20))
    state = agree(root, log)
    assert ir.manifest(ir.from_snapshot(root, 30)) == ir.manifest(ir.replay(root, 30))
    assert state["end"][:4] == [11, 11, 11, 11]
    heads = [ir.commit(root, v)["head"]["partitions"] for v in range(log.version + 1)]
    assert len({head["rest"]["path"] for head in heads if "rest" in head}) > 3
    assert [v for v, head in enumerate(heads) if "rest" not in head] == [0, 22]


def test_pages_of_writers_above_pages(root, monkeypatch):
    """FORMAT.md §4: a tree of several levels, whichever writers return, and several in
    one commit.
    """
    monkeypatch.setattr(writers, "PAGE_BYTES_MAX", 500)
    monkeypatch.setattr(writers, "WRITERS_MAX", 4)
    log = create(root)
    for n in range(90):
        log.append(rows("a"), producer=(f"producer-{n * 7 % 60}", n))
    state = agree(root, log)
    assert len(state["writers"]) == 60
    assert state["older"]["level"] >= 2
    assert len(state["recent"]) == 4
    for n in range(30, 90):
        assert log.append(rows("a"), producer=(f"producer-{n * 7 % 60}", n)).duplicate


def test_compression_of_every_kind(root):
    """FORMAT.md §5.1: any that Parquet names."""
    log = create(root)
    for codec in ("none", "snappy", "lz4", "zstd"):
        log.alter({"compression.type": codec})
        log.append(rows(*"abc"))
    agree(root, log)


def test_a_chunk_with_gaps(root):
    """S1: offsets without a record; the end offset does not move with the last record (S3)."""
    log = create(root, partitions=1)
    log.append(rows(*"abcdefgh"))
    log.roll()
    rewrite(log, 0, {1, 4, 5}, 0, 8, segments=((0, 8, START_MS),))
    state = agree(root, log)
    assert [row[0] for row in ir.records(root, state, 0)] == [1, 4, 5]
    assert state["end"] == [8]
    log.delete_records({0: 3})
    log.append(rows("z"))
    assert [row[0] for row in ir.records(root, agree(root, log), 0)] == [4, 5, 8]


def test_merged_segments_with_horizons_in_rows(root):
    """S23, S25: a column for the tombstones that have a horizon, bounds of it in the chunk."""
    log = create(root, partitions=1)
    for values in ("ab", [None, "c"], "de"):
        log.append(rows(*values))
        log.roll()
    chunk = rewrite(log, 0, {2, 3, 4, 5}, 0, 6, horizons={2: 77}, segments=((0, 6, START_MS),))
    assert (chunk.horizon_min, chunk.horizon_max) == (77, 77)
    state = agree(root, log)
    assert [row[5] for row in ir.records(root, state, 0)] == [77, None, None, None]


@pytest.mark.parametrize(("given", "counts"), [(99, 99), (1 << 70, (1 << 63) - 1)])
def test_a_horizon_of_a_chunk(root, given, counts):
    """FORMAT.md §5.3: for tombstones below `up_to` that have none of their own; a sum that
    overflowed is the latest possible time.
    """
    log = create(root, partitions=1)
    log.append(rows(None, "b", None, None))
    log.roll()
    ((chunk,),) = (s.chunks for s in log.handle.manifest().segments[0][:-1])
    mark = ChunkHorizon(0, *chunk.identity, given, 3)
    log.handle.commit(lambda *_: Edit(horizons=(mark,), first_dirty={0: 3}), operation="clean")
    reopened = Log.open(str(root), clock=log.handle.clock, ids=SeededIds(6))
    state = agree(root, reopened)
    assert [row[5] for row in ir.records(root, state, 0)] == [counts, None, counts, None]


def test_integers_of_more_than_64_bits_are_refused(root):
    """FORMAT.md §2: all but a chunk's horizon."""
    log = create(root, partitions=1)
    log.append(rows("a"))
    beyond = Edit(first_dirty={0: 1 << 63})
    log.handle.commit(lambda *_: beyond, operation="clean")
    with pytest.raises(ir.DamagedError, match="64 bits"):
        ir.replay(root)
    with pytest.raises(CorruptionError, match="64 bits"):
        Log.open(str(root), clock=log.handle.clock, ids=SeededIds(6)).handle.manifest()


def test_coalesced_chunks_of_the_active_segment(root):
    """FORMAT.md §3.3: other chunks, the same segment; appends continue."""
    log = create(root)
    for n in range(4):
        log.append(rows(*"abcdef", key=f"{n}-"))
    end = log.end_offsets()[1]
    rewrite(log, 1, range(end), 0, end)
    log.append(rows(*"abcdef"))
    state = agree(root, log)
    assert [len(segments[0]["chunks"]) for segments in state["segments"]] == [5, 2]


@pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 19,
    reason="Arrow states the sizes of columns since 19; without them nothing is copied",
)
def test_row_groups_that_were_copied(root, monkeypatch):
    """FORMAT.md §5.1: the footer, its checksum, the key index and page checksums of an object that
    was composed of others' row groups are those of any object.
    """
    monkeypatch.setattr("clog.storage.objects.writer.GROUP_ROWS", 8)
    monkeypatch.setattr("clog.storage.objects.writer.GROUP_BYTES_MIN", 1)
    monkeypatch.setattr("clog.storage.read.copy.GROUP_BYTES_MIN", 1)
    for module in ("writer", "composing"):
        monkeypatch.setattr(f"clog.storage.objects.{module}.WHOLE_BYTES", 100)
    copied = []
    real = copy.RowGroupSource.copied
    monkeypatch.setattr(
        copy.RowGroupSource, "copied", lambda *a: copied.append(real(*a)) or copied[-1]
    )
    log = create(root, **{"cleanup.policy": "delete"})
    for n in range(4):
        log.append(rows(*"abcdefghijklmnopq" * 2, None, key=f"{n}-"))
    log.append([{"key": "h", "value": "1", "headers": [("x", b"y")]}])
    coalesce(Work(log.handle, log.handle.clock.now_ms()), force=True)
    state = agree(root, log)
    assert any(copied)
    assert any(o["index"] for o in state["objects"].values())
    for path in state["objects"]:
        pq.ParquetFile(ir.inside(root, path), page_checksum_verification=True).read()


@pytest.mark.parametrize("wrong", ["key", "offset", "headers"])
def test_columns_with_some_other_ids_are_refused(root, monkeypatch, wrong):
    """FORMAT.md §5.1: a column has its own id, or none has any."""
    log = create(root, partitions=1)
    own = {b"PARQUET:field_id": b"77"}
    right = typed.with_ids
    with monkeypatch.context() as other:
        other.setattr(
            typed,
            "with_ids",
            lambda f: f.with_metadata(own) if f.name == wrong else right(f),
        )
        log.append([{"key": "a", "value": "b", "headers": [("h", b"x")]}, *rows("c", "d")])
        log.roll()
        rewrite(log, 0, [0, 2], 0, 3)
    with pytest.raises(ir.DamagedError, match="field id 77"):
        ir.records(root, ir.replay(root), 0)


def test_an_object_referred_to_again_in_part(root):
    """FORMAT.md §3.3: trimming by reference, from a row in the middle."""
    log = create(root, partitions=1)
    log.append(rows(*"abcdefgh"))
    log.roll()
    log.delete_records({0: 3})
    ((chunk,),) = (s.chunks for s in log.handle.manifest().segments[0][:-1])
    size = chunk.size_bytes // 8
    cut = replace(chunk, first_row=3, rows=5, base=3, size_bytes=size * 5)
    trimmed = Replacement(0, 0, 8, (chunk.identity,), (cut,))
    log.handle.commit(lambda *_: Edit(replace=(trimmed,)), operation="trim")
    state = agree(root, log)
    assert state["released"] == []
    assert b"".join(row[3] for row in ir.records(root, state, 0)) == b"defgh"


def test_a_cleaned_log(root):
    """The cleaner's own work: passes, retention, tombstones that are removed."""
    log = create(root, min_cleanable_dirty_ratio="0", delete_retention_ms="100")
    cleaner = Cleaner(log, clock=log.handle.clock)
    log.append(rows(*[None] * 8, key="gone"))
    for n in range(40):
        log.handle.clock.advance(10)
        log.append(rows(*("abcde" if n % 3 else [None] * 5)))
        if n % 7 == 3:
            log.roll()
        if n % 10 == 9:
            cleaner.run_once(force=True)
            agree(root, log)
    log.append(rows(*[None] * 5))
    for _ in range(2):
        log.roll()
        cleaner.run_once(force=True)
        log.handle.clock.advance(100)
    agree(root, log)
    assert ir.replay(root)["tombstones_removed"]


OPERATIONS = st.one_of(
    placed_records(2).map(lambda records: ("append", records)),
    placed_records(2).map(lambda records: ("append", records)),
    st.sampled_from([("roll", 0), ("roll", None), ("clean", None), ("time", None)]),
    st.tuples(st.just("delete"), st.floats(0, 1)),
)


@settings(max_examples=3 * settings().max_examples // 5)
@given(st.lists(OPERATIONS, max_size=14))
def test_any_history(operations):
    """Whatever happens to a log, both readers find the same."""
    folder = Path(tempfile.mkdtemp())
    try:
        log = create(folder / "log", min_cleanable_dirty_ratio="0", delete_retention_ms="5")
        for name, argument in operations:
            perform(log, name, argument)
        agree(folder / "log", log)
    finally:
        shutil.rmtree(folder)


def perform(log, name, argument):
    log.handle.clock.advance(3)
    match name:
        case "append":
            records = [
                {"key": r.key, "value": r.value, "timestamp": r.timestamp_ms, "headers": r.headers}
                for _, r in argument
            ]
            log.append(records, partition=np.array([p for p, _ in argument]))
        case "roll":
            log.roll(argument)
        case "clean":
            Cleaner(log, clock=log.handle.clock).run_once(force=True)
        case "time":
            kind = log.config["message.timestamp.type"]
            other = {"CreateTime": "LogAppendTime", "LogAppendTime": "CreateTime"}[kind]
            log.alter({"message.timestamp.type": other})
        case "delete":
            log.delete_records({p: int(end * argument) for p, end in log.end_offsets().items()})


@pytest.fixture
def sound(root):
    """A small undamaged log with all kinds of files except pages."""
    log = create(root, partitions=1)
    for n in range(5):
        log.append(rows(*"abc", key=f"{n}-"))
    agree(root, log)
    return root


def damaged_somewhere(root):
    """Whether the independent reader refuses the log."""
    try:
        ir.records(root, ir.replay(root), 0)
        ir.records(root, ir.from_snapshot(root), 0)
    except (ir.DamagedError, KeyError, ValueError, TypeError, pa.ArrowException, OSError):
        return True
    return False


def test_the_independent_reader_sees_damage(sound):
    """Its agreement is meaningful: one bit anywhere in a commit or an object, and it refuses."""
    for path in [
        ir.folder(sound) / "commits" / f"{3:020d}.json",
        next((ir.folder(sound) / "data").iterdir()),
    ]:
        data = path.read_bytes()
        for at in range(0, len(data), 37):
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            assert damaged_somewhere(sound), (path, at)
        path.write_bytes(data)
    assert not damaged_somewhere(sound)


def rewritten(root, version, change):
    """Changes the body of a commit and makes its envelope agree."""
    from clog.storage.format.documents import decode, encode

    path = ir.folder(root) / "commits" / f"{version:020d}.json"
    body = decode("commit", path.read_bytes(), where="x")
    change(body)
    path.write_bytes(encode("commit", body))


@pytest.mark.parametrize("lost", [{3}, {0}, {1, 2}, {0, 1, 2, 3}])
def test_a_list_of_earlier_edits_that_has_a_gap(root, lost):
    """§3.1: both readers find what it lacks in the commits themselves, and the log continues."""
    log = create(root)
    for n in range(4):
        log.append(rows(f"v{n}"))

    def lose(body):
        body["earlier"] = [entry for entry in body["earlier"] if entry["version"] not in lost]

    rewritten(root, 4, lose)
    for n in range(4, 9):
        agree(root, Log.open(str(root)), whole_history=False)
        Log.open(str(root)).append(rows(f"v{n}"))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["head"]["partitions"]["end"].__setitem__(0, 99),
        lambda body: body["head"].__setitem__("config_epoch", 3),
        lambda body: body.__setitem__("parent", "f" * 32),
        lambda body: body.__setitem__("time_ms", START_MS - 1),
        lambda body: body.__setitem__("version", 5),
        lambda body: body.__setitem__("earlier", []),
        lambda body: body["earlier"][1].__setitem__("time_ms", 7),
        lambda body: body["edit"]["add"]["objects"][0].__setitem__("path", "../out"),
        lambda body: body["edit"]["add"]["objects"][0]["chunks"]["base"].__setitem__(0, 8),
        lambda body: body["edit"]["add"]["objects"][0]["chunks"]["bytes"].__setitem__(0, 8),
        lambda body: body["edit"]["add"]["objects"][0]["chunks"]["max_ms"].__setitem__(0, 8),
        lambda body: body["edit"]["add"]["objects"][0].__setitem__("rows", 8),
    ],
)
def test_the_independent_reader_sees_what_contradicts_the_format(sound, change):
    """Documents whose checksums agree but whose facts do not."""
    rewritten(sound, 4, lambda body: None)
    assert not damaged_somewhere(sound)
    rewritten(sound, 4, change)
    assert damaged_somewhere(sound)
