"""Publishes the log's table as a view (S63), with its pins, and finds the files of views at a root.
COMMIT.md §10 says what a crash leaves, and FORMAT.md §14 defines the words.

U1. Look at the view, whose newest version is n − 1, then find which rows the table shows, at the
    newest version V of the log, and write the files that version n of the view will name. Anything
    that the format, this installation or the store refuses is refused here, before any commit.
U2. Commit the pin [n, V]: from now on nothing that V needs is deleted. The same commit removes pins
    that are no longer needed (U4).
U3. Create version n of the view if absent: this is the publication. If another version n came
    first, begin anew.
U4. A pin stays until the view's version of the next pin has existed for ``file.delete.delay.ms``:
    since then nobody may begin to read an older one. It never expires by time alone, as its
    publisher may be asleep. To keep heads short, of pins that came within an eighth of that delay
    only the first stays, and holds for the versions of the others, too.

Publishing twice has no effect, so publishers need not take turns. A *cut* is published at its
version of the log, while a keep holds that (`cuts`, N4): U2 notes n in the keep, and the pin that
holds for n stays as long. A view is *withdrawn* by a version without files, which needs no pin.

To delete a log, the files of its views are found without it: the newest version of a view names its
log, so that file is deleted last. Tables that clog did not write stay.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from clog.storage.commit.committer import NothingToCommit, is_comparable
from clog.storage.commit.handle import Handle
from clog.storage.commit.tip import StandingLog
from clog.storage.commit.versions import version_at_time
from clog.storage.config.log_config import NO_DEFAULTS, LogConfig, with_defaults
from clog.storage.env import Shared, dataclass
from clog.storage.errors import (
    CommitConflictError,
    CorruptionError,
    InvalidInputError,
    StoreUnavailableError,
    VersionExpiredError,
    version_expired,
)
from clog.storage.format.commits import Commit, Edit, Head, Pin
from clog.storage.format.cuts import Keep
from clog.storage.format.documents import is_log_id
from clog.storage.format.log_info import LogSchema, SchemaField
from clog.storage.format.manifest import Manifest, overdue
from clog.storage.publications.source import (
    Seen,
    Source,
    TableState,
    Withdrawal,
    check_times,
    shows_times,
    source_of,
    table_state,
    view_columns,
)
from clog.storage.store.contract import Store, StoredObject, StoreRefusedError
from clog.storage.types.names import names_problem
from clog.storage.view_formats import FORMATS, ViewFormat

PARTS = 8
"""Pins are at least this part of the delay apart."""
PATIENCE, PATIENCE_MS = 2, 3_600_000
"""A pin moves within this many delays, and this time for rounds of the cleaner."""
LOOKS_MAX = 3
"""The number of looks that must find a version missing before that is believed."""
RACES_MAX = 20
"""After this many publications by others, one after the other, a publication gives up."""

"""What a log gets when it is first published: with masks, later publications read no keys."""

_S = TypeVar("_S")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept only for the published view of a format.

    Attributes:
        version: the oldest version of the log that it needs.
        table_version: the newest version of the view that was begun.
        since_ms: when the oldest pin was committed.
        objects: how many objects would have been deleted if not for it.
        size_bytes: their size.
        overdue_ms: how long ago the first of them would have been deleted.
        is_stuck: whether the pin should have been removed: if the view is kept up to date, it is
            moved at least every ``file.delete.delay.ms``, and the former pin removed as long after.
    """

    version: int
    table_version: int
    since_ms: int
    objects: int
    size_bytes: int
    overdue_ms: int
    is_stuck: bool


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What a published view shows.

    Attributes:
        version: of the log, whose table the view equals.
        table_version: of the view.
        published: whether this call created it; if not, it already existed.
    """

    version: int
    table_version: int
    published: bool


@dataclass(frozen=True, slots=True)
class WithdrawResult:
    """The result of withdrawing a view.

    Attributes:
        table_version: the newest version of the view, which shows nothing; None if there is no
            view, or it was given up.
        withdrawn: whether this call created it; if not, there was nothing to withdraw.
        is_kept: whether objects are kept for older versions of the view, until
            ``file.delete.delay.ms`` have passed.
        given_up: whether it was given up by force, without writing anything to it.
    """

    table_version: int | None
    withdrawn: bool
    is_kept: bool
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class KeptView:
    """A version of a view that shows a cut, and the cut's id."""

    cut_id: str
    number: int

    def noted(self, head: Head, name: str) -> dict[str, Keep]:
        """Returns the cut's keep with it; nothing if the keep has it already, or is gone."""
        keep = head.kept.get(self.cut_id)
        if keep is None or keep.views.get(name) == self.number:
            return {}
        return {self.cut_id: replace(keep, views={**keep.views, name: self.number})}


