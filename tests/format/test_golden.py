"""What any released clog wrote stays readable for ever (FORMAT.md §10)."""

import json
import shutil

import independent_reader as ir
import make_golden
import pytest

from clog.cleaner import Cleaner
from clog.storage import Log, ManualClock
from clog.storage.diagnostics.verify import verify_log
from clog.storage.env import SeededIds
from clog.storage.format.log_info import FEATURES, RETIRED
from clog.storage.store import open_store

FOLDERS = sorted(path for path in make_golden.GOLDEN.glob("v*/*") if path.is_dir())
NAMES = [f"{path.parent.name}/{path.name}" for path in FOLDERS]


@pytest.fixture(params=FOLDERS, ids=NAMES)
def case(request, tmp_path):
    """A copy of a golden log, and what is in it."""
    shutil.copytree(request.param / "log", tmp_path / "log")
    return tmp_path / "log", json.loads((request.param / "expected.json").read_text())


def test_there_are_golden_logs():
    """A wrong folder would let every other test here pass."""
    assert {f"v1/{name}" for name in make_golden.CASES} <= set(NAMES)


def test_each_feature_is_in_a_golden_log():
    """FORMAT.md §0: as are those of earlier releases."""
    logs = [opened(folder / "log").handle.tip.head.log.features for folder in FOLDERS]
    named = {name for features in logs for name in (*features.read, *features.write)}
    assert named == {*FEATURES, *RETIRED}


def plain(value):
    """The value as JSON gives it back."""
    return json.loads(json.dumps(value))


def test_the_independent_reader_reads_it(case):
    """In both ways."""
    root, expected = case
    state = ir.replay(root)
    assert plain(make_golden.contents(root, state)) == expected
    assert ir.manifest(state) == ir.manifest(ir.from_snapshot(root))


def test_the_independent_reader_finds_every_version_sound(case):
    """Heads, snapshots, pages, writers, objects, bitmaps and key indexes say the same."""
    ir.check(case[0])


def records_of(log, p):
    """What `Log.read` gives, as the expectation has it, but for the delete horizons."""
    found = []
    for batch in log.read(p):
        times = batch.column("timestamp").cast("int64").to_pylist()
        for row, time in zip(batch.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
            headers = [(h["key"], h["value"]) for h in row["headers"] or ()]
            one = (row["offset"], time, row["key"], row["value"], headers, None)
            found.append(make_golden.plainly(one)[:5])
    return found


def opened(root):
    return Log.open(str(root), clock=ManualClock(make_golden.START_MS * 2), ids=SeededIds(3))


def test_clog_reads_it(case):
    """Records, offsets, segments, config, writers."""
    root, expected = case
    log = opened(root)
    manifest = log.handle.manifest()
    head = manifest.head
    assert log.version == expected["version"]
    assert [*log.start_offsets().values()] == expected["start"]
    assert [*log.end_offsets().values()] == expected["end"]
    assert list(manifest.first_dirty) == expected["first_dirty"]
    assert dict(head.config) == expected["config"]
    assert plain(manifest.tombstones_removed) == expected["tombstones_removed"]
    assert [r.path for r in manifest.released] == expected["released"]
    for writer_id, kind, *rest in expected["writers"]:
        found = log.handle.find_writer(kind, writer_id)
        assert [found.query_id, found.sequence, found.content, found.version] == rest[:4]
    for p in range(log.partitions):
        assert [[s.base_offset, s.next_offset] for s in log.segments(p)] == expected["segments"][p]
        assert records_of(log, p) == [record[:5] for record in expected["records"][p]]


def test_clog_finds_nothing_wrong_in_it(case):
    """Every commit, snapshot, page, object and row."""
    report = verify_log(open_store(str(case[0])))
    assert report.version == case[1]["version"]
    assert list(report.findings) == []


def test_clog_goes_on_with_it(case):
    """What is appended follows what was there; both readers agree on all of it."""
    root, expected = case
    log = opened(root)
    for n in range(6):
        log.append([make_golden.another(log, n)], partition=0)
    state = ir.replay(root)
    assert ir.manifest(state) == ir.manifest(ir.from_snapshot(root))
    assert state["end"][0] == expected["end"][0] + 6
    rows = [make_golden.plainly(row)[:5] for row in ir.records(root, state, 0)]
    assert rows == records_of(log, 0)
    assert rows[:-6] == [record[:5] for record in expected["records"][0]]


def test_rules_of_texts_stay_in_the_head(tmp_path):
    """FORMAT.md §19: nobody follows them any more, and the log goes on with them."""
    shutil.copytree(make_golden.GOLDEN / "v1" / "kept" / "log", tmp_path / "log")
    log = opened(tmp_path / "log")
    rules = {"encoding": 2, "keys": [["id", "region"], ["a", "b"]]}
    assert log.handle.tip.head.extra == {"row_texts": rules}
    log.append([{"key": "k", "value": "v"}])
    log.roll()
    Cleaner(log).run_once(force=True)
    assert opened(tmp_path / "log").handle.tip.head.extra == {"row_texts": rules}
    assert list(verify_log(open_store(log.url)).findings) == []


@pytest.mark.parametrize("name", make_golden.CASES)
def test_making_a_case_twice_gives_the_same_bytes(name, tmp_path):
    """Nothing of the clock, of chance or of the path gets into a log."""
    trees = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        make_golden.make(name, folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        trees.append({str(p.relative_to(folder)): p.read_bytes() for p in files})
    assert trees[0] == trees[1]
    assert len(trees[0]) > 5


def test_every_file_says_what_it_is():
    """Documents where FORMAT.md §1 puts them, objects elsewhere, nothing left over."""
    places = {"commits", "snapshots", "pages", "columns", "edits", "blocks", "data"}
    places |= {"erasures", "receipts"}
    for folder in FOLDERS:
        for path in (folder / "log").rglob("*"):
            name = path.relative_to(folder / "log")
            if path.is_file() and str(name) != "_clog/log" and name.name != "latest":
                assert name.parts[0] == "_clog"
                assert name.parts[2] in places
                assert len(name.parts) == 4


def test_both_readers_find_the_tables_in_which_the_highest_order_wins(tmp_path):
    """FORMAT.md §15, at every version: before and after the strategy was altered, with late records
    kept and dropped.
    """
    make_golden.order_values(tmp_path / "log")
    log = opened(tmp_path / "log")
    assert log.handle.manifest().orders_removed
    for version in range(log.version + 1):
        state = ir.from_snapshot(tmp_path / "log", version)
        rows = log.table(at=version).to_arrow().to_pylist()
        for p in range(2):
            own = {row["key"]: row["value"] for row in rows if row["partition"] == p}
            assert own == ir.table(tmp_path / "log", state, p), version
