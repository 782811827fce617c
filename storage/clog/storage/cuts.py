"""Named cuts: versions of the logs of a home that belong together (FORMAT.md §20, S74).

N1. Look at the home and its members; this gives each log a first version.
N2. Look at each log again for its bound, and once more for the outcome of everything that the
    bounds show (`_Followed`).
N3. Find the highest versions up to the bounds that show all or nothing of each transaction
    (`consistent`). If there are none since the first versions, finish what is pending and look
    again; if that does not help, start again with older first versions.
N4. Commit a keep in the home, then in every other log: from now on, what the cut needs stays. To
    publish the cut, publish each log at exactly its version (`publish_kept`), or start again if a
    view shows a newer one.
N5. Commit the cut in the home, under its name.
N6. Drop: in the home first, then each log's keep.

No one waits for a cut, and before N4 only the ends of decided transactions are written into logs. A
crash leaves keeps without a cut, which the cleaner of each log removes, or a cut whose caller does
not know that it was named.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from os import PathLike
from typing import Final, TypeVar

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.commit.tip import edits_back_to
from clog.storage.commit.versions import reading
from clog.storage.config.units import with_times
from clog.storage.env import Clock, Ids, SystemClock, SystemIds, dataclass
from clog.storage.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    LogReplacedError,
    NotFoundError,
    StoreUnavailableError,
    VersionExpiredError,
    version_expired,
)
from clog.storage.format.commits import Commit, Edit, Head, edit_of, read_commit, unended_after
from clog.storage.format.cuts import CutEntry, CutLog, Keep, read_logs, stored_logs
from clog.storage.format.documents import NONE, Offsets
from clog.storage.format.log_info import NO_FEATURES
from clog.storage.format.manifest import Manifest
from clog.storage.format.transactions import (
    COMMITTED,
    PARTICIPANT,
    TransactionName,
)
from clog.storage.format.writers import find_writer
from clog.storage.publications.publish import Publications
from clog.storage.store import store_at
from clog.storage.store.contract import Store, together
from clog.storage.store.opening import Reach, redact
from clog.storage.transactions.ids import participant_id, state_of
from clog.storage.transactions.several import finish_all, open_other
from clog.storage.view_formats import FORMATS

CUTS_MAX: Final = 128
"""The home's head repeats them in each commit."""
KEEP_MS_MAX: Final = 3_660 * 86_400_000
"""About ten years."""
TRIES_MAX: Final = 20
_PAUSE_MS: Final = 50
_BACK: Final = ((0, 4), (64, 2), (1024, 2))
"""How many versions a cut may be behind the newest ones, and how often to look for such a cut."""
OPERATION: Final = "cut"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_PENDING: Final = 1 << 63
"""A version above all others: the transaction has not ended yet."""
_LOGGER = logging.getLogger("clog.storage.cuts")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Cut:
    """A named cut: versions of several logs that show all or nothing of each transaction over them.
    `Log.table` takes one as ``at``.

    Attributes:
        name: its name in its home; None: it has none, and nothing is kept for it.
        home: the URL of the home log.
        logs: by URL, the version of each log, including the home.
        time_ms: when it was computed, in ms since 1970.
        until_ms: when it may be removed; None: it stays until it is dropped.
        ids: by URL, the id of the log and of the version's commit.
    """

    name: str | None
    home: str
    logs: Mapping[str, int]
    time_ms: int
    until_ms: int | None
    ids: Mapping[str, tuple[str, str]] = field(repr=False)

    __repr__ = with_times

    def _manifest_in(self, handle: Handle) -> Manifest:
        """Returns the manifest of a log at the cut."""
        return manifest_of(handle, self)

    def changed(self, storage_options: Mapping[str, object] | None = None) -> list[str]:
        """Returns the URLs of the logs in which `delete_records` or retention has raised a log
        start offset since: the deleted records are gone from the cut, too. Opens each log.

        Args:
            storage_options: what fsspec needs, for all of the logs.
        """
        return changed_since(_opened(self.home, storage_options), self)

    def views(
        self, storage_options: Mapping[str, object] | None = None
    ) -> dict[str, dict[str, int]]:
        """Returns, by URL and format, the version of the log's published view that shows the cut,
        if it was published. That version stays until the cut is removed, or a log start offset
        rises. Opens each log.

        Args:
            storage_options: what fsspec needs, for all of the logs.
        """
        return views_of(_opened(self.home, storage_options), self)


