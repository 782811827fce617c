"""The newest version is found from any hint, and its manifest from few commits (COMMIT.md §6)."""

from dataclasses import replace
from math import log2

import pytest

from clog.storage.commit import versions
from clog.storage.commit.tip import Found, RecentEdits, block_body, find_newest, try_read
from clog.storage.commit.versions import manifest_at, manifest_of
from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError, NotFoundError, VersionExpiredError
from clog.storage.format import documents
from clog.storage.format.columns import COLUMNS
from clog.storage.format.commits import (
    Commit,
    Edit,
    EditRecord,
    SnapshotRef,
    carried_from,
    edit_to_json,
    encode_commit,
    read_commit,
)
from clog.storage.format.documents import body_json, decode, encode
from clog.storage.format.manifest import unpage, write_snapshot
from clog.storage.store import open_store
from clog_testing.counting import CountingStore
from clog_testing.histories import append_edit, applied, clean_edit, fresh_manifest, log_info

NEWEST_MAX = 40
_names = SeededIds(7)


def new_store():
    return CountingStore(open_store(f"memory://{_names.new_id()}"))


@pytest.fixture
def store():
    return new_store()


def edit_after(manifest):
    """Appends, with an occasional seal, clean or move of the start."""
    version = manifest.version + 1
    if version % 5 == 3:
        return Edit(seal=((0, version),))
    if version % 11 == 10:
        return clean_edit(manifest, 0, f"{version:032x}", count=2)
    if version % 7 == 6:
        return Edit(start={1: manifest.head.partitions.end[1]})
    return append_edit(manifest, {0: 2, 1: 1}, f"{version:032x}")


def history(newest):
    """Manifests of the versions 0 to ``newest``, and the edits that make each from its
    predecessor.
    """
    manifests = [fresh_manifest()]
    edits = [Edit(create=log_info(), config={})]
    for _ in range(newest):
        edits.append(edit_after(manifests[-1]))
        manifests.append(applied(manifests[-1], edits[-1]))
    return manifests, edits


MANIFESTS, EDITS = history(NEWEST_MAX)


def record(version):
    manifest = MANIFESTS[version]
    stored = {"edit": edit_to_json(EDITS[version])}
    return EditRecord(version, manifest.commit_id, manifest.time_ms, "append", stored)


def commit_of(version, snapshot=None):
    """The commit that made a version, with what it must carry."""
    first = carried_from(version, snapshot_version=snapshot.version if snapshot else -1)
    earlier = tuple(record(v) for v in range(first, version))
    head = replace(MANIFESTS[version].head, snapshot=snapshot)
    parent = MANIFESTS[version - 1].commit_id if version else None
    return Commit(record(version), parent, earlier, head)


def write(store, newest, first=0, *, snapshots=()):
    """Writes the commits ``first`` to ``newest``; a snapshot of each version named."""
    known = None
    for version in range(first, newest + 1):
        if version % 4 == 0 and version - 1 in snapshots:
            known = write_snapshot(store, MANIFESTS[version - 1], new_id=_names.new_id)
        store.create(documents.commit_path(version), encode_commit(commit_of(version, known)))
        if version == documents.block_of(version):
            store.put(documents.block_path(version), encode("block", block_body(version)))
    return store


def hint(store, version):
    store.put(documents.LATEST, body_json({"version": version}))


def test_the_newest_version_is_found_from_every_hint(store):
    """Right, old, ahead of the log, not divisible by 4; each search is short."""
    before = -1
    for newest in (*range(9), *range(11, NEWEST_MAX + 1, 4)):
        write(store, newest, first=before + 1)
        before = newest
        for at in range(NEWEST_MAX + 9):
            hint(store, at)
            with store.count() as counts:
                found = find_newest(store)
            assert found.tip == commit_of(newest), (newest, at)
            assert set(counts) == {"get"}
            behind = newest // 4 if at // 4 > newest // 4 else newest // 4 - at // 4
            ahead = 3 if at > newest else 0
            assert counts["get"] <= ahead + (10 + 2 * log2(behind) if behind else 5), (newest, at)


def test_opening_costs_five_requests(store):
    """COMMIT.md §7: the hint, at most three probes, the block; everything it read is kept."""
    for newest in range(NEWEST_MAX + 1):
        write(store, newest, first=newest)
        hint(store, newest - newest % 4)
        with store.count() as counts:
            found = find_newest(store)
        assert counts["get"] <= 5, newest
        assert found.read == {v: commit_of(v) for v in found.read}
        assert max(found.read) == newest


