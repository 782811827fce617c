"""Reads the captured tables from the catalogue, and finds out whether they have changed.

A table is identified by its oid, a column by its number, whatever their names are. Both are kept
with the logs, as a *binding*: the table as it was at its log's position. A change of the catalogue
may be taken back before it is looked at, so equal names, types and labels prove nothing; the
binding has what never comes back:

- the numbers of columns, and how many there have ever been: one that was dropped and added again
  has another number; one that was added with a default filled existing rows;
- the file of the rows, if a column's entry has another transaction, too: VACUUM FULL and TRUNCATE
  also change it. Of a table without a published name, the entry of its TOAST table instead;
- the transactions that wrote the entries of its types' labels and columns (*entries*);
- the names of dropped columns, whose values the log still has;
- the same for attached partitions, for indexes that may be their replica identity, and the file of
  each partition;
- the numbers of the entries that publish it, and the transaction that set what is published.

What the binding cannot tell, the stream does: PostgreSQL describes a table anew (a *relation*)
before the first row after each change. `Binding.has` decides whether rows that were described like
this have what the log needs. Whatever differs *reloads* the table. A *stamp* is all this in one
value for each table, compared before each cut.

A table whose updates and deletes do not name their row by a key is refused before anything is
published, or only its inserts are taken: publishing would make the application's updates fail.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from clog.bridge.capturing.tables import (
    DROP,
    EVENTS,
    HASH,
    MASKED,
    TEXT,
    Choice,
    Column,
    SourceTable,
    name_of,
    quoted,
)
from clog.bridge.postgres.source import Queries, Source, literal
from clog.storage import InvalidInputError, NotFoundError
from clog.storage.spi import dataclass

_OWN_TYPES: Final = 16384
"""Types from this number on are user-defined; those below it do not change."""
_TREES: Final = """
with recursive trees(root, oid, entry) as (
  select t, t, null::xid from unnest(%(oids)s::oid[]) t
  union all
  select t.root, i.inhrelid, i.xmin from trees t join pg_class c on c.oid = t.oid
  join pg_inherits i on i.inhparent = t.oid where c.relkind = 'p' and not i.inhdetachpending
)
"""
"""Tables with their partitions. PostgreSQL's own functions would wait, however long it takes, for
transactions that have locked one of the tables: no query here takes a lock.
"""
_TABLES: Final = """
select c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
    greatest(c.reltuples, 0)::bigint, greatest(c.relpages, 0)::bigint, c.relnatts
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
    and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
order by 2, 3
"""
_COLUMNS: Final = """
select a.attrelid::bigint, a.attname::text, a.attnum, a.atttypid::bigint, a.atttypmod, a.attnotnull,
    a.attndims, a.attgenerated::text, a.atthasdef or a.atthasmissing or a.attidentity <> '',
    a.attlen = -1, a.xmin::text::bigint, c.relfilenode::bigint
