"""How the rows of a state table prove that they are what was written, and that none is missing.

SQLite has no checksums, so a byte that changes on the disk may change a value, or lead a search
past a key. Each row has two hashes against that:

- its *checksum*, of all that a look-up answers by: what is found is what was written;
- the *tag* of the row before it. A tag is of key and partition. So two neighbours tell that no row
  between them is missing, and that a key is not there.

Before all rows stands one that is none (`START`), and has the tag of the last. Triggers keep the
tags, where rows come and go one by one (`sqlite_file`).

The local file of a state table on its host: which one it is, who may write it, and whether there
is room for it.

Somebody may delete it while it is open, alone or with its folder, and another may come to stand in
its place: who has it open goes on with a file without a name, which nobody else sees or locks. So a
file that is open has an *identity*: device and inode, of it and of its journal, which are no other
file's until it is closed.

The SQLite database of a state table: its tables, its pages, and how it is written and read
(decision 0004).

*Pages*: SQLite keeps at most a quarter of a page of a row in its place. The rest goes to pages of
its own, which it shares with nobody. So four rows of mean length must fit a page with room to
spare; rows too long for any page get small ones, of which the last wastes least.

Not here: which file it is (`table`), what is asked of it (`cache`), how rows tell damage
(`sqlite_file`).

How keys and values of a log are kept in the file of a state table: as bytes.

Those of a log of bytes are themselves. Of a typed log, keys are their canonical bytes, so they sort
as keys do, and values are *row bytes*, which this module alone knows, and no other release must:
00 for null, else 01 and

1. of fixed width: the value as Arrow has it;
2. text and bytes: their length (4 bytes) and themselves;
3. a struct: its fields; a list or a map: how many elements (4 bytes), and those.

They are made for all rows of a batch at once, and read one by one, as they are asked for.
"""

import datetime as dt
import errno
import fcntl
import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_digest, xxh3_64_hexdigest

from clog.storage.errors import ClogError, InvalidInputError, StateFileError
from clog.storage.format.log_info import LogSchema, schema_from_json, schema_to_json
from clog.storage.keys.hashing import key_bytes, key_of_bytes
from clog.storage.numpy_arrays import null, of_bytes, scalar, to_arrow, to_numpy, validity_of
from clog.storage.objects.conforming import answered, asked_keys, asked_prefix, from_python
from clog.storage.objects.layout import (
    column_types,
    elements,
    entries_type,
    is_listed,
    list_lengths,
)

Row = tuple[bytes, int, int, int, bytes | None]
"""Key, partition, offset, timestamp in µs, value."""
Checked = tuple[bytes, int, int, int, bytes, bytes, bytes | None]
"""Key, partition, offset, timestamp in µs, checksum, own tag, value."""
START = b"", -1
"""Key and partition of the row before all others."""
_AT_ONCE = 1_000
_pack_numbers = struct.Struct("<qqqq").pack


class DamagedCacheError(Exception):
    """The file is not what was written; build it anew."""


def tag(key: bytes, partition: int) -> bytes:
    """Returns by what the row after this one knows it."""
    return xxh3_64_digest(key, partition)


def checked(rows: Iterable[Row]) -> Iterator[Checked]:
    """Yields rows with their checksums and tags; the checksum of one that deletes is of no use."""
    left = iter(rows)
    while some := list(islice(left, _AT_ONCE)):
        keys, partitions, offsets, timestamps, values = zip(*some, strict=True)
        numbers = map(_pack_numbers, map(len, keys), partitions, offsets, timestamps)
        contents = [value or b"" for value in values] if None in values else values
        checksums = map(xxh3_64_digest, map(b"".join, zip(numbers, keys, contents, strict=True)))
        tags = map(xxh3_64_digest, keys, partitions)
        columns = keys, partitions, offsets, timestamps, checksums, tags, values
        yield from zip(*columns, strict=True)


def check(key: bytes, numbers: tuple[int, int, int], checksum: bytes, value: bytes) -> None:
    """Raises if a row, of this partition, offset and timestamp, is not what was written.

    Raises:
        DamagedCacheError: it is not.
    """
    try:
        data = _pack_numbers(len(key), *numbers) + key + value
    except (TypeError, struct.error) as e:
        raise DamagedCacheError("a row has fields of other types than were written") from e
    if xxh3_64_digest(data) != checksum:
        raise DamagedCacheError(
            f"the xxh3_64 of the row at offset {numbers[1]} of partition {numbers[0]} is"
            f" {xxh3_64_hexdigest(data)}, which is not the one written with it"
        )


