"""Verification: a sound log has no findings, and each kind of damage has one that names it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_released
from clog.storage import NotFoundError, UnsupportedFormatError, VersionExpiredError
from clog.storage.commit import committer as commit_module
from clog.storage.diagnostics.verify import Check, object_problems, segment_findings, verify_log
from clog.storage.env import SeededIds
from clog.storage.format import chunks
from clog.storage.format.chunks import DeadMark, write_dead_rows
from clog.storage.format.commits import Edit, encode_commit, read_commit
from clog.storage.format.documents import (
    DATA,
    NONE,
    SNAPSHOTS,
    commit_path,
    decode,
    encode,
    snapshot_path,
)
from clog.storage.format.manifest import read_snapshot, write_snapshot
from clog.storage.objects import writer
from clog.storage.store.contract import WrappingStore
from clog.storage.types.columns import with_ids
from clog_testing.counting import CountingStore
from clog_testing.crash import inside
from clog_testing.sealing import sealed


@pytest.fixture
def log(make_log, monkeypatch):
    """Two partitions, three objects in six versions, a raised log start, a sealed segment."""
    log = make_log(partitions=2)
    log.append([{"key": "a", "value": "1"}, {"key": "b", "value": None}], partition=[0, 1])
    log.append([{"key": "a", "value": "2", "headers": [("h", "v")]}, {"key": "c", "value": "3"}])
    log.roll()
    log.delete_records({0: 1})
    log.append([{"key": "d", "value": "4"}] * 3, partition=0)
    return log


def checks(report):
    return [finding.check for finding in report.findings]


def path_of(log, number=0):
    """An object of the log: the first one appended, the second …"""
    paths = dict.fromkeys(c.object.path for _, c in log.handle.manifest().chunks())
    return sorted(paths)[number]


def test_dead_rows_that_cannot_be_read(log, store, monkeypatch):
    """FORMAT.md §5.4: if it is not clear which rows are dead none of them may be shown."""
    monkeypatch.setattr(chunks, "INLINE_BYTES_MAX", 0)
    log.roll()
    chunk = next(c for _, c in log.handle.manifest().chunks() if c.rows == 3)
    given = {"since_ms": 0, "stamp": 0, "new_id": SeededIds(9).new_id}
    dead = write_dead_rows(inside(store), np.array([True, False, True]), **given)
    mark = DeadMark(0, *chunk.identity, dead)
    log.handle.commit(lambda *_: Edit(dead=(mark,)), operation="clean")
    assert verify_log(store).findings == ()
    inside(store).put(dead.bitmap.path, b"x" * dead.bitmap.size_bytes)
    assert checks(verify_log(store)) == [Check.DEAD_ROWS]
    inside(store).delete(dead.bitmap.path)
    assert checks(verify_log(store)) == [Check.DEAD_ROWS]
    assert verify_log(store, quick=True).findings == ()


def test_commits_that_no_search_finds(make_log, store):
    """COMMIT.md §6: a file between the hint and the newest version is missing; opening the log
    takes an older version for the newest, and only a listing shows the truth.
    """
    log = make_log()
    for n in range(7):
        log.append([{"key": "k", "value": str(n)}])
    inside(store).delete(commit_path(6))
    report = verify_log(store)
    assert report.version == 5
    (found,) = report.findings
    assert (found.check, found.where) == (Check.COMMIT, commit_path(7))
    assert found.message.startswith(
        "the version before it, 6, is gone, so 5 is taken for the newest;"
    )


def test_a_sound_log_has_no_findings(log, store):
    """It reports what it checked."""
    log.alter({"segment.ms": "5000"})
    report = verify_log(store)
    assert report.findings == ()
    assert (report.version, report.commits, report.objects) == (log.version, log.version + 1, 3)
    assert report.records == 7
    assert report.url == log.url


def test_append_time_counts_instead_of_the_column(make_log, store, clock):
    """Under LogAppendTime the chunk's time is that of the commit (S9)."""
    log = make_log(config={"message.timestamp.type": "LogAppendTime"})
    log.append([{"key": "a", "value": "1", "timestamp": 5}])
    assert verify_log(store).findings == ()