def _cut_of(home: Handle, name: str | None, entry: CutEntry, logs: Sequence[CutLog]) -> Cut:
    return Cut(
        *(name, home.store.url, {log.url: log.version for log in logs}, entry.time_ms),
        until_ms=None if entry.until_ms == NONE else entry.until_ms,
        ids={log.url: (log.log_id, log.commit_id) for log in logs},
    )


def _at(handle: Handle, cut: Cut) -> tuple[int, str]:
    """Returns the version of a log in a cut, and its commit's id."""
    for url, (log_id, commit_id) in cut.ids.items():
        if log_id == handle.standing.log_id:
            return cut.logs[url], commit_id
    raise InvalidInputError(
        f"{handle.store.url} is not in {_named(cut)}, which has {sorted(cut.logs)}"
    )


def _named(cut: Cut) -> str:
    name = "a cut without a name" if cut.name is None else f"the cut {cut.name!r}"
    return f"{name} of {cut.home}"


def changed_since(home: Handle, cut: Cut) -> list[str]:
    """Returns the logs of a cut in which a log start offset has moved; see `Cut.changed`."""

    def has_moved(url: str) -> bool:
        handle = open_other(home, url, cut.ids[url][0])
        then = manifest_of(handle, cut).head.partitions.start
        return tuple(then) != tuple(handle.tip.head.partitions.start)

    moved = _done(together([(home.store, partial(has_moved, url)) for url in cut.logs]))
    return [url for url, yes in zip(cut.logs, moved, strict=True) if yes]


def views_of(home: Handle, cut: Cut) -> dict[str, dict[str, int]]:
    """Returns, by URL and format, the versions of published views; see `Cut.views`."""
    about = home.standing.log_id, cut.name, cut.time_ms

    def kept(url: str) -> dict[str, int]:
        keeps = open_other(home, url, cut.ids[url][0]).tip.head.kept.values()
        mine = [keep.views for keep in keeps if (keep.home, keep.name, keep.time_ms) == about]
        return {name: number for views in mine for name, number in views.items()}

    found = _done(together([(home.store, partial(kept, url)) for url in cut.logs]))
    return dict(zip(cut.logs, found, strict=True))


def manifest_of(handle: Handle, cut: Cut) -> Manifest:
    """Returns the manifest of a log at a cut.

    Raises:
        VersionExpiredError: the cut was dropped, or its time is up.
        LogReplacedError: the log was restored from an older copy since the cut.
    """
    version, commit_id = _at(handle, cut)
    try:
        manifest = handle.manifest_at(version)
    except VersionExpiredError as e:
        raise VersionExpiredError(f"{_named(cut)} was dropped or has expired: {e}") from e
    except NotFoundError as e:
        raise LogReplacedError(f"{_named(cut)} is of another history of the log: {e}") from e
    if manifest.commit_id != commit_id:
        raise LogReplacedError(
            f"version {version} of {handle.store.url} is not the one in {_named(cut)}: the log"
            " has been restored from an older copy; take another cut"
        )
    return manifest


