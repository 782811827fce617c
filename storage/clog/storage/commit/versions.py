"""Versions as the store holds them: which log stands at a path, its newest version, its blocks, the
manifest at a version, and the version of a moment. No state: `tip` follows a log.

A log is its id, not its path (S47). ``_clog/log`` names the id, and everything else of the log lies
in ``_clog/<id>/``. The file is created if absent, after the log's first commit, and never
rewritten: its creation is that of the log. So a handle that was opened on a log which was deleted
and recreated cannot touch the new one: it knows the old folder only. It learns of it when

- it commits: the file of the block it committed to is gone (`committer`, K5);
- it looks for newer versions, at most `tip.CONFIRM_MS` later: ``_clog/log`` names another
  log, or its newest commit is gone.

The newest version (COMMIT.md §6) is found by reads of commits whose bodies are of use afterwards;
nothing is listed. Cold, from a hint H (divisible by 4), it takes at most three probes: H+2, then
H+1 or H+3, then H+4, which is there only when the hint is old. What is found was the newest at some
moment since the search began. Others commit meanwhile, and a search does not chase them: it gallops
once, so it ends however fast they are.

The version of a moment is the newest one that was committed by then. Times of commits never go back
(FORMAT.md §3.1), so a binary search finds it: one GET a step.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from clog.storage.env import Clock
from clog.storage.errors import (
    ClogError,
    CommitStateUnknownError,
    CorruptionError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedFormatError,
    VersionExpiredError,
    version_expired,
)
from clog.storage.format import documents
from clog.storage.format.commits import (
    HINT_STRIDE,
    Commit,
    EditRecord,
    edit_of,
    read_commit,
)
from clog.storage.format.head import with_columns
from clog.storage.format.manifest import Manifest, apply, first_manifest
from clog.storage.format.snapshots import mixed_histories, read_named_snapshot, unpage
from clog.storage.store import contract
from clog.storage.store.contract import (
    ObjectExistsError,
    Store,
    StoreRefusedError,
    Within,
    WrappingStore,
)

FOLLOW_STEPS_MAX = 4
"""A handle further behind than this searches from the hint instead of walking."""
_REPLAYED = (
    *("log", "config", "config_epoch", "orphan_floor", "oldest_readable", "partitions"),
    *("writers", "older_writers", "unended", "pins", "row_texts"),
)
"""What a head must have in common with the edits before it."""
_BEFORE_IDS = ("_clog/commits/00000000000000000000.json", "_clog/latest")
"""What logs had that were written before there were ids in paths."""
_READS_MAX = 5


@dataclass(frozen=True, slots=True)
class LogFile:
    """What ``_clog/log`` says."""

    log_id: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class StandingLog:
    """The log that was found at a root, and its folder as a store."""

    root: Store
    log_id: str
    store: Store

    def check(self) -> None:
        """Raises if another log stands at the root by now, or none; one GET.

        Raises:
            LogReplacedError: another one.
            NotFoundError: none.
        """
        there = read_log_file(self.root)
        if there.log_id != self.log_id:
            raise LogReplacedError(
                f"the log at {self.root.url} was deleted and recreated since it was opened"
                f" (its id was {self.log_id}, now it is {there.log_id}); nothing was written into"
                " the new one; open it to go on"
            )

    @contextmanager
    def unless_gone(self) -> Iterator[None]:
        """Raises as `check` in place of damage that the body finds where the log does not stand
        any more; one GET.
        """
        try:
            yield
        except CorruptionError:
            self.check()
            raise


@dataclass(frozen=True, slots=True)
class Found:
    """The newest commit, and the commits read on the way to it, by version."""

    tip: Commit
    read: dict[int, Commit]


@dataclass(frozen=True, slots=True)
class Block:
    """What the file of a block says (FORMAT.md §7). ``ids``: of its commits, once it is closed."""

    ids: dict[int, str] | None


def standing_log(root: Store) -> StandingLog:
    """Returns the log at a root; one GET.

    Raises:
        NotFoundError: there is none.
        UnsupportedFormatError: it was written before format 1 was released, or by a newer clog.
    """
    log_id = read_log_file(root).log_id
    return StandingLog(root, log_id, store_of(root, log_id))


def _standing_of(store: Store) -> StandingLog | None:
    """Returns the log whose folder this is, however it is wrapped; None where it is a store of its
    own. No request.
    """
    while isinstance(store, WrappingStore):
        if isinstance(store, Within):
            return StandingLog(store.inner, store.folder.removeprefix(documents.FOLDERS), store)
        store = store.inner
    return None


def store_of(root: Store, log_id: str) -> Store:
    """Returns the folder of the log with this id, as a store."""
    return Within(root, documents.folder_of(log_id))


def read_log_file(root: Store) -> LogFile:
    """Returns what ``_clog/log`` says; one GET where it is there.

    Raises:
        as `standing_log`.
    """
    where = f"{documents.LOG_FILE} of {root.url}"
    try:
        data = documents.fetch(root, "log", documents.LOG_FILE)
    except FileNotFoundError:
        _refuse_older(root)
        raise NotFoundError(
            f'no log at {root.url}; create one with Log.create or "clog create"'
        ) from None
    body = documents.decode("log", data, where=where)
    log_id, created_ms = body.get("log_id"), body.get("created_ms")
    if not documents.is_log_id(log_id) or type(created_ms) is not int:
        raise CorruptionError(f"{where} contradicts the format: log_id={log_id!r:.80}")
    assert isinstance(log_id, str)
    return LogFile(log_id, created_ms)


def create_log_file(root: Store, made: LogFile, clock: Clock) -> LogFile:
    """Creates ``_clog/log``, and returns what stands there then: ours, or that of another creator.

    Raises:
        CommitStateUnknownError: whether it was created cannot be found out now.
    """
    body = {"log_id": made.log_id, "created_ms": made.created_ms}
    data = documents.encode("log", body)
    cause: Exception | None = None
    refused: Exception | None = None
    for attempt in range(_READS_MAX):
        if attempt:
            clock.sleep_ms(10 << attempt)
        try:
            root.create(documents.LOG_FILE, data)
            return made
        except (ObjectExistsError, StoreUnavailableError) as e:
            if attempt == 0 and isinstance(e, StoreRefusedError) and e.certain:
                raise
            cause = e  # Perhaps our own, repeated by a client whose reply was lost.
            refused = e if isinstance(e, ObjectExistsError) else None
        try:
            return read_log_file(root)
        except NotFoundError:
            pass
        except StoreUnavailableError as e:
            refused, cause = None, e
    if refused is not None:
        raise CommitStateUnknownError(
            f"{documents.LOG_FILE} of {root.url} can neither be created nor read, as if a folder"
            " had its name, or another creation were under way; look what is there, and delete the"
            " folder, or create the log again"
        ) from refused
    raise CommitStateUnknownError(
        f"a log may have been created at {root.url}: {cause}; open it before you create it again"
    ) from cause


def _refuse_older(root: Store) -> None:
    for path in _BEFORE_IDS:
        try:
            root.get(path, 0, 1)
        except FileNotFoundError:
            continue
        raise UnsupportedFormatError(
            f"the log at {root.url} was written by a clog before release 0.1.0, which this one"
            " does not read; nothing was changed; pipe what the clog that wrote it prints with"
            ' "clog consume URL --json" into "clog produce NEW_URL --format jsonl" of this one'
        )


def find_newest(store: Store, *, check_block: bool = True) -> Found:
    """Returns the newest version, from cold. ``check_block``: asks last whether its block is open;
    who does not ask must not believe the version before he does (`TipTracker.confirm`).

    Raises:
        NotFoundError: the log has no commits.
    """
    hint = read_hint(store)
    search = _Search(store)
    base = hint - hint % HINT_STRIDE
    if search.descend(base) or (base and search.descend(0)):
        tip = search.read[max(search.read)]
        if not check_block or is_closed(store, tip.version) is None:
            return Found(tip, search.read)
    # The hint leads into deleted blocks, where only files of committers that slept can be.
    first, block = _first_not_closed(store)
    if block is None and search.read:
        raise _block_missing(store, first)
    search = _Search(store)
    if first == 0 or not search.descend(first):
        raise no_commits(store)
    return Found(search.read[max(search.read)], search.read)


def find_newer(store: Store, known: int) -> Found:
    """Finds the newest version, given one that was it minutes ago: no block since was closed.

    At most 4 requests, and 2·log2(d) where the hint is d versions old.

    Raises:
        NotFoundError: the log has no commits any more.
    """
    hint = read_hint(store)
    search = _Search(store)
    if hint < known or not search.descend(hint - hint % HINT_STRIDE):
        search.descend(known - known % HINT_STRIDE)
    if not search.read:
        raise no_commits(store)
    return Found(search.read[max(search.read)], search.read)


def first_open_version(store: Store) -> int:
    """Returns the first version after the closed blocks: they are closed from the oldest on, and
    the newest never is.

    Raises:
        CorruptionError: its block has no file.
    """
    first, block = _first_not_closed(store)
    if block is None:
        raise _block_missing(store, first)
    return first


def _first_not_closed(store: Store) -> tuple[int, Block | None]:
    """Returns the first version after the closed blocks, and its block; None where that has no
    file: the log was deleted, or is damaged.
    """
    blocks: dict[int, Block | None] = {}

    def is_closed_at(at: int) -> bool:
        block = blocks[at] = read_block(store, at * documents.BLOCK_VERSIONS)
        return block is not None and block.ids is not None

    if not is_closed_at(0):
        return 0, blocks[0]
    low, step = 0, 1
    while is_closed_at(low + step):
        low, step = low + step, step * 2
    while step > 1:
        step //= 2
        if is_closed_at(low + step):
            low += step
    first = low + 1
    # Who was held up may have looked for it before it came, and then seen the one before it closed.
    if blocks[first] is None:
        while is_closed_at(first):
            first += 1
    return first * documents.BLOCK_VERSIONS, blocks[first]


class _Search:
    """Probing forward; keeps every commit it read."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.read: dict[int, Commit] = {}

    def descend(self, base: int) -> bool:
        """Finds the newest version from ``base`` (divisible by 4) on; False when there is none."""
        if not self._has(base + 2):
            return self._has(base + 1) or self._has(base)
        if self._has(base + 3) and self._has(base + HINT_STRIDE):
            base = self._gallop(base + HINT_STRIDE)
            # What came after base + 3 came since the search began: it is for the next one.
            self._has(base + 3 if self._has(base + 2) else base + 1)
        return True

    def _gallop(self, low: int) -> int:
        """Returns the last multiple of 4 that is there, from one that is."""
        step = HINT_STRIDE
        while self._has(low + step):
            low, step = low + step, step * 2
        while step > HINT_STRIDE:
            step //= 2
            if self._has(low + step):
                low += step
        return low

    def _has(self, version: int) -> bool:
        if version not in self.read:
            commit = try_read(self.store, version)
            if commit is None:
                return False
            self.read[version] = commit
        return True


