"""Publishing the log's table as a view (COMMIT.md §8).

U1. Find which rows the table shows, at the newest version V.
U2. Commit the pin [n, V], where n − 1 is the view's newest version: from now on nothing goes that V
    needs. In the same commit pins go that nobody needs any more (U4).
U3. Create version n of the view if absent: this is the publication. Where another came first,
    begin anew.

It is done twice without effect: what shows the same content already is left alone, so nobody takes
turns, and a crash leaves a pin at worst, which the next publication puts in its place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clog.storage.commit.committer import NothingToCommit
from clog.storage.commit.handle import Handle
from clog.storage.commit.identity import StandingLog
from clog.storage.commit.store_clock import is_comparable
from clog.storage.config.log_config import NO_DEFAULTS, with_defaults
from clog.storage.errors import (
    CommitConflictError,
    InvalidInputError,
    VersionExpiredError,
    version_expired,
)
from clog.storage.format.commits import Commit
from clog.storage.format.edits import Edit
from clog.storage.format.features import PUBLICATIONS, SUPERSEDED_ROWS, FeatureNames
from clog.storage.format.views.pins import Pin
from clog.storage.publications.delta.view import DeltaView
from clog.storage.publications.iceberg.view import IcebergView
from clog.storage.publications.pinning import with_pin, without_expired
from clog.storage.publications.table_state import NextVersion, Source, source_of, table_state

RACES_MAX = 20
"""Publications by others, one after the other, after which one gives up."""

_FEATURES = (PUBLICATIONS, SUPERSEDED_ROWS)
"""What a log gets when it is first published: masks spare each later publication the keys."""

View = DeltaView | IcebergView
_VIEWS: Mapping[str, type[View]] = {"delta": DeltaView, "iceberg": IcebergView}
FORMATS = tuple(_VIEWS)
"""In which a log can be published."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What a published view shows.

    Attributes:
        version: of the log, whose table the view equals.
        table_version: of the view.
        published: whether this call created it; else it was there.
    """

    version: int
    table_version: int
    published: bool


def view_of(standing: StandingLog, name: str) -> View:
    """Returns the view of a log in a format, not yet looked at.

    Raises:
        InvalidInputError: there is no such format.
    """
    if name not in _VIEWS:
        raise InvalidInputError(
            f"format={name!r} is unknown; a log is published as {' or '.join(FORMATS)}"
        )
    return _VIEWS[name](standing)


class Publications:
    """The views of one log, which it follows. Not safe for threads.

    Args:
        handle: on the log.
        defaults: configs of the process, below the log's own (S45).
    """

    def __init__(self, handle: Handle, defaults: Mapping[str, str] = NO_DEFAULTS) -> None:
        self._handle = handle
        self._defaults = defaults
        self._views: dict[str, View] = {}

    def view(self, name: str) -> View:
        """Returns the view of a format.

        Raises:
            InvalidInputError: there is no such format.
        """
        if name not in self._views:
            self._views[name] = view_of(self._handle.standing, name)
        return self._views[name]

    def publish(self, name: str) -> PublishResult:
        """Publishes the newest version in a format; see `Log.publish`."""
        handle, view = self._handle, self.view(name)
        for _ in range(RACES_MAX):
            tip = handle.refresh()
            view.look()
            if (shown := view.source) is not None and _is_current(shown, tip):
                self._tidy(view)
                return PublishResult(shown.version, view.newest, published=False)
            try:
                state = table_state(handle, handle.manifest())  # U1
                self._pin(view, state.source.version)  # U2
            except VersionExpiredError:
                if handle.refresh() is tip:
                    raise
                continue
            lowest, now_ms = self._lowest(view), handle.clock.now_ms()
            if view.publish(state, NextVersion(now_ms, handle.ids.new_id(), lowest)):  # U3
                self._tidy(view)
                return PublishResult(state.source.version, view.newest, published=True)
        raise CommitConflictError(
            f"{RACES_MAX} publications of {handle.store.url} as {name} by others came first; let"
            " one process publish"
        )

    def is_current(self, name: str) -> bool:
        """Tells whether the view showed, when it was looked at, what the tip has."""
        shown = self.view(name).source
        return shown is not None and _is_current(shown, self._handle.tip)

    def release(self, name: str) -> None:
        """Takes pins away that nobody needs any more (U4); none where none is due."""
        view = self.view(name)
        pins = self._handle.tip.head.pins.get(name, ())
        delay_ms = self._delay_ms(self._handle.tip)
        if len(pins) > 1 and pins[1].time_ms <= self._handle.clock.now_ms() - delay_ms:
            view.look()
            self._commit(view, lambda left, _delay_ms, _time_ms: left)

    def _pin(self, view: View, version: int) -> None:
        number, url = view.newest + 1, self._handle.store.url

        def pinned(left: tuple[Pin, ...], delay_ms: int, time_ms: int) -> tuple[Pin, ...]:
            if version < self._handle.tip.head.oldest_readable:
                raise version_expired(url, version)
            return with_pin(left, Pin(number, version, time_ms), delay_ms=delay_ms)

        self._commit(view, pinned)

    def _commit(
        self, view: View, change: Callable[[tuple[Pin, ...], int, int], tuple[Pin, ...]]
    ) -> None:
        written_ms = self._written_ms(view)

        def prepare(tip: Commit, time_ms: int) -> Edit | NothingToCommit:
            before = tip.head.pins.get(view.format, ())
            delay_ms = self._delay_ms(tip)
            left = without_expired(before, written_ms, before_ms=time_ms - delay_ms)
            after = change(left, delay_ms, time_ms)
            if after == before:
                return NothingToCommit()
            lacks = PUBLICATIONS not in tip.head.log.features
            features = FeatureNames(write=_FEATURES) if lacks else None
            return Edit(features=features, pins={view.format: after})

        self._handle.commit(prepare, operation="publish")

    def _written_ms(self, view: View) -> Callable[[int], int | None]:
        """Returns what tells when a version was written; a manual clock is unrelated to the
        store's.
        """
        if is_comparable(self._handle.clock):
            return view.written_ms
        return lambda number: None if view.written_ms(number) is None else 0

    def _delay_ms(self, tip: Commit) -> int:
        return with_defaults(tip.head.config, self._defaults).file_delete_delay_ms

    def _tidy(self, view: View) -> None:
        view.tidy(self._lowest(view))

    def _lowest(self, view: View) -> int:
        pins = self._handle.tip.head.pins.get(view.format, ())
        return pins[0].view if pins else view.newest


def _is_current(shown: Source, tip: Commit) -> bool:
    """Tells whether a view shows what the log has now."""
    now = source_of(tip.head, version=tip.version, commit_id=tip.record.commit_id)
    return (shown.log_id, shown.content) == (now.log_id, now.content)