from pg_attribute a join pg_class c on c.oid = a.attrelid
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
order by 1, 3
"""
"""Includes the file: in one query, it and the columns' entries are from the same moment."""
_INDEXES: Final = """
select i.indrelid::bigint, i.indisprimary, i.indisreplident, i.indimmediate,
    i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null,
    (i.indkey::int2[])[0:i.indnkeyatts - 1]
from pg_index i where i.indrelid = any(%s::oid[]) order by i.indexrelid
"""
_PUBLISHED: Final = """
select schemaname::text, tablename::text from pg_publication_tables where pubname = %s
"""
_WITH_ENTRIES: Final = f"""{_TREES}, types(root, oid) as (
  select attrelid, atttypid from pg_attribute
  where attrelid = any(%(oids)s::oid[]) and attnum > 0 and atttypid >= {_OWN_TYPES}
  union
  select n.root, i.oid from types n join pg_type t on t.oid = n.oid
    left join pg_range r on n.oid in (r.rngtypid, r.rngmultitypid),
    lateral (
      select t.typbasetype union all select t.typelem union all select r.rngsubtype union all
      select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0
    ) i(oid) where i.oid >= {_OWN_TYPES}
), entries(root, name, entry) as (
  select n.root, 'e' || e.oid, e.xmin::text from types n join pg_enum e on e.enumtypid = n.oid
  union all
  select n.root, 'c' || t.typrelid,
    md5(string_agg(a.attnum || '/' || a.xmin, ' ' order by a.attnum))
  from types n join pg_type t on t.oid = n.oid join pg_attribute a on a.attrelid = t.typrelid
  where a.attnum > 0 group by 1, 2
  union all
  select t.root, 'p', md5(string_agg(t.oid || '/' || t.entry, ' ' order by t.oid))
  from trees t where t.oid <> t.root group by 1
  union all
  select t.root, 'i' || i.indexrelid, i.xmin::text
  from trees t join pg_index i on i.indrelid = t.oid where t.oid <> t.root and i.indisunique
)
"""  # noqa: S608 - all is written here
"""What changes the text of values, and what is a row of the table: labels (e) and columns (c) of
types, partitions (p), and the indexes that may identify their rows (i).
"""
_ENTRIES: Final = f"{_WITH_ENTRIES} select root::bigint, name, entry from entries"  # noqa: S608
_PUBLISHING: Final = """
select c.oid, concat_ws('/', e.oid, p.xmin, case when e.relation is null then concat_ws(
    '/', c.reltoastrelid, case c.reltoastrelid when 0 then c.relfilenode end,
    case when e.namespace is not null then y.xmin end) end)
from pg_publication p join (
  select oid, oid, null::oid, null::oid from pg_publication where puballtables
  union all select oid, prpubid, prrelid, null from pg_publication_rel
  {schemas}
) e(oid, publication, relation, namespace) on e.publication = p.oid
join pg_class c on c.oid = any(%(oids)s::oid[])
  and c.oid = coalesce(e.relation, c.oid) and c.relnamespace = coalesce(e.namespace, c.relnamespace)
join pg_type y on y.typrelid = c.oid
where p.pubname = any(%(names)s)
"""
_SCHEMAS: Final = "union all select oid, pnpubid, null, pnnspid from pg_publication_namespace"
_STAMP: Final = f"""{_WITH_ENTRIES}
select root::bigint, md5(string_agg(part, ' ' order by part collate "C")) from (
  select oid, concat_ws('/', 'c', relam, relpersistence, relreplident, relispartition)
  from pg_class where oid = any(%(oids)s::oid[])
  union all select attrelid, concat_ws('/', 'a', attnum, xmin) from pg_attribute
  where attrelid = any(%(oids)s::oid[]) and attnum > 0
  union all
  select indrelid, concat_ws('/', 'i', indexrelid, indimmediate, indisreplident, indisprimary)
  from pg_index where indrelid = any(%(oids)s::oid[]) and indisunique
  union all select t.root, concat_ws('/', 'l', c.oid, c.relfilenode, c.relreplident)
  from trees t join pg_class c on c.oid = t.oid where t.oid <> t.root
  union all select root, name || '/' || entry from entries
  union all {{publishing}}
) parts(root, part) group by 1
"""  # noqa: S608 - all is written here
_OPTIONS: Final = (
    "select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot from pg_publication"
)
_LISTS_VERSION: Final = 150_000
"""The first version in which publications have filters, lists of columns, and schemas."""
_LEAVES: Final = f"""{_TREES}
select t.root::bigint, c.oid::bigint, c.relfilenode::bigint, greatest(c.relpages, 0)::bigint,
    c.relname::text, c.relkind = 'r' and c.relpersistence = 'p', c.relreplident::text, array(
        select a.attname::text from pg_index i join pg_attribute a on a.attrelid = i.indrelid
        where i.indrelid = c.oid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1])
        and case c.relreplident when 'i' then i.indisreplident else i.indisprimary end)
from trees t join pg_class c on c.oid = t.oid where c.relkind <> 'p' and t.oid <> t.root
"""  # noqa: S608 - all is written here
_log = logging.getLogger(__name__)