def snapshot(
    home: str | PathLike[str] | Store,
    name: str | None = None,
    keep_ms: int | None = None,
    storage_options: Mapping[str, object] | None = None,
    *,
    publish: Collection[str] = (),
    without: Collection[str] = (),
    clock: Clock | None = None,
    ids: Ids | None = None,
    single_writer: bool = False,
) -> Cut:
    """Names a cut over a home log and all logs that its transactions have written to, while others
    write. The cut shows all or nothing of each transaction over these logs, under whichever id. It
    can be read until it is dropped, or its time is up.

    >>> from clog.storage import Log, drop_snapshot, snapshot, snapshots
    >>> orders = Log.create("memory://help-of-snapshot/orders")
    >>> stock = Log.create("memory://help-of-snapshot/stock")
    >>> with orders.transaction("shop") as t:
    ...     t.append([{"key": "o1", "value": "2 teas"}])
    ...     t.append([{"key": "tea", "value": "-2"}], log=stock)
    >>> cut = snapshot(orders.url, name="month-end")
    >>> sorted(cut.logs) == [orders.url, stock.url]
    True
    >>> stock.table(at=cut).get("tea")
    b'-2'
    >>> [cut.name for cut in snapshots(orders.url)] == ["month-end"]
    True
    >>> drop_snapshot(orders.url, "month-end")

    Args:
        home: the URL of the log in which the transactions were begun.
        name: 1 to 128 characters of A-Z a-z 0-9 . _ -, not a dot first; None: nothing is written,
            and the versions expire as usual, ``file.delete.delay.ms`` after they are replaced.
        keep_ms: how long to keep it, up to ten years; None: until it is dropped.
        storage_options: what fsspec needs, for all of the logs.
        publish: formats (``delta``, ``iceberg``) in which to publish each log at its version in the
            cut before naming it; `Cut.views` has the versions of these tables.
        without: URLs or ids of logs that are gone for good. A named cut leaves them out, and so do
            all later ones, which need not name them again.
        clock: the source of times; None: the system's clock.
        ids: the source of random ids; None: the operating system.
        single_writer: promises that nobody else writes, so creates need not be exclusive.

    Raises:
        AlreadyExistsError: the home has a cut of this name, whose time is not up.
        InvalidInputError: ``without`` names a log that is not a member of the home, or an argument
            is out of range.
        NotFoundError: there is no log at the home's URL, or at a member's.
        CommitConflictError: there is no such cut now, because transactions ended in crossing orders
            each time, or one of them cannot be finished.
    """
    _check_asked(name, keep_ms)
    handle = _opened(*(home, storage_options), clock=clock, ids=ids, single_writer=single_writer)
    return name_cut(handle, name, keep_ms, publish=publish, without=without)


def snapshots(
    home: str | PathLike[str] | Store, storage_options: Mapping[str, object] | None = None
) -> list[Cut]:
    """Returns the named cuts of a home log whose time is not up, oldest first.

    Args:
        home: the URL of the home log.
        storage_options: what fsspec needs.
    """
    return cuts_of(_opened(home, storage_options))


def drop_snapshot(
    home: str | PathLike[str] | Store,
    name: str,
    storage_options: Mapping[str, object] | None = None,
    *,
    force: bool = False,
    single_writer: bool = False,
) -> None:
    """Drops a named cut: nothing is kept for it any more. In a log that cannot be reached now, its
    cleaner drops the cut later.

    Args:
        home: the URL of its home log.
        name: the cut's.
        storage_options: what fsspec needs, for all of the logs.
        force: drop it in ``home`` alone, which here is any log that keeps a version for a cut of
            this name whose own home is gone for good.
        single_writer: promises that nobody else writes, so creates need not be exclusive.

    Raises:
        NotFoundError: there is no cut of this name.
    """
    drop_cut(_opened(home, storage_options, single_writer=single_writer), name, force=force)


def _check_asked(name: object, keep_ms: object) -> None:
    if name is None and keep_ms is not None:
        raise InvalidInputError(f"keep_ms={keep_ms!r} is only for a named cut; give name=…")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidInputError(
            f"{name!r:.80} is not a valid cut name; allowed: 1 to 128 characters of A-Z a-z 0-9 ."
            " _ -, not a dot first"
        )
    if keep_ms is not None and (type(keep_ms) is not int or not 1 <= keep_ms <= KEEP_MS_MAX):
        raise InvalidInputError(f"keep_ms={keep_ms!r} is out of range; allowed: 1 to {KEEP_MS_MAX}")


def _opened(
    url: str | PathLike[str] | Store,
    storage_options: Mapping[str, object] | None,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    single_writer: bool = False,
) -> Handle:
    store = store_at(url, storage_options, single_writer=single_writer)
    reach = Reach.of(url, storage_options, single_writer=single_writer)
    return Handle(store, clock=clock or SystemClock(), ids=ids or SystemIds(), reach=reach)


