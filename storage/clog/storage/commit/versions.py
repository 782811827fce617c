"""What a version of a log holds: its manifest, which versions can be read, and what it means where
a file of one is missing. No state: `tip` follows a log.

The version of a moment is the newest one that was committed by then. Times of commits never go back
(FORMAT.md §3.1), so a binary search finds it: one GET a step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from clog.storage.commit.tip import (
    StandingLog,
    check_open,
    edits_back_to,
    find_newest,
    is_closed,
    try_read,
)
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    VersionExpiredError,
    version_expired,
)
from clog.storage.format import documents
from clog.storage.format.commits import Commit, EditRecord, edit_of, with_columns
from clog.storage.format.manifest import (
    Manifest,
    apply,
    first_manifest,
    mixed_histories,
    read_named_snapshot,
    unpage,
)
from clog.storage.store import contract
from clog.storage.store.contract import Store, Within, WrappingStore


def is_of_history(store: Store, tip: Commit, version: int, commit_id: str) -> bool:
    """Tells whether the commit with this id made a version of the log that ``tip`` is the newest
    of. No request where it is the tip, else one for the commit, and one for its block if that is
    gone or another's.
    """
    if version >= tip.version:
        return version == tip.version and tip.record.commit_id == commit_id
    there = try_read(store, version)
    if there is not None and there.record.commit_id == commit_id:
        return True
    closed = is_closed(store, version)
    return closed is not None and closed.get(version) == commit_id


def manifest_of(store: Store, tip: Commit, read: dict[int, Commit] | None = None) -> Manifest:
    """Returns the manifest at a commit; pages stay unless an edit since the snapshot needed them.

    Costs the snapshot, and what ``read`` lacks of the commits from the last multiple of 4 on; more
    where one carries less than it should.
    """
    known, snapshot = read or {}, tip.head.snapshot
    records, _ = edits_back_to(
        store,
        (*tip.earlier, tip.record),
        0 if snapshot is None else snapshot.version + 1,
        lambda version: known.get(version) or _must_read(store, version),
    )
    manifest = None if snapshot is None else read_named_snapshot(store, snapshot)
    return replay(store, manifest, records, tip)


def replay(
    store: Store, manifest: Manifest | None, records: Sequence[EditRecord], tip: Commit
) -> Manifest:
    """Applies the edits after ``manifest``, and checks that they make the head of ``tip``. One GET
    where that does not hold all columns, and the edits did not pass the version that the others are
    of.
    """
    ref, passed = tip.head.partitions.ref, manifest
    for record in records:
        if manifest is not None and ref is not None and manifest.version == ref.version:
            passed = manifest
        if manifest is not None and record.version <= manifest.version:
            continue
        edit = edit_of(store, record)
        if manifest is None:
            if record.version != 0:
                raise CorruptionError(f"{store.url} has no snapshot and no version 0 to start from")
            manifest = first_manifest(edit, commit_id=record.commit_id, time_ms=record.time_ms)
            continue
        if record.version != manifest.version + 1:
            raise CorruptionError(
                f"{store.url}: version {record.version} does not follow {manifest.version}"
            )
        if record.parent not in (None, manifest.commit_id):
            raise mixed_histories(store.url, f"version {manifest.version}")
        rewritten = edit.rewritten_partitions()
        if edit.reset_times:
            rewritten.update(range(manifest.head.log.partitions))
        touched = {p for p in rewritten if manifest.paged_below(p) >= 0}
        if touched:
            manifest = unpage(store, manifest, touched)
        manifest = apply(manifest, edit, commit_id=record.commit_id, time_ms=record.time_ms)
    if manifest is None or manifest.version != tip.version:
        raise CorruptionError(f"{store.url}: the edits do not lead to version {tip.version}")
    known = [(m.version, m.head.partitions) for m in (manifest, passed) if m is not None]
    head = with_columns(store, tip.head, *known)
    if not head.agrees_with(manifest.head):
        raise CorruptionError(
            f"{store.url}: the head of version {tip.version} does not match its edits"
        )
    return replace(manifest, head=head)


def manifest_at(store: Store, version: int, tip: Commit) -> Manifest:
    """Returns the manifest at a version not newer than ``tip``, pages brought in."""
    oldest = tip.head.oldest_readable
    if version > tip.version:
        raise VersionExpiredError(
            f"version {version} of {store.url} does not exist yet: the newest is {tip.version};"
            f" ask for {oldest} to {tip.version}"
        )
    if version < oldest:
        raise VersionExpiredError(
            f"version {version} of {store.url} is not readable any more; readable versions are"
            f" {oldest} to {tip.version}; ask for one of them"
        )
    with expiring(store, version):
        commit = tip if version == tip.version else _must_read(store, version)
        return unpage(store, manifest_of(store, commit))


@contextmanager
def expiring(store: Store, version: int) -> Iterator[None]:
    """Raises `VersionExpiredError` in place of what the block raises because the version expired:
    documents are gone, or do not fit, since a committer that slept left a file in its closed block
    (COMMIT.md §4).
    """
    with reading(store, version):
        try:
            yield
        except CorruptionError:
            check_open(store, version)
            raise


@contextmanager
def reading(
    store: Store, version: int, *, why: str = "", remedy: str = "read a newer version"
) -> Iterator[None]:
    """Raises what `file_missing` returns in place of a FileNotFoundError of who reads a version."""
    try:
        yield
    except FileNotFoundError as e:
        raise file_missing(store, version, e, why=why, remedy=remedy) from e


def file_missing(
    store: Store,
    version: int,
    gone: FileNotFoundError,
    *,
    why: str = "",
    remedy: str = "read a newer version",
) -> ClogError:
    """Returns the error of who worked with a version of a log and missed a file of it:
    `VersionExpiredError`, with ``why`` and ``remedy``, or that the log is damaged.

    The file may be gone rightly, as the version expired; or be there, where a filesystem knows for
    a while what its folders held (NFS, SFTP). So it is damage only where a look begun now says that
    the file is needed, a read after that misses it, too, and it is needed even then. Some 20 GETs,
    and the newest manifest twice.
    """
    log, path = _log_of(store), gone.filename
    folder = store if log is None else log.store
    try:
        if path is None or not (
            _is_needed(folder, version, path)
            and _is_absent(folder, path)
            and _is_needed(folder, version, path)
        ):
            return version_expired(store.url, version, gone=gone, why=why, remedy=remedy)
    except (NotFoundError, CorruptionError):
        if log is not None:
            log.check()
        raise
    if log is not None:
        log.check()
    return CorruptionError(
        f"{path} of {store.url}, which version {version} needs, is missing, and clog did not delete"
        " it; end what did (a lifecycle rule, a purge), and restore the file from a back-up, or"
        ' read again later if this is a copy under way; "clog verify" lists what is missing'
    )


def _log_of(store: Store) -> StandingLog | None:
    """Returns the log whose folder this is; None where it is a store of its own. No request."""
    while isinstance(store, WrappingStore):
        if isinstance(store, Within):
            return StandingLog(store.inner, store.folder.removeprefix(documents.FOLDERS), store)
        store = store.inner
    return None


def _is_needed(store: Store, version: int, path: str) -> bool:
    """Tells whether the log as it is now needs a file that was missed by who read a version."""
    newest = find_newest(store).tip
    if path.startswith(documents.COMMITS):
        at = documents.version_of(path)
        return at is not None and at <= newest.version and is_closed(store, at) is None
    is_readable = newest.head.oldest_readable <= version <= newest.version
    if not path.startswith(documents.DATA):
        return is_readable
    manifest = manifest_at(store, newest.version, newest)
    later = (r for r in manifest.released if r.version > version)
    return path in manifest.files() or (is_readable and any(r.path == path for r in later))


def _is_absent(store: Store, path: str) -> bool:
    try:
        store.get(path, 0, 1)
    except FileNotFoundError:
        return True
    return False


def _must_read(store: Store, version: int, *, why: str = "") -> Commit:
    """Returns a commit that is there, as older and newer ones were."""
    if (commit := try_read(store, version)) is not None:
        return commit
    gone = contract.not_found(documents.commit_path(version), store.url)
    raise file_missing(store, version, gone, why=why)


def version_asked(store: Store, tip: Commit, at: int | None, at_time_ms: int | None) -> int:
    """Returns the version that a caller names by number or by time; the tip when by neither."""
    if at is not None and at_time_ms is not None:
        raise InvalidInputError(
            f"at={at} and at_time_ms={at_time_ms} both select a version of {store.url}; give one"
        )
    for name, number in (("at", at), ("at_time_ms", at_time_ms)):
        if number is not None and type(number) is not int:
            raise InvalidInputError(f"{name}={number!r} is not an integer")
    if at_time_ms is not None:
        return version_at_time(store, at_time_ms, tip)
    return tip.version if at is None else at


def version_at_time(store: Store, time_ms: int, tip: Commit) -> int:
    """Returns the newest version up to ``tip`` that is not later than the time in ms."""

    def time_of(version: int) -> int:
        if version == tip.version:
            return tip.record.time_ms
        return _must_read(store, version, why=" while it was searched").record.time_ms

    low, high = tip.head.oldest_readable, tip.version
    if tip.record.time_ms <= time_ms:
        return high
    oldest_ms = time_of(low)
    if oldest_ms > time_ms:
        raise VersionExpiredError(
            f"{store.url} cannot be read as of time_ms={time_ms}: its oldest readable version"
            f" {low} was committed at time_ms={oldest_ms}; ask for that time or a later one"
        )
    # The version searched lies in [low, high): low is early enough, high is too late.
    while high - low > 1:
        middle = (low + high) // 2
        if time_of(middle) <= time_ms:
            low = middle
        else:
            high = middle
    return low