@pytest.mark.parametrize("newest", [0, 1, 5, 38])
def test_a_damaged_hint_costs_requests_alone(store, newest):
    """FORMAT.md §2: it may be missing, old or wrong."""
    write(store, newest)
    assert find_newest(store).tip.version == newest
    for damaged in (
        *(b"", b"{", b"\xff\xfe", b"[]", b"{}", b'"4"', b'{"version":"4"}', b"7"),
        *(b'{"version":null}', b'{"version":4.0}', b'{"version":true}', b'{"version":-4}'),
        *(b'{"version":' + b"9" * 900 + b"}", b"[" * 1024, b'{"version":4}' + b" " * 5000),
    ):
        store.put(documents.LATEST, damaged)
        assert find_newest(store).tip.version == newest, damaged[:50]


def test_no_log(store):
    """Nothing there, or only a hint: the error says what may have happened."""
    with pytest.raises(NotFoundError, match="has no commits: everything but _clog/log was deleted"):
        find_newest(store)
    hint(store, 8)
    with pytest.raises(NotFoundError, match=store.url):
        find_newest(store)


def test_a_damaged_commit_is_no_end_of_the_log(store):
    """A file that is there and unreadable is an error, never the version before it."""
    write(store, 9)
    store.put(documents.commit_path(9), b"{}")
    hint(store, 8)
    with pytest.raises(CorruptionError, match=r"00009\.json"):
        find_newest(store)


@pytest.fixture
def short_blocks(monkeypatch):
    """Blocks of 8 versions."""
    monkeypatch.setattr(documents, "BLOCK_VERSIONS", 8)


def close(store, block, *, keep=()):
    """Closes a block and deletes its commits, except those to keep (COMMIT.md §4)."""
    ids = {str(v): MANIFESTS[v].commit_id for v in range(block, block + 8)}
    store.put(documents.block_path(block), encode("block", {"block": block, "ids": ids}))
    for version in range(block, block + 8):
        if version not in keep:
            store.delete(documents.commit_path(version))


def sleeper(store, version):
    """A commit that its committer, delayed for days, made in a deleted block."""
    asleep = commit_of(version)
    ghost = replace(asleep, record=replace(asleep.record, commit_id="f" * 32), earlier=())
    body = encode_commit(replace(ghost, earlier=asleep.earlier))
    store.put(documents.commit_path(version), body)


@pytest.mark.parametrize("closed", [1, 2, 4])
def test_closed_blocks_are_left_behind(store, short_blocks, closed):
    """COMMIT.md §4, §6: from every hint, also into deleted blocks."""
    write(store, 37)
    for k in range(closed):
        close(store, 8 * k)
    for at in (*range(0, 41, 3), 4, 8, 20, 44):
        hint(store, at)
        assert find_newest(store).tip == commit_of(37), at


@pytest.mark.parametrize("slept", [(0,), (0, 1, 2, 3), (4, 5, 6, 7), (0, 4, 8, 12), (15,), (8, 10)])
def test_files_of_sleepers_are_never_the_newest(store, short_blocks, slept):
    """COMMIT.md, K5: a file that its block does not list was never committed."""
    write(store, 29)
    close(store, 0)
    close(store, 8)
    for version in slept:
        sleeper(store, version)
    for at in range(0, 41, 2):
        hint(store, at)
        assert find_newest(store).tip == commit_of(29), at


@pytest.mark.parametrize("kept", [range(4), range(4, 8), (0, 7), (6, 7), range(8)])
def test_a_block_half_deleted(store, short_blocks, kept):
    """COMMIT.md §4, B2: a crash leaves some of its commits."""
    write(store, 26)
    close(store, 0, keep=kept)
    for at in range(0, 33, 4):
        hint(store, at)
        assert find_newest(store).tip == commit_of(26), at


def test_a_log_whose_last_block_has_one_commit(store, short_blocks):
    """The first version after the closed blocks is the newest."""
    write(store, 16)
    close(store, 0)
    close(store, 8)
    for at in (0, 8, 12, 16, 20):
        hint(store, at)
        assert find_newest(store).tip.version == 16


@pytest.mark.parametrize("body", [{}, {"ids": []}, {"ids": {"x": "y"}}])
def test_a_block_that_contradicts_the_format_is_corruption(store, body):
    """Whether a commit is genuine is never guessed."""
    write(store, 2)
    store.put(documents.block_path(0), encode("block", {"block": 0, **body}))
    with pytest.raises(CorruptionError, match="block"):
        find_newest(store)