def name_cut(
    home: Handle,
    name: str | None,
    keep_ms: int | None = None,
    *,
    publish: Collection[str] = (),
    without: Collection[str] = (),
) -> Cut:
    """Does N1 to N5; see `snapshot`."""
    _check_asked(name, keep_ms)
    publish = [publish] if isinstance(publish, str) else list(publish)
    _check_formats(publish, name)
    without = [without] if isinstance(without, str) else list(without)
    head = home.refresh().head
    if name is not None:
        _check_free(head, name, home.clock.now_ms(), url=home.store.url)
    _check_members(head, without, url=home.store.url)
    why: Exception | None = None
    for tries in range(TRIES_MAX):
        if tries:
            home.clock.sleep_ms(_PAUSE_MS * tries)
            home.refresh()
        time_ms = home.clock.now_ms()
        until_ms = NONE if keep_ms is None else time_ms + keep_ms
        try:
            found = _named_by_writer(home, without) or _consistent_logs(home, without)
            logs = tuple(
                CutLog(log_id, handle.standing.root.url, version, _commit_id(handle, version))
                for log_id, (handle, version) in found.items()
            )
        except VersionExpiredError as e:
            why = e
            continue  # A version expired while it was looked at.
        cut_id = home.ids.new_id()
        entry = CutEntry(cut_id, time_ms, until_ms, logs)
        if name is None:
            return _cut_of(home, name, entry, logs)
        try:
            _keep_all(home, found, name, entry)
            _publish_all(found, publish, cut_id)
        except CommitStateUnknownError as e:
            _let_go(found, cut_id)
            raise StoreUnavailableError(f"the cut {name!r} was not created: {e}") from e
        except Exception as e:
            _let_go(found, cut_id)
            if isinstance(e, VersionExpiredError):
                why = e
                continue
            raise
        try:
            _name(home, name, entry, without)
        except CommitStateUnknownError:
            raise  # It may be named, and then needs its keeps.
        except Exception as e:
            _let_go(found, cut_id)
            if isinstance(e, VersionExpiredError):
                continue
            raise
        return _cut_of(home, name, entry, logs)
    raise CommitConflictError(
        f"the logs of {home.store.url} advanced {TRIES_MAX} times before their versions were kept"
        f" and published ({why}); try again, or increase file.delete.delay.ms"
    )


def _check_free(head: Head, name: str, now_ms: int, *, url: str) -> None:
    there = {name: cut for name, cut in head.cuts.items() if not cut.is_over(now_ms)}
    if name in there:
        raise AlreadyExistsError(
            f"{url} already has a cut {name!r}; drop it first, or use another name"
        )
    if len(there) >= CUTS_MAX:
        raise InvalidInputError(f"{url} already has {len(there)} cuts, the maximum; drop one")


def _check_members(head: Head, without: Collection[str], *, url: str) -> None:
    unknown = [log for log in without if log not in {*head.members, *head.members.values()}]
    if unknown:
        raise InvalidInputError(
            f"without={[redact(str(log)) for log in unknown]} is not a member of {url}, so it"
            " cannot be left out of a cut (logs that earlier cuts left out need not be named);"
            f" its members are {dict(head.members)}: give an id, or a URL exactly as listed"
        )


def _check_formats(publish: Collection[str], name: str | None) -> None:
    if unknown := sorted({*publish} - FORMATS.keys()):
        raise InvalidInputError(
            f"publish={unknown} is unknown; a cut is published as {' or '.join(FORMATS)}"
        )
    if publish and name is None:
        raise InvalidInputError("publish is only for a named cut; give name=…")


Found = Mapping[str, tuple[Handle, int]]
"""By log id, the log and its version in a cut."""


def _keep_all(home: Handle, found: Found, name: str, entry: CutEntry) -> None:
    """Does N4. The home first: while it has its keep, the others are not taken for leftovers."""
    about = name, home.standing.log_id, home.standing.root.url, entry.time_ms, entry.until_ms
    assert entry.cut_id is not None, "a kept cut has an id"
    cut_id = entry.cut_id

    def keep(handle: Handle, version: int) -> None:
        def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
            if version < tip.head.oldest_readable:
                raise version_expired(handle.store.url, version)
            if cut_id in tip.head.kept:  # An earlier try, whose reply was lost.
                return NothingToCommit()
            return Edit(kept={cut_id: Keep(version, *about)})

        handle.commit(prepare, operation=OPERATION)

    keep(home, found[home.standing.log_id][1])
    others = [(handle, version) for handle, version in found.values() if handle is not home]
    _done(together([(handle.store, partial(keep, handle, v)) for handle, v in others]))


