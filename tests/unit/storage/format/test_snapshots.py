"""Snapshots: manifests are restored, older segments stay in few pages (FORMAT.md §4)."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings

from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError, StoreUnavailableError
from clog.storage.format import manifest as snapshots
from clog.storage.format.chunks import BitmapFile, DeadRows
from clog.storage.format.commits import Edit, SnapshotRef
from clog.storage.format.documents import decode, encode, snapshot_path
from clog.storage.format.manifest import read_snapshot, unpage, write_snapshot
from clog.storage.store import open_store
from clog.storage.store.contract import ObjectExistsError
from clog_testing.counting import CountingStore
from clog_testing.histories import append_edit, applied, clean_edit, fresh_manifest, histories

_names = SeededIds(99)
DEAD = {"rows": 1, "since_ms": 0, "path": "data/x.dead", "bytes": 1, "xxh3_128": "ab"}


def new_store():
    """An empty store in memory that counts."""
    return CountingStore(open_store(f"memory://{_names.new_id()}"))


@pytest.fixture
def store():
    return new_store()


@pytest.fixture
def small_pages(monkeypatch):
    """A page for as little as two chunks."""
    monkeypatch.setattr(snapshots, "PAGE_CHUNKS_MIN", 2)


def saved(store, manifest, ids=None):
    """The manifest as its own snapshot returns it, with pages where they are."""
    write_snapshot(store, manifest, new_id=(ids or _names).new_id)
    return read_snapshot(store, manifest.version)


def grown(manifest, appends=1, partitions=(0, 1)):
    """The manifest after this many appends that roll."""
    for _ in range(appends):
        rows = dict.fromkeys(partitions, 2)
        object_id = SeededIds(manifest.version).new_id()  # as hard to compress as a real one
        manifest = applied(manifest, append_edit(manifest, rows, object_id, rolls=True))
    return manifest


@given(histories())
def test_a_manifest_comes_back(history):
    """Whole, without pages."""
    manifest, _ = history
    assert saved(new_store(), manifest) == manifest


@settings(max_examples=2 * settings().max_examples // 5)
@given(histories(edits_max=16))
def test_a_manifest_comes_back_from_pages(history):
    """Whatever is paged out is brought in again, in order."""
    manifest, _ = history
    store = new_store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "PAGE_CHUNKS_MIN", 1)
        found = saved(store, manifest)
        assert unpage(store, found) == manifest
        again = grown(found, 2, range(manifest.head.log.partitions))
        expected = grown(manifest, 2, range(manifest.head.log.partitions))
        assert unpage(store, saved(store, again)) == expected


def test_dead_rows_come_back(store):
    """FORMAT.md §5.4: beside the chunk they belong to, also in a page."""
    manifest = grown(fresh_manifest(), 3)
    segment = manifest.segments[1][1]
    dead = DeadRows(1, BitmapFile("data/x.dead", 9, "ab"), 5)
    marked = replace(segment, chunks=(replace(segment.chunks[0], dead=dead),))
    segments = (manifest.segments[0], (manifest.segments[1][0], marked, manifest.segments[1][2]))
    manifest = replace(manifest, segments=segments)
    assert saved(store, manifest) == manifest
    assert (marked.rows, marked.dead_rows) == (1, 1)


def test_a_snapshot_that_is_there_stays(store):
    """Another committer made it first: it has the same contents, the bytes differ."""
    manifest = grown(fresh_manifest(), 3)
    first = write_snapshot(store, manifest, new_id=_names.new_id)
    data = store.get(snapshot_path(3))
    assert write_snapshot(store, manifest, new_id=_names.new_id) == first
    assert store.get(snapshot_path(3)) == data
    size_bytes = len(snapshots.documents.body_json(decode_body(data)))
    assert first == SnapshotRef(3, size_bytes, manifest.commit_id)


def decode_body(data):
    return decode("snapshot", data, where="x")


def test_a_snapshot_costs_two_puts(store, small_pages):
    """COMMIT.md §7: the page and the snapshot; without a page one; reading is one GET."""
    with store.count() as counts:
        write_snapshot(store, grown(fresh_manifest(), 1), new_id=_names.new_id)
    assert dict(counts) == {"create": 1}
    with store.count() as counts:
        write_snapshot(store, grown(fresh_manifest(), 9), new_id=_names.new_id)
    assert dict(counts) == {"put": 1, "create": 1}
    with store.count() as counts:
        found = read_snapshot(store, 9)
    assert dict(counts) == {"get": 1}
    with store.count() as counts:
        unpage(store, found)
    assert dict(counts) == {"get": 1}


def test_few_sealed_segments_stay_in_the_snapshot(store):
    """A page pays from `PAGE_CHUNKS_MIN` chunks on."""
    limit = snapshots.PAGE_CHUNKS_MIN
    below = grown(fresh_manifest(1), limit, (0,))
    assert saved(store, below).pages == ()
    above = grown(below, 1, (0,))
    (page,) = saved(store, above).pages
    assert page.ranges == {0: (0, 2 * limit)}


def test_pages_grow_as_a_binary_counter(store, small_pages):
    """n segments are in O(log n) pages, and each is rewritten O(log n) times."""
    manifest = fresh_manifest(1)
    written, most = 0, 0
    for _ in range(64):
        manifest = grown(manifest, 4, (0,))
        before = {page.path for page in manifest.pages}
        manifest = saved(store, manifest)
        most = max(most, len(manifest.pages))
        fresh = [page for page in manifest.pages if page.path not in before]
        written += sum((end - base) // 2 for page in fresh for base, end in page.ranges.values())
    sealed = 4 * 64 - 1
    assert len(manifest.segments[0]) == 1
    assert most <= 7
    assert written <= sealed * 7
    with store.count() as counts:
        whole = unpage(store, manifest)
    assert counts["get"] == len(manifest.pages)
    assert [s.base for s in whole.segments[0]] == list(range(0, 2 * 256, 2))


def test_the_work_of_a_snapshot_is_bounded(store, small_pages, monkeypatch):
    """COMMIT.md §7: pages stop growing, so no append stops for all existing segments; counted in
    bytes of pages read and written. Each page is at least a third full, except for the last ones.
    """
    monkeypatch.setattr(snapshots, "PAGE_BYTES_MAX", 4_000)
    manifest, most = fresh_manifest(1), 0
    for _ in range(80):
        manifest = grown(manifest, 4, (0,))
        before = {page.path: page.size_bytes for page in manifest.pages}
        manifest = saved(store, manifest)
        after = {page.path: page.size_bytes for page in manifest.pages}
        most = max(most, sum(size for _, size in before.items() ^ after.items()))
    assert 3_000 < most <= 8_000
    sizes = [page.size_bytes for page in manifest.pages]
    assert max(sizes) <= 4_000
    assert min(sizes[:-6]) > 1_300
    assert len(sizes) > 7
    assert len(unpage(store, manifest).segments[0]) == 320


def test_segments_that_were_rewritten_go_into_several_pages(store, small_pages, monkeypatch):
    """FORMAT.md §4: each page's ranges come in order, in every partition."""
    monkeypatch.setattr(snapshots, "PAGE_BYTES_MAX", 800)
    whole = grown(fresh_manifest(3), 60, (0, 1, 2))
    manifest = saved(store, whole)
    assert len(manifest.pages) == 4  # of 2,500 bytes
    sealed = [sum(end - base for base, end in page.ranges.values()) for page in manifest.pages]
    assert sealed == [90, 90, 90, 84]
    assert unpage(store, manifest) == whole


