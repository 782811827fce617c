"""Pages of older writers: none is lost, each is found with few small reads (FORMAT.md §4)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.diagnostics.verify import document_findings
from clog.storage.env import SeededIds
from clog.storage.errors import CorruptionError
from clog.storage.format import documents, writers
from clog.storage.format.transactions import AppendedBy, WriterEntry
from clog.storage.format.writers import (
    FIRST,
    WRITERS_MAX,
    PageRef,
    WriterPages,
    find_writer,
    page_out_if_full,
    writer_hash,
)
from clog_testing.counting import CountingStore
from clog_testing.crash import memory_store
from clog_testing.histories import fresh_manifest

SEED = 7
_names = SeededIds(41)


def entry(i, sequence=0, kind="producer"):
    content = f"{i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"  # hard to compress
    return WriterEntry(f"device-{i}", kind, None, sequence, content, sequence)


def new_pages():
    return WriterPages(CountingStore(memory_store()))


def added(pages, root, entries):
    return pages.add(root, entries, seed=SEED, new_id=_names.new_id)


def found(pages, root, one):
    return pages.find(root, SEED, *one.key)


def leaves(pages, child):
    """(start, page) of level 0, in order."""
    if not child[1].level:
        return [child]
    return [leaf for below in pages.children(child) for leaf in leaves(pages, below)]


def problems(pages, root):
    """What `verify` says about the tree."""
    manifest = fresh_manifest()
    log = replace(manifest.head.log, seed=f"{SEED:016x}")
    head = replace(manifest.head, log=log, older_writers=root)
    found = document_findings(pages.store, {}, replace(manifest, head=head))
    return [(one.where, one.message) for one in found]


def test_few_writers_are_one_page():
    pages = new_pages()
    root = added(pages, None, map(entry, range(3)))
    assert (root.level, root.count, root.path[:6]) == (0, 3, "pages/")
    assert found(pages, root, entry(2)) == entry(2)
    assert found(pages, root, entry(3)) is None
    assert found(pages, root, entry(2, kind="txn")) is None  # another writer
    assert problems(pages, root) == []


batches = st.lists(
    st.lists(
        st.builds(
            entry, st.integers(0, 300), st.integers(0, 9), st.sampled_from(["txn", "stream"])
        ),
        min_size=1,
        max_size=40,
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("page_bytes", [1, 700, 2_500])
@given(batches)
def test_it_is_a_map_of_writers(page_bytes, drawn):
    """Whatever is added in whichever order: each is found with its newest entry, those of another
    hash are not touched, every page is within its size, and `verify` finds nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "PAGE_BYTES_MAX", page_bytes)
        pages, root, model = new_pages(), None, {}
        for batch in drawn:
            root = added(pages, root, batch)
            model |= {one.key: one for one in batch}
        assert root.count == len(model)
        cold = WriterPages(pages.store)
        for i in range(0, 300, 7):
            for kind in ("txn", "stream"):
                assert found(cold, root, entry(i, kind=kind)) == model.get((kind, f"device-{i}"))
        for _, page in leaves(cold, (FIRST, root)):
            assert page.size_bytes <= page_bytes or page.count <= 3
        assert problems(pages, root) == []


def test_adding_reads_and_writes_one_page_of_each_level(monkeypatch):
    """Even after thousands; known ones are not read."""
    monkeypatch.setattr(writers, "PAGE_BYTES_MAX", 2_000)
    pages = new_pages()
    root = added(pages, None, map(entry, range(5_000)))
    assert root.level == 2
    for kept, gets in ((WriterPages(pages.store), 3), (pages, 0)):
        with pages.store.count() as counts:
            after = added(kept, root, [entry(77, 5)])
        assert counts == {"get": gets, "put": 3} if gets else {"put": 3}
        assert (after.level, after.count) == (2, 5_000)
        assert found(kept, after, entry(77)) == entry(77, 5)
        assert found(kept, root, entry(77)) == entry(77)  # who works from the older head


def test_a_page_of_one_hash_is_not_cut(monkeypatch):
    """The halves could not be distinguished: it grows instead."""
    monkeypatch.setattr(writers, "PAGE_BYTES_MAX", 500)
    monkeypatch.setattr(writers, "writer_hash", lambda *_: "ab" * 8)
    pages = new_pages()
    root = added(pages, None, map(entry, range(20)))
    assert (root.level, root.count) == (0, 20)
    assert found(pages, root, entry(19)) == entry(19)