def _publish_all(found: Found, formats: Collection[str], cut_id: str) -> None:
    def publish(handle: Handle, version: int) -> None:
        views = Publications(handle)
        for name in formats:
            views.publish_kept(name, version, cut_id)

    if formats:
        calls = [(h.store, partial(publish, h, version)) for h, version in found.values()]
        _done(together(calls))


def _let_go(found: Found, cut_id: str) -> None:
    """Removes the keeps of a cut, as far as possible now."""

    def let_go(handle: Handle, _: int) -> None:
        _drop_keeps(handle, {cut_id})

    results = together([(h.store, partial(let_go, h, v)) for h, v in found.values()])
    for (handle, _), e in zip(found.values(), results, strict=True):
        if isinstance(e, Exception):
            _LOGGER.warning(
                "%s keeps a version for a cut that does not exist; its cleaner will release it: %s",
                *(handle.store.url, e),
            )


def _drop_keeps(handle: Handle, cut_ids: Collection[str]) -> None:
    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        there = dict.fromkeys(cut_id for cut_id in cut_ids if cut_id in tip.head.kept)
        return Edit(kept=there) if there else NothingToCommit()

    handle.refresh()
    handle.commit(prepare, operation=OPERATION)


def _name(home: Handle, name: str, entry: CutEntry, without: Collection[str]) -> None:
    """Does N5. Also removes cuts whose time is up."""
    assert isinstance(entry.logs, tuple), "a new cut holds its logs"
    logs = entry.logs

    def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
        head = tip.head
        if name in head.cuts and head.cuts[name].cut_id == entry.cut_id:
            return NothingToCommit()
        _check_free(head, name, time_ms, url=home.store.url)
        if entry.cut_id not in head.kept:
            raise version_expired(home.store.url, logs[0].version)
        stored = stored_logs(home.store, logs, new_id=home.ids.new_id)
        gone = {i: None for i, url in head.members.items() if {i, url} & {*without}}
        over = {n: cut.cut_id for n, cut in head.cuts.items() if cut.is_over(time_ms)}
        return Edit(
            cuts={**dict.fromkeys(over), name: replace(entry, logs=stored)},
            kept=dict.fromkeys(i for i in over.values() if i is not None and i in head.kept),
            members=gone,
        )

    home.commit(prepare, operation=OPERATION)


def _commit_id(handle: Handle, version: int) -> str:
    tip = handle.tip
    known = {r.version: r.commit_id for r in (*tip.earlier, tip.record)}
    return known.get(version) or read_commit(handle.store, version).record.commit_id


def logs_by_writer(home: Handle, name: str) -> dict[str, CutLog]:
    """Returns, by id, the logs of the cut to which the writer of a home gave this name."""
    entry = home.tip.head.cuts.get(name)
    if entry is None:
        return {}
    logs = home.with_pages(home.tip, lambda _: read_logs(home.store, entry.logs))
    return {log.log_id: log for log in logs}


def cuts_of(home: Handle) -> list[Cut]:
    """Returns the cuts of a home; see `snapshots`."""
    now_ms = home.clock.now_ms()

    def read(tip: Commit) -> list[Cut]:
        return [
            _cut_of(home, name, entry, read_logs(home.store, entry.logs))
            for name, entry in sorted(tip.head.cuts.items(), key=lambda one: one[1].time_ms)
            if entry.cut_id is not None and not entry.is_over(now_ms)
        ]

    return home.with_pages(home.refresh(), read)


def cut_named(handle: Handle, home: str, name: str) -> Cut:
    """Returns a cut of the home at a URL; opens the home, and 1 GET if the cut has many logs. If
    its writer renews the cut again and again, returns the newest.
    """
    at = Handle(handle.reach(home), clock=handle.clock, ids=handle.ids, reach=handle.reach)
    entry = at.tip.head.cuts.get(name)
    if entry is not None and entry.cut_id is None:
        return name_cut(at, None)
    found = cuts_of(at)
    for cut in found:
        if cut.name == name:
            return cut
    own = ", ".join(cut.name for cut in found if cut.name is not None)
    raise NotFoundError(f"{home} has no cut {name!r}; it has {own or 'none'}")