@pytest.mark.parametrize("snapshots", [(), (3,), (3, 11, 27), (7,), (39,)])
def test_the_manifest_is_that_of_a_full_replay(store, snapshots):
    """And costs what opening left to read: the commit at the multiple of 4, the snapshot."""
    write(store, NEWEST_MAX, snapshots=snapshots)
    for newest in reversed(range(NEWEST_MAX + 1)):
        hint(store, newest - newest % 4)
        found = find_newest(store)
        with store.count() as counts:
            manifest = manifest_of(store, found.tip, found.read)
        assert replace(manifest, head=MANIFESTS[newest].head) == MANIFESTS[newest]
        assert manifest.head == found.tip.head
        assert counts["get"] <= 1 + (found.tip.head.snapshot is not None), newest
        store.delete(documents.commit_path(newest))
        if newest == documents.block_of(newest):
            store.delete(documents.block_path(newest))


@pytest.mark.parametrize("newest", [40, 39, 22])
def test_every_version_can_be_read_from_a_later_one(store, newest):
    """``at``: at most two commits besides its own, and a snapshot."""
    write(store, newest, snapshots=(7, 23))
    tip = read_commit(store, newest)
    for version in range(newest + 1):
        with store.count() as counts:
            manifest = manifest_at(store, version, tip)
        assert replace(manifest, head=MANIFESTS[version].head) == MANIFESTS[version]
        assert counts["get"] <= 4


def test_versions_that_are_gone_or_not_yet_there(store):
    """S27: the error names what is readable; a missing commit is damage if newer ones are found
    after it.
    """
    write(store, 12)
    tip = read_commit(store, 12)
    tip = replace(tip, head=replace(tip.head, oldest_readable=5))
    for version in (4, -1):
        with pytest.raises(VersionExpiredError, match="5 to 12"):
            manifest_at(store, version, tip)
    with pytest.raises(NotFoundError, match=r"does not exist yet.* 5 to 12") as raised:
        manifest_at(store, 13, tip)
    assert type(raised.value) is NotFoundError
    store.delete(documents.commit_path(6))
    with pytest.raises(CorruptionError, match=r"commits/0*6.json of .* is missing, and clog did"):
        manifest_at(store, 6, tip)
    store.delete(documents.commit_path(8))
    with pytest.raises(VersionExpiredError, match=r"version 8 of .* expired"):
        manifest_at(store, 9, tip)


def test_a_version_that_expires_while_it_is_read(store):
    """S27: its snapshot is deleted first; the error is that of an expired version. One that is
    needed, and was deleted by others, is damage.
    """
    write(store, 12)
    tip = read_commit(store, 12)
    tip = replace(tip, head=replace(tip.head, snapshot=SnapshotRef(3, 1)))
    with pytest.raises(CorruptionError, match=r"snapshots/0.* version 12 needs, is missing"):
        manifest_at(store, 12, tip)
    newer = replace(tip, head=replace(tip.head, oldest_readable=13))
    found = replace(newer, record=replace(newer.record, version=13))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "find_newest", lambda _: Found(found, {}))
        with pytest.raises(VersionExpiredError, match=r"version 12 of .* expired: snapshots/0"):
            manifest_at(store, 12, tip)


def test_a_file_of_a_sleeper_is_not_read_as_a_version(store, short_blocks):
    """COMMIT.md §4: it is where a commit of an expired version was; damage in an open block is
    damage.
    """
    write(store, 20)
    tip, data = read_commit(store, 15), store.get(documents.commit_path(12))
    store.put(documents.commit_path(12), data[:-1])
    with pytest.raises(CorruptionError):
        manifest_at(store, 15, tip)
    close(store, 8, keep=range(8, 16))
    with pytest.raises(VersionExpiredError, match=r"version 15 of .* its block is closed"):
        manifest_at(store, 15, tip)


def test_pages_are_read_where_an_edit_needs_them(store, monkeypatch):
    """An append leaves them; a clean of an old segment brings its partition in."""
    monkeypatch.setattr("clog.storage.format.manifest.PAGE_CHUNKS_MIN", 1)
    write(store, 40, snapshots=(19,))
    for version, paged in ((20, True), (24, False)):
        manifest = manifest_of(store, read_commit(store, version))
        assert (manifest.paged_below(0) >= 0) == paged
        whole = unpage(store, manifest)
        assert replace(whole, head=MANIFESTS[version].head) == MANIFESTS[version]