def check_gap(around: Sequence[tuple[Any, ...]]) -> None:
    """Raises if a row may be missing between two: the one before it, and the one after it, after
    the last `START`; both as `check_rows` takes them.

    Raises:
        DamagedCacheError: one is, or the file does not tell.
    """
    if len(around) != 2:
        raise DamagedCacheError("its first row is missing")
    before, (key, partition, offset, timestamp, checksum, tag_before, value) = around
    check(key, (partition, offset, timestamp), checksum, value)
    _check_before(before, tag_before, partition, offset)


def check_rows(
    rows: Iterable[tuple[Any, ...]], high: bytes | None
) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yields key, timestamp, partition and value of the rows below ``high``, None: of all. They are
    taken with key, partition, offset, timestamp, checksum, tag and value, from one that comes
    before all that is asked for on, and up to one that comes after, after the last `START`.

    Raises:
        DamagedCacheError: one is missing, or is not what was written.
    """
    before: tuple[Any, ...] | None = None
    for row in rows:
        key, partition, offset, timestamp, checksum, tag_before, value = row
        check(key, (partition, offset, timestamp), checksum, value)
        if before is not None:
            _check_before(before, tag_before, partition, offset)
            if row[:2] == START or (high is not None and key >= high):
                return
        before = row
        if row[:2] != START:
            yield key, timestamp, partition, value
    raise DamagedCacheError("its first row is missing")


def _check_before(before: tuple[Any, ...], known: bytes, partition: int, offset: int) -> None:
    """Raises if a row is not the one that is known, by this tag, to come before another."""
    try:
        own = tag(*before[:2])
    except (TypeError, OverflowError) as e:
        raise DamagedCacheError("a row has fields of other types than were written") from e
    if own != known:
        raise DamagedCacheError(
            f"the row before the one at offset {offset} of partition {partition} is not the one"
            " that was written there"
        )


Inode = tuple[int, int] | None
Identity = tuple[Inode, Inode]

_JOURNAL = "-wal"
_UNWRITTEN = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)
"""What SQLite says where a quota is used up, or a file may not grow."""
_OF_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


def identity(path: Path) -> Identity:
    """Returns which file stands there now, and which journal; None for what does not."""
    return _inode(path), _inode(path.with_name(path.name + _JOURNAL))


def locked(folder: Path, name: str, url: str) -> IO[str]:
    """Returns a file that lets one process at a time write the files of this name, until it is
    closed: enter it at once. C code does both, so that an interrupt leaves nothing locked.

    Raises:
        StateFileError: it cannot be made; ``url`` is that of the log.
    """
    try:
        return _locked(folder, name)
    except OSError as e:
        raise _unwritable(folder, url, e) from e


@contextmanager
def telling(folder: Path, url: str) -> Iterator[None]:
    """Says in a user's words what is wrong with the disk; ``url`` is that of the log.

    Raises:
        StateFileError: the files cannot be written.
    """
    try:
        yield
    except (sqlite3.OperationalError, DamagedCacheError, OSError) as e:
        if isinstance(e, ClogError) or (isinstance(e, OSError) and not is_of_disk(e)):
            raise
        raise _unwritable(folder, url, e) from e


def is_of_disk(error: Exception) -> bool:
    """Tells whether an error says that the disk has no room, or may not be written."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY) or code in _UNWRITTEN
    return isinstance(error, OSError) and error.errno in _OF_DISK