def test_pages_are_not_repeated(store, small_pages):
    """A larger page is referred to again, and its bytes are not written again."""
    manifest = saved(store, grown(fresh_manifest(1), 40, (0,)))
    (page,) = manifest.pages
    manifest = saved(store, grown(manifest, 4, (0,)))
    assert manifest.pages[0] == page
    assert len(manifest.pages) == 2


def test_one_partition_is_unpaged_alone(store, small_pages):
    """Its ranges leave the pages, those of the others stay; one GET for a page that has it."""
    manifest = saved(store, grown(fresh_manifest(2), 30))
    manifest = saved(store, grown(manifest, 4, (1,)))
    assert [sorted(page.ranges) for page in manifest.pages] == [[0, 1], [1]]
    with store.count() as counts:
        found = unpage(store, manifest, {0})
    assert counts["get"] == 1
    assert [sorted(page.ranges) for page in found.pages] == [[1], [1]]
    assert (found.paged_below(0), len(found.segments[0])) == (-1, 30)
    assert found.segments[1] == manifest.segments[1]


def test_a_page_answers_for_its_ranges_alone(store, small_pages):
    """FORMAT.md §4: what it contains for other partitions, or was dropped since, is not
    part of it.
    """
    manifest = saved(store, grown(fresh_manifest(2), 30))
    cut = applied(unpage(store, manifest, {0}), Edit(start={0: 8}, drop={0: 8}))
    (page,) = cut.pages
    assert page.ranges == {1: (0, 58)}
    manifest = saved(store, cut)
    assert [s.base for s in unpage(store, manifest).segments[0]] == list(range(8, 60, 2))


def test_a_cleaned_range_is_paged_again(store, small_pages):
    """The new segments, in a page that is read instead of the old one."""
    manifest = unpage(store, saved(store, grown(fresh_manifest(1), 30, (0,))))
    manifest = applied(manifest, clean_edit(manifest, 0, "c" * 32, count=5))
    assert unpage(store, saved(store, manifest)) == manifest


class _Refusing:
    """A store in which pages or snapshots cannot be written."""

    def __init__(self, inner, *, create=None, put=None):
        self.inner, self.errors = inner, {"create": create, "put": put}

    def __getattr__(self, name):
        if error := self.errors.get(name):
            raise error
        return getattr(self.inner, name)