@dataclass(frozen=True, slots=True)
class ViewFiles:
    """The files of one view outside of its log's folder, in the order to delete them."""

    log_id: str
    files: tuple[StoredObject, ...]


class View(Protocol[_S, _V]):
    """A log's table in a format, as one call sees it: how its versions are found, made and cleaned
    up. `look` returns what it finds as a value, from which everything else is decided.
    """

    @property
    def row(self) -> ViewFormat: ...

    @staticmethod
    def check_columns(columns: Sequence[SchemaField], *, url: str) -> None:
        """Raises if the format has no type or name for a field."""

    @staticmethod
    def log_of(body: bytes) -> object:
        """Returns the log that a version's publisher names, if clog published it."""

    def look(self, known: _S | None = None) -> _S:
        """Finds the newest version. Raises CorruptionError if it cannot be read."""

    def check_installed(self) -> None:
        """Raises if a package that publishing needs is missing."""

    def prepared(self, seen: _S, state: TableState, *, now_ms: int, file_id: str) -> _V:
        """Returns the version after the one seen, having written its files by ``file_id`` (U1)."""

    def withdrawn(self, seen: _S, said: Withdrawal) -> _V:
        """Returns the next version as one without files, which does not need the log's types."""

    def create(self, version: _V, lowest_view: int, /) -> _S | None:
        """Creates a version (U3); None if another came first. Raises if the log was deleted."""

    def tidy(self, seen: _S, lowest_view: int) -> _S:
        """Deletes expired versions without a pin; returns what is left."""

    def unnamed(self, seen: _S, files: Mapping[str, int]) -> set[str]:
        """Returns the files in the log's folder that no remaining version names."""

    def named(self, seen: _S, first: int = 0, /) -> set[str]:
        """Returns the paths that versions from ``first`` on name; CorruptionError: damaged ones."""


def views_in(name: str) -> type[View[Any, Any]]:
    """Returns the class of views in a format; imported here, as most logs are not published."""
    if name == "delta":
        from clog.storage.publications.delta import DeltaView

        return DeltaView
    from clog.storage.publications.iceberg import IcebergView

    return IcebergView


def view_of(standing: StandingLog, name: str) -> View[Any, Any]:
    """Returns the view of a log in a format, for one thread."""
    if name not in FORMATS:
        raise InvalidInputError(
            f"format={name!r} is unknown; a log is published as {' or '.join(FORMATS)}"
        )
    view: Callable[[StandingLog], View[Any, Any]] = views_in(name)
    return view(standing)


def foreign_table(view: View[Any, Any], *, url: str) -> InvalidInputError:
    """Returns the error for a table that clog did not write."""
    return InvalidInputError(
        f"{view.row.title} that clog did not write is at {url}; nothing was changed; publish the"
        " log where there is no other table"
    )


def check_publishable(name: str, schema: LogSchema | None, config: LogConfig, *, url: str) -> None:
    """Raises if a log with this schema and config cannot be published in a format."""
    columns = view_columns(schema, config)
    views_in(name).check_columns(columns, url=url)
    if problem := names_problem(schema):
        raise InvalidInputError(
            f"{problem}; {url} cannot be published as {name}, which must be readable by them;"
            " nothing was changed"
        )
    if config.log_append_time and shows_times(columns):
        raise InvalidInputError(
            f"message.timestamp.type=LogAppendTime of {url} gives records the time of their"
            " commit as timestamp, and data objects do not contain it; set it to CreateTime, and"
            " let the cleaner rewrite the log before it is published; nothing was changed"
        )


