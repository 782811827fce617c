"""What FORMAT.md forbids, both readers refuse: edits and snapshots of random logs with one value of
another kind, out of range, duplicated, or missing. What both accept they understand in the same
way.
"""

import copy
import json
from dataclasses import astuple
from functools import partial
from random import Random

import pytest
import random_logs
from second_reader import edits, snapshots
from second_reader.documents import FormatError
from second_reader.log import Log as SecondLog
from second_reader.undecided import unended_of

from clog.storage import Log
from clog.storage.errors import ClogError
from clog.storage.format.commits import edit_from_json
from clog.storage.format.documents import decode, encode, snapshot_path
from clog.storage.format.manifest import apply, read_snapshot, unpage
from clog.storage.format.transactions import UNENDED

REFUSED = "refused"
REMOVED = object()
OURS = (ClogError, FileNotFoundError)
THEIRS = (FormatError, KeyError, TypeError, ValueError, AttributeError, IndexError)
EACH = 12
"""Values that are tried in an edit or a snapshot."""


def places(value, at=()):
    """The path of every value inside a body; of long lists, those of the first elements."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value[:3]) if isinstance(value, list) else inner
    for name, each in inner:
        yield from places(each, (*at, name))


def value_at(body, place):
    for step in place:
        body = body[step]
    return body


def others(value):
    """What may be put in place of a value."""
    yield from (REMOVED, None, True, "x", [], {}, 1.0, -1, -2, 0, 1, 2**62, 2**63)
    if type(value) is int:
        yield from (value + 1, value - 1, float(value))
    if isinstance(value, str):
        yield from ("", value + "x", "../x", value.upper(), "f" * 32)
    if isinstance(value, list):
        yield from (value + value, value[1:], value[::-1], [*value, None])
    if isinstance(value, dict):
        yield from ({**value, "9": 1}, {**value, "01": 1}, {**value, "-1": 1}, {**value, " 0": 0})


def changed(body, place, value):
    body = json.loads(json.dumps(body))
    inner = value_at(body, place[:-1])
    if value is REMOVED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return body


def hostile(body, draw):
    """Some changed bodies, each with what was changed in it."""
    found = list(places(body))
    for place in (draw.choice(found) for _ in range(min(EACH, 3 * len(found)))):
        value = draw.choice(list(others(value_at(body, place))))
        is_known = place[-2:] == ("snapshot", "id") and value in (REMOVED, None)
        if not is_known and (value is not REMOVED or isinstance(value_at(body, place[:-1]), dict)):
            yield place, value, changed(body, place, value)


def facts(manifest):
    """What clog's manifest and the second reader's states both contain."""
    head, partitions = manifest.head, range(manifest.head.log.partitions)
    return {
        "first_dirty": list(manifest.first_dirty),
        "segments": [
            [(s.base, s.next, s.created_ms, len(s.chunks)) for s in mine]
            for mine in manifest.segments
        ],
        "columns": [tuple(head.partitions.row(p)) for p in partitions],
        "released": [(r.path, r.size_bytes, r.version, r.time_ms) for r in manifest.released],
        "steps": sorted(manifest.tombstones_removed),
        "orders": list(manifest.orders_removed),
        "head": (head.orphan_floor, head.oldest_readable, dict(head.config), head.config_epoch),
        "writers": [(w.writer_id, w.kind, w.sequence, w.version) for w in head.writers],
        "unended": unended_of(UNENDED.write(head.unended), head.log.partitions),
        "markers": [astuple(marker) for marker in manifest.markers],
        "outcomes": [
            (c.undecided and astuple(c.undecided), c.aborted) for _, c in manifest.chunks()
        ],
    }


def second_facts(state):
    """The same for a state of the second reader."""
    return {
        "first_dirty": [p.first_dirty for p in state.partitions],
        "segments": [
            [(s.base, s.next, s.created_ms, len(s.chunks)) for s in p.segments]
            for p in state.partitions
        ],
        "columns": [p.head_row() for p in state.partitions],
        "released": [(path, *rest) for path, rest in state.released.items()],
        "steps": sorted(state.tombstones_removed),
        "orders": state.orders_removed,
        "head": (state.orphan_floor, state.oldest_readable, state.config, state.config_epoch),
        "writers": [(w[0], w[1], w[3], w[5]) for w in state.writers],
        "unended": state.unended,
        "markers": state.markers,
        "outcomes": [(c.undecided, c.aborted) for p in state.partitions for c in p.chunks()],
    }


def outcome(read, refusals):
    """The facts, or that they are refused, and why."""
    try:
        return read(), None
    except refusals as e:
        return REFUSED, e


def check(mine, theirs, place, value):
    """Both outcomes are the same."""
    (found, why), (expected, why_not) = mine, theirs
    shown = "nothing" if value is REMOVED else repr(value)[:80]
    said = f"{shown} at {place}: clog {why!r}, the second reader {why_not!r}"
    assert (found == REFUSED) == (expected == REFUSED), said
    assert found == expected, f"{said}: {found} and {expected}"
    return found == REFUSED


def applied(before, version, commit, body):
    """The result of an edit after a manifest in clog."""
    edit = edit_from_json(body, version=version)
    return facts(apply(before, edit, commit_id=commit["id"], time_ms=commit["time_ms"]))


def applied_by_second(before, commit, body):
    state = copy.deepcopy(before)
    edits.apply(state, commit, copy.deepcopy(body))
    return second_facts(state)


def restored(handle, version):
    """What clog reads from a snapshot and its pages."""
    return facts(unpage(handle.store, read_snapshot(handle.store, version)))


def restored_by_second(second, version):
    return second_facts(snapshots.load_snapshot(second.folder, snapshot_path(version), second.id))


@pytest.fixture(scope="module", params=[5, 28, 29])
def log(request):
    with random_logs.made(request.param, 30) as made:
        yield made, Log.open(made.store, clock=made.clock).handle, SecondLog(made.root)


def test_edits(log):
    """FORMAT.md §3.2, §3.3: a negative offset or version, another number's spelling, a time of an
    append that is not its chunks', statistics that no rows can have, a commit before its parent.
    """
    made, handle, second = log
    refused = tried = 0
    for version in range(made.first_readable + 1, handle.tip.version + 1):
        before = unpage(handle.store, handle.manifest_at(version - 1))
        state, commit = second.state(version - 1), second.commit(version)
        for place, value, body in hostile(second.edit(commit), Random(version)):
            mine = outcome(partial(applied, before, version, commit, body), OURS)
            theirs = outcome(partial(applied_by_second, state, commit, body), THEIRS)
            tried += 1
            refused += check(mine, theirs, place, value)
    assert 0 < refused < tried


def test_snapshots(log):
    """FORMAT.md §3.4, §4: the state as a whole; pages are left unchanged."""
    made, handle, second = log
    refused = tried = 0
    for version in second.folder.numbered("snapshots"):
        if version < made.first_readable:
            continue
        path = snapshot_path(version)
        sound = handle.store.get(path)
        for place, value, body in hostile(decode("snapshot", sound, where=path), Random(version)):
            handle.store.put(path, encode("snapshot", body))
            mine = outcome(partial(restored, handle, version), OURS)
            theirs = outcome(partial(restored_by_second, second, version), THEIRS)
            tried += 1
            refused += check(mine, theirs, place, value)
        handle.store.put(path, sound)
    assert 0 < refused < tried
