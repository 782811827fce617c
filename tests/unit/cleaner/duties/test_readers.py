"""Positions of expired readers are swept; all others stay (S64)."""

import pytest

from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage.format.documents import reader_path

DAY_MS = 86_400_000


@pytest.fixture
def store(clocked_store):
    return clocked_store


def test_expired_readers_go_a_day_later(make_log, put, store, clock):
    """Not at once: its clock may be behind; nor one that reported something since, nor what cannot
    be read, nor another program's file. A dry run only lists it.
    """
    log = make_log()
    put(log, "a=1 b=1")
    log.reader("gone", expires_after_ms=1000).commit({0: 1})
    log.reader("stays", expires_after_ms=300 * DAY_MS).commit({0: 1})
    for name in ("damaged.json", "note.txt", "deeper/gone.json"):
        log.handle.store.put(f"readers/{name}", b"not a document")

    def swept(**options):
        done = sweep_orphans(Work(log.handle, clock.now_ms()), **options)
        return [path for path in done.objects if path.startswith("readers/")]

    clock.advance(DAY_MS - 5000)
    assert swept() == []
    clock.advance(7000)
    back = log.reader("back", expires_after_ms=1000)
    back.commit({0: 1})
    assert swept(dry_run=True) == [reader_path("gone")]
    assert swept() == [reader_path("gone")]
    assert swept() == []
    assert [r.name for r in log.readers()] == ["back", "damaged", "stays"]
    assert {found.path for found in log.handle.store.list("readers/")} >= {
        "readers/note.txt",
        "readers/deeper/gone.json",
    }