def test_progress_is_told_in_bytes(log, store):
    """From nothing to all bytes of all objects."""
    told = []
    verify_log(store, on_progress=lambda done, total: told.append((done, total)))
    total = told[0][1]
    assert told[0] == (0, total)
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_no_thread_of_arrows_reads_an_object(log, store, monkeypatch):
    """It would hold Python's bytes when all is answered, and abort a process that ends then."""
    read, asked = pq.ParquetFile.read, []

    def watched(self, **given):
        asked.append(given)
        return read(self, **given)

    monkeypatch.setattr(pq.ParquetFile, "read", watched)
    assert verify_log(store).findings == ()
    assert asked
    assert all(given["use_threads"] is False for given in asked)


def test_a_quick_check_reads_no_object(log, store):
    """Two listings at most, an opening and a look at the block; still a missing object and a
    truncated one are found.
    """
    counted = CountingStore(store)
    assert verify_log(counted, quick=True).findings == ()
    assert counted.counts["list"] == 1
    assert counted.counts["get"] <= 6
    whole = inside(store).get(path_of(log))
    inside(store).put(path_of(log), whole[:-1])
    inside(store).delete(path_of(log, 1))
    assert sorted(checks(verify_log(store, quick=True))) == [Check.OBJECT, Check.OBJECT_MISSING]
    inside(store).put(path_of(log), whole[:-1] + b"x")
    assert checks(verify_log(store, quick=True)) == [Check.OBJECT_MISSING]


def test_no_log_is_no_finding(store):
    """There is nothing to verify."""
    with pytest.raises(NotFoundError):
        verify_log(store)


def test_a_damaged_log_file_is_a_finding(log, store):
    """FORMAT.md §1: without it nobody knows which folder is the log's."""
    store.put("_clog/log", b"torn")
    report = verify_log(store)
    (finding,) = report.findings
    assert (report.version, finding.check, finding.where) == (None, Check.STATE, "_clog/log")


def test_a_missing_object_is_named_with_what_it_held(log, store):
    """Path, and offsets by partition."""
    path = path_of(log)
    inside(store).delete(path)
    (finding,) = verify_log(store).findings
    assert (finding.check, finding.where) == (Check.OBJECT_MISSING, path)
    assert "[0, 1) of partition 0, [0, 1) of partition 1" in finding.message


def test_every_flipped_byte_of_an_object_is_found(log, store):
    """The checksum covers all bytes."""
    path = path_of(log)
    data = inside(store).get(path)
    for at in range(0, len(data), 29):
        inside(store).put(path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        (finding,) = verify_log(store).findings
        assert (finding.check, finding.where) == (Check.OBJECT, path)
        assert "xxh3_128" in finding.message


def test_the_other_checks_go_on(log, store):
    """Findings show the extent: every damaged object, and a damaged commit among sound ones."""
    for number in (0, 2):
        inside(store).put(path_of(log, number), b"")
    inside(store).put(commit_path(1), b"{}\n")
    found = verify_log(store)
    assert checks(found).count(Check.OBJECT) == 2
    assert [f.where for f in found.findings if f.check == Check.COMMIT] == [commit_path(1)]


def test_a_damaged_newest_commit_leaves_no_state(log, store):
    """Nothing can be said about objects then; about the older commits, that they are sound."""
    inside(store).put(commit_path(log.version), b"")
    report = verify_log(store)
    assert report.version is None
    assert report.commits == log.version
    assert set(checks(report)) == {Check.STATE, Check.COMMIT}


def test_a_newer_format_is_no_damage(log, store):
    """The remedy is an upgrade."""
    data = inside(store).get(commit_path(log.version))
    inside(store).put(commit_path(log.version), data.replace(b'"format":1', b'"format":2', 1))
    with pytest.raises(UnsupportedFormatError):
        verify_log(store)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"commit_id": "0" * 32}, "its parent is"), ({"time_ms": 1 << 50}, "is before that")],
)
def test_commits_follow_one_another(log, store, changes, said):
    """Each names its parent, and times do not decrease."""
    commit = read_commit(inside(store), 2)
    changed = replace(commit, record=replace(commit.record, **changes))
    inside(store).put(commit_path(2), encode_commit(changed))
    found = [f for f in verify_log(store).findings if f.check == Check.COMMIT]
    assert any(f.where == commit_path(3) and said in f.message for f in found)


