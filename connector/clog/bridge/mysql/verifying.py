"""Captured tables of MySQL compared with their source, while both go on.

What is compared, and how, is as of PostgreSQL (`postgres.verifying`, V5); what differs is how what
changes meanwhile is known.

1. A cut of the logs is named, for as long as this takes; the home has, of the cut's commit, where
   the binary log goes on behind it.
2. A moment of the source is held, and then looked where the binary log ends.
3. The engine reads the binary log from 1 to 2. The keys that it tells are left out, and tables that
   were emptied or altered; all others must be equal.

The engine's own code makes values of the rows that are held, so they are what a load would take. Of
JSON the binary log and the rows have different texts: equal are those that mean the same.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import pyarrow as pa

from clog.bridge.mysql.capturing import (
    HEARTBEAT,
    HISTORY,
    OFFSET,
    TRANSACTIONS,
    Reader,
    chosen,
    hashed_of,
    reader_of,
)
from clog.bridge.mysql.engine import (
    NAME,
    Event,
    Held,
    Server,
    Shape,
    end_of,
    position_of,
    position_text,
    table_of,
)
from clog.bridge.postgres.catalogue import Binding, Choice
from clog.bridge.postgres.logs import ABOUT, ID, no_home, other_database
from clog.bridge.postgres.masking import hash_key, masked
from clog.bridge.postgres.verifying import (
    KEEP_MS,
    Take,
    VerifiedCapture,
    VerifiedTable,
    keys_of,
    verified,
)
from clog.storage import Cut, Log, drop_snapshot, snapshot
from clog.storage.env import Clock, Ids, SystemClock, SystemIds, dataclass

_JSON: Final = "io.debezium.data.Json"
_ROWS: Final = 8192


def verify_capture_mysql(
    dsn: str,
    url: str,
    *,
    tables: Sequence[str] = (),
    exclude: Sequence[str] = (),
    storage_options: Mapping[str, object] | None = None,
    single_writer: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> VerifiedCapture:
    """Compares captured tables of MySQL with their source, at one moment of it and one cut of the
    logs, as `verify_capture` does of PostgreSQL.

    Args:
        dsn: as of `capture_mysql`.
        url: the home.
        tables: patterns of ``database.table``; none: all that are captured.
        exclude: patterns of tables that are left out.
        storage_options: of the logs' filesystem.
        single_writer: as of `Log.create`.
        on_progress: called with the name of each table, before it is read.
        clock: the source of times; None: the system's clock.
        ids: the source of random ids; None: the operating system.

    Raises:
        InvalidInputError: there is no capture at the URL.
        SourceReplacedError: it is of another database.
        SourcePurgedError: the server does not have any more what changed since the cut.
        SourceUnavailableError: it does not answer.
        NotFoundError: no table is meant; or the logs have no cut yet.

    >>> verify_capture_mysql("mysql://me@localhost/shop", "shop").is_equal  # doctest: +SKIP
    True
    """
    reach: dict[str, Any] = {"storage_options": storage_options, "single_writer": single_writer}
    clock, ids = clock or SystemClock(), ids or SystemIds()
    home = Log.open(url, clock=clock, ids=ids, **reach)
    name = f"verify-{ids.new_id()}"
    with Server(dsn, ids) as server:
        if not (sources := home.positions(ID)):
            raise no_home(home.url)
        if (origin := server.origin().name) not in sources:
            raise other_database(home.url, sources, origin)
        choice = server.choice(tables, exclude)
        cut = snapshot(home.url, name, KEEP_MS, clock=clock, ids=ids, **reach)  # 1
        try:
            known = _Known.read(home, cut)
            with server.held() as held:  # 2
                until = end_of(server.files())
                server.start(known.offset, known.history, only=chosen(known.choice))
                changed = _Changed(server, known, choice)
                changed.read(until)  # 3
                found = []
                for one in changed.compared():
                    on_progress(one.what)
                    log = Log.open(one.url, clock=clock, ids=ids, **reach)
                    found.append(one.verified(held, log, cut, known.hash_key))
        finally:
            drop_snapshot(home.url, name, **reach)
    return VerifiedCapture(home.url, position_text(until), tuple(found), changed.skipped)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the home says at a cut."""

    url: str
    choice: Choice
    offset: str
    history: bytes
    bindings: Mapping[str, Binding]
    hash_key: bytes = field(repr=False)

    @classmethod
    def read(cls, home: Log, cut: Cut) -> "_Known":
        rows = home.table(at=cut).to_arrow().to_pylist()
        kept = {row["key"]: row["value"] for row in rows}
        about = json.loads(kept[ABOUT])
        bindings = [Binding.read(text) for key, text in kept.items() if key.isdigit()]
        return cls(
            home.url,
            Choice(**about),
            kept[OFFSET].decode(),
            b"".join(kept[key] for key in sorted(kept) if key.startswith(HISTORY)),
            {binding.what: binding for binding in bindings},
            hash_key(about["masks"].values()),
        )


