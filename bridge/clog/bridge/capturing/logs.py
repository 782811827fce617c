"""The logs of a captured database: one for each table, and the home, which names their cuts.

L1. *Claim.* The captures' id is claimed in the home and in all tables' logs before anything is
    written: from then on an earlier capture can no longer commit to any of them.
L2. *Group* of whole transactions of the source: each table's log takes its rows and the position in
    its own transaction, all logs at the same time.
L3. *Cut*: one commit in the home, with its position, that names the version of each log after L2.
    The next group's L2 may run at the same time.
L4. Only then does the source learn what it may discard.

The source has already decided its transactions, so nothing is ever aborted, and L2 needs no second
phase. A crash leaves logs that are ahead of others, or of the cut; each has a position that says
how far, and what the stream repeats up to there is skipped. Until all are past that point there is
no new cut.

A table's position is under the name of the database and the table's oid: another table with the
same name is not mistaken for it. What the table was like, its *binding*, is a record of the home.

A first load is also one commit to its log: no one reads half of it. Until all tables are loaded
and the stream has passed the highest of their positions, the home's cut lacks members, which shows
that it is incomplete.

*Unchanged* values, which the source does not send, are looked up (`Filler`).
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clog.bridge.access import committed
from clog.bridge.capturing.settings import CaptureSettings
from clog.bridge.capturing.tables import (
    HASH,
    Binding,
    Changes,
    SourceTable,
    TablePlan,
    hash_key,
    masked,
    sliced,
)
from clog.storage import InvalidInputError, SourceError, SourceReplacedError, Transaction
from clog.storage.spi import (
    Inside,
    hash_keys,
    key_bytes,
    to_arrow,
    to_numpy,
    united,
)

if TYPE_CHECKING:
    from clog.storage import Table

ID: Final = "clog-capture"
"""The id of every capture's transactions, and so the name of its cut."""
_TIMEOUT_MS: Final = 86_400_000
"""As long as a transaction may take."""
ABOUT: Final = b"capture"
"""The key of the home's record of how all tables are captured; the keys of tables are oids."""
PRESENT: Final = "present"
"""The value's only column if all columns of a table are in its key."""
FLUSH_BYTES: Final = 16 << 20
"""How much of all tables waits for a commit in memory; anything more is written first."""
_PART_BYTES: Final = 6 << 20
"""How many bytes of rows get their missing values at a time."""
_PART_ROWS_MIN: Final = 256
_FILLED_BYTES: Final = 4096
"""The assumed size of such a row before one was seen."""
_VALUE_BYTES_MAX: Final = 2**31 - 1
KEPT_BYTES: Final = 8 << 20
"""How much of a group stays in memory for unchanged values, for each table."""
SEED: Final = 0x5EED
_KEY, _DELETED = "\0key", "\0deleted"
_Ints = np.ndarray[Any, Any]
_Flags = np.ndarray[Any, Any]
Words = np.ndarray[Any, Any]
"""Hashes of keys, two words each."""
_LookUp = Callable[[pa.Array], tuple[pa.Array, pa.RecordBatch]]


class Origin(Protocol):
    """A source's identity: the name of its positions, and its current history."""

    @property
    def name(self) -> str: ...

    @property
    def timeline(self) -> int: ...


def is_wider(kind: pa.DataType, narrow: pa.DataType) -> bool:
    """Returns whether every value of the narrow type is one of the other, too."""
    try:
        return bool(united(narrow, kind, "") == kind)
    except InvalidInputError:
        return False


def no_home(url: str) -> InvalidInputError:
    """Returns the error for a log that is not the home of a capture."""
    return InvalidInputError(
        f"{url} is not the home of a capture, or nothing has been captured there yet"
    )


def other_database(url: str, captured: Iterable[str], found: str) -> SourceReplacedError:
    """Returns the error for a home that captures another database than the one found."""
    names = ", ".join(sorted(captured))
    return SourceReplacedError(f"{url} captures {names}, but the address leads to {found}")