def temporary_folder() -> str:
    """Returns where SQLite keeps temporary files, as far as its rules tell: it does not say so."""
    named = [os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR")]
    folders = [*filter(None, named), "/var/tmp", "/usr/tmp", "/tmp"]  # noqa: S108 none is made here
    return next((f for f in folders if Path(f).is_dir() and os.access(f, os.W_OK | os.X_OK)), ".")


def _inode(path: Path) -> Inode:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _locked(folder: Path, name: str) -> IO[str]:
    path = folder / f"{name}.lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # Somebody may have emptied the disk.
        lock = path.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = os.fstat(lock.fileno())
            if _inode(path) == (held.st_dev, held.st_ino):
                return lock
        except BaseException:
            lock.close()  # Else it is locked as long as somebody keeps the trace of an interrupt.
            raise
        lock.close()  # It was deleted meanwhile: whoever comes next would lock another.


def _unwritable(folder: Path, url: str, error: Exception) -> StateFileError:
    remedy = (
        f"make room there, and for temporary files in {temporary_folder()}"
        if is_of_disk(error)
        else "see to it that this process may write there, and that nobody else deletes files there"
    )
    return StateFileError(
        f"the file of the state of {url} in {folder} cannot be written: {error}; {remedy}; the log"
        " is whole, and is followed again then"
    )


SCHEMA = 5
"""Of the tables below and the size of their pages; a file of another one is built anew."""
PAGES = ((2 << 10, 16 << 10), (12 << 10, 64 << 10))
"""Up to which mean length of key and value the pages have which size."""
LONG_ROWS_PAGE_BYTES = 4096
"""Size of the pages where rows are longer."""
READER_CACHE_KIB = 65_536
BUSY_S = 60
"""How long a refresh waits for whoever else has the file locked."""
Rows = Iterable[Iterable[Row]]

_POSITION = "create table position (schema integer, body blob, checksum blob)"
_STATE = (
    "create table state (key blob, partition integer, offset integer, timestamp integer,"
    " checksum blob, tag blob, value blob, primary key (key, partition)) without rowid"
)
TABLES = (_POSITION, _STATE)
_AFTER = """(
  select * from (
    select a.key, a.partition from state a where (a.key, a.partition) > (row.key, row.partition)
    order by a.key, a.partition limit 1
  ) union all select x'', -1 limit 1
)"""
_COME = """create trigger come after insert on state begin
  update state set tag = (select tag from state where (key, partition) = {after})
    where key = new.key and partition = new.partition;
  update state set tag = new.tag where (key, partition) = {after};
end""".replace("{after}", _AFTER.replace("row.", "new."))
_GO = """create trigger go after delete on state begin
  update state set tag = old.tag where (key, partition) = {after};
end""".replace("{after}", _AFTER.replace("row.", "old."))
TRIGGERS = _COME, _GO
"""They keep the tags, once all rows of the build are there: a row comes with its own, and changes
it for that in the row after it.
"""
_STAGED = (
    "create temp table if not exists staged (key blob, partition integer, offset integer,"
    " timestamp integer, checksum blob, tag blob, value blob)"
)
_FILL = (
    "insert or replace into state select * from staged where value is not null"
    " order by key, partition"
)
_ENTER = """
insert into state {rows} on conflict (key, partition) do update set
  offset = excluded.offset, timestamp = excluded.timestamp, checksum = excluded.checksum,
  value = excluded.value
"""
_ENTER_STAGED = _ENTER.replace(
    "{rows}", "select * from staged where value is not null order by key, partition"
)
_ENTER_ROW = _ENTER.replace("{rows}", "values (?, ?, ?, ?, ?, ?, ?)")
_CORRUPT = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_ERROR,  # A statement that does not fit the tables, which it always does.
    }
)


@dataclass(frozen=True, slots=True)
class Position:
    """What the rows are the state of: a version of a log, made by this commit, all offsets below
    ``offsets``; log starts were ``starts``. ``schema`` is the log's at that version.
    """

    log_id: str
    version: int
    commit_id: str
    offsets: Mapping[int, int]
    starts: Mapping[int, int]
    schema: LogSchema | None = None


class _Damage:
    """Turns what SQLite says of a damaged file into `DamagedCacheError`. A class, which costs less
    than a generator.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, sqlite3.DatabaseError):
            raise_damage(error)


DAMAGE = _Damage()
"""Around all that SQLite does with the file."""


def raise_damage(error: sqlite3.DatabaseError) -> None:
    """Raises if SQLite says by this that the file is damaged.

    Raises:
        DamagedCacheError: it does.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    if code & 0xFF in _CORRUPT and not is_of_disk(error):
        raise DamagedCacheError(str(error)) from error


def connect(path: Path, *, read_only: bool = False, journal: bool = True) -> sqlite3.Connection:
    """Opens a file that is there; without ``journal`` a new one, which is only built."""
    # A file that is gone must not come back as an empty one.
    uri = f"{path.absolute().as_uri()}?mode={'rw' if journal else 'rwc'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    # No mmap: a file that lost its end would kill the process.
    connection.execute(f"pragma cache_size = -{READER_CACHE_KIB}")
    # A refresh that a power failure takes back is read again from the log.
    connection.execute(f"pragma synchronous = {'normal' if journal else 'off'}")
    connection.execute("pragma journal_size_limit = 67108864")
    connection.execute("pragma cell_size_check = on")
    connection.execute("pragma secure_delete = on")  # Nothing may lead to a row that was replaced.
    connection.text_factory = bytes  # So that damage is no matter of what is text.
    if not journal:
        connection.execute("pragma journal_mode = off")
    if read_only:
        connection.execute("pragma query_only = on")
    return connection