def read(
    ask: Queries,
    choice: Choice,
    *,
    address: str,
    skipped: set[int],
    known: Collection[int] = (),
    publication: str | None = None,
) -> list[SourceTable]:
    """Returns the chosen tables, in the order of their names. Four queries, or six.
    With a given ``publication``, only those that it has. If some are ``known``, by their oids, new
    ones that cannot be followed are left out, with a warning the first time.
    """
    rows = _selected(ask, choice, publication)
    if not rows:
        raise NotFoundError(f"{address} has no table that was selected; see --tables and --exclude")
    oids = [row[0] for row in rows]
    columns, indexes = _grouped(ask.rows(_COLUMNS, [oids])), _grouped(ask.rows(_INDEXES, [oids]))
    leaves = _grouped(ask.rows(_LEAVES, {"oids": [row[0] for row in rows if row[3] == "p"]}))
    entries = _grouped(ask.rows(_ENTRIES, {"oids": oids}))
    made, refused = [], []
    unknown = set(choice.masks)
    for row in rows:
        oid, what = row[0], name_of(*row[1:3])
        key, why = _key_of(row[4], indexes[oid])
        if key is None and not choice.events:
            if known and oid not in known:
                if oid not in skipped:
                    _log.warning("%s of %s is skipped: %s", what, address, why)
                skipped.add(oid)
                continue
            refused.append(f"{what} ({why})")
        one = replace(_table(row, columns[oid], key, choice), entries=dict(entries[oid]))
        _check_leaves(one, leaves[oid])
        files = {leaf: file for leaf, file, *_ in leaves[oid]}
        pages = one.pages + sum(leaf[2] for leaf in leaves[oid])
        made.append(replace(one, leaves=files, pages=pages))
        unknown -= {f"{what}.{column[0]}" for column in columns[oid]}
    if refused:
        raise InvalidInputError(
            f"updates and deletes of these tables of {address} do not identify a row, and would"
            f" fail in the application if the tables were published: {', '.join(refused)}; give"
            " them a primary key that is not deferrable, or a REPLICA IDENTITY USING INDEX; or"
            " leave them out (--exclude), or capture only their inserts, as events (--events)"
        )
    if unknown:
        raise InvalidInputError(f"--mask names columns that do not exist: {sorted(unknown)}")
    return made


def _table(
    row: Sequence[Any],
    there: Sequence[Any],
    key: Sequence[int] | None,
    choice: Choice,
) -> SourceTable:
    """Returns a table without its leaves; ``there``: its columns in the catalogue."""
    oid, schema, name, _, _, count, pages, width = row
    what, numbers = name_of(schema, name), frozenset(key or ())
    masks = {c[0]: choice.masks.get(f"{what}.{c[0]}") for c in there}
    left = {n: "it is generated, and not sent" for n, *_, gen, _, _, _, _ in there if gen}
    sent = tuple((n, kind, mod) for n, _, kind, mod, *_ in there if n not in left)
    left |= {n: MASKED for n, mask in masks.items() if mask == DROP}
    if masked := [n for n, num, *_ in there if num in numbers and masks[n] == DROP]:
        raise InvalidInputError(f"{what}.{masked[0]} is part of the key, and cannot be dropped")
    if dotted := [n for n, *_ in there if "." in n and n not in left]:
        raise InvalidInputError(
            f"{what} has columns {dotted}, but columns of a log cannot have a dot in their name;"
            f" leave them out (--mask {what}.{dotted[0]}=drop), or the table (--exclude {what})"
        )
    return SourceTable(
        *(oid, schema, name, EVENTS if key is None else "key"),
        columns=tuple(
            Column(n, num, kind, mod, not_null, num in numbers, dims)
            for n, num, kind, mod, not_null, dims, *_ in there
            if n not in left
        ),
        defaults=frozenset(num for _, num, *_, has_default, _, _, _ in there if has_default),
        toasted=frozenset(
            n for n, num, *_, may_be_long, _, _ in there if may_be_long and num not in numbers
        )
        - left.keys(),
        leaves={},
        width=width,
        file=there[0][-1] if there else 0,
        stamps={num: stamp for n, num, *_, stamp, _ in there if n not in left},
        sent=sent,
        live=frozenset(num for _, num, *_ in there),
        rows=count,
        pages=pages,
        masks={n: mask for n, mask in masks.items() if mask in (HASH, TEXT)},
        left=left,
    )