class Publications(Shared):
    """The views of one log. Threads may share it: what it remembers of a view is a value, and only
    saves requests. They publish one after the other, since all but one would do useless work.
    ``defaults`` are configs of the process, which the log's own override (S45).
    """

    def __init__(self, handle: Handle, defaults: Mapping[str, str] = NO_DEFAULTS) -> None:
        self._handle = handle
        self._defaults = defaults
        self._seen: dict[str, Seen] = {}
        self._writable: set[str] = set()
        super().__init__()

    def look(self, name: str) -> Seen:
        """Returns the current state of a view, and remembers it."""
        seen: Seen = self._looked(view_of(self._handle.standing, name))
        return seen

    def publish(self, name: str) -> PublishResult:
        """Publishes the newest version in a format; see `Log.publish`."""
        view = view_of(self._handle.standing, name)
        with self._lock:
            return self._published(view)

    def publish_kept(self, name: str, version: int, cut_id: str) -> None:
        """Publishes the version that a keep holds; the keep then notes the view's version, which
        stays as long as the keep.

        Raises:
            VersionExpiredError: the view already shows a newer one, or rows were deleted since, or
                the keep no longer exists.
        """
        handle, view = self._handle, view_of(self._handle.standing, name)
        with self._lock:
            for _ in range(RACES_MAX):
                seen = self._looked(view)
                tip, manifest = handle.refresh(), handle.manifest_at(version)
                if seen.is_foreign:
                    raise foreign_table(view, url=handle.standing.root.url)
                asked = source_of(manifest.head, version=version, commit_id=manifest.commit_id)
                number = _showing(seen, asked, tip, url=handle.standing.root.url)
                if number is not None:
                    self._pin(view, seen, None, KeptView(cut_id, number))
                    return
                made, _ = self._prepared(view, seen, manifest)
                self._pin(view, seen, version, KeptView(cut_id, seen.newest + 1))
                after = view.create(made, self._lowest(view, seen.newest + 1))
                if after is not None:
                    self._tidy(view, after)
                    return
        raise _raced(view, url=handle.standing.root.url)

    def _published(self, view: View[Any, Any]) -> PublishResult:
        handle, url = self._handle, self._handle.standing.root.url
        for _ in range(RACES_MAX):
            seen = self._looked(view)  # Before the tip, so that it never shows anything newer.
            tip = handle.refresh()
            if seen.is_foreign:
                raise foreign_table(view, url=url)
            if (shown := seen.source) is not None and is_current(shown, tip):
                self._tidy(view, seen)
                return PublishResult(shown.version, seen.newest, published=False)
            try:
                version, state = self._prepared(view, seen, handle.manifest())  # U1
                self._pin(view, seen, state.source.version)  # U2
            except VersionExpiredError:
                if handle.refresh() is tip:
                    raise
                continue
            self._writable.discard(view.row.name)
            made = view.create(version, self._lowest(view, seen.newest + 1))  # U3
            if made is not None:
                self._writable.add(view.row.name)
                self._tidy(view, made)
                return PublishResult(state.source.version, made.newest, published=True)
        raise _raced(view, url=url)

    def withdraw(self, name: str, *, force: bool = False) -> WithdrawResult:
        """Withdraws a view; see `Log.withdraw`."""
        view = view_of(self._handle.standing, name)
        try:
            with self._lock:
                return self._withdrawn(view)
        except (StoreUnavailableError, CorruptionError, InvalidInputError) as e:
            if force:
                self._change_pins(view, lambda *_: ())
                return WithdrawResult(None, withdrawn=False, is_kept=False, given_up=True)
            if isinstance(e, StoreRefusedError):
                raise StoreRefusedError(
                    f"the {name} view of {self._handle.standing.root.url} cannot be withdrawn:"
                    f" {e}; grant the permission, or abandon the view with force=True (clog"
                    " publish --withdraw --force)",
                    certain=e.certain,
                ) from e
            raise

    def _withdrawn(self, view: View[Any, Any]) -> WithdrawResult:
        handle = self._handle
        for _ in range(RACES_MAX):
            tip = handle.refresh()
            pins = tip.head.pins.get(view.row.name, ())
            seen = self._looked(view)
            # The publisher that pinned a version saw the one before: the view was removed since.
            lost = {pin for pin in pins if pin.view > seen.newest + 1}
            awaited = any(pin.view > seen.newest for pin in pins)
            if seen.is_foreign and (awaited or not pins):
                raise foreign_table(view, url=handle.standing.root.url)
            is_there = seen.is_there and not seen.is_foreign
            is_due = awaited or (is_there and seen.withdrawn_ms is None)
            if is_due:
                now_ms, log_id = handle.clock.now_ms(), handle.standing.log_id
                said = Withdrawal(log_id, tip.version, tip.record.commit_id, now_ms)
                made = view.create(view.withdrawn(seen, said), seen.newest + 1)  # U3
                if made is None:
                    continue
                seen = made
            self._tidy(view, seen)  # U4
            self._release(view, seen, lost)
            left = handle.tip.head.pins.get(view.row.name, ())
            number = seen.newest if is_due or is_there else None
            return WithdrawResult(number, withdrawn=is_due, is_kept=bool(left))
        raise _raced(view, url=handle.standing.root.url)

    def release(self, name: str) -> None:
        """Removes pins that are no longer needed (U4), if any are due."""
        head = self._handle.tip.head
        pins = head.pins.get(name, ())
        old_ms = self._handle.clock.now_ms() - self._delay_ms(self._handle.tip)
        free = pins[_held_by_cuts(pins, head, name) :]
        known, is_due = self._seen.get(name), len(free) > 1 and free[1].time_ms <= old_ms
        if pins and known is not None and known.withdrawn_ms is not None:
            is_due = known.withdrawn_ms <= old_ms or pins[0].view == known.newest
        if is_due:
            view = view_of(self._handle.standing, name)
            seen = self._looked(view)
            if seen.withdrawn_ms is not None:
                self._tidy(view, seen)  # Its pins show that this is not done yet.
            self._release(view, seen)

    def is_current(self, name: str) -> bool:
        """Returns whether the view, when last looked at, showed what the tip has."""
        seen = self._seen.get(name)
        shown = None if seen is None else seen.source
        return shown is not None and is_current(shown, self._handle.tip)

    def shows_deleted(self, name: str) -> bool:
        """Returns whether the view, when last looked at, showed rows below a log start offset."""
        seen, tip = self._seen.get(name), self._handle.tip
        if seen is None or seen.source is None:
            return False
        now = source_of(tip.head, version=tip.version, commit_id=tip.record.commit_id)
        return not now.has_starts_of(seen.source)

    def is_behind_since(self, name: str, before_ms: int) -> bool:
        """Returns whether the view, when last looked at, did not show what the log has had since a
        time; costs the GETs of a binary search by time, and those of a manifest.
        """
        handle, seen = self._handle, self._seen.get(name)
        if seen is None or seen.source is None:
            return False
        try:
            version = version_at_time(handle.store, before_ms, handle.tip)
            if version <= seen.source.version:
                return False
            manifest = handle.manifest_at(version)
        except VersionExpiredError:
            return False  # It is younger than what the view shows.
        then = source_of(manifest.head, version=version, commit_id=manifest.commit_id)
        return then.content != seen.source.content

    def _looked(self, view: View[Any, Any]) -> Any:
        for _ in range(LOOKS_MAX - 1):
            # Others may have deleted expired files since they were listed.
            with suppress(CorruptionError):
                return self._looked_once(view)
        return self._looked_once(view)

    def _looked_once(self, view: View[Any, Any]) -> Any:
        seen = view.look(self._seen.get(view.row.name))
        self._seen[view.row.name] = seen
        return seen

    def _prepared(
        self, view: View[Any, Any], seen: Seen, manifest: Manifest
    ) -> tuple[Any, TableState]:
        """Does U1, except the look; returns the next version, and the table that it shows."""
        handle = self._handle
        config = LogConfig.from_overrides(manifest.head.config)
        check_publishable(
            view.row.name, manifest.head.log.schema, config, url=handle.standing.root.url
        )
        view.check_installed()
        if shows_times(view_columns(manifest.head.log.schema, config)):
            check_times(manifest, url=handle.standing.root.url)
        if view.row.name not in self._writable:
            self._probe(view)
        state = table_state(handle, manifest)
        now_ms, file_id = handle.clock.now_ms(), handle.ids.new_id()
        return view.prepared(seen, state, now_ms=now_ms, file_id=file_id), state

    def _probe(self, view: View[Any, Any]) -> None:
        """Raises if the view's folder cannot be written; a PUT and a DELETE."""
        standing = self._handle.standing
        # Named as a temporary file, it is deleted with the log if it cannot be deleted now.
        root, row = standing.root, view.row
        path = f"{row.folder}.probe.{standing.log_id}.tmp"
        try:
            root.put(path, b"")
        except StoreRefusedError as e:
            raise StoreRefusedError(
                f"{root.url} cannot be published as {row.name}: its folder {row.folder} cannot be"
                f" written ({e}); nothing was changed; grant the permission (docs/permissions.md)",
                certain=e.certain,
            ) from e
        with suppress(StoreRefusedError):  # Nobody reads it.
            root.delete(path)

    def _pin(
        self, view: View[Any, Any], seen: Seen, version: int | None, kept: KeptView | None = None
    ) -> None:
        """Commits the pin of the next version (U2), or none (None) for the existing one."""
        number, url = seen.newest + 1, self._handle.store.url

        def pinned(
            left: tuple[Pin, ...], tip: Commit, delay_ms: int, time_ms: int
        ) -> tuple[Pin, ...]:
            if kept is not None and kept.cut_id not in tip.head.kept:
                raise VersionExpiredError(f"{url} no longer keeps a version for this cut")
            if version is None:
                return left
            if version < tip.head.oldest_readable:
                raise version_expired(url, version)
            return with_pin(left, Pin(number, version, time_ms), delay_ms=delay_ms)

        self._change_pins(view, pinned, seen, kept)

    def _release(
        self, view: View[Any, Any], seen: Seen, lost: AbstractSet[Pin] = frozenset()
    ) -> None:
        self._change_pins(
            view, lambda left, *_: tuple(pin for pin in left if pin not in lost), seen
        )

    def _change_pins(
        self,
        view: View[Any, Any],
        change: Callable[[tuple[Pin, ...], Commit, int, int], tuple[Pin, ...]],
        seen: Seen | None = None,
        kept: KeptView | None = None,
    ) -> None:
        """Commits changed pins, for the view as ``seen``; notes ``kept`` in its keep."""

        def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
            before = tip.head.pins.get(view.row.name, ())
            delay_ms = self._delay_ms(tip)
            noted = {} if kept is None else kept.noted(tip.head, view.row.name)
            left = before
            if seen is not None:
                views = _kept_views(tip.head, view.row.name, noted)
                left = self._needed(before, seen, time_ms - delay_ms, views)
            after = change(left, tip, delay_ms, time_ms)
            if after == before and not noted:
                return NothingToCommit()
            return Edit(pins={view.row.name: after}, kept=noted)

        self._handle.commit(prepare, operation="publish")

    def _needed(
        self, pins: Sequence[Pin], seen: Seen, before_ms: int, kept: AbstractSet[int]
    ) -> tuple[Pin, ...]:
        """Returns the pins that are needed; a manual clock is unrelated to the store's clock."""
        is_store = is_comparable(self._handle.clock)

        def written_ms(view: int) -> int | None:
            at_ms = seen.written_ms(view)
            return at_ms if is_store or at_ms is None else 0

        left = without_expired(pins, written_ms, before_ms=before_ms, kept=kept)
        if seen.withdrawn_ms is None:
            return left
        at_ms = seen.written_ms(seen.newest) if is_store else seen.withdrawn_ms
        return after_withdrawal(left, seen.newest, at_ms or 0, before_ms=before_ms)

    def _delay_ms(self, tip: Commit) -> int:
        return with_defaults(tip.head.config, self._defaults).file_delete_delay_ms

    def _tidy(self, view: View[Any, Any], seen: Seen) -> None:
        self._seen[view.row.name] = view.tidy(seen, self._lowest(view, seen.newest))

    def _lowest(self, view: View[Any, Any], newest: int) -> int:
        pins = self._handle.tip.head.pins.get(view.row.name, ())
        return pins[0].view if pins else newest