def check_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Raises if a file was cut in a page, which SQLite would fill with zeros; or if a damaged
    journal has less than was taken from it into the file already, so that old pages hide new ones.

    Raises:
        DamagedCacheError: it was.
    """
    entered = _entered(path)
    (size,) = connection.execute("pragma page_size").fetchone()
    (last,) = connection.execute("pragma user_version").fetchone()
    if path.stat().st_size % size:
        raise DamagedCacheError("its last page was cut")
    if connection.execute("pragma journal_mode").fetchone() != (b"wal",):
        raise DamagedCacheError("its header is not that of a file with a write-ahead log")
    if entered > last:
        raise DamagedCacheError(f"its journal ends at version {last}, and it has {entered} already")


def _entered(path: Path) -> int:
    """Returns the version of the log that the file shows without its journal."""
    # Through SQLite: whoever else in a process closes a file takes all locks of the process away,
    # and then the next process that closes it takes itself for the last, and deletes the journal.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as alone:
        alone.execute("pragma writable_schema = on")  # The journal may have more pages.
        (version,) = alone.execute("pragma user_version").fetchone()
    entered: int = version
    return entered


def stage(connection: sqlite3.Connection, rows: Rows) -> None:
    """Puts rows aside, so that they are entered in the order of keys, each page written once."""
    connection.execute(_STAGED)
    for some in rows:
        connection.executemany("insert into staged values (?, ?, ?, ?, ?, ?, ?)", checked(some))


def page_bytes(connection: sqlite3.Connection) -> int:
    """Returns the size of pages that the staged rows waste least of."""
    (mean,) = connection.execute(
        "select avg(ifnull(length(key), 0) + length(value)) from staged"
    ).fetchone()
    return next((size for up_to, size in PAGES if (mean or 0) <= up_to), LONG_ROWS_PAGE_BYTES)


def fill(connection: sqlite3.Connection) -> None:
    """Enters the staged rows that have a value into a new table, in the order of their keys."""
    connection.execute(_FILL)
    before = tag(*START)

    def tag_before(own: bytes) -> bytes:
        nonlocal before
        told, before = before, own
        return told

    connection.create_function("tag_before", 1, tag_before)
    connection.execute("update state set tag = tag_before(tag)")
    (start,) = checked([(*START, 0, 0, b"")])
    connection.execute(_ENTER_ROW, (*start[:5], before, b""))


def enter(connection: sqlite3.Connection) -> None:
    """Enters the staged rows, in the order of their keys; those without a value delete."""
    connection.execute(_ENTER_STAGED)
    connection.execute(
        "delete from state where (key, partition) in"
        " (select key, partition from staged where value is null)"
    )


def enter_sorted(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Enters rows that are in the order of their keys; those without a value delete."""
    connection.executemany(_ENTER_ROW, checked(row for row in rows if row[4] is not None))
    gone = [row[:2] for row in rows if row[4] is None]
    connection.executemany("delete from state where key = ? and partition = ?", gone)


def delete_below(connection: sqlite3.Connection, partition: int, start: int) -> None:
    """Deletes the rows of a partition below an offset.

    Raises:
        DamagedCacheError: one of them is not what was written, and may not be below it.
    """
    damage: list[DamagedCacheError] = []

    def is_right(key: Any, offset: Any, timestamp: Any, checksum: Any, value: Any) -> bool:
        try:
            check(key, (partition, offset, timestamp), checksum, value)
        except DamagedCacheError as e:
            damage.append(e)
        return not damage

    connection.create_function("is_right", 5, is_right)
    connection.execute(
        "delete from state where partition = ? and offset < ?"
        " and is_right(key, offset, timestamp, checksum, value)",
        (partition, start),
    )
    if damage:
        raise damage[0]