def _check_leaves(table: SourceTable, leaves: Sequence[Any]) -> None:
    """Raises if a partition's changes do not arrive, or name rows by another key."""
    what, key = table.what, table.key
    for *_, name, is_logged, identity, its_key in leaves:
        if not is_logged:
            raise InvalidInputError(
                f"partition {name} of {what} is unlogged, or a foreign table: the database does"
                f" not send its changes; leave the table out (--exclude {what})"
            )
        if key and identity != "f" and (identity == "n" or {*its_key} != {*key}):
            raise InvalidInputError(
                f"partition {name} of {what} has a replica identity other than its table's, whose"
                f" key is {key}: ALTER TABLE … REPLICA IDENTITY of the partition, or leave the"
                f" table out (--exclude {what})"
            )


def _selected(ask: Queries, choice: Choice, publication: str | None) -> list[Any]:
    rows = [row for row in ask.rows(_TABLES) if choice.has(name_of(*row[1:3]))]
    among = set(ask.rows(_PUBLISHED, [publication])) if publication is not None else ()
    return [row for row in rows if not among or row[1:3] in among]


def _grouped(rows: Sequence[Any]) -> "defaultdict[int, list[Any]]":
    made: defaultdict[int, list[Any]] = defaultdict(list)
    for oid, *rest in rows:
        made[oid].append(rest)
    return made


def _key_of(identity: str, indexes: Sequence[Any]) -> tuple[Sequence[int] | None, str]:
    """Returns the numbers of the columns that name the row of an update; or None, and why."""
    if identity == "n":
        return None, "its REPLICA IDENTITY is NOTHING"
    usable = [row for row in indexes if row[2] and row[3]]
    primary = [row for row in usable if row[0]]
    named = [row for row in usable if row[1]]
    if identity == "i":
        return (named[0][4], "") if named else (None, "the index of its REPLICA IDENTITY is gone")
    if primary:
        return primary[0][4], ""
    if any(row[0] for row in indexes):
        return None, "its primary key is deferrable"
    if identity == "f":
        return None, "REPLICA IDENTITY FULL without a primary key cannot tell equal rows apart"
    return None, "it has no primary key"


@dataclass(frozen=True, slots=True)
class Publications:
    """The publications that are read.

    Attributes:
        names: their names.
        filters: by table, the condition on the rows that are sent, unless all are.
    """

    names: tuple[str, ...]
    filters: Mapping[str, str] = field(default_factory=dict)


def own_names(name: str) -> tuple[str, str]:
    """Returns the names of our publications: for tables with keys, and for events."""
    return name, f"{name}_events"


def publish(ask: Queries, name: str, tables: Sequence[SourceTable]) -> Publications:
    """Makes our publications publish exactly these tables, whole; creates the publications if they
    do not exist, even one that has no table yet: decoding does not find one that is younger than
    the slot.
    """
    names = []
    has_lists = ask.connection.server_version >= _LISTS_VERSION
    whole = "r.prqual is null and r.prattrs is null" if has_lists else "true"
    for events, own in zip((False, True), own_names(name), strict=True):
        wanted = {t.sql for t in tables if (t.identity == EVENTS) == events}
        kinds = "insert" if events else "insert, update, delete, truncate"
        options = f"(publish = {literal(kinds)}, publish_via_partition_root = true)"
        found = ask.rows(f"{_OPTIONS} where pubname = %s", [own])
        names.append(own)
        if not found:
            these = f" FOR TABLE ONLY {', ONLY '.join(sorted(wanted))}" if wanted else ""
            ask.run(f"CREATE PUBLICATION {quoted(own)}{these} WITH {options}")
            continue
        if found[0] != (True, *[not events] * 3, True):
            ask.run(f"ALTER PUBLICATION {quoted(own)} SET {options}")
        there = {
            f"{quoted(schema)}.{quoted(table)}": is_whole
            for schema, table, is_whole in ask.rows(
                f"select n.nspname::text, c.relname::text, {whole}"  # noqa: S608 - one of two
                " from pg_publication_rel r join pg_publication p on p.oid = r.prpubid"
                " join pg_class c on c.oid = r.prrelid"
                " join pg_namespace n on n.oid = c.relnamespace where p.pubname = %s",
                [own],
            )
        }
        right = {table for table, is_whole in there.items() if is_whole} & wanted
        if gone := sorted(there.keys() - right):
            ask.run(f"ALTER PUBLICATION {quoted(own)} DROP TABLE ONLY {', ONLY '.join(gone)}")
        if new := sorted(wanted - right):
            ask.run(f"ALTER PUBLICATION {quoted(own)} ADD TABLE ONLY {', ONLY '.join(new)}")
    return Publications(tuple(names))


