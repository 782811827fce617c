"""What is true of every log at every moment, whatever happened to it.

`check_log` reads a whole log the hard way and compares all ways of knowing its state. On top of
what `verify` tells an operator:

- the newest version is the one that the listing shows, and the hint is not beyond it;
- each commit carries exactly the earlier edits that FORMAT.md §3.1 asks for;
- each commit's head is what its edit makes of the head before;
- the snapshot that a readable version's head names is there, and says what the edits up to it say
  (COMMIT.md §5, W2: a sweep takes those that only older versions name);
- what is opened at a version, old or new, is what the edits up to it make.
"""

import json
from dataclasses import replace
from itertools import pairwise

from clog.storage.commit.tip import find_newest, standing_log
from clog.storage.commit.versions import manifest_at
from clog.storage.diagnostics.verify import verify_log
from clog.storage.format import documents
from clog.storage.format.commits import (
    Commit,
    advance,
    carried_from,
    edit_of,
    read_commit,
    with_columns,
)
from clog.storage.format.manifest import Manifest, apply, first_manifest, read_snapshot, unpage
from clog.storage.store.contract import Store


def check_log(root: Store, *, every_version: bool = True) -> Manifest:
    """Checks a log none of whose commits was deleted; returns its state.

    ``every_version``: what is opened at each version, too; else at the newest alone.

    Raises:
        AssertionError: something is not as it must be.
    """
    report = verify_log(root)
    assert report.findings == (), report.findings
    store = standing_log(root).store
    listed = [documents.version_of(found.path) for found in store.list(documents.COMMITS)]
    commits = _commits(store, len(listed))
    assert find_newest(store).tip == commits[-1]
    check_hint(store, commits[-1].version)
    check_heads(store, commits)
    states = _replayed(store, commits)
    readable = [s for s in states if s.version >= states[-1].head.oldest_readable]
    for version in {s.head.snapshot.version for s in readable if s.head.snapshot is not None}:
        saved = unpage(store, read_snapshot(store, version))
        assert saved == states[version], f"snapshot {version} differs"
    for state in states:
        if every_version or state is states[-1]:
            assert manifest_at(store, state.version, commits[-1]) == state
    return states[-1]


def check_hint(store: Store, newest: int) -> None:
    """Checks that the hint, where there is one, is a multiple of 4 that was committed."""
    try:
        hint = json.loads(store.get(documents.LATEST))["version"]
    except FileNotFoundError:
        return
    assert hint % 4 == 0, hint
    assert 0 <= hint <= newest, (hint, newest)


def check_heads(store: Store, commits: list[Commit]) -> None:
    """Checks that heads follow from edits, and commits carry what they must."""
    for before, commit in pairwise(commits):
        version, snapshot = commit.version, commit.head.snapshot
        made = advance(
            before.head,
            edit_of(store, commit.record),
            version=version,
            time_ms=commit.record.time_ms,
        )
        for name in made.__dataclass_fields__:
            if name != "snapshot":
                assert getattr(made, name) == getattr(commit.head, name), (version, name)
        first = carried_from(version, snapshot_version=-1 if snapshot is None else snapshot.version)
        carried = [record.version for record in commit.earlier]
        assert carried == list(range(first, version)), (version, carried)


def _commits(store: Store, count: int) -> list[Commit]:
    """Returns all commits, with all columns of their heads: from those before, as the documents of
    versions that are not readable any more may be gone.
    """
    commits: list[Commit] = []
    for version in range(count):
        commit = read_commit(store, version)
        known = [(before.version, before.head.partitions) for before in commits[-1:]]
        commits.append(replace(commit, head=with_columns(store, commit.head, *known)))
    return commits


def _replayed(store: Store, commits: list[Commit]) -> list[Manifest]:
    states: list[Manifest] = []
    for commit in commits:
        record = commit.record
        edit = edit_of(store, record)
        if not states:
            state = first_manifest(edit, commit_id=record.commit_id, time_ms=record.time_ms)
        else:
            state = apply(states[-1], edit, commit_id=record.commit_id, time_ms=record.time_ms)
            # Which snapshot there is, is the committer's to say, not the edit's.
            state = replace(state, head=commit.head)
        states.append(state)
    return states