def test_a_failure_is_the_callers(store, small_pages):
    """COMMIT.md, K3: the commit continues without; here it is only reported."""
    manifest = grown(fresh_manifest(), 5)
    for broken in ({"create": StoreUnavailableError("x")}, {"put": StoreUnavailableError("x")}):
        with pytest.raises(StoreUnavailableError):
            write_snapshot(_Refusing(store, **broken), manifest, new_id=_names.new_id)


def test_a_refused_snapshot_is_named_only_where_it_is(store, small_pages):
    """COMMIT.md, K3: a create is also refused while another one is under way, whose process may
    die. A head that named it could not be read.
    """
    manifest = grown(fresh_manifest(), 5)
    refusing = _Refusing(store, create=ObjectExistsError("x"))
    with pytest.raises(FileNotFoundError):
        write_snapshot(refusing, manifest, new_id=_names.new_id)
    write_snapshot(store, manifest, new_id=_names.new_id)
    assert write_snapshot(refusing, manifest, new_id=_names.new_id).version == 5


def _damaged(store, manifest, change):
    """Writes the snapshot with its body changed and a valid checksum."""
    write_snapshot(store, manifest, new_id=_names.new_id)
    path = snapshot_path(manifest.version)
    body = copy.deepcopy(decode_body(store.get(path)))
    change(body)
    store.put(path, encode("snapshot", body))
    return read_snapshot(store, manifest.version)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["manifest"]["first_dirty"].pop(),
        lambda b: b["manifest"]["segments"]["chunks"].__setitem__(0, 7),
        lambda b: b["manifest"]["segments"]["chunks"].__setitem__(0, 0),
        lambda b: b["manifest"]["segments"]["p"].__setitem__(0, 9),
        lambda b: b["manifest"]["chunks"]["object"].__setitem__(0, 99),
        lambda b: b["manifest"]["chunks"]["object"].__setitem__(0, -1),
        lambda b: b["manifest"]["chunks"]["rows"].append(1),
        lambda b: b["manifest"]["chunks"]["base"].__setitem__(0, 1.5),
        lambda b: b["manifest"]["objects"]["path"].__setitem__(0, "../x"),
        lambda b: b["manifest"]["objects"].pop("stamp"),
        lambda b: b["manifest"]["pages"].append({"path": "/x", "bytes": 1, "ranges": {}}),
        lambda b: b["manifest"]["pages"].append({"path": "x", "bytes": 1, "ranges": {"a": [0, 1]}}),
        lambda b: b["manifest"]["released"]["path"].append("x"),
        lambda b: b["manifest"]["dead"].append([0, {**DEAD, "path": "../x"}]),
        lambda b: b["manifest"]["dead"].append([0, {**DEAD, "rows": 0}]),
        lambda b: b["manifest"]["dead"].append([0, {**DEAD, "bytes": "1"}]),
        lambda b: b["manifest"]["dead"].append([0, {**DEAD, "bits": "1"}]),
        lambda b: b["manifest"]["dead"].append([-1, DEAD]),
        lambda b: b["manifest"]["dead"].append([0, "x"]),
        lambda b: b["manifest"].pop("uncleanable"),
        lambda b: b["head"]["partitions"]["start"].__setitem__(0, 1 << 40),
        lambda b: b.pop("head"),
        lambda b: b.pop("id"),
        lambda b: b.__setitem__("manifest", []),
        lambda b: b.__setitem__("version", "3"),
        lambda b: b.__setitem__("version", 4),
    ],
)
def test_what_contradicts_the_format_is_corruption(store, change):
    """Never another error, whatever the body says, as long as its checksum agrees."""
    with pytest.raises(CorruptionError):
        _damaged(store, grown(fresh_manifest(), 3), change)


def test_the_sound_snapshot_passes(store):
    """What the test above damages is valid before."""
    manifest = grown(fresh_manifest(), 3)
    assert _damaged(store, manifest, lambda b: None) == manifest


def test_a_missing_snapshot_is_not_found(store):
    """The caller knows what it means."""
    with pytest.raises(FileNotFoundError):
        read_snapshot(store, 3)


def test_a_page_that_lacks_its_range_is_corruption(store, small_pages):
    """FORMAT.md §4: a range starts and ends with segments of the page."""
    manifest = saved(store, grown(fresh_manifest(1), 9, (0,)))
    (page,) = manifest.pages
    for ranges in ({0: (0, 15)}, {0: (1, 16)}, {0: (0, 99)}, {1: (0, 16)}):
        wrong = replace(manifest, pages=(replace(page, ranges=ranges),))
        with pytest.raises(CorruptionError, match="does not hold"):
            unpage(store, wrong, {0, 1} & ranges.keys())
    data = store.get(page.path)
    store.put(page.path, data[:-1])
    with pytest.raises(CorruptionError, match="truncated"):
        unpage(store, manifest)
    other = encode("page", {"writers": []})
    store.put(page.path, other)
    with pytest.raises(CorruptionError, match="violates the format"):
        unpage(store, replace(manifest, pages=(replace(page, size_bytes=len(other)),)))