class TableLog:
    """A table's log. Passed from thread to thread, used by one at a time.

    Attributes:
        position: it has the transactions that the source committed below; 0: it is not loaded.
        outdated: why it must be loaded although it has a position; None if it need not be.
        pending_bytes: the size of what waits in memory for the commit.
        rows: the number of rows taken in this run, including tombstones.
    """

    def __init__(
        self,
        table: SourceTable,
        plan: TablePlan,
        url: str,
        identity: Origin,
        settings: CaptureSettings,
    ) -> None:
        self.table = table
        self.plan = plan
        self.position = 0
        self.outdated: str | None = None
        self._fields: Mapping[int, str] = {}
        self.pending_bytes = 0
        self.rows = 0
        self._identity = identity
        self._settings = settings
        self._source = f"{identity.name}/{table.oid}"
        self._hash_key = hash_key(table.masks.values())
        self._hashed = [name for name, mask in table.masks.items() if mask == HASH]
        self._pending: list[pa.RecordBatch] = []
        self._transaction: Transaction | None = None
        self._stamp: int | None = None
        self._shown: Table | None = None
        self._filled_bytes = _FILLED_BYTES
        self._filler = Filler(table.what, sorted(table.toasted), self._look_up)
        try:
            self.log = settings.made(url, self._creation)
        except InvalidInputError as e:
            raise InvalidInputError(
                f"{table.what} cannot become a log: {e}; leave out columns (--mask"
                f" {table.what}.COLUMN=drop), or the table (--exclude {table.what})"
            ) from e

    @property
    def is_begun(self) -> bool:
        """Whether something waits for the commit."""
        return bool(self._pending) or self._transaction is not None

    def take_on(self, table: SourceTable, plan: TablePlan) -> bool:
        """Drops what waits, and continues with the table as it is now; returns whether it can."""
        self._forget()
        if (table.columns, plan.schema) != (self.table.columns, self.plan.schema):
            return False
        self.table = table
        return True

    def _creation(self) -> dict[str, Any]:
        """Returns the arguments with which the log is created if it does not exist."""
        columns = self._columns()
        creation: dict[str, Any] = {"schema": columns, "key": self.table.key}
        config: dict[str, object] = {"max.message.bytes": _VALUE_BYTES_MAX}
        if not self.table.key:
            value = pa.struct(list(columns))
            schema = pa.schema([pa.field("key", pa.binary()), pa.field("value", value)])
            creation = {"schema": schema}
            config |= {"cleanup.policy": "delete", "retention.ms": -1}
        partitions = self._settings.partitions
        return {**creation, "partitions": partitions, "config": {**config, **self._settings.config}}

    def _columns(self) -> pa.Schema:
        """Returns the columns that the log should have."""
        columns = self.plan.schema
        if self.table.key and not self._others:
            return columns.append(pa.field(self._present, pa.bool_()))
        return columns

    def begin(self, shown: Mapping[str, tuple[int, str]], *, is_taken_over: bool = False) -> None:
        """Claims the id (L1), and reads the log's position; ``shown``: the logs in the newest cut.
        ``is_taken_over``: the log may have another table's rows, which the next load removes.
        """
        inside, cut = Inside(self.log), shown.get(self.log.id)
        if cut is not None and not inside.has(cut):
            self.outdated = "was restored from an older copy, and lacks changes"
        elif cut is not None and inside.renamed_since(cut):
            self.outdated = "has columns that were renamed or dropped since"
        self._fields = inside.fields
        with self.log.transaction(ID, _TIMEOUT_MS) as t:
            t.abort()
        found = self.log.positions(ID, marks=True)
        if not is_taken_over:
            self._check_ours(found)
        ((self.position, _),) = found.get(self._source, {0: (0, None)}).values()

    def unload(self) -> None:
        """Takes back the position: whatever happens before it is loaded, it must be."""
        with self.log.transaction(ID, _TIMEOUT_MS) as t:
            t.positions(self._source, {0: (0, str(self._identity.timeline))})

    def _check_ours(self, found: Mapping[str, object]) -> None:
        if found and self._source not in found:
            raise SourceReplacedError(
                f"{self.log.url} has {', '.join(sorted(found))}, but {self.table.what} is now"
                f" {self._source}: it was dropped and created again, or the address leads to"
                " another database; capture into a new URL, leave the table out (--exclude"
                f" {self.table.what}), or load it into the same log (--reload {self.table.what})"
            )
        if Inside(self.log).config.is_ordered:
            raise InvalidInputError(
                f"{self.log.url} has a compaction.strategy other than offset, but a database's"
                " changes must win in their order, whatever its clock says: change it back"
            )
        if not found and any(self.log.end_offsets().values()):
            raise InvalidInputError(
                f"{self.log.url} has records of its own; capture into another URL"
            )

    def evolve(self) -> None:
        """Gives the log the columns and types that the table has now; what is wider in the log, as
        the table was, stays so.

        Raises:
            InvalidInputError: a column's type cannot change to the one it has now.
        """
        there = self.log.schema
        self._check_fields()
        value = {field.name: field.type for field in there.field("value").type}
        key = there.field("key").type
        keys = {self.table.key[0]: ("key", key)} if len(self.table.key) == 1 else {}
        if pa.types.is_struct(key):
            keys = {field.name: (f"key.{field.name}", field.type) for field in key}
        add, widen = {}, {}
        for field in self._columns():
            path, kind = keys.get(field.name, (f"value.{field.name}", value.get(field.name)))
            if kind is None:
                add[path] = field.type
            elif kind != field.type and not is_wider(kind, field.type):
                widen[path] = field.type
        if not (add or widen):
            return
        try:
            self.log.evolve(add=add, widen=widen)
        except InvalidInputError as e:
            raise InvalidInputError(
                f"{self.table.what} has columns of types or names other than {self.log.url}, which"
                f" cannot follow: {e}; capture the table into a new URL, or as text from its"
                f" beginning (--mask {self.table.what}.COLUMN=text), or leave the column out"
                f" (--mask {self.table.what}.COLUMN=drop)"
            ) from e
        self._fields = Inside(self.log).fields

    def _check_fields(self) -> None:
        """Raises if a field is gone, or has another name, since the log was opened."""
        now = Inside(self.log).fields
        for number, path in self._fields.items():
            if (other := now.get(number)) != path:
                was = "dropped" if other is None else f"renamed to {other.removeprefix('value.')}"
                raise SourceError(
                    f"column {path.removeprefix('value.')} of {self.log.url} was {was}, but the"
                    f" log has the columns of {self.table.what}: run the capture again, and it"
                    " loads the table with all of them; rename and leave out columns where they"
                    " are read"
                )

    def take(self, changes: Changes, times_us: _Ints, start: int = 0) -> int:
        """Takes the group's changes from a row on, filling in values; returns the next row."""
        end = self._end_of_part(changes, start)
        part = sliced(changes, start, end)
        rows = masked(self._whole(part.rows), self._hashed, self._hash_key)
        keys = self._keys(rows)
        if self.table.key:
            missing = {name: mask for name, mask in part.unchanged.items() if mask.any()}
            canonical = key_bytes(keys)
            rows = self._filler.filled(canonical, rows, part.deleted, missing, part.moved_from)
            if missing:
                self._filled_bytes = max(1, rows.nbytes // rows.num_rows)
        self._add(rows, keys, part.deleted, times_us[start:end])
        return end

    def _end_of_part(self, changes: Changes, start: int) -> int:
        count, moved = len(changes.deleted), changes.moved_from
        if not any(mask[start:].any() for mask in changes.unchanged.values()):
            return count
        end = min(count, start + max(_PART_ROWS_MIN, _PART_BYTES // self._filled_bytes))
        while moved is not None and end < count and moved[end] >= 0:
            end += 1
        return end

    def take_rows(self, rows: pa.RecordBatch, time_us: int) -> pa.Array:
        """Takes rows of a first load; returns their keys."""
        rows = masked(rows, self._hashed, self._hash_key)
        keys = self._keys(rows)
        count = rows.num_rows
        self._add(rows, keys, np.zeros(count, bool), np.full(count, time_us))
        return keys

    def delete(self, keys: pa.Array, time_us: int) -> None:
        """Takes a tombstone for each of these keys."""
        count = len(keys)
        nulls = [pa.nulls(count, field.type) for field in self.plan.schema]
        rows = pa.RecordBatch.from_arrays(nulls, names=self.plan.schema.names)
        self._add(rows, keys, np.ones(count, bool), np.full(count, time_us))

    def truncate(self, time_us: int) -> None:
        """Takes a tombstone for each key in the log. The group's earlier rows are dropped: no cut
        would show them. Events are kept: a truncate does not undo them.
        """
        if not self.table.key:
            return
        self._forget()
        for keys in self._stored_keys():
            self.delete(keys, time_us)
            if self.pending_bytes > FLUSH_BYTES:
                self.flush()

    def delete_others(self, loaded: list[Words], time_us: int) -> None:
        """Takes a tombstone for each key that the log has and that is not among those loaded."""
        words = np.concatenate(loaded) if loaded else np.empty((0, 2), np.uint64)
        there = np.sort(_as_one(words))
        for keys in self._stored_keys():
            mine = _as_one(hash_keys(keys, seed=SEED))
            at = np.minimum(np.searchsorted(there, mine), max(len(there) - 1, 0))
            gone = there[at] != mine if len(there) else np.ones(len(mine), bool)
            if gone.any():
                self.delete(keys.filter(to_arrow(gone)), time_us)
            if self.pending_bytes > FLUSH_BYTES:
                self.flush()

    def _stored_keys(self) -> Iterator[pa.Array]:
        """Yields the keys of the log's records, including deleted ones, some repeatedly."""
        for batch in self.log.read(columns=["key"]):
            keys = batch.column(0)
            words = _as_one(hash_keys(keys, seed=SEED))
            yield keys.take(to_arrow(np.unique(words, return_index=True)[1]))

    def flush(self) -> None:
        """Writes what waits; it becomes visible with the commit."""
        if self._transaction is None:
            t = self.log.transaction(ID, _TIMEOUT_MS)
            self._transaction, self._stamp = t, None
        if not self._pending:
            return
        writer = self.log.object_writer(stamp=self._stamp)
        columns = writer.columns
        for batch in self._pending:
            parts = Inside(self.log).partition_of_each(batch)
            made = [
                batch.column(field.name)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in columns
            ]
            writer.add(pa.RecordBatch.from_arrays(made, schema=columns), parts)
        objects = writer.finish()
        self._transaction.append_objects(objects)
        self._stamp = objects[0].ref.stamp
        self._pending, self.pending_bytes = [], 0

    def commit(self, position: int) -> None:
        """Commits the group (L2), up to this position of the source."""
        self.flush()
        t = self._transaction
        assert t is not None, "it has just been started"
        t.positions(self._source, {0: (position, str(self._identity.timeline))})
        try:
            self._check_fields()
            committed(t)
        except InvalidInputError:
            self._check_fields()  # What the commit has found out.
            raise
        self.position, self.outdated = position, None
        self._transaction = self._shown = None
        self._filler.end_group()

    def _whole(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with nulls for columns that the table did not have when they were sent."""
        there = rows.schema.names
        if len(there) == len(self.plan.schema):
            return rows
        columns = [
            rows.column(field.name) if field.name in there else pa.nulls(len(rows), field.type)
            for field in self.plan.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.plan.schema)

    def _forget(self) -> None:
        """Drops what waits for the commit."""
        if self._transaction is not None:
            self._transaction.abort()
        self._transaction, self._pending, self.pending_bytes = None, [], 0
        self._filler.end_group()

    def _keys(self, rows: pa.RecordBatch) -> pa.Array:
        """Returns the keys of rows, in the log's type."""
        key = self.table.key
        if not key:
            return pa.nulls(rows.num_rows, pa.binary())
        kind = Inside(self.log).schema.field("key").type
        if len(key) == 1:
            return rows.column(key[0]).cast(kind)
        fields = [rows.schema.field(name) for name in key]
        made = pa.StructArray.from_arrays([rows.column(name) for name in key], fields=fields)
        return made.cast(kind)

    def _add(self, rows: pa.RecordBatch, keys: pa.Array, deleted: _Flags, times_us: _Ints) -> None:
        """Adds records that wait for the commit."""
        kind, count = Inside(self.log).schema.field("value").type, rows.num_rows
        values = []
        for field in kind:
            if field.name in rows.schema.names:
                values.append(rows.column(field.name).cast(field.type))
            elif field.name == self._present and not self._others:
                values.append(pa.array([True]).take(pa.array(np.zeros(count, np.int64))))
            else:
                values.append(pa.nulls(count, field.type))
        mask = to_arrow(deleted) if deleted.any() else None
        value = pa.StructArray.from_arrays(values, fields=list(kind), mask=mask)
        now_us = self._settings.clock.now_us()
        times = to_arrow(np.clip(times_us, 0, now_us), pa.timestamp("us", "UTC"))
        batch = pa.RecordBatch.from_arrays([keys, value, times], ["key", "value", "timestamp"])
        self._pending.append(batch)
        self.pending_bytes += batch.nbytes
        self.rows += count

    @property
    def _present(self) -> str:
        """The name of the `PRESENT` column, which differs from those of the key."""
        taken = {name.casefold() for name in self.table.key}
        return next(n for n in (PRESENT, f"{PRESENT}_", f"{PRESENT}__") if n not in taken)

    @property
    def _others(self) -> bool:
        """Whether the table has columns outside its key."""
        return any(name not in self.table.key for name in self.plan.schema.names)

    def _look_up(self, keys: pa.Array) -> tuple[pa.Array, pa.RecordBatch]:
        """Returns those of these keys that the log has, and their rows."""
        if self._shown is None:
            self._shown = self.log.table()
        found = self._shown.of_key_bytes(keys.to_pylist()).combine_chunks()
        value = found.column("value").combine_chunks()
        kinds = {field.name: field.type for field in self.plan.schema}
        columns = {
            field.name: column.cast(kinds.get(field.name, field.type))
            for field, column in zip(value.type, value.flatten(), strict=True)
        }
        rows = pa.RecordBatch.from_pydict(columns)
        return key_bytes(found.column("key").combine_chunks()), rows


def _as_one(words: Words) -> np.ndarray[Any, Any]:
    """Returns fingerprints in a form that compares each as one value."""
    return np.ascontiguousarray(words).view([("a", "<u8"), ("b", "<u8")]).reshape(-1)


class Home:
    """The home of a captured database.

    Attributes:
        position: the source's position at its newest cut; 0: there is no cut yet.
        timeline: the source's timeline at that cut.
        bindings: what each table was like, by its oid.
        members: the ids of the logs in its cuts.
        shown: each log's entry in its newest cut, by the log's id.
        kept: its records; those that belong to no table are the capture's own.
    """

    def __init__(self, url: str, identity: Origin, settings: CaptureSettings) -> None:
        self.position = 0
        self.timeline: int | None = None
        self.bindings: dict[int, Binding] = {}
        self.members: frozenset[str] = frozenset()
        self.shown: Mapping[str, tuple[int, str]] = {}
        self.kept: dict[bytes, bytes] = {}
        self._later: tuple[int, Mapping[bytes, bytes]] = 0, {}
        self.log = settings.made(
            url, lambda: {"partitions": 1, "config": {"cleanup.policy": "compact"}}
        )
        self._identity = identity
        self._source = identity.name

    def read(self) -> None:
        """Reads the state of the capture; raises if it is another database's, or not a capture."""
        inside = Inside(self.log)
        inside.refresh()
        if not inside.has_cut_of(ID) and any(self.log.end_offsets().values()):
            raise InvalidInputError(
                f"{self.log.url} is a log with records of its own; capture into another URL"
            )
        found = self.log.positions(ID, marks=True)
        mine = found.get(self._source)
        if found and mine is None:
            raise other_database(self.log.url, found, f"{self._source}; capture into a new URL")
        if mine:
            self.position, mark = mine[0]
            self.timeline = None if mark is None else int(mark)
        self.members = inside.members
        self.shown = inside.cut_of(ID)
        rows = self.log.table().to_arrow().select(["key", "value"])
        self.kept = {row["key"]: row["value"] for row in rows.to_pylist()}
        bound = (Binding.read(text) for key, text in self.kept.items() if key.isdigit())
        self.bindings = {binding.oid: binding for binding in bound}

    def begin(self) -> None:
        """Claims the id (L1), after `read`, and reads the state of the capture again."""
        is_new = not Inside(self.log).has_cut_of(ID)
        with self.log.transaction(ID, _TIMEOUT_MS) as t:
            t.abort()
        if is_new:
            self.mark_loading([])
        self.read()

    def check(self) -> None:
        """Raises if another capture has the id: no further log must be taken from it; one GET."""
        with self.log.transaction(ID, _TIMEOUT_MS) as t:
            t.abort()
        Inside(self.log).check_held(ID, t.epoch)

    def keep(self, tables: Sequence[SourceTable], **about: object) -> None:
        """Saves what tables are like and how they are captured; one commit if anything is new."""
        records = self._records(tables)
        if about:
            records[ABOUT] = json.dumps(about, sort_keys=True).encode()
        new = {key: text for key, text in records.items() if self.kept.get(key) != text}
        if not new:
            return
        with self.log.transaction(ID, _TIMEOUT_MS) as t:
            t.append([{"key": key, "value": text} for key, text in new.items()])
        self._has(new)

    def keep_later(self, tables: Sequence[SourceTable], position: int) -> None:
        """Saves what tables are like with the first cut at this position or a later one: rows that
        come until then may still be as the tables were before.
        """
        there = [self.bindings[table.oid].followed_by(table) for table in tables]
        self._later = position, self._records(there)

    def _records(self, tables: Sequence[SourceTable]) -> dict[bytes, bytes]:
        folders = {oid: binding.folder for oid, binding in self.bindings.items()}
        return {
            str(table.oid).encode(): table.binding(folders.get(table.oid, table.folder))
            for table in tables
        }

    def _has(self, new: Mapping[bytes, bytes | None]) -> None:
        """Notes what was saved."""
        texts = {key: text for key, text in new.items() if text is not None}
        self.kept |= texts
        self.bindings |= {int(k): Binding.read(text) for k, text in texts.items() if k.isdigit()}

    def mark_loading(self, logs: Sequence[TableLog]) -> None:
        """Declares which logs every cut must have, and that there is no cut yet."""
        t = self.log.transaction(ID, _TIMEOUT_MS)
        t.name_cut([], [one.log for one in logs])
        committed(t)

    def cut(
        self,
        position: int,
        logs: Sequence[TableLog],
        records: Mapping[bytes, bytes | None] | None = None,
    ) -> None:
        """Names the logs' versions at a position of the source (L3), and saves records with it."""
        self.prepared(position, logs, records)()

    def prepared(
        self,
        position: int,
        logs: Sequence[TableLog],
        records: Mapping[bytes, bytes | None] | None = None,
    ) -> Callable[[], None]:
        """Returns a function that does `cut` with what the logs show now, even if they have changed
        by then. It must be called before any other method of the home. No request.
        """
        t = self.log.transaction(ID, _TIMEOUT_MS)
        later = {} if position < self._later[0] else self._later[1]
        new: dict[bytes, bytes | None] = dict(records or {})
        new |= {key: text for key, text in later.items() if self.kept.get(key) != text}
        if new:
            t.append([{"key": key, "value": text} for key, text in new.items()])
        named = [one.log for one in logs]
        t.name_cut(named, named)
        t.positions(self._source, {0: (position, str(self._identity.timeline))})
        members = frozenset(one.log.id for one in logs)

        def cut() -> None:
            committed(t)
            self._has(new)
            self.members = members
            self.position, self.timeline = position, self._identity.timeline

        return cut


class Filler:
    """Keeps the rows of one table in the group so far, and finds missing values; for one thread.

    A source does not send a large value, stored outside its row, that an update did not change. The
    newest row of the *old* key has it; if the update changes the key, that is another row's. It is
    looked for

    1. among the earlier rows of the same changes: such a row may itself lack the value, and takes
       it from an earlier one; all of this is one walk over arrays of positions, doubled at each
       step;
    2. among those of the same group, which are not committed yet, the newest first: they are kept
       for this, on disk if they are many, as a transaction may have more rows than fit in memory;
    3. in the log.

    A value that is found nowhere stops the capture: it never becomes null.

    Args:
        what: the table, for errors.
        columns: those that may come without their values.
        look_up: takes canonical bytes of keys; returns those that the log has, and their rows.
    """

    def __init__(self, what: str, columns: list[str], look_up: _LookUp) -> None:
        self._what = what
        self._columns = columns
        self._look_up = look_up
        self._earlier: list[pa.RecordBatch | tuple[int, _Ints]] = []
        self._kept_bytes = 0
        self._file: IO[bytes] | None = None

    def filled(
        self,
        keys: pa.Array,
        rows: pa.RecordBatch,
        deleted: _Flags,
        unchanged: Mapping[str, _Flags],
        moved_from: _Ints | None,
    ) -> pa.RecordBatch:
        """Returns the rows with all their values; ``keys`` are canonical bytes."""
        if unchanged:
            rows = self._filled(keys, rows, deleted, unchanged, moved_from)
        if self._columns:
            kept = [keys, to_arrow(deleted), *(rows.column(name) for name in self._columns)]
            names = [_KEY, _DELETED, *self._columns]
            self._keep(pa.RecordBatch.from_arrays(kept, names))
        return rows

    def end_group(self) -> None:
        """Forgets the group, which the log has now."""
        self._earlier, self._kept_bytes = [], 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _filled(
        self,
        keys: pa.Array,
        rows: pa.RecordBatch,
        deleted: _Flags,
        unchanged: Mapping[str, _Flags],
        moved_from: _Ints | None,
    ) -> pa.RecordBatch:
        count = rows.num_rows
        before, asked = _before(keys), np.arange(count)
        if moved_from is not None:
            moved = np.flatnonzero(moved_from >= 0)
            asked[moved] = moved_from[moved]
            before[moved] = before[moved_from[moved]]
        sources = {name: _sources(before, mask) for name, mask in unchanged.items()}
        wanted = np.unique(np.concatenate([at[at >= count] for at in sources.values()]) - count)
        outside = self._outside(keys.take(to_arrow(asked[wanted])), list(unchanged))
        columns = {name: rows.column(name) for name in rows.schema.names}
        for name, at in sources.items():
            within = at[at < count]
            if deleted[within[within != np.flatnonzero(at < count)]].any():
                raise self._missing(name)
            place = np.where(at < count, at, count + np.searchsorted(wanted, at - count))
            both = pa.chunked_array([rows.column(name), outside.column(name)])
            columns[name] = both.take(to_arrow(place)).combine_chunks()
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)

    def _outside(self, keys: pa.Array, names: list[str]) -> pa.RecordBatch:
        """Returns these keys' newest rows from before the changes."""
        count = len(keys)
        left = np.arange(count)
        found: list[tuple[_Ints, pa.RecordBatch]] = []
        short = _short(keys) if self._earlier else left
        for kept in reversed(self._earlier):
            if not len(left):
                break
            if not isinstance(kept, pa.RecordBatch) and not _has_any(kept[1], short[left]):
                continue
            earlier = self._read(kept)
            newest = earlier.column(_KEY)[::-1]
            at = pc.index_in(keys.take(to_arrow(left)), newest)
            is_there = to_numpy(at.is_valid())
            rows = earlier.num_rows - 1 - to_numpy(at.drop_null())
            if to_numpy(earlier.column(_DELETED))[rows].any():
                raise self._missing(names[0])
            found.append((left[is_there], earlier.select(names).take(to_arrow(rows))))
            left = left[~is_there]
        if len(left):
            there, stored_rows = self._look_up(keys.take(to_arrow(left)))
            at = pc.index_in(keys.take(to_arrow(left)), there)
            if at.null_count:
                raise self._missing(names[0])
            found.append((left, stored_rows.select(names).take(at)))
        if not found:
            return self._nothing(names)
        order = np.argsort(np.concatenate([places for places, _ in found]), kind="stable")
        table = pa.Table.from_batches([batch for _, batch in found]).take(to_arrow(order))
        return table.combine_chunks().to_batches()[0]

    def _nothing(self, names: list[str]) -> pa.RecordBatch:
        _, empty = self._look_up(pa.array([], pa.binary()))
        return empty.select(names)

    def _missing(self, column: str) -> SourceError:
        return SourceError(
            f"the source did not send a value of {self._what}.{column}, because it did not"
            " change, and the log has no earlier row with it; perhaps something else wrote to the"
            f" log; load the table again (--reload {self._what})"
        )

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._kept_bytes + batch.nbytes <= KEPT_BYTES:
            self._kept_bytes += batch.nbytes
            self._earlier.append(batch)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="clog-")  # noqa: SIM115 - until the end
        self._file.seek(0, 2)
        self._earlier.append((self._file.tell(), np.unique(_short(batch.column(_KEY)))))
        with pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema) as writer:
            writer.write_batch(batch)
        self._file.flush()

    def _read(self, kept: pa.RecordBatch | tuple[int, _Ints]) -> pa.RecordBatch:
        if isinstance(kept, pa.RecordBatch):
            return kept
        assert self._file is not None, "what is at a position is in the file"
        self._file.seek(kept[0])
        return pa.ipc.open_stream(pa.PythonFile(self._file, "r")).read_next_batch()


def _short(keys: pa.Array) -> _Ints:
    """Returns 32-bit hashes of keys."""
    words = hash_keys(keys, seed=SEED)
    mixed = words[:, 0] ^ words[:, 1]
    return (mixed ^ (mixed >> np.uint64(32))).astype(np.uint32)


def _has_any(ordered: _Ints, wanted: _Ints) -> bool:
    """Returns whether sorted numbers contain any of these."""
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return bool((ordered[at] == wanted).any())


def _before(keys: pa.Array) -> _Ints:
    """Returns for each row the index of the previous row with the same key, or -1."""
    codes = to_numpy(keys.dictionary_encode().indices)
    order = np.argsort(codes, kind="stable")
    before = np.full(len(codes), -1)
    same = codes[order[1:]] == codes[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _sources(before: _Ints, mask: _Flags) -> _Ints:
    """Returns for each row the index of the row that has its value; beyond all rows if none has."""
    count = len(before)
    at = np.arange(2 * count)
    rows = np.flatnonzero(mask)
    at[rows] = np.where(before[rows] >= 0, before[rows], count + rows)
    while True:
        further = at[at]
        if (further == at).all():
            return at[:count]
        at = further