def numbered(
    ask: Queries, names: Sequence[str], tables: Sequence[SourceTable]
) -> list[SourceTable]:
    """Returns tables with the numbers of the entries that publish them, which change if an entry's
    filter or columns change or its schema is left out for a time; and of the transaction that last
    set what the publication sends.
    """
    given = {"names": list(names), "oids": [one.oid for one in tables]}
    found = _grouped(ask.rows(_publishing(ask), given))
    return [
        replace(one, published=" ".join(sorted(number for (number,) in found[one.oid])))
        for one in tables
    ]


def _publishing(ask: Queries) -> str:
    has_schemas = ask.connection.server_version >= _LISTS_VERSION
    return _PUBLISHING.format(schemas=_SCHEMAS if has_schemas else "")


def stamps(ask: Queries, names: Sequence[str], tables: Collection[int]) -> dict[int, str]:
    """Returns for each of these tables, by oid, a value that differs after each change of the
    catalogue that may have changed its rows without a message. Other changes may change it too, but
    not the common ones: TRUNCATE and VACUUM FULL of a table without partitions. One query.
    """
    query = _STAMP.format(publishing=_publishing(ask))
    return dict(ask.rows(query, {"names": list(names), "oids": list(tables)}))


def file_of(ask: Queries, oid: int) -> int:
    """Returns the file of a table's rows, as `SourceTable` has it. One query."""
    ((file,),) = ask.rows("select relfilenode::bigint from pg_class where oid = %s", [oid])
    return int(file)


def published(
    ask: Queries, source: Source, name: str, tables: Sequence[SourceTable]
) -> tuple[Publications, list[SourceTable]]:
    """Returns those of these tables that a publication of the user's has, and its filters."""
    tables = numbered(ask, [name], tables)  # Before the filters, so that those are not older.
    found = ask.rows(f"{_OPTIONS} where pubname = %s", [name])
    if not found:
        raise NotFoundError(f"{source.address} has no publication {name}")
    *kinds, via_root = found[0]
    if not all(kinds):
        raise InvalidInputError(f"publication {name} must publish insert, update, delete, truncate")
    has_lists = ask.connection.server_version >= _LISTS_VERSION
    own = "t.rowfilter, t.attnames" if has_lists else "null, null"
    listed = (
        f"select t.schemaname::text, t.tablename::text, {own}::text[]"  # noqa: S608 - one of two
        " from pg_publication_tables t where t.pubname = %s"
    )
    rows = {
        (schema, table): (where, kept) for schema, table, where, kept in ask.rows(listed, [name])
    }
    made, filters = [], {}
    for table in tables:
        if (table.schema, table.name) not in rows:
            continue
        if table.leaves and not via_root:
            raise InvalidInputError(
                f"publication {name} sends the partitions of {table.what} one by one: set"
                " publish_via_partition_root = true"
            )
        where, names = rows[table.schema, table.name]
        kept = tuple(c for c in table.columns if names is None or c.name in names)
        left = {
            c.name: f"publication {name} does not contain it"
            for c in table.columns
            if c not in kept
        }
        if left.keys() & set(table.key):
            raise InvalidInputError(
                f"publication {name} does not contain all key columns of {table.what}"
            )
        toasted = table.toasted - left.keys()
        left = {**table.left, **left}
        sent = tuple(one for one in table.sent if names is None or one[0] in names)
        stamps = {c.attnum: table.stamps[c.attnum] for c in kept}
        made.append(
            replace(table, columns=kept, toasted=toasted, left=left, sent=sent, stamps=stamps)
        )
        if where:
            filters[table.what] = where
    if not made:
        raise NotFoundError(
            f"publication {name} of {source.address} has no table that was selected"
        )
    return Publications((name,), filters), made