@dataclass(frozen=True, slots=True)
class _Compared:
    """A table that is compared; ``changed``: keys that are left out."""

    what: str
    url: str
    shape: Shape
    reader: Reader
    hashed: Sequence[str]
    changed: set[bytes]

    def verified(self, held: Held, log: Log, cut: Cut, key: bytes) -> VerifiedTable:
        """Does V5."""
        json_columns = [
            one["field"] for one in self.shape.row["fields"] if one.get("name") == _JSON
        ]
        schema = self.reader.schema
        for name in {*json_columns} & {*self.hashed}:  # Of which text is not known.
            schema = schema.remove(schema.get_field_index(name))

        def source(take: Take) -> None:
            for rows in held.rows(self.shape):
                take(masked(self.reader.batch(self.what, rows), self.hashed, key))

        return verified(
            *(self.what, (log, cut), (schema, self.reader.key), source),
            changed=self.changed,
            as_compared=lambda rows: _with_one_text(rows, json_columns),
        )


class _Changed:
    """What changed since a cut.

    Attributes:
        skipped: tables that are not compared, and why.
    """

    def __init__(self, server: Server, known: _Known, choice: Choice) -> None:
        self.skipped: dict[str, str] = {}
        self._reached = 0
        self._server = server
        self._known = known
        self._meant = {
            what: binding for what, binding in known.bindings.items() if choice.has(what)
        }
        self._waiting: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self._keys: dict[str, set[bytes]] = defaultdict(set)
        self._readers: dict[str, Reader] = {}

    def read(self, until: int) -> None:
        """Reads the binary log up to a position."""
        for batch in self._server.batches(lambda: self._reached >= until):
            for event in batch:
                if event.topic == HEARTBEAT:
                    assert event.offset is not None, "it is no row"
                    self._reached = max(self._reached, position_of(json.loads(event.offset)))
                elif event.topic != TRANSACTIONS:
                    self._take(event)
        for what in list(self._waiting):
            self._pass_on(what)

    def _take(self, event: Event) -> None:
        value = event.value
        if event.topic == NAME:
            for change in value["tableChanges"] or ():
                self._leave_out(table_of(change), "it was altered, dropped or made meanwhile")
            return
        what = event.topic.removeprefix(f"{NAME}.")
        if value["op"] == "t":
            self._leave_out(what, "it was emptied meanwhile")
        elif what in self._meant and what not in self.skipped:
            if what not in self._readers:
                self._readers[what] = self._reader(what, event.key, event.row)
            self._waiting[what].append(value["after"] or value["before"])
            if len(self._waiting[what]) >= _ROWS:
                self._pass_on(what)

    def _leave_out(self, what: str, why: str) -> None:
        if what in self._meant:
            self.skipped[what] = why

    def _reader(self, what: str, key: Any, row: Any) -> Reader:
        return reader_of(what, key, row, hashed_of(what, self._known.choice.masks))

    def _pass_on(self, what: str) -> None:
        reader, masks = self._readers[what], self._known.choice.masks
        fields = pa.schema([reader.schema.field(name) for name in reader.key])
        rows = Reader(fields, reader.fixes).batch(what, self._waiting.pop(what))
        hashed = [name for name in hashed_of(what, masks) if name in reader.key]
        keys = keys_of(masked(rows, hashed, self._known.hash_key), reader.key)
        self._keys[what].update(keys.to_pylist())

    def compared(self) -> list[_Compared]:
        """Returns the tables that can be compared."""
        found, masks = [], self._known.choice.masks
        for what, binding in sorted(self._meant.items()):
            shape = self._server.shape(what)
            if shape is None:
                self.skipped.setdefault(what, "the source has it no more")
            if shape is None or what in self.skipped:
                continue
            reader = self._reader(what, shape.key, shape.row)
            url = f"{self._known.url}/{binding.folder}"
            found.append(
                _Compared(*(what, url, shape, reader, hashed_of(what, masks), self._keys[what]))
            )
        return found


def _with_one_text(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Returns rows in which JSON that means the same has the same text."""
    for name in names:
        if (at := rows.schema.get_field_index(name)) >= 0:
            texts = [
                None if text is None else json.dumps(json.loads(text), sort_keys=True)
                for text in rows.column(at).to_pylist()
            ]
            rows = rows.set_column(at, rows.schema.field(at), pa.array(texts, pa.string()))
    return rows