def read_hint(store: Store) -> int:
    """Returns the version that ``latest`` names, 0 where it is missing or damaged; one GET."""
    try:
        value = json.loads(store.get(documents.LATEST, 0, 1024))
        version = value["version"]
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0  # Only a hint: a damaged one costs requests, nothing else.
    return version if type(version) is int and 0 <= version < 10**18 else 0


def no_commits(store: Store) -> NotFoundError:
    """Returns the error of a log of which nothing is left but ``_clog/log``."""
    return NotFoundError(
        f"the log at {store.url} has no commits: it was deleted but for {documents.LOG_FILE}, or"
        " its files are being copied; restore them, or delete what is left"
    )


def try_read(store: Store, version: int) -> Commit | None:
    """Returns the commit of this version, None where there is none; one GET."""
    try:
        return read_commit(store, version)
    except FileNotFoundError:
        return None


def block_body(first: int, ids: dict[int, str] | None = None) -> dict[str, object]:
    """Returns what the file of a block holds: nothing but its first version while it is open."""
    named = None if ids is None else {str(version): commit_id for version, commit_id in ids.items()}
    return {"block": first, "ids": named}


def read_block(store: Store, version: int) -> Block | None:
    """Returns the block that holds a version; None where it has no file: nothing was committed to
    it, or the log was deleted. One GET.
    """
    path = documents.block_path(version)
    try:
        data = documents.fetch(store, "block", path)
    except FileNotFoundError:
        return None
    body = documents.decode("block", data, where=f"{path} of {store.url}")
    try:
        if (first := body["block"]) != documents.block_of(version):
            raise ValueError(f"it is of block {first!r:.80}")
        ids = body["ids"]
        return Block(None if ids is None else {int(v): str(i) for v, i in ids.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptionError(f"{path} of {store.url} violates the format: {e}") from e


def is_closed(store: Store, version: int) -> dict[int, str] | None:
    """Returns the commit ids of the block of a version that was committed, as far as the caller can
    say; None while it is open. One GET.

    Raises:
        CorruptionError: the block has no file: the log was deleted, or is damaged
            (`StandingLog.unless_gone`).
    """
    block = read_block(store, version)
    if block is None:
        raise _block_missing(store, version)
    return block.ids


def _block_missing(store: Store, version: int) -> CorruptionError:
    path = documents.block_path(version)
    return CorruptionError(
        f"{path} of {store.url} is missing, so that nobody can say which commits from version"
        f" {documents.block_of(version)} on were made; restore it from a back-up, or write what the"
        ' commits tell into a copy with "clog verify --repair"'
    )


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


def edits_back_to(
    store: Store, newer: Sequence[EditRecord], first: int, read: Callable[[int], Commit]
) -> tuple[Sequence[EditRecord], int]:
    """Returns the edits from version ``first`` on, or earlier ones, up to the newest of ``newer``,
    and the oldest version that was read for them.

    An even version carries the one before it, a multiple of 4 all since the snapshot: so few are
    read. Where one carries less, what it lacks is in the commits themselves.

    Raises:
        VersionExpiredError: the block was closed meanwhile.
        CorruptionError: a version is not the one that the newer ones go on from.
    """
    records, oldest = newer, newer[-1].version
    while records[0].version > first:
        oldest = records[0].version - 1
        commit = read(oldest)
        if records[0].parent not in (None, commit.record.commit_id):
            check_open(store, oldest)
            raise mixed_histories(store.url, f"version {oldest}")
        records = (*commit.earlier, commit.record, *records)
    return records, oldest


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
    if any(getattr(manifest.head, name) != getattr(head, name) for name in _REPLAYED):
        raise CorruptionError(
            f"{store.url}: the head of version {tip.version} does not match its edits"
        )
    return replace(manifest, head=head)


def manifest_at(store: Store, version: int, tip: Commit) -> Manifest:
    """Returns the manifest at a version not newer than ``tip``, pages brought in.

    Raises:
        VersionExpiredError: the version is below the oldest readable one, or beyond the newest.
    """
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

    Raises:
        VersionExpiredError: instead of FileNotFoundError, and of CorruptionError in a closed block.
        CorruptionError: a document is gone that the log needs (`file_missing`).
    """
    try:
        yield
    except CorruptionError:
        check_open(store, version)
        raise
    except FileNotFoundError as e:
        raise file_missing(store, version, e) from e


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

    Raises:
        LogReplacedError, NotFoundError: the log was deleted, and its files with it.
    """
    standing, path = _standing_of(store), gone.filename
    folder = store if standing is None else standing.store
    expired = version_expired(store.url, version, gone=gone, why=why, remedy=remedy)
    try:
        if path is None or not (
            _is_needed(folder, version, path)
            and _is_absent(folder, path)
            and _is_needed(folder, version, path)
        ):
            return expired
    except (NotFoundError, CorruptionError):
        if standing is not None:
            standing.check()
        raise
    if standing is not None:
        standing.check()
    return CorruptionError(
        f"{path} of {store.url}, which version {version} needs, is missing, and clog did not delete"
        " it; end what did (a lifecycle rule, a purge), and restore the file from a back-up, or"
        ' read again later if this is a copy under way; "clog verify" lists what is missing'
    )


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


def _commit_missing(store: Store, version: int, *, why: str = "") -> ClogError:
    """Returns the error of a commit that is not there, though older and newer ones were."""
    gone = contract.not_found(documents.commit_path(version), store.url)
    return file_missing(store, version, gone, why=why)


def check_open(store: Store, version: int) -> None:
    """Raises if what was just read of a version may not be what was committed: once its block is
    closed, a committer that slept may have left files in it, and they may fit (COMMIT.md §4). One
    GET.

    Raises:
        VersionExpiredError: the block is closed.
    """
    if is_closed(store, version) is not None:
        raise version_expired(store.url, version, why=", its block is closed")


def _must_read(store: Store, version: int) -> Commit:
    commit = try_read(store, version)
    if commit is None:
        raise _commit_missing(store, version)
    return commit


def version_asked(store: Store, tip: Commit, at: int | None, at_time_ms: int | None) -> int:
    """Returns the version that a caller names by number or by time; the tip when by neither.

    Raises:
        InvalidInputError: by both, or by something that is no integer.
        VersionExpiredError: as `version_at_time`. Whether ``at`` is readable shows when it is read.
    """
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
    """Returns the newest version not newer than ``tip`` whose commit is not later than the time, in
    ms since 1970; the tip for every later time.

    Raises:
        VersionExpiredError: the oldest readable version is later than the time.
    """
    low, high = tip.head.oldest_readable, tip.version
    if tip.record.time_ms <= time_ms:
        return high
    oldest_ms = _time_ms(store, low, tip)
    if oldest_ms > time_ms:
        raise VersionExpiredError(
            f"{store.url} cannot be read as of time_ms={time_ms}: its oldest readable version"
            f" {low} was committed at time_ms={oldest_ms}; ask for that time or a later one"
        )
    # The version searched lies in [low, high): low is early enough, high is too late.
    while high - low > 1:
        middle = (low + high) // 2
        if _time_ms(store, middle, tip) <= time_ms:
            low = middle
        else:
            high = middle
    return low


def _time_ms(store: Store, version: int, tip: Commit) -> int:
    commit = tip if version == tip.version else try_read(store, version)
    if commit is None:
        raise _commit_missing(store, version, why=" while it was searched")
    return commit.record.time_ms
