"""Compares captured tables with their source, while both continue to change.

V1. The capture's slot is copied, even while it is being read: the copy begins at the position that
    was last confirmed to the source, which the logs have.
V2. A snapshot of the source is taken, and held.
V3. A cut of the logs is named for the duration of the comparison. It has everything before V1.
V4. The copy shows which keys changed between V1 and now. Their rows may be newer on either side, so
    they are left out, and counted. All others must be equal.
V5. Each table is read on both sides, and compared (`capturing.comparing`).

Nothing in the source is changed, and in the logs only the cut, which is dropped at the end. The
publication's row filters and columns, and masks, are applied to what is read from the source.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from clog.bridge.capturing.comparing import Take, VerifiedCapture, VerifiedTable, keys_of, verified
from clog.bridge.capturing.logs import ABOUT, ID, no_home, other_database
from clog.bridge.capturing.settings import TableSettings
from clog.bridge.capturing.tables import (
    EVENTS,
    HASH,
    Binding,
    Changes,
    Choice,
    SourceTable,
    TablePlan,
    hash_key,
    masked,
    quoted,
)
from clog.bridge.postgres import catalogue
from clog.bridge.postgres.pgoutput import OPTIONS, Decoder
from clog.bridge.postgres.source import Queries, Source, literal, load, lsn_of, lsn_text
from clog.bridge.postgres.types import plan_of
from clog.storage import Cut, Log
from clog.storage.spi import Inside, dataclass

_FETCHED: Final = 10_000


def verify_capture(dsn: str, url: str, settings: TableSettings | None = None) -> VerifiedCapture:
    """Compares captured tables with their source, at one snapshot of it and one cut of the logs.
    Reads all of both. A capture may run and the application may write in the meantime.

    Args:
        dsn: see `capture`.
        url: the home.
        settings: which tables; by default all that are captured.

    Raises:
        InvalidInputError: there is no capture at the URL.
        SourceReplacedError: the capture is of another database.
        SourcePurgedError: the capture's slot is gone, so changes since are not known.
        SourceUnavailableError: the source does not answer.
        NotFoundError: no table matches, or the logs have no cut yet.

    >>> verify_capture("postgres://me@localhost/shop", "shop").is_equal  # doctest: +SKIP
    True
    """
    access = settings or TableSettings()
    home = _Home.read(access.opened(url))
    source = Source(dsn)
    home.check(source)
    name = f"verify-{access.ids.new_id()}"
    with source.talking(), source.connected() as ask, source.connected() as held:
        slot = name.replace("-", "_").lower()
        if ask.slot(home.slot) is None:
            raise source.lost(home.slot, "does not exist")
        ask.rows("select pg_copy_logical_replication_slot(%s, %s, true)", [home.slot, slot])  # V1
        held.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((text,),) = held.rows("select pg_current_wal_insert_lsn()::text")  # V2
        choice = Choice(tuple(access.tables), tuple(access.exclude), events=True)
        plans, skipped = _plans(held, source, home, choice)
        with access.cut(home.url, name) as cut:  # V3
            changed = _changed(ask, slot, home, plans)  # V4
            found = []
            for one in plans:
                if changed[one.table.oid] is None:
                    skipped[one.table.what] = "it was emptied in the meantime"
                    continue
                access.on_progress(one.table.what)
                log = access.opened(one.url)
                found.append(one.verified(held, log, cut, changed[one.table.oid] or ()))
    return VerifiedCapture(home.url, lsn_text(lsn_of(text)), tuple(found), skipped)


@dataclass(frozen=True, slots=True)
class _Home:
    """The home's description of a capture; reading it does not disturb the capture."""

    url: str
    sources: frozenset[str]
    slot: str
    publications: tuple[str, ...]
    own: bool
    filters: Mapping[str, str]
    bindings: Mapping[int, Binding]

    @classmethod
    def read(cls, log: Log) -> "_Home":
        rows = log.table().to_arrow().to_pylist() if not Inside(log).is_typed else []
        kept = {row["key"]: row["value"] for row in rows}
        if ABOUT not in kept:
            raise no_home(log.url)
        about = json.loads(kept.pop(ABOUT))
        bindings = map(Binding.read, kept.values())
        return cls(
            log.url,
            frozenset(log.positions(ID)),
            about["slot"],
            tuple(about["publications"]),
            about["own"],
            about["filters"],
            {binding.oid: binding for binding in bindings},
        )

    def check(self, source: Source) -> None:
        """Raises if the logs belong to another database."""
        name = source.identity().name
        if name not in self.sources:
            raise other_database(self.url, self.sources, name)