def cut_asked(handle: Handle, text: str) -> Cut:
    """Returns the cut that a text names: ``NAME``, of this log or of a home that keeps a version of
    it here, or ``HOME_URL#NAME``. Opens its home.
    """
    home, _, name = text.rpartition("#")
    head = handle.refresh().head
    if not home and name not in head.cuts:
        homes = {keep.home_url for keep in head.kept.values() if keep.name == name}
        if len(homes) > 1:
            raise InvalidInputError(
                f"{handle.store.url} is in cuts {name!r} of {' and '.join(sorted(homes))}; give"
                f" HOME_URL#{name}"
            )
        home = "".join(homes)
    return cut_named(handle, home or handle.store.url, name)


def drop_cut(home: Handle, name: str, *, force: bool = False) -> None:
    """Does N6; see `drop_snapshot`."""
    head, url = home.refresh().head, home.store.url
    if force and name not in head.cuts:
        mine = {cut_id for cut_id, keep in head.kept.items() if keep.name == name}
        if not mine:
            raise NotFoundError(f"{url} keeps nothing for a cut {name!r}")
        _drop_keeps(home, mine)
        return
    entry = head.cuts.get(name)
    if entry is None or entry.cut_id is None:
        own = sorted(name for name, cut in head.cuts.items() if cut.cut_id is not None)
        raise NotFoundError(f"{url} has no cut {name!r}; it has {', '.join(own) or 'none'}")
    logs = home.with_pages(
        home.tip, lambda tip: read_logs(home.store, tip.head.cuts.get(name, entry).logs)
    )
    cut_id = entry.cut_id

    def prepare(tip: Commit, _: int) -> Edit | NothingToCommit:
        there = tip.head.cuts.get(name)
        if there is None or there.cut_id != cut_id:
            return NothingToCommit()
        kept = {} if cut_id not in tip.head.kept else {cut_id: None}
        return Edit(cuts={name: None}, kept=kept)

    home.commit(prepare, operation=OPERATION)

    def let_go(log: CutLog) -> None:
        _drop_keeps(open_other(home, log.url, log.log_id), {cut_id})

    others = [log for log in logs if log.log_id != home.standing.log_id]
    results = together([(home.store, partial(let_go, log)) for log in others])
    for log, e in zip(others, results, strict=True):
        if isinstance(e, Exception):
            _LOGGER.warning("%s still keeps a cut until its cleaner releases it: %s", log.url, e)


@dataclass(frozen=True, slots=True)
class Shown:
    """From which versions on a log shows a part of a transaction, and the whole: the same, but
    where a release before `whole-transactions` wrote it.
    """

    partly: int
    whole: int


