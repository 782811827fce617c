"""Verifies a log: what its documents say against one another, and against the objects.

1. *History*: every commit that is still there can be read, follows its parent, and carries
   earlier edits that are those committed. All edits, replayed from the oldest state there is,
   lead to the state that the newest commit leads to. Snapshots and pages of all readable versions
   can be read (`verify_documents`).
2. *Segments*: those of each partition tile it up to its end offset; chunks lie inside them, in
   order, apart.
3. *Objects*: each that a chunk refers to is there, with its size; unless the check is ``quick``,
   its checksum, its key index, its rows, and for each chunk its sizes, timestamps, tombstones,
   horizons and offsets as the rows have them (`verify_rows`). Bitmaps of dead rows. Of replaced
   objects that readers of older versions need the checksum (`verify_older`).
4. *Keys*: each stands at most once below the first dirty offset (`verify_keys`); what masks hide
   is what keys say (`verify_masks`).

Problems are returned as values, `Finding`, and the checks go on, to show their extent. Nothing is
changed.

Not here: orphans, which a healthy log has (the sweep's).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise

from clog.storage.commit.identity import StandingLog, standing_log
from clog.storage.commit.versions import find_newest, first_open_version, manifest_of, replay
from clog.storage.diagnostics.verify_documents import document_problems
from clog.storage.diagnostics.verify_keys import repeated_keys
from clog.storage.diagnostics.verify_masks import mask_problems
from clog.storage.diagnostics.verify_objects import OnProgress, by_object, object_messages
from clog.storage.diagnostics.verify_older import older_problems
from clog.storage.diagnostics.verify_views import view_problems
from clog.storage.errors import CorruptionError, VersionExpiredError, version_expired
from clog.storage.format import paths
from clog.storage.format.bitmaps.bitmap import read_bitmap
from clog.storage.format.commits import (
    Commit,
    EditRecord,
    goes_back_in_time,
    lacks_edits,
    read_commit,
)
from clog.storage.format.manifest import Manifest
from clog.storage.format.segments import Segment
from clog.storage.format.snapshots import read_snapshot, unpage
from clog.storage.store.ahead import ahead
from clog.storage.store.base import Store


class Check(StrEnum):
    """What a finding is about; API, as kinds of errors are."""

    COMMIT = "commit"
    SNAPSHOT = "snapshot"
    STATE = "state"
    SEGMENTS = "segments"
    OBJECT_MISSING = "object-missing"
    OBJECT = "object"
    DEAD_ROWS = "dead-rows"
    KEYS = "keys"
    MASKS = "masks"
    VIEW = "view"


_REPLAYED = (
    *("segments", "first_dirty", "released", "tombstones_removed", "uncleanable"),
    "markers",
)
_OF_FILES = (Check.OBJECT_MISSING, Check.DEAD_ROWS, Check.MASKS)
"""What may be found of a version that expired meanwhile, though nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ``where`` is a path under the root, or a partition."""

    check: Check
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at, and what was found. ``version`` is None where the newest one cannot be
    read.
    """

    url: str
    version: int | None
    commits: int
    objects: int
    object_bytes: int
    records: int
    findings: tuple[Finding, ...]


def verify_log(
    root: Store, *, quick: bool = False, on_progress: OnProgress = lambda _done, _total: None
) -> VerifyReport:
    """Verifies the newest version of the log at a root.

    Costs a LIST of the commits and one of the data, a GET for each commit and for each object (and
    for each bitmap file), replaced ones that are still needed too, and reads the keys of the clean
    parts once more; ``quick``: a LIST of the data and an opening.

    Raises:
        NotFoundError: there is no log.
        VersionExpiredError: what was verified was cleaned and swept meanwhile, longer than
            ``file.delete.delay.ms`` after it was replaced.
        StoreUnavailableError: the file system failed; that says nothing about the log.
    """
    try:
        standing = standing_log(root)
    except CorruptionError as e:
        found = Finding(Check.STATE, paths.LOG_FILE, f"nobody can say which log stands here: {e}")
        return VerifyReport(root.url, None, 0, 0, 0, 0, (found,))
    return _verified(standing, quick=quick, on_progress=on_progress)


def _verified(standing: StandingLog, *, quick: bool, on_progress: OnProgress) -> VerifyReport:
    store = standing.store
    findings: list[Finding] = []
    manifest: Manifest | None = None
    try:
        tip = find_newest(store).tip
        manifest = unpage(store, manifest_of(store, tip))
    except (CorruptionError, FileNotFoundError) as e:
        findings.append(
            Finding(Check.STATE, paths.COMMITS, f"the newest state cannot be read: {e}")
        )
    commits = {} if quick else _commits(store, findings)
    if manifest is None:
        return VerifyReport(store.url, None, len(commits), 0, 0, 0, tuple(findings))
    if not quick:
        findings += history_findings(store, commits, manifest)
        findings += _behind_a_gap(store, commits, manifest.version)
    findings += segment_findings(manifest)
    chunks = by_object(manifest)
    log = manifest.head.log
    for is_there, path, message in object_messages(
        store, chunks, log, quick=quick, on_progress=on_progress
    ):
        check = Check.OBJECT if is_there else Check.OBJECT_MISSING
        findings.append(Finding(check, path, message))
    if not quick:
        findings += _dead_row_findings(store, manifest)
        findings += _key_findings(store, manifest)
        findings += _mask_findings(store, manifest)
        views = view_problems(standing, manifest)
        findings += [Finding(Check.VIEW, name, message) for name, message in views]
    return VerifyReport(
        url=store.url,
        version=manifest.version,
        commits=len(commits),
        objects=len(chunks),
        object_bytes=sum(ref.size_bytes for ref in chunks),
        records=sum(s.rows for segments in manifest.segments for s in segments),
        findings=tuple(_still_true(store, manifest, findings)),
    )