def _plans(
    ask: Queries, source: Source, home: _Home, choice: Choice
) -> tuple[list["_Compared"], dict[str, str]]:
    """Returns the tables to compare, and why others are left out."""
    bound = {b.what: b for b in home.bindings.values()}
    publication = None if home.own else home.publications[0]
    there = catalogue.read(
        *(ask, choice),
        address=source.address,
        skipped=set(),
        known=home.bindings,
        publication=publication,
    )
    if publication is not None:
        _, there = catalogue.published(ask, source, publication, there)
    plans, skipped = [], {}
    for table in there:
        binding = home.bindings.get(table.oid)
        if binding is None:
            skipped[table.what] = "it is not captured"
        elif binding.identity == EVENTS:
            skipped[table.what] = (
                "its log has events: every insert, whatever happened to the row later"
            )
        else:
            plans.append(_Compared.of(ask, table, binding, home))
    names = {table.what for table in there}
    for what in sorted(bound.keys() - names):
        if choice.has(what):
            skipped[what] = "the source no longer has it"
    return plans, skipped


@dataclass(frozen=True, slots=True)
class _Compared:
    """A table that is compared.

    Attributes:
        table: its description in the catalogue, with only the captured columns.
        plan: how these are kept.
        url: the URL of its log.
        where: the condition on published rows; None: all are published.
        hashed: columns of which the log has hashes, with ``hash_key``.
    """

    table: SourceTable
    plan: TablePlan
    url: str
    where: str | None
    hashed: tuple[str, ...]
    hash_key: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, ask: Queries, table: SourceTable, binding: Binding, home: _Home) -> "_Compared":
        kept = {name for name, *_ in binding.columns}
        table = replace(table, columns=tuple(c for c in table.columns if c.name in kept))
        plan = plan_of(ask.connection, table.columns, what=table.what, text=binding.masks)
        hashed = tuple(name for name, mask in binding.masks.items() if mask == HASH)
        return cls(
            *(table, plan, f"{home.url}/{binding.folder}", home.filters.get(table.what), hashed),
            hash_key(binding.masks.values()),
        )

    @property
    def of_key(self) -> TablePlan:
        """How the key's columns are kept."""
        own = [i for i, name in enumerate(self.plan.schema.names) if name in self.table.key]
        fields = pa.schema([self.plan.schema.field(i) for i in own])
        return TablePlan(self.table.what, fields, tuple(self.plan.forms[i] for i in own))

    def keys(self, rows: pa.RecordBatch) -> list[bytes]:
        """Returns the keys of rows in the form that the log has."""
        own = [name for name in self.hashed if name in rows.schema.names]
        found: list[bytes] = keys_of(masked(rows, own, self.hash_key), self.table.key).to_pylist()
        return found

    def verified(
        self, held: Queries, log: Log, cut: Cut, changed: Collection[bytes]
    ) -> VerifiedTable:
        """Does V5."""

        def source(take: Take) -> None:
            load(
                held.connection,
                self.table.select(self.where),
                self.plan,
                lambda rows: take(masked(rows, self.hashed, self.hash_key)),
            )

        what = self.table.what
        columns = self.plan.schema, self.table.key
        return verified(what, (log, cut), columns, source, changed=changed)


def _changed(
    ask: Queries, slot: str, home: _Home, tables: Sequence[_Compared]
) -> dict[int, set[bytes] | None]:
    """Does V4; returns the keys by the tables' oids, None for a table that was truncated."""
    found: dict[int, set[bytes] | None] = {one.table.oid: set() for one in tables}
    plans = {one.table.oid: (one, one.of_key) for one in tables}
    decoder = Decoder(lambda relation, _: plans.get(relation.oid))
    options = {**OPTIONS, "publication_names": ",".join(map(quoted, home.publications))}
    given = ", ".join(literal(part) for pair in options.items() for part in pair)
    peek = f"pg_logical_slot_peek_binary_changes({literal(slot)}, NULL, NULL, {given})"
    ask.run("BEGIN", f"DECLARE changed NO SCROLL CURSOR FOR SELECT data FROM {peek}")  # noqa: S608
    while messages := ask.rows(f"FETCH {_FETCHED} FROM changed"):
        for step in decoder.decode([bytes(row[0]) for row in messages]).steps:
            if isinstance(step, Changes):
                keys = found[step.table.table.oid]
                if keys is not None:
                    keys.update(step.table.keys(step.rows))
            else:
                found.update((one.table.oid, None) for one in step.tables)
    ask.run("COMMIT")
    return found
