"""The content of a version: its manifest, which versions are readable, and what a missing file
means. Stateless; `tip` follows a log.

The version as of a time is the newest one committed by then. Commit times never go back (FORMAT.md
§3.1), so a binary search finds it, with one GET per step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from clog.storage.commit.tip import (
    StandingLog,
    check_open,
    edits_back_to,
    find_newest,
    is_closed,
    try_read,
)
from clog.storage.config.log_config import LogConfig
from clog.storage.config.units import duration, moment
from clog.storage.errors import (
    ClogError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    VersionExpiredError,
    version_expired,
)
from clog.storage.format import documents
from clog.storage.format.commits import (
    Commit,
    Edit,
    EditRecord,
    Head,
    edit_of,
    with_columns,
)
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
    """Returns whether the commit with this id made a version of the log whose newest is ``tip``. No
    request for the tip itself; otherwise one for the commit, and one for its block if the commit is
    gone or another one.
    """
    if version >= tip.version:
        return version == tip.version and tip.record.commit_id == commit_id
    there = try_read(store, version)
    if there is not None and there.record.commit_id == commit_id:
        return True
    closed = is_closed(store, version)
    return closed is not None and closed.get(version) == commit_id


def manifest_of(store: Store, tip: Commit, read: dict[int, Commit] | None = None) -> Manifest:
    """Returns the manifest at a commit, with the pages that no edit since the snapshot needed.

    Reads the snapshot, and the commits since the last multiple of 4 that ``read`` lacks; more if
    one carries less than it should.
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
    """Applies the edits after ``manifest``, and checks that the result has the head of ``tip``. One
    GET if that head lacks columns, unless the edits pass the version that has them.
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
        raise NotFoundError(
            f"version {version} of {store.url} does not exist yet: the newest is {tip.version};"
            f" ask for {oldest} to {tip.version}"
        )
    if version < oldest:
        raise VersionExpiredError(
            f"version {version} of {store.url} is no longer readable; readable versions are"
            f" {oldest} to {tip.version}; ask for one of them{how_kept(tip.head)}"
        )
    with expiring(store, version):
        commit = tip if version == tip.version else _must_read(store, version)
        return unpage(store, manifest_of(store, commit))


def how_kept(head: Head) -> str:
    """Returns how long versions of the log stay readable, and what keeps one for longer."""
    config = LogConfig.from_overrides(head.config)
    delay, hold = config.file_delete_delay_ms, config.reader_hold_max_ms
    longer = f"up to {duration(hold)} longer" if hold else "for no time now"
    return (
        f"; a version can be read for {duration(delay)} after it was replaced"
        f" (file.delete.delay.ms={delay}), for longer while a named snapshot has it, and {longer}"
        f" while a reader holds it (reader.hold.max.ms={hold})"
    )


def edits_after(
    store: Store, since: int, until: int, tip: Commit
) -> Iterator[tuple[EditRecord, Edit]]:
    """Yields the edits after a version up to another, both readable; a GET for up to four."""
    with expiring(store, since):
        newest = tip if until == tip.version else _must_read(store, until)
        carried = (*newest.earlier, newest.record)
        records, _ = edits_back_to(store, carried, since + 1, partial(_must_read, store))
        for record in records:
            if record.version > since:
                yield record, edit_of(store, record)


@contextmanager
def expiring(store: Store, version: int) -> Iterator[None]:
    """Raises `VersionExpiredError` for errors of the body that stem from an expired version: its
    documents are gone, or contradict each other because a sleeping committer left a file in the
    closed block (COMMIT.md §4).
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
    """Turns a FileNotFoundError while reading a version into the error of `file_missing`."""
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
    """Returns the error for a missing file of a version: `VersionExpiredError`, with ``why`` and
    ``remedy``, or `CorruptionError`.

    The file may have been deleted because the version expired, or exist although a filesystem that
    caches directories (NFS, SFTP) hides it. So this is damage only if a fresh look finds the file
    needed, a read after that misses it too, and it is still needed then. About 20 GETs, and the
    newest manifest twice.
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
        f"{path} of {store.url}, which version {version} needs, is missing, and clog did not"
        " delete it; stop whatever did (a lifecycle rule, a purge), and restore the file from a"
        ' back-up, or read again later if the log is still being copied; "clog verify" lists the'
        " missing files"
    )


def _log_of(store: Store) -> StandingLog | None:
    """Returns the log whose folder this is, None if it is not a log's folder. No request."""
    while isinstance(store, WrappingStore):
        if isinstance(store, Within):
            return StandingLog(store.inner, store.folder.removeprefix(documents.FOLDERS), store)
        store = store.inner
    return None


def _is_needed(store: Store, version: int, path: str) -> bool:
    """Returns whether the log now needs a file that a reader of a version missed."""
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
    """Returns a commit that must exist, as older and newer ones do."""
    if (commit := try_read(store, version)) is not None:
        return commit
    gone = contract.not_found(documents.commit_path(version), store.url)
    raise file_missing(store, version, gone, why=why)


def version_asked(
    store: Store, tip: Commit, at: int | None, at_time_ms: int | None, name: str = "at"
) -> int:
    """Returns the version that a caller gives by number, as ``name``, or by time; the tip if it
    gives neither.
    """
    by_time = f"{name}_time_ms"
    if at is not None and at_time_ms is not None:
        raise InvalidInputError(
            f"{name}={at} and {by_time}={at_time_ms} both select a version of {store.url}; give"
            " only one"
        )
    for given, number in ((name, at), (by_time, at_time_ms)):
        if number is not None and type(number) is not int:
            how = "; give ms since 1970: int(when.timestamp() * 1000)" if given != name else ""
            raise InvalidInputError(f"{given}={number!r} is not an integer{how}")
    if at_time_ms is not None:
        return version_at_time(store, at_time_ms, tip)
    return tip.version if at is None else at


def version_at_time(store: Store, time_ms: int, tip: Commit) -> int:
    """Returns the newest version up to ``tip`` that was committed by a time in ms."""

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
            f"{store.url} cannot be read as of time_ms={time_ms} ({moment(time_ms)}): its oldest"
            f" readable version {low} was committed at time_ms={oldest_ms} ({moment(oldest_ms)});"
            f" ask for that time or a later one{how_kept(tip.head)}"
        )
    # The version is in [low, high): low is early enough, high is too late.
    while high - low > 1:
        middle = (low + high) // 2
        if time_of(middle) <= time_ms:
            low = middle
        else:
            high = middle
    return low