class _Followed:
    """One log while a cut is computed: from which version on it shows which transaction.

    It shows one once that has ended and no undecided one holds it back, as the head does
    (`unended_after`).

    Attributes:
        handle: the log.
        first: the lowest version that a cut may use.
        bound: the highest one.
        aborted: aborted transactions.
    """

    def __init__(self, handle: Handle, back: int) -> None:
        self.handle, self._id = handle, handle.standing.log_id
        tip, store = handle.refresh(), handle.store
        self.first = self.bound = max(tip.version - back, tip.head.oldest_readable)
        with reading(store, self.first):
            is_tip = self.first == tip.version
            head = self._first_head = tip.head if is_tip else read_commit(store, self.first).head
            # What is held back by then came since.
            since = min((e.oldest for e in head.unended if e.holds), default=self.first + 1)
            self._seen = min(since - 1, self.first)
            if self._seen < self.first:
                head = read_commit(store, self._seen).head
        self.aborted: set[TransactionName] = set()
        self._unended, self._features = head.unended, head.log.features
        self._partly: dict[TransactionName, int] = {}
        self._shown: dict[TransactionName, Shown] = {}
        self._hidden: dict[TransactionName, Offsets] = {}
        self._note_undecided()

    def look(self) -> None:
        """Notes what came since the last look; 1 GET, and those of the commits since."""
        tip, store = self.handle.refresh(), self.handle.store
        if tip.version == self._seen:
            return
        newer = (*tip.earlier, tip.record)
        with reading(store, self._seen + 1):
            records, _ = edits_back_to(store, newer, self._seen + 1, partial(read_commit, store))
        for record in records:
            if record.version > self._seen:
                self._note(edit_of(store, record), record.version, record.time_ms)
        self._seen = tip.version

    def set_bound(self) -> None:
        """Makes the newest version seen so far the highest that a cut may use."""
        self.bound = self._seen

    def _note(self, edit: Edit, version: int, time_ms: int) -> None:
        self._unended = unended_after(
            self._unended, self._features, edit, version=version, time_ms=time_ms
        )
        self._features = self._features.with_added(edit.features or NO_FEATURES)
        self._note_undecided()
        own = _committed_here(edit, self._id, version)
        self._hidden |= {name: first for name, first in own.items() if name in self._hidden}
        self.aborted |= {e.name for e in edit.ends if e.outcome != COMMITTED}
        undecided = {e.name: e.holds for e in self._unended if not e.is_decided}
        for name, first in [*self._hidden.items()]:
            if name in undecided:
                continue
            each = [
                all(at < by.get(p, at + 1) for by in undecided.values()) for p, at in first.items()
            ]
            if any(each):
                self._partly.setdefault(name, version)
            if all(each):
                self._shown[name] = Shown(self._partly.pop(name, version), version)
                del self._hidden[name]

    def _note_undecided(self) -> None:
        """Notes what is undecided in several logs. It is hidden, with the records that it has."""
        for entry in self._unended:
            name = entry.name
            if not entry.is_decided and (entry.participants or name.home != self._id):
                self._hidden[name] = entry.first

    @property
    def names(self) -> set[TransactionName]:
        """The transactions over several logs that it may not have shown at first."""
        return {*self._hidden, *self._shown}

    def shows(self, name: TransactionName) -> Shown | None:
        """Returns how this log shows a transaction; None if it has nothing of it."""
        if name in self._hidden:
            return Shown(self._partly.get(name, _PENDING), _PENDING)
        return self._shown.get(name, Shown(0, 0) if self._knew(name) else None)

    def _knew(self, name: TransactionName) -> bool:
        """Returns whether a transaction without later traces had ended by the first version."""
        handle, head = self.handle, self._first_head
        if name.home == self._id:
            state = state_of(handle.writer_pages, head, name.id)
            done = None if state is None else state.committed
            return done is not None and (done.epoch, done.number) >= (name.epoch, name.number)
        entry = find_writer(handle.writer_pages, head, PARTICIPANT, participant_id(name))
        state = None if entry is None else entry.transaction
        return state is not None and (state.epoch, state.number) >= (name.epoch, name.number)


def _committed_here(edit: Edit, home: str, version: int) -> dict[TransactionName, Offsets]:
    """Returns the first offsets of a home's own records, by the transaction that ends there."""
    done = [(by, by.entry.committed_by(version)) for by in edit.writers]
    return {
        TransactionName(home, by.entry.writer_id, at.epoch, at.number): edit.first_of(by)
        for by, at in done
        if at is not None
    }


def consistent(
    bounds: Mapping[str, int], shown: Iterable[Mapping[str, Shown]], firsts: Mapping[str, int]
) -> dict[str, int] | None:
    """Returns the highest versions up to the bounds that show all or nothing of each transaction
    (N3), or None if one would be below the first of its log. ``shown``: for each transaction, by
    log, how that shows it.
    """
    versions, each = dict(bounds), list(shown)
    while lower := {
        log: how.partly - 1
        for logs in each
        if any(versions[log] < how.whole for log, how in logs.items())
        for log, how in logs.items()
        if versions[log] >= how.partly
    }:
        if any(version < firsts[log] for log, version in lower.items()):
            return None
        versions |= lower
    return versions


def _consistent_logs(home: Handle, without: Collection[str]) -> Found:
    """Does N1 to N3."""
    waits = "new logs joined each time"
    for back, tries_max in _BACK:
        follow = {home.standing.log_id: _Followed(home, back)}
        for tries in range(tries_max):
            _join_members(home, follow, back, without)
            versions = _solved(follow)
            if versions is None:
                waits = _finish(follow)
                home.clock.sleep_ms(_PAUSE_MS * tries)
                continue
            at = versions[home.standing.log_id]
            head = home.tip.head if at == home.tip.version else read_commit(home.store, at).head
            if all(i in follow or {i, url} & {*without} for i, url in head.members.items()):
                return {log_id: (follow[log_id].handle, v) for log_id, v in versions.items()}
    raise CommitConflictError(
        f"the logs of {home.store.url} have no consistent cut now: {waits}; try again, or look at"
        f" open transactions: clog describe {home.store.url} transactions"
    )