def move(connection: sqlite3.Connection, position: Position) -> None:
    """Says what the rows are the state of."""
    partitions = [[p, at, position.starts[p]] for p, at in sorted(position.offsets.items())]
    same = position.log_id, position.version, position.commit_id
    body = json.dumps([*same, partitions, schema_to_json(position.schema)]).encode()
    connection.execute("delete from position")
    connection.execute(
        "insert into position values (?, ?, ?)", (SCHEMA, body, xxh3_64_digest(body))
    )
    connection.execute(f"pragma user_version = {position.version & 0x7FFFFFFF}")


def position(connection: sqlite3.Connection) -> Position:
    """Returns what the rows are the state of.

    Raises:
        DamagedCacheError: the file does not say so.
    """
    rows = connection.execute("select * from position").fetchall()
    if not rows:
        raise DamagedCacheError("it has no position")
    if rows[0][0] != SCHEMA:
        raise DamagedCacheError(f"its schema is {rows[0][0]}, expected {SCHEMA}")
    _, body, checksum = rows[0]
    if len(rows) > 1 or type(body) is not bytes or xxh3_64_digest(body) != checksum:
        raise DamagedCacheError("the position in it is not what was written")
    log_id, version, commit_id, partitions, types = json.loads(body)
    offsets = {p: offset for p, offset, _ in partitions}
    starts = {p: start for p, _, start in partitions}
    return Position(log_id, version, commit_id, offsets, starts, schema_from_json(types))


_LENGTH: Final = struct.Struct("<I")
_NUMBERS: Final = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        pa.int8(): "b",
        pa.int16(): "h",
        pa.int32(): "i",
        pa.int64(): "q",
        pa.uint8(): "B",
        pa.uint16(): "H",
        pa.uint32(): "I",
        pa.uint64(): "Q",
        pa.float32(): "f",
        pa.float64(): "d",
    }.items()
}