def _still_true(store: Store, manifest: Manifest, findings: list[Finding]) -> list[Finding]:
    """Returns the findings, but of files that may be gone since the version expired meanwhile
    (S27).

    Raises:
        VersionExpiredError: it did, and nothing else was found.
    """
    others = [found for found in findings if found.check not in _OF_FILES]
    if others == findings or find_newest(store).tip.head.oldest_readable <= manifest.version:
        return findings
    if not others:
        remedy = "verify again, with a file.delete.delay.ms longer than a verification takes"
        why = " while it was verified"
        raise version_expired(store.url, manifest.version, why=why, remedy=remedy)
    return others


def _dead_row_findings(store: Store, manifest: Manifest) -> Iterator[Finding]:
    for p, chunk in manifest.chunks():
        if chunk.dead is not None:
            try:
                read_bitmap(store, chunk.dead, chunk.rows)
            except (CorruptionError, FileNotFoundError) as e:
                where = f"the dead rows of [{chunk.base}, {chunk.next}) of partition {p}"
                yield Finding(Check.DEAD_ROWS, chunk.object.path, f"{where} cannot be read: {e}")


def _mask_findings(store: Store, manifest: Manifest) -> Iterator[Finding]:
    try:
        for path, message in mask_problems(store, manifest):
            yield Finding(Check.MASKS, path, message)
    except (CorruptionError, FileNotFoundError, VersionExpiredError):
        return  # Found among the objects.


def _key_findings(store: Store, manifest: Manifest) -> Iterator[Finding]:
    for p in range(manifest.head.log.partitions):
        try:
            for message in repeated_keys(store, manifest, p):
                yield Finding(Check.KEYS, f"partition {p}", message)
        except (CorruptionError, FileNotFoundError):
            continue  # Found among the objects.


def segment_findings(manifest: Manifest) -> Iterator[Finding]:
    """Yields what is wrong with the segments of a manifest whose pages are brought in. Pure."""
    columns = manifest.head.partitions
    for p, segments in enumerate(manifest.segments):
        problems = [*_tiling_problems(segments), *(m for s in segments for m in _chunk_problems(s))]
        active = segments[-1]
        if (active.base, active.next) != (columns.base[p], columns.end[p]):
            problems.append(
                f"the head's active segment is [{columns.base[p]}, {columns.end[p]}), the"
                f" manifest's [{active.base}, {active.next})"
            )
        if segments[0].base > columns.start[p]:
            problems.append(
                f"the first segment begins at {segments[0].base}, after the log start offset"
                f" {columns.start[p]}"
            )
        for message in problems:
            yield Finding(Check.SEGMENTS, f"partition {p}", message)


def _tiling_problems(segments: tuple[Segment, ...]) -> Iterator[str]:
    for before, after in pairwise(segments):
        if before.next != after.base:
            yield f"segment [{before.base}, {before.next}) is followed by one at {after.base}"


def _chunk_problems(segment: Segment) -> Iterator[str]:
    at = segment.base
    for c in segment.chunks:
        if c.base < at or c.next > segment.next or c.next - c.base < c.rows:
            yield (
                f"a chunk of {c.rows} rows at [{c.base}, {c.next}) does not fit into segment"
                f" [{segment.base}, {segment.next}) from {at} on"
            )
        at = c.next


def _commits(store: Store, findings: list[Finding]) -> dict[int, Commit]:
    """Returns the commits that are there and can be read, by version; not what committers that
    slept left in closed blocks.
    """
    found = {}
    try:
        first = first_open_version(store)
    except CorruptionError:
        first = 0  # Found again among the documents.
    listed = sorted(store.list(paths.COMMITS), key=lambda s: s.path)
    versions = [(paths.version_of(s.path), s.size_bytes) for s in listed]
    calls = [
        (partial(_commit_or_problem, store, version), size_bytes)
        for version, size_bytes in versions
        if version is not None and version >= first
    ]
    for version, commit in ahead(store, calls):
        if isinstance(commit, Commit):
            found[version] = commit
        elif isinstance(commit, CorruptionError):
            findings.append(Finding(Check.COMMIT, paths.commit_path(version), str(commit)))
    return found


def _commit_or_problem(store: Store, version: int) -> tuple[int, Commit | CorruptionError | None]:
    """Returns a commit, or what is wrong with it; None where it was deleted with its block since
    the listing.
    """
    try:
        return version, read_commit(store, version)
    except CorruptionError as e:
        return version, e
    except FileNotFoundError:
        return version, None