def _head(version, **changes):
    """The commit with its head changed."""
    made = commit_of(version)
    return replace(made, head=replace(made.head, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"retention.ms": "1"}},
        {"config_epoch": 1},
        {"orphan_floor": 1},
        {"oldest_readable": 1},
        {"log": replace(log_info(), seed="0" * 16)},
        {"partitions": MANIFESTS[6].head.partitions.with_rows({1: (5,) * len(COLUMNS)})},
    ],
)
def test_a_head_that_its_edits_do_not_make_is_corruption(store, changes):
    """FORMAT.md §8: on whichever side the bug was."""
    write(store, 5)
    store.create(documents.commit_path(6), encode_commit(_head(6, **changes)))
    with pytest.raises(CorruptionError, match="does not match its edits"):
        manifest_of(store, read_commit(store, 6))


def test_a_snapshot_of_another_log_does_not_fit(store):
    """The edits after it contradict it, or lead to another head."""
    write(store, 5)
    write_snapshot(store, replace(MANIFESTS[1], version=3), new_id=_names.new_id)
    tip = _head(5, snapshot=SnapshotRef(3, 9))
    with pytest.raises(CorruptionError):
        manifest_of(store, tip)


def carries(store, version, *carried):
    """Rewrites a commit whose list of earlier edits has these of its versions."""
    path = documents.commit_path(version)
    body = decode("commit", store.get(path), where=path)
    body["earlier"] = [record for record in body["earlier"] if record["version"] in carried]
    store.put(path, encode("commit", body))


@pytest.mark.parametrize(
    "carried", [(), (7,), (0, 7), (0, 1, 2, 3), (0, 1, 3, 4, 5, 6, 7), range(4, 8), range(7)]
)
def test_what_a_commit_carries_is_a_cache(store, carried):
    """FORMAT.md §3.1: what its list lacks, at its end or in between, is in the commits
    themselves.
    """
    write(store, 11)
    carries(store, 8, *carried)
    carries(store, 6)
    for newest in (8, 9, 10, 11):
        assert manifest_of(store, read_commit(store, newest)) == MANIFESTS[newest]
    store.delete(documents.commit_path(3))
    carries(store, 4, 0, 1, 2)
    if not {0, 1, 2, 3} <= {*carried} or 7 not in carried:
        with pytest.raises(VersionExpiredError):
            manifest_of(store, read_commit(store, 9))


def test_edits_that_do_not_connect_are_corruption(store):
    """Between the snapshot and the first edit there, or if a commit is of another history."""
    write(store, 9)
    tip = read_commit(store, 9)
    write_snapshot(store, replace(MANIFESTS[1], version=11), new_id=_names.new_id)
    with pytest.raises(CorruptionError, match=r"do not lead|follow"):
        manifest_of(store, replace(tip, head=replace(tip.head, snapshot=SnapshotRef(11, 9))))
    stray = replace(record(7), commit_id="f" * 32)
    store.put(documents.commit_path(7), encode_commit(replace(commit_of(7), record=stray)))
    carries(store, 8)
    gone_on = replace(read_commit(store, 8), record=replace(record(8), parent="7" * 32))
    with pytest.raises(CorruptionError, match="version 7"):
        manifest_of(store, gone_on)
    late = replace(tip, record=replace(tip.record, version=11))
    with pytest.raises((CorruptionError, VersionExpiredError)):
        manifest_of(store, late, {8: commit_of(8), 10: commit_of(10)})


def test_a_snapshot_that_the_edits_do_not_follow(store):
    """FORMAT.md §3.1: the ids of commits tell that it is of another history, where heads do not."""
    write(store, 7)
    write_snapshot(store, replace(MANIFESTS[5], commit_id="e" * 32), new_id=_names.new_id)
    tip = read_commit(store, 7)
    with pytest.raises(CorruptionError, match=r"version 5 of .* does not belong to the history"):
        manifest_of(store, replace(tip, head=replace(tip.head, snapshot=SnapshotRef(5, 9))))


def test_edits_stay_known_where_versions_were_passed_over():
    """A later commit carries those since the snapshot, and the ones before it have no gap to it."""
    snapshot = SnapshotRef(3, 9)
    recent = RecentEdits.of(commit_of(0))
    for version in (1, 2, 3, 4, 5, 8):
        recent = recent.then(commit_of(version, snapshot if version > 3 else None))
    assert [r.version for r in recent.after(1)] == [2, 3, 4, 5, 6, 7, 8]


def test_nothing_is_listed(store):
    """COMMIT.md §7: listings are for maintenance."""
    write(store, 33)
    hint(store, 4)
    with store.count() as counts:
        manifest_of(store, find_newest(store).tip)
    assert set(counts) == {"get"}


def test_a_probe_of_nothing_is_none(store):
    """`try_read` distinguishes absence from damage."""
    write(store, 1)
    assert try_read(store, 2) is None
    assert try_read(store, 1) == commit_of(1)