def _showing(seen: Seen, asked: Source, tip: Commit, *, url: str) -> int | None:
    """Returns the version that shows what was asked for; None: none yet; raises if none can."""
    now = source_of(tip.head, version=tip.version, commit_id=tip.record.commit_id)
    shown = seen.source
    if not now.has_starts_of(asked):
        raise VersionExpiredError(f"rows of {url} were deleted since version {asked.version}")
    if shown is None or shown.log_id != asked.log_id:
        return None
    if shown.content == asked.content:
        return seen.newest
    if shown.version > asked.version:
        raise VersionExpiredError(
            f"a view of {url} already shows version {shown.version}, not {asked.version}"
        )
    return None


def _kept_views(head: Head, name: str, noted: Mapping[str, Keep] | None = None) -> set[int]:
    """Returns the versions of a view that cuts need."""
    keeps = {**head.kept, **(noted or {})}.values()
    return {keep.views[name] for keep in keeps if name in keep.views}


def _held_by_cuts(pins: Sequence[Pin], head: Head, name: str) -> int:
    """Returns how many of the first pins stay only for cuts."""
    kept = _kept_views(head, name)
    return sum(any(one.view <= v < then.view for v in kept) for one, then in pairwise(pins))


def is_current(shown: Source, tip: Commit) -> bool:
    """Returns whether a view shows what the log has now."""
    now = source_of(tip.head, version=tip.version, commit_id=tip.record.commit_id)
    return (shown.log_id, shown.content) == (now.log_id, now.content)