def _behind_a_gap(store: Store, commits: dict[int, Commit], newest: int) -> Iterator[Finding]:
    """Yields the commits that no search finds, since the file of one before them is gone (COMMIT.md
    §6): only who lists knows of them.
    """
    for version in sorted(commits):
        if version <= newest + 1 or version - 1 in commits:
            continue
        if _commit_or_problem(store, version - 1)[1] is None:
            message = (
                f"version {version - 1} before it is gone, so that {newest} is found as the"
                " newest; restore that file, and write nothing to the log before"
            )
            yield Finding(Check.COMMIT, paths.commit_path(version), message)


def history_findings(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[Finding]:
    """Yields what is wrong with the commits, and where their edits lead elsewhere than opening."""
    for version, commit in sorted(commits.items()):
        before = commits.get(version - 1)
        if before is not None and (message := _succession_problem(store, before, commit)):
            yield Finding(Check.COMMIT, paths.commit_path(version), message)
        if message := _link_problem(commits, commit):
            yield Finding(Check.COMMIT, paths.commit_path(version), message)
        if lacks_edits(commit):
            message = (
                f"carries the edits of {len(commit.earlier)} versions before it, fewer than it"
                " should: release 0.1.0 cannot read it; write the log anew with"
                ' "clog verify --repair"'
            )
            yield Finding(Check.COMMIT, paths.commit_path(version), message)
        for record in commit.earlier:
            other = commits.get(record.version)
            if other is not None and other.record != record:
                yield Finding(
                    Check.COMMIT,
                    paths.commit_path(version),
                    f"carries another edit of version {record.version} than was committed",
                )
    yield from _replay_findings(store, commits, manifest)
    for where, message in document_problems(store, commits, manifest):
        yield Finding(Check.SNAPSHOT, where, message)
    for where, message in older_problems(store, commits, manifest):
        yield Finding(Check.OBJECT, where, message)


def _link_problem(commits: dict[int, Commit], commit: Commit) -> str | None:
    """Tells what is wrong with the ids of what readers put together with the commit."""
    links: list[tuple[str, int, str | None]] = []
    if commit.earlier:
        first = commit.earlier[0]
        links.append(("what it carries goes on from", first.version - 1, first.parent))
    if (ref := commit.head.snapshot) is not None:
        links.append(("its snapshot is of", ref.version, ref.commit_id))
    for what, version, named in links:
        there = commits.get(version)
        if there is not None and named not in (None, there.record.commit_id):
            return f"{what} {named}, version {version} is {there.record.commit_id}"
    return None


def _succession_problem(store: Store, before: Commit, commit: Commit) -> str | None:
    if commit.parent != before.record.commit_id:
        return (
            f"its parent is {commit.parent}, version {before.version} is {before.record.commit_id}"
        )
    try:
        is_earlier = goes_back_in_time(store, before.record, commit.record)
    except (CorruptionError, FileNotFoundError):
        is_earlier = False  # Found by the replay.
    if is_earlier:
        return f"its time {commit.record.time_ms} lies before {before.record.time_ms}, its parent's"
    rest, kept = commit.head.partitions.ref, before.head.partitions.ref
    if rest is not None and rest != kept and rest.version != before.version:
        return (
            f"its head refers to columns of version {rest.version}, neither those of its parent's"
            f" head nor those of version {before.version}"
        )
    return None


def _replay_findings(
    store: Store, commits: dict[int, Commit], manifest: Manifest
) -> Iterator[Finding]:
    """Yields a finding where the edits do not lead to the state at the tip from the oldest state
    there is.
    """
    tip = commits.get(manifest.version)
    if tip is None:
        return  # Found above.
    base_version = _oldest_base(commits, manifest.head.oldest_readable)
    records: list[EditRecord] = [
        commits[v].record
        for v in range(0 if base_version is None else base_version + 1, tip.version + 1)
        if v in commits
    ]
    where = "version 0" if base_version is None else paths.snapshot_path(base_version)
    try:
        base = None if base_version is None else unpage(store, read_snapshot(store, base_version))
        state = unpage(store, replay(store, base, records, tip))
    except (CorruptionError, FileNotFoundError) as e:
        yield Finding(Check.SNAPSHOT if base_version else Check.STATE, where, str(e))
        return
    for name in _REPLAYED:
        if getattr(state, name) != getattr(manifest, name):
            yield Finding(
                Check.STATE,
                where,
                f"the edits from here lead to other {name} at version {tip.version} than opening",
            )


def _oldest_base(commits: dict[int, Commit], oldest_readable: int) -> int | None:
    """Returns the oldest snapshot that the head of a readable version names, as others may be
    swept, and from which all commits are there; None: version 0 is.
    """
    first = min(commits)
    if first == 0:
        return None
    heads = [commit.head for version, commit in commits.items() if version >= oldest_readable]
    named = {head.snapshot.version for head in heads if head.snapshot is not None}
    return min((version for version in named if version >= first - 1), default=first)