def _named_by_writer(home: Handle, without: Collection[str]) -> Found | None:
    """Returns the logs of the last cut that the writer of a home named (FORMAT.md §20); None if its
    writers leave cuts to readers.

    Versions in it may have expired if the writer wrote nothing since. The newest version of a log
    that it has not written to shows the same.
    """
    tip = home.tip
    named = [(name, cut) for name, cut in tip.head.cuts.items() if cut.cut_id is None]
    if not named:
        return None
    name, entry = max(named, key=lambda one: one[1].time_ms)
    logs = home.with_pages(tip, lambda _: read_logs(home.store, entry.logs))
    there = {log.log_id for log in logs}
    members = tip.head.members.items()
    missing = sorted(url for i, url in members if i not in there and not {i, url} & {*without})
    if missing or not logs:
        raise CommitConflictError(
            f"{home.store.url} has no consistent cut yet: these logs are still being loaded:"
            f" {', '.join(missing) or 'the first ones'}; try again later"
        )

    def found(log: CutLog) -> tuple[Handle, int]:
        handle = open_other(home, log.url, log.log_id)
        state = state_of(handle.writer_pages, handle.tip.head, name)
        written = state.committed.version if state is not None and state.committed else NONE
        return handle, handle.tip.version if written <= log.version else log.version

    chosen = [log for log in logs if not {log.log_id, log.url} & {*without}]
    opened = _done(together([(home.store, partial(found, log)) for log in chosen]))
    own = {home.standing.log_id: (home, tip.version)}
    return own | {log.log_id: one for log, one in zip(chosen, opened, strict=True)}


def _join_members(
    home: Handle, follow: dict[str, _Followed], back: int, without: Collection[str]
) -> None:
    """Starts to follow the members that are not followed yet."""
    members = home.refresh().head.members
    new = [(i, url) for i, url in members.items() if i not in follow and not {i, url} & {*without}]

    def opened(log_id: str, url: str) -> _Followed:
        try:
            return _Followed(open_other(home, url, log_id), back)
        except NotFoundError as e:
            raise NotFoundError(
                f"a member of {home.store.url} cannot be cut: {e}; give access to it at that URL,"
                " or, if it no longer exists, leave it out of this cut and all later ones:"
                f" without=[{log_id!r}]"
            ) from e

    calls = [(home.store, partial(opened, *named)) for named in new]
    for (log_id, _), one in zip(new, _done(together(calls)), strict=True):
        follow[log_id] = one


def _solved(follow: Mapping[str, _Followed]) -> dict[str, int] | None:
    """Does N2 and N3."""
    _look(follow)
    for one in follow.values():
        one.set_bound()
    _look(follow)
    names = {name for one in follow.values() for name in one.names}
    names -= {name for one in follow.values() for name in one.aborted}
    shown = []
    for name in names:
        found = {log_id: one.shows(name) for log_id, one in follow.items()}
        shown.append({log_id: how for log_id, how in found.items() if how is not None})
    bounds = {log_id: one.bound for log_id, one in follow.items()}
    firsts = {log_id: one.first for log_id, one in follow.items()}
    return consistent(bounds, shown, firsts)


def _look(follow: Mapping[str, _Followed]) -> None:
    _done(together([(one.handle.store, one.look) for one in follow.values()]))


def _finish(follow: Mapping[str, _Followed]) -> str:
    """Finishes pending transactions, as a cleaner does; returns why the last one still waits."""
    said = "ends of transactions crossed each time"
    for one in follow.values():
        for left in finish_all(one.handle):
            said = (
                f"transaction {left.info.number} of id {left.info.id!r} has not ended in"
                f" {one.handle.store.url}, where it holds back transactions that other logs"
                f" already show, and cannot be ended now: {left.reason}"
            )
    return said


def _done(results: Sequence[_T | Exception]) -> list[_T]:
    """Returns the results of calls, or raises the first error."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if not isinstance(result, Exception)]