def test_carried_edits_are_those_committed(log, store):
    """A commit that carries a different edit from the committed one would mislead readers."""
    commit = read_commit(inside(store), 4)
    first = replace(commit.earlier[1], operation="something else")
    inside(store).put(
        commit_path(4),
        encode_commit(replace(commit, earlier=(commit.earlier[0], first, *commit.earlier[2:]))),
    )
    found = [f for f in verify_log(store).findings if f.check == Check.COMMIT]
    assert "an edit of version 1 other" in found[0].message


@pytest.fixture
def snapshotted(make_log, store, monkeypatch):
    """A log that has snapshots, and commits since."""
    monkeypatch.setattr(commit_module, "SNAPSHOT_EDIT_BYTES_MIN", 100)
    log = make_log(partitions=2)
    for i in range(18):
        log.append([{"key": f"k{i}", "value": "v"}])
        if i % 5 == 0:
            log.roll()
    assert list(inside(store).list(SNAPSHOTS))
    return log


def test_a_snapshot_that_tells_another_story_is_found(snapshotted, store):
    """All edits from version 0 on lead elsewhere."""
    version = snapshotted.handle.tip.head.snapshot.version
    manifest = read_snapshot(inside(store), version)
    assert verify_log(store).findings == ()
    inside(store).delete(snapshot_path(version))
    lie = replace(manifest, first_dirty=(1, *manifest.first_dirty[1:]))
    write_snapshot(inside(store), lie, new_id=SeededIds(9).new_id)
    (finding,) = verify_log(store).findings
    assert finding.check == Check.STATE
    assert "other first_dirty" in finding.message


def test_history_may_begin_at_a_snapshot(snapshotted, store):
    """Old commits are deleted with their block: the replay starts from the oldest existing
    snapshot.
    """
    version = min(
        int(found.path.rpartition("/")[2].removesuffix(".json"))
        for found in inside(store).list(SNAPSHOTS)
    )
    for gone in range(version):
        inside(store).delete(commit_path(gone))
    report = verify_log(store)
    assert report.findings == ()
    assert report.commits == snapshotted.version + 1 - version


def test_a_gap_in_history_is_found(snapshotted, store):
    """A missing commit among others cannot be replayed."""
    tip = snapshotted.version
    inside(store).delete(commit_path(tip - tip % 4 - 3))
    found = verify_log(store).findings
    assert [f.check for f in found] == [Check.STATE]
    assert "does not follow" in found[0].message


def _carrying_another(commit):
    return replace(commit, earlier=(replace(commit.earlier[0], parent="f" * 32),))


def _with_another_snapshot(commit):
    snapshot = replace(commit.head.snapshot, commit_id="f" * 32)
    return replace(commit, head=replace(commit.head, snapshot=snapshot))


@pytest.mark.parametrize(
    ("after", "changed", "said"),
    [
        (3, _carrying_another, "the edits that it carries follow ffff"),
        (2, _with_another_snapshot, "its snapshot has ffff"),
    ],
)
def test_ids_of_another_copy_are_found(snapshotted, store, after, changed, said):
    """FORMAT.md §3.1: what a commit carries, and its snapshot, are of the same history."""
    folder, at = inside(store), snapshotted.handle.tip.head.snapshot.version + after
    folder.put(commit_path(at), encode_commit(changed(read_commit(folder, at))))
    found = [f.message for f in verify_log(store).findings if f.where == commit_path(at)]
    assert any(said in message for message in found)