def _raced(view: View[Any, Any], *, url: str) -> CommitConflictError:
    return CommitConflictError(
        f"{RACES_MAX} publications of {url} as {view.row.name} by other processes came first; let"
        " only one process publish"
    )


def kept_for_views(manifest: Manifest, delay_ms: int, *, now_ms: int) -> Mapping[str, Kept]:
    """Returns what published views keep, by format; nothing for a log without pins."""
    due = overdue(manifest, delay_ms, now_ms=now_ms) if manifest.head.pins else []
    found = {}
    for name, all_pins in manifest.head.pins.items():
        pins = all_pins[_held_by_cuts(all_pins, manifest.head, name) :]  # Reported with the cut.
        held = [r for r in due if r.version > pins[0].version]
        since_ms = min((r.time_ms + delay_ms for r in held), default=now_ms)
        still_ms = now_ms - max([since_ms, *(pin.time_ms for pin in pins[1:2])])
        found[name] = Kept(
            version=pins[0].version,
            table_version=pins[-1].view,
            since_ms=pins[0].time_ms,
            objects=len(held),
            size_bytes=sum(r.size_bytes for r in held),
            overdue_ms=now_ms - since_ms,
            is_stuck=still_ms > PATIENCE * delay_ms + PATIENCE_MS,
        )
    return found