class RowCodec:
    """Keys and values of logs with one schema; None: bytes."""

    def __init__(self, schema: LogSchema | None) -> None:
        self.schema = schema
        self._types = None if schema is None else column_types(schema)

    def keys(self, keys: Iterable[Any]) -> list[bytes]:
        """Returns the bytes of keys that are asked for.

        Raises:
            InvalidInputError: a key of another type than the log's.
        """
        return asked_keys(keys, self.schema)

    def stored_key(self, key: Any) -> bytes:
        """Returns the bytes of one key that is asked for; raises as `keys`."""
        if self._types is None and type(key) is bytes:
            return key
        return self.keys((key,))[0]

    def prefix(self, prefix: Any) -> bytes:
        """Returns what the bytes of all keys with a prefix begin with.

        Raises:
            InvalidInputError: keys of the log have no such prefix.
        """
        return asked_prefix(prefix, self.schema)

    def key(self, data: bytes) -> Any:
        """Returns a key as it is answered."""
        return data if self._types is None else key_of_bytes(data, self._types.key)

    def value(self, data: bytes) -> Any:
        """Returns a value as it is answered."""
        return data if self._types is None else _read(memoryview(data), 0, self._types.value)[0]

    def stored_value(self, value: Any) -> bytes:
        """Returns the bytes of a value that is to be kept.

        Raises:
            InvalidInputError: it is None, or does not fit the log's schema.
        """
        if value is None:
            raise InvalidInputError("a value that is put is None; delete the key instead")
        if self._types is None:
            return _octets(value)
        made: bytes = row_bytes(from_python([value], self._types.records.field("value")))[0].as_py()
        return made

    def records(self, keys: list[bytes], values: list[bytes | None]) -> dict[str, pa.Array]:
        """Returns the columns of records with these keys and values, None: a tombstone."""
        if self._types is None:
            return {"key": of_bytes(keys), "value": of_bytes(values)}
        decoded = [None if value is None else self.value(value) for value in values]
        types = self._types.records
        named = [_with_names(self.key(key), self._types.key) for key in keys]
        return {
            "key": from_python(named, types.field("key")),
            "value": from_python(decoded, types.field("value")),
        }

    def columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch with the bytes of its keys and values."""
        if self._types is None:
            return batch
        made = {"key": key_bytes(batch.column("key")), "value": row_bytes(batch.column("value"))}
        names = batch.schema.names
        arrays = [made[name] if name in made else batch.column(name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _octets(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as e:
            raise InvalidInputError(
                f"a value that is put is not valid text: a lone surrogate at character {e.start};"
                " pass binary data as bytes"
            ) from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidInputError(
        f"a value of type {type(value).__name__} is put; it must be bytes or str"
    )


def _with_names(key: Any, kind: pa.DataType) -> Any:
    """Returns an answered key with names for the fields of tuples."""
    if not pa.types.is_struct(kind) or key is None:
        return key
    return {f.name: _with_names(part, f.type) for f, part in zip(kind, key, strict=True)}


def row_bytes(values: pa.Array) -> pa.Array:
    """Returns the row bytes of values; null for null."""
    return _joined([_constant(b"\x01"), *_contents(values)])


def _contents(values: pa.Array) -> list[pa.Array]:
    """Returns what follows 01, in parts; null where the value is."""
    kind = values.type
    if pa.types.is_struct(kind):
        parts = [_with_mark(field) for field in values.flatten()]
        return [pc.if_else(values.is_valid(), parts[0], null(pa.binary())), *parts[1:]]
    if is_listed(kind):
        lengths = list_lengths(values)
        ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        flat = _with_mark(elements(values))
        valid = values.is_valid()
        lists = pa.ListArray.from_arrays(to_arrow(ends), flat)
        counts = pc.if_else(valid, _lengths(lengths), null(pa.binary()))
        return [counts, pc.binary_join(lists, _constant(b""))]
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        octets = values.cast(pa.binary())
        lengths = to_numpy(pc.fill_null(pc.binary_length(octets), scalar(0, pa.int32())))
        return [_lengths(lengths), octets]
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    width = values.type.byte_width
    data = values.buffers()[1].slice(values.offset * width, len(values) * width)
    buffers = [validity_of(values), data]
    return [pa.Array.from_buffers(pa.binary(width), len(values), buffers).cast(pa.binary())]


def _with_mark(values: pa.Array) -> pa.Array:
    return pc.fill_null(row_bytes(values), _constant(b"\x00"))


def _lengths(lengths: np.ndarray[Any, Any]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(lengths, "<u4"))
    return pa.Array.from_buffers(pa.binary(4), len(lengths), [None, data]).cast(pa.binary())


def _joined(parts: list[Any]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _constant(b""))


def _constant(text: bytes) -> pa.Scalar:
    return of_bytes([text])[0]


def _read(data: memoryview, at: int, kind: pa.DataType) -> tuple[Any, int]:
    """Returns the value that begins at a byte, and where it ends."""
    if not data[at]:
        return None, at + 1
    return _reader_of(kind)(data, at + 1)


@lru_cache(maxsize=1024)
def _reader_of(kind: pa.DataType) -> Callable[[memoryview, int], tuple[Any, int]]:
    """Returns what reads a value of the type that is there."""
    if (number := _NUMBERS.get(kind)) is not None:
        return lambda data, at: (number.unpack_from(data, at)[0], at + number.size)
    if pa.types.is_struct(kind):
        fields = [(field.name, field.type) for field in kind]
        return lambda data, at: _read_struct(data, at, fields)
    if is_listed(kind):
        return lambda data, at: _read_list(data, at, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return lambda data, at: _read_text(data, at, is_text=pa.types.is_string(kind))
    if pa.types.is_boolean(kind):
        return lambda data, at: (bool(data[at]), at + 1)
    return lambda data, at: _read_other(data, at, kind)


def _read_struct(
    data: memoryview, at: int, fields: list[tuple[str, pa.DataType]]
) -> tuple[dict[str, Any], int]:
    found = {}
    for name, kind in fields:
        found[name], at = _read(data, at, kind)
    return found, at


def _read_list(data: memoryview, at: int, kind: pa.DataType) -> tuple[list[Any], int]:
    (count,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    found = []
    for _ in range(count):
        element, at = _read(data, at, entries_type(kind))
        found.append(tuple(element.values()) if pa.types.is_map(kind) else element)
    return found, at


def _read_text(data: memoryview, at: int, *, is_text: bool) -> tuple[str | bytes, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    octets = bytes(data[at : at + length])
    return (octets.decode() if is_text else octets), at + length


def _read_other(data: memoryview, at: int, kind: pa.DataType) -> tuple[Any, int]:
    end = at + kind.byte_width
    buffers = [None, pa.py_buffer(bytes(data[at:end]))]
    if pa.types.is_timestamp(kind) and kind.tz and kind.unit != "ns":  # Zones import pandas.
        (plain,) = answered(pa.Array.from_buffers(pa.timestamp(kind.unit), 1, buffers))
        return plain.replace(tzinfo=dt.UTC), end  # As a schema has no other zone.
    return answered(pa.Array.from_buffers(kind, 1, buffers))[0], end