def test_hashes_begin_where_few_digits_tell_them_apart(monkeypatch):
    """FORMAT.md §4: no zeros at the end of `from`, and each page has the hashes from its own on."""
    monkeypatch.setattr(writers, "PAGE_BYTES_MAX", 2_000)
    pages = new_pages()
    root = added(pages, None, map(entry, range(2_000)))
    starts = [start for start, _ in leaves(pages, (FIRST, root))]
    assert starts[0] == ""
    assert starts == sorted(set(starts))
    assert all(start[-1] != "0" and len(start) <= 5 for start in starts[1:])
    hashes = sorted(writer_hash(SEED, *entry(i).key) for i in range(2_000))
    assert all(any(h.startswith(start) or h > start for h in hashes) for start in starts)


def test_kept_pages_are_bounded(monkeypatch):
    """The one used longest ago goes first."""
    monkeypatch.setattr(writers, "KEPT_BYTES_MAX", 2_000)
    pages = new_pages()
    roots = [added(pages, None, map(entry, range(i, i + 10))) for i in range(5)]
    assert sum(root.size_bytes for root in roots[-3:]) > 2_000
    with pages.store.count() as counts:
        assert found(pages, roots[4], entry(4)) == entry(4)
    assert counts == {}
    with pages.store.count() as counts:
        assert found(pages, roots[0], entry(4)) == entry(4)
        assert found(pages, roots[0], entry(5)) == entry(5)
    assert counts == {"get": 1}


def replaced(pages, ref, body):
    """A page with another body in the place of one."""
    data = documents.encode("page", body)
    pages.store.put(ref.path, data)
    return replace(ref, size_bytes=len(data))


def test_verify_finds_writers_in_the_wrong_page(monkeypatch):
    """They would not be found: counts, ranges and the order of pages are checked."""
    monkeypatch.setattr(writers, "PAGE_BYTES_MAX", 700)
    pages = new_pages()
    root = added(pages, None, map(entry, range(30)))
    assert root.level == 1
    children = pages.children((FIRST, root))
    names = ("from", "path", "bytes", "count")

    def of(some):
        rows = [(s, p.path, p.size_bytes, p.count) for s, p in some]
        columns = zip(names, zip(*rows, strict=True), strict=True)
        return {"children": {name: list(column) for name, column in columns}}

    (_, first), (second, other), *rest = children
    swapped = replaced(pages, root, of([(FIRST, other), (second, first), *rest]))
    assert len(problems(pages, swapped)) == 2
    fewer = replaced(pages, root, of(children[1:]))
    assert "not in order" in problems(pages, fewer)[0][1]
    with pytest.raises(CorruptionError, match="not in order"):
        found(WriterPages(pages.store), fewer, entry(1))
    counted = replaced(
        pages, root, of([(FIRST, replace(first, count=first.count + 1)), *children[1:]])
    )
    assert {path for path, _ in problems(pages, counted)} == {root.path}
    whole = replaced(pages, root, of(children))
    twice = pages.rows(first) * 2
    replaced(pages, first, {"writers": twice})
    assert first.path in {path for path, _ in problems(pages, whole)}


@pytest.mark.parametrize(
    "body", [{}, {"writers": 7}, {"writers": [7]}, {"writers": [["device-1"]]}]
)
def test_pages_that_violate_the_format(body):
    pages = new_pages()
    ref = replaced(pages, PageRef("pages/x.json", 0, 1), body)
    with pytest.raises(CorruptionError, match="violates the format"):
        pages.entries(ref)
    with pytest.raises(CorruptionError, match="violates the format"):
        pages.children((FIRST, replace(ref, level=1)))


def by(entries):
    return [AppendedBy(one) for one in entries]


def test_who_leaves_a_full_head(monkeypatch):
    """The oldest, as many as exceed the limit, and from the older half those of the same page."""
    monkeypatch.setattr(writers, "PAGE_BYTES_MAX", 900)
    pages = new_pages()
    root = added(pages, None, map(entry, range(100, 200)))
    head = replace(fresh_manifest().head, older_writers=root)
    head = replace(head, log=replace(head.log, seed=f"{SEED:016x}"))
    head = replace(head, writers=tuple(map(entry, range(WRITERS_MAX))))

    def leaving(added_now):
        return page_out_if_full(pages, head, by(added_now), new_id=_names.new_id)

    assert leaving([]) is None
    assert leaving([entry(3, 1)]) is None  # is in the head already
    homes = pages.homes(root, [writer_hash(SEED, *entry(i).key) for i in range(WRITERS_MAX)])
    home = [homes[writer_hash(SEED, *entry(i).key)] for i in range(WRITERS_MAX)]
    paged = leaving([entry(999)])
    assert paged.left == tuple(i for i in range(33) if home[i] == home[0])
    many = leaving(map(entry, range(900, 900 + WRITERS_MAX)))
    assert many.left == tuple(range(WRITERS_MAX))
    after = replace(head, writers=(), older_writers=many.root)
    assert all(find_writer(pages, after, *entry(i).key) == entry(i) for i in range(WRITERS_MAX))
    assert all(find_writer(pages, after, *entry(i).key) == entry(i) for i in range(100, 200))