def without_expired(
    pins: Sequence[Pin],
    written_ms: Callable[[int], int | None],
    *,
    before_ms: int,
    kept: AbstractSet[int] = frozenset(),
) -> tuple[Pin, ...]:
    """Returns the pins left of these; ``written_ms`` says when a version of the view was written
    (None: never), ``before_ms`` is ``file.delete.delay.ms`` ago, ``kept``: versions for cuts.
    """
    left = list(pins)
    at = 0
    while len(left) > at + 1 and left[at + 1].time_ms <= before_ms:
        at_ms = written_ms(left[at + 1].view)
        if at_ms is None or at_ms > before_ms:
            break
        if any(left[at].view <= view < left[at + 1].view for view in kept):
            at += 1
        else:
            del left[at]
    return tuple(left)


def after_withdrawal(
    pins: Sequence[Pin], view: int, written_ms: int, *, before_ms: int
) -> tuple[Pin, ...]:
    """Returns the pins that are left if the view's newest version, ``view``, has shown nothing
    since ``written_ms``. Those of later versions stay.
    """
    is_old = written_ms <= before_ms
    return tuple(pin for pin in pins if pin.view > view or (pin.view < view and not is_old))


def with_pin(pins: Sequence[Pin], pin: Pin, *, delay_ms: int) -> tuple[Pin, ...]:
    """Returns the pins with a new one, which replaces those of later versions of the view: the view
    was removed, or others published them since this one was prepared. So it gets the lowest version
    of them all, as each of their publishers may still create its version.
    """
    before = [one for one in pins if one.view < pin.view]
    same = [one for one in pins if one.view == pin.view and one.version <= pin.version]
    lowest = min((one.version for one in pins if one.view > pin.view), default=pin.version)
    if same and same[0].version <= lowest:
        return (*before, *same)
    if len(before) > 1 and pin.time_ms - before[-2].time_ms < delay_ms // PARTS:
        del before[-1]
    return (*before, replace(pin, version=min(pin.version, lowest)))


def published_files(root: Store) -> list[ViewFiles]:
    """Returns clog's views at a root, of any log; two LISTs, and a GET for each."""
    found = (_found(root, row, views_in(row.name).log_of) for row in FORMATS.values())
    return [one for one in found if one is not None]


def _found(root: Store, row: ViewFormat, log_of: Callable[[bytes], object]) -> ViewFiles | None:
    listed = list(root.list(row.folder))
    matched = [(match, file) for file in listed if (match := row.versions.fullmatch(file.path))]
    versions = [file for _, file in sorted(matched, key=lambda found: int(found[0][1]))]
    try:
        log_id = log_of(root.get(versions[-1].path)) if versions else None
    except (FileNotFoundError, CorruptionError, RecursionError, ValueError):
        return None  # Deleted in the meantime, or not written by clog.
    if not (isinstance(log_id, str) and is_log_id(log_id)):
        return None
    beside = (file for file in listed if row.beside.fullmatch(file.path))
    return ViewFiles(log_id, (*beside, *root.list_temporary(row.folder), *versions))