def damaged(manifest, damage):
    """The manifest with other segments in partition 0."""
    return replace(manifest, segments=(damage(manifest.segments[0]), *manifest.segments[1:]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda s: s[1:], "begins at 3, after the log start offset 1"),
        (lambda s: (replace(s[0], next=2), *s[1:]), "segment [0, 2) is followed by one at 3"),
        (lambda s: s[:-1], "the head's active segment is [3, 6)"),
        (
            lambda s: (replace(s[0], chunks=s[0].chunks[::-1]), *s[1:]),
            "does not fit into segment [0, 3)",
        ),
        (
            lambda s: (*s[:-1], replace(s[1], chunks=(replace(s[1].chunks[0], rows=4),))),
            "a chunk of 4 rows at [3, 6) does not fit",
        ),
    ],
)
def test_segments_tile_and_chunks_fit(make_log, damage, said):
    """Every offset belongs to one segment, every chunk into one; the head says the same."""
    log = make_log(partitions=1)
    log.append([{"key": "a", "value": "1"}])
    log.append([{"key": "b", "value": "2"}] * 2)
    log.roll()
    log.append([{"key": "c", "value": "3"}] * 3)
    log.delete_records({0: 1})
    manifest = log.handle.manifest()
    assert list(segment_findings(manifest)) == []
    found = list(segment_findings(damaged(manifest, damage)))
    assert any(said in finding.message for finding in found), found
    assert {(f.check, f.where) for f in found} == {(Check.SEGMENTS, "partition 0")}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size_bytes": 1}, "its size is"),
        ({"first_timestamp_ms": 1}, "its first timestamp is 1000000, but the manifest says 1"),
        ({"max_timestamp_ms": 1}, "its largest timestamp is 1000000, but the manifest says 1"),
        ({"tombstones": 7}, "its tombstones is 1, but the manifest says 7"),
        ({"horizon_min": 5}, "its smallest delete horizon is -1, but the manifest says 5"),
        ({"horizon_max": 5}, "its largest delete horizon is -1, but the manifest says 5"),
        ({"first_row": 2, "rows": 1}, "has 0 rows, but the manifest says 1"),
    ],
)
def test_the_facts_of_a_chunk_are_those_of_its_rows(make_log, store, changes, said):
    """Sizes, timestamps, tombstones, horizons: what S7, S11, S16 and S32 decide by."""
    log = make_log(partitions=1)
    log.append([{"key": "a", "value": "1"}, {"key": "b", "value": None}])
    ((p, chunk),) = log.handle.manifest().chunks()
    data = inside(store).get(chunk.object.path)
    assert list(object_problems(data, chunk.object, [(p, chunk)], key_seed=0)) == []
    (problem,) = object_problems(data, chunk.object, [(p, replace(chunk, **changes))], key_seed=0)
    assert said in problem
    assert problem.startswith("chunk [0, 2) of partition 0: ")


def rewritten(log, store, offsets, **columns):
    """The log's one object with these offsets, and a chunk [10, 20) for it."""
    ((_, chunk),) = log.handle.manifest().chunks()
    table = pq.read_table(pa.BufferReader(inside(store).get(chunk.object.path)))
    if offsets is not None:
        columns = {"offset": offsets, **columns}
    for name, values in columns.items():
        field = with_ids(pa.field(name, pa.int64()))
        table = table.append_column(field, pa.array(values, pa.int64()))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data, footer_bytes = sealed(sink.getvalue())
    ref = replace(
        chunk.object,
        size_bytes=len(data),
        footer_bytes=footer_bytes,
        checksum=xxhash.xxh3_128_hexdigest(data),
        dense=False,
    )
    return data, ref, replace(chunk, object=ref, base=10, next=20)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([10, 19], None),
        ([12, 12], "do not increase"),
        ([12, 11], "do not increase"),
        ([9, 11], "its offsets are 9 to 11"),
        ([12, 20], "its offsets are 12 to 20"),
        (None, "the manifest says dense=False"),
    ],
)
def test_offsets_rise_inside_their_chunk(make_log, store, offsets, said):
    """Cleaning leaves gaps, and moves nothing (S1)."""
    log = make_log(partitions=1)
    log.append([{"key": "a", "value": "1"}, {"key": "b", "value": None}])
    data, ref, chunk = rewritten(log, store, offsets)
    problems = list(object_problems(data, ref, [(0, chunk)], key_seed=0))
    assert bool(problems) == bool(said)
    assert all(said in problem for problem in problems)


def test_delete_horizons_bound_those_of_the_rows(make_log, store):
    """The chunk says the least and the greatest (S16, S23)."""
    log = make_log(partitions=1)
    log.append([{"key": "a", "value": None}, {"key": "b", "value": None}])
    data, ref, chunk = rewritten(log, store, [10, 11], delete_horizon=[None, 70])
    right = replace(chunk, horizon_min=70, horizon_max=70)
    assert list(object_problems(data, ref, [(0, right)], key_seed=0)) == []
    wrong = replace(right, horizon_min=NONE)
    assert len(list(object_problems(data, ref, [(0, wrong)], key_seed=0))) == 1


def test_an_object_of_other_rows_is_found(make_log, store):
    """Its checksum may be right and its rows still too few, or no Parquet at all."""
    log = make_log(partitions=1)
    log.append([{"key": "a", "value": "1"}])
    data, ref, chunk = rewritten(log, store, [10])
    (problem,) = object_problems(data, replace(ref, rows=2), [(0, chunk)], key_seed=0)
    assert problem.endswith("it counts 1 rows, its row groups 1, expected 2")
    junk = b"PAR1 and no more"
    ref = replace(ref, size_bytes=len(junk), checksum=xxhash.xxh3_128_hexdigest(junk))
    (problem,) = object_problems(junk, ref, [(0, chunk)], key_seed=0)
    assert problem.startswith("cannot be read: its tail is ")


def test_documents_of_edits_are_read(log, store):
    """A commit whose body was damaged and whose envelope was corrected is found too."""
    body = decode("commit", inside(store).get(commit_path(1)), where="here")
    del body["head"]
    inside(store).put(commit_path(1), encode("commit", body))
    assert Check.COMMIT in checks(verify_log(store))


def test_an_index_that_misses_a_key_is_found(make_log, store, monkeypatch):
    """Look-ups and the cleaner would take the key for absent."""
    monkeypatch.setattr(writer, "WHOLE_BYTES", 0)
    log = make_log()
    log.append([{"key": f"k{i % 50}", "value": "v"} for i in range(60)])
    log.roll()
    Cleaner(log).run_once(force=True)
    assert not verify_log(store).findings
    ((_, chunk),) = log.handle.manifest().chunks()
    data, seed = inside(store).get(chunk.object.path), log.handle.tip.head.log.key_seed
    assert list(object_problems(data, chunk.object, [(0, chunk)], key_seed=seed)) == []
    problems = list(object_problems(data, chunk.object, [(0, chunk)], key_seed=seed + 1))
    assert problems == ["its key index lacks 50 keys of rows [0, 50)"]
    start = chunk.object.tail[0]
    other = data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :]
    ref = replace(chunk.object, checksum=xxhash.xxh3_128_hexdigest(other))
    (problem,) = object_problems(other, ref, [(0, chunk)], key_seed=seed)
    assert "xxh3_128 of its key index" in problem


@pytest.mark.parametrize("call", [f"list {DATA}", f"get {DATA}"])
def test_a_version_that_expires_meanwhile_is_not_damaged(log, store, clock, call):
    """S27: what the cleaner replaced and the sweep deleted since is not reported as missing.
    Verifying it did not verify its replacement.
    """
    log.roll()

    class Swept(WrappingStore):
        """The log is cleaned and swept before the first such call."""

        done = False

        def _before(self, operation, path):
            if not self.done and call in f"{operation} {path.split('/', 2)[-1]}":
                self.done = True
                Cleaner(log).run_once(force=True)
                clock.advance(2 * 86_400_000)
                assert sweep_released(Work(log.handle, clock.now_ms())).objects

        def get(self, path, start=None, end=None):
            self._before("get", path)
            return super().get(path, start, end)

        def list(self, prefix):
            self._before("list", prefix)
            return super().list(prefix)

    with pytest.raises(VersionExpiredError, match="expired while it was verified; verify again"):
        verify_log(Swept(store))
    assert verify_log(store).findings == ()
