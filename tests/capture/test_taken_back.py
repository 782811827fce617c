"""A change of the catalogue that is taken back: both ends are equal, what came between is not.

Each field of the catalogue that a capture reads has a pair of statements, there and back
(`PAIRS`); between them rows are inserted, updated, moved to another key, deleted, or truncated,
while the capture is stopped or runs. Whatever the pair, the logs then have what the tables have.
"""

import re
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from clog.bridge import TableSettings, verify_capture
from clog.bridge.postgres import catalogue
from clog.bridge.postgres.source import lsn_of
from clog.storage import InvalidInputError, SourceError

SETUP = """
create schema {s};
create type {s}.label as enum ('a', 'b');
create type {s}.pair as (x text, y {s}.label);
create domain {s}.named as {s}.label;
"""
ORDINARY = """
create table {t} (id int primary key, code int not null unique, v varchar(20), w varchar(20),
    n int, e {s}.named, c {s}.pair[], d {s}.pair);
insert into {t} select i, -i, 'v' || i, 'w' || i, i, 'a'::{s}.named,
    array['(x,b)']::{s}.pair[], '(x,a)'::{s}.pair
    from generate_series(1, 9) i;
"""
NARROW = """
create table {t} (id int primary key, code int not null unique, n int);
insert into {t} select i, -i, i from generate_series(1, 9) i;
"""
PARTED = """
create table {t} (id int primary key, code int not null, n int) partition by range (id);
create table {t}_1 partition of {t} for values from (0) to (1000);
create unique index on {t}_1 (code);
insert into {t} select i, -i, i from generate_series(1, 9) i;
"""
BESIDE = f"""{PARTED}
create table {{s}}.b{{n}} (id int primary key, code int not null, n int);
insert into {{s}}.b{{n}} select i, -i, i from generate_series(1001, 1009) i;
"""
PARTED_BESIDE = f"""{PARTED}
create table {{s}}.b{{n}} (id int primary key, code int not null, n int) partition by range (id);
create table {{s}}.b{{n}}_1 partition of {{s}}.b{{n}} for values from (1000) to (1500);
insert into {{s}}.b{{n}} select i, -i, i from generate_series(1001, 1009) i;
"""
BESIDE_HAPPENS = """
alter table {t} attach partition {s}.b{n} for values from (1000) to (2000);
insert into {t} values (1100, 0, 0);
update {t} set code = 0 where id in (5, 1002);
update {t} set id = id + 1200 where id = 6;
update {t} set id = id + 400 where id = 1003;
delete from {t} where id in (7, 1004)
"""
HAPPENS = """
create function happens(of oid, what text) returns boolean language plpgsql as $$
declare
  here text := of::regclass::text;
  names text[] := (select array_agg(quote_ident(attname) order by attnum) from pg_attribute
    where attrelid = of and attnum > 0 and not attisdropped and attgenerated = '');
  rest text := array_to_string(names[3:], ', ');
begin
  if what = 'all' then
    execute format('insert into %s (%s) select %s + 100, %s - 100, %s from %s where %s < 3',
      here, array_to_string(names, ', '), names[1], names[2], rest, here, names[1]);
    execute format('update %s set %s = %s - 200 where %s in (3, 4)',
      here, names[2], names[2], names[1]);
    execute format('update %s set %s = %s + 300 where %s in (5, 6)',
      here, names[1], names[1], names[1]);
    execute format('delete from %s where %s in (8, 9)', here, names[1]);
  elsif what = 'truncate' then
    execute format('truncate %s', here);
  end if;
  return true;
exception when object_not_in_prerequisite_state then
  return false;  -- The table is published, and has no replica identity.
end $$;
create function publishes(publication text, what text) returns boolean language plpgsql as $$
begin
  execute format('alter publication %s add table %s', publication, what);
  return true;
exception when duplicate_object then
  return false;  -- The capture has done so already.
end $$
"""
WHATS = ("nothing", "all", "truncate")
WAYS = ("stopped", "stopped at once", "running", "running at once", "between batches")


@dataclass(frozen=True)
class Pair:
    """Statements there and back, for each table ``{t}`` of the schema ``{s}``; ``fields``: what
    they change in the catalogue.
    """

    fields: str
    there: str
    back: str
    table: str = ORDINARY
    leaf: str = ""
    publication: str = ""
    ways: tuple[str, ...] = WAYS


def on_table(fields, there, back, **more):
    """A pair of ALTER TABLE."""
    return Pair(fields, f"alter table {{t}} {there}", f"alter table {{t}} {back}", **more)


def swapped(one, other):
    """Statements that give two columns each other's name."""
    rename = "alter table {t} rename"
    return f"{rename} {one} to q; {rename} {other} to {one}; {rename} q to {other}"


def published(fields, how, **more):
    """A pair that publishes a table otherwise for a time; None: not at all."""
    out, into = "alter publication {p} drop table {t}", "select publishes('{p}', '{t}')"
    other = f"select publishes('{{p}}', '{{t}} {how}')"
    there, back = (out, into) if how is None else (f"{out}; {other}", f"{out}; {into}")
    return Pair(fields, there, back, **more)


def publishing(fields, options):
    """A pair that sets options of a publication for a time."""
    all_ = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
    on = "alter publication {p} set"
    return Pair(fields, f"{on} ({options})", f"{on} ({all_})")


PAIRS = {
    "a column's name": on_table("attname", "rename v to x", "rename x to v"),
    "two columns' names": Pair(
        "attname",
        swapped("v", "w"),
        swapped("v", "w"),
    ),
    "the key's name": on_table("attname", "rename id to x", "rename x to id"),
    "the name of the other key": on_table("attname", "rename code to x", "rename x to code"),
    "a type": on_table("atttypid atttypmod", "alter v type text", "alter v type varchar(20)"),
    "a type, rewritten": on_table(
        "atttypid attlen relfilenode", "alter n type bigint", "alter n type int"
    ),
    "the key's type": on_table("atttypid", "alter id type bigint", "alter id type int"),
    "a type's length": on_table(
        "atttypmod", "alter v type varchar(30)", "alter v type varchar(20)"
    ),
    "an array": on_table(
        "attndims", "alter n type int[] using array[n]", "alter n type int using n[1]"
    ),
    "a column that comes": on_table("attisdropped attnum relnatts", "add x int", "drop x"),
    "a column that goes": on_table("attisdropped attnum", "drop n", "add n int"),
    "a column that another takes the name of": Pair(
        "attname",
        "alter table {t} rename n to x; alter table {t} rename code to n",
        "alter table {t} rename n to code; alter table {t} drop x; alter table {t} add x int",
    ),
    "columns that come, renamed": Pair(
        "attname",
        "alter table {t} add x varchar(20), add y varchar(20); update {t} set x = 'x', y = 'y'",
        swapped("x", "y"),
    ),
    "a column that comes, retyped": Pair(
        "atttypid",
        "alter table {t} add x varchar(20); update {t} set x = 'x'",
        "alter table {t} alter x type text",
    ),
    "a column that comes, twice": Pair(
        "attnum",
        "alter table {t} add x int; update {t} set x = 1",
        "alter table {t} drop x, add x int",
    ),
    "a generated column": on_table(
        "attgenerated", "add x int generated always as (id + 1) stored", "drop x"
    ),
    "a default": on_table("atthasdef", "alter v set default 'd'", "alter v drop default"),
    "a default that filled rows": on_table(
        "atthasmissing", "add x int default 7", "alter x drop default"
    ),
    "an identity": on_table(
        "attidentity", "alter code add generated by default as identity", "alter code drop identity"
    ),
    "not null": on_table("attnotnull", "alter v set not null", "alter v drop not null"),
    "a table's name": Pair(
        "relname tablename", "alter table {t} rename to {n}_x", "alter table {t}_x rename to {n}"
    ),
    "a table's schema": Pair(
        "relnamespace", "alter table {t} set schema public", "alter table public.{n} set schema {s}"
    ),
    "a schema's name": Pair(
        "nspname schemaname", "alter schema {s} rename to {s}_x", "alter schema {s}_x rename to {s}"
    ),
    "whole old rows": on_table("relreplident", "replica identity full", "replica identity default"),
    "no replica identity": on_table(
        "relreplident", "replica identity nothing", "replica identity default"
    ),
    "another replica identity": on_table(
        "relreplident indisreplident",
        "replica identity using index {n}_code_key",
        "replica identity default",
    ),
    "another key": on_table(
        "indkey indisprimary",
        "drop constraint {n}_pkey, add primary key (code)",
        "drop constraint {n}_pkey, add primary key (id)",
    ),
    "a deferrable key": on_table(
        "indimmediate",
        "drop constraint {n}_pkey, add primary key (id) deferrable",
        "drop constraint {n}_pkey, add primary key (id)",
    ),
    "a key with another column": on_table(
        "indnkeyatts",
        "drop constraint {n}_pkey, add primary key (id) include (code)",
        "drop constraint {n}_pkey, add primary key (id)",
    ),
    "a label": Pair(
        "enumlabel",
        "alter type {s}.label rename value 'a' to 'z'",
        "alter type {s}.label rename value 'z' to 'a'",
    ),
    "an attribute": Pair(
        "attnum attisdropped",
        "alter type {s}.pair add attribute z int",
        "alter type {s}.pair drop attribute z",
    ),
    "an attribute's name": Pair(
        "attname",
        "alter type {s}.pair rename attribute x to z",
        "alter type {s}.pair rename attribute z to x",
    ),
    "a partition, detached beside others": Pair(
        "inhdetachpending",
        "alter table {t} detach partition {t}_1 concurrently",
        "alter table {t} attach partition {t}_1 for values from (0) to (1000)",
        table=PARTED,
        leaf="_1",
        ways=("stopped", "running", "between batches"),  # No transaction may do it.
    ),
    "a partition": Pair(
        "inhrelid relispartition",
        "alter table {t} detach partition {t}_1",
        "alter table {t} attach partition {t}_1 for values from (0) to (1000)",
        table=PARTED,
        leaf="_1",
    ),
    "a partition that comes": Pair(
        "inhrelid",
        "create table {t}_2 partition of {t} for values from (1000) to (2000);"
        " insert into {t} values (1500, 0, 0); update {t} set id = 1501 where id = 7",
        "drop table {t}_2",
        table=PARTED,
        leaf="_1",
    ),
    "a table that is a partition": Pair(
        "relispartition", BESIDE_HAPPENS, "alter table {t} detach partition {s}.b{n}", table=BESIDE
    ),
    "a partitioned table that is a partition": Pair(
        "relispartition",
        BESIDE_HAPPENS,
        "alter table {t} detach partition {s}.b{n}",
        table=PARTED_BESIDE,
    ),
    "a partition of another table": Pair(
        "inhrelid",
        "alter table {t} detach partition {t}_1;"
        " alter table {s}.b{n} attach partition {t}_1 for values from (0) to (1000);"
        " insert into {s}.b{n} values (500, 0, 0); delete from {s}.b{n} where id = 1",
        "alter table {s}.b{n} detach partition {t}_1;"
        " alter table {t} attach partition {t}_1 for values from (0) to (1000)",
        table=PARTED_BESIDE,
        leaf="_1",
    ),
    "a partition's rows": Pair("relfilenode", "select 1", "select 1", table=PARTED, leaf="_1"),
    "a partition's log": Pair(
        "relpersistence",
        "alter table {t}_1 set unlogged",
        "alter table {t}_1 set logged",
        table=PARTED,
    ),
    "a partition's replica identity": Pair(
        "relreplident",
        "alter table {t}_1 replica identity using index {n}_1_code_idx",
        "alter table {t}_1 replica identity default",
        table=PARTED,
    ),
    "a partitioned table's column": on_table(
        "attname", "rename n to x", "rename x to n", table=PARTED
    ),
    "a table that is published": published("prrelid oid", None),
    "rows that are published": published("prqual rowfilter", "where (id > 100)"),
    "columns that are published": published("prattrs attnames", "(id)"),
    "what is published": publishing("pubinsert pubupdate pubdelete pubtruncate", "publish = ''"),
    "how partitions are published": publishing("pubviaroot", "publish_via_partition_root = false"),
    "a publication's name": Pair(
        "pubname",
        "alter publication {p} rename to x",
        "alter publication x rename to {p}",
        ways=("stopped", "stopped at once"),  # One that runs makes another of this name.
    ),
}
for table in (ORDINARY, NARROW):
    for publication in ("for all tables", "for tables in schema {s}"):
        kind = f"{'wide' if table is ORDINARY else 'narrow'}, published {publication}"
        more = {"table": table, "publication": publication}
        PAIRS[f"unlogged, {kind}"] = on_table(
            "relpersistence relfilenode reltoastrelid", "set unlogged", "set logged", **more
        )
        PAIRS[f"in another schema, {kind}"] = Pair(
            "relnamespace",
            "alter table {t} set schema public",
            "alter table public.{n} set schema {s}",
            **more,
        )
        PAIRS[f"renamed, {kind}"] = on_table("attname", "rename n to x", "rename x to n", **more)
    PAIRS["a schema that is published, " + kind] = Pair(
        "pnpubid pnnspid",
        "alter publication {p} drop tables in schema {s}",
        "alter publication {p} add tables in schema {s}",
        **more,
    )
    PAIRS[f"columns that are published, {kind.partition(',')[0]}"] = published(
        "prattrs attnames", "(id, code)", table=table, publication="for table {t}"
    )

KNOWN = (
    "a column's name",
    "the key's name",
    "a type",
    "another replica identity",
    "a label",
    "an attribute",
    "a partition",
    "a partition that comes",
    "a table that is a partition",
)

NEVER = {
    "attrelid enumtypid indrelid indexrelid inhparent prpubid typrelid typelem typbasetype": "oids",
    "rngtypid rngmultitypid rngsubtype": "what a type is made of stays",
    "relkind": "a table stays one",
    "reltuples relpages": "numbers that are only told",
    "indexprs indpred indisvalid indisunique": "of other indexes, which cannot be the identity",
    "puballtables": "a publication of all tables stays one",
    "relam": "how rows are stored does not change them",
}


class Played:
    """Pairs that are played in one database, each in each way, with tables for `WHATS` in a schema
    of its own.
    """

    def __init__(self, shop, names, ways, whats=WHATS):
        self.shop, self.whats = shop, whats
        plays = [(PAIRS[name], way) for way in ways for name in names]
        self.plays = {f"s{i}": play for i, play in enumerate(plays)}
        self.options = {}
        shop.sql(HAPPENS, "create schema told", "create table told.t (n serial primary key)")
        for schema, (pair, _) in self.plays.items():
            shop.sql(SETUP.format(s=schema), *self.statements(schema, pair.table))
        if made := plays[0][0].publication:
            tables = ", ".join(f"{schema}.t_{what}" for schema in self.plays for what in whats)
            made = made.format(s=", ".join(self.plays), t=tables)
            made += "" if "all" in made else ", table told.t" if "schema" in made else ", told.t"
            shop.sql(f"create publication p {made} with (publish_via_partition_root = true)")
            self.options["publication"] = "p"
        self.options["tables"] = ["s*.*", "told.*"]
        shop.capture(**self.options)
        self.oids = {
            (schema, what): shop.postgres.query(
                "select %s::regclass::oid", f"{schema}.t_{what}{pair.leaf}"
            )[0][0]
            for schema, (pair, _) in self.plays.items()
            for what in whats
        }

    def statements(self, schema, text):
        """Returns statements for all tables of a pair, once each."""
        own = self.shop.publication() if "{p}" in text else None
        return list(
            dict.fromkeys(
                one.strip().format(t=f"{schema}.t_{what}", n=f"t_{what}", s=schema, p=own)
                for what in self.whats
                for one in text.split(";")
                if one.strip()
            )
        )

    def steps(self, way):
        """Returns the three steps of all pairs, each a list of statements."""
        there, between, back = [], [], []
        for schema, (pair, its_way) in self.plays.items():
            if its_way == way:
                there += self.statements(schema, pair.there)
                between += [f"select happens({self.oids[schema, w]}, '{w}')" for w in self.whats]
                back += self.statements(schema, pair.back)
        return there, between, back

    def play(self, way):
        """Plays all pairs of a way; what an error says is followed."""
        there, between, back = self.steps(way)
        at_once = "begin; " + "; ".join([*there, *between, *back]) + "; commit"
        if way == "stopped":
            self.shop.sql(*there, *between, *back)
        elif way == "stopped at once":
            self.shop.sql(at_once)
        else:
            groups = {"running": [[*there, *between, *back]], "running at once": [[at_once]]}
            try:
                self.run(groups.get(way, [there, between, back]))
            except (SourceError, InvalidInputError):
                self.settle()

    def run(self, groups):
        """Runs groups of statements beside a capture, which takes each before the next."""
        threads = threading.active_count()
        with self.shop.followed(**self.options) as told:

            def reached(lsn):
                there = told and told[-1].position
                return threading.active_count() == threads or (there and lsn_of(there) >= lsn)

            self.shop.postgres.until(lambda: reached(0))
            for statements in groups:
                self.shop.sql(*statements)
                ((end,),) = self.shop.postgres.query("select pg_current_wal_lsn()::text")
                self.shop.sql("insert into told.t default values")
                self.shop.postgres.until(lambda end=end: reached(lsn_of(end)))

    def settle(self):
        """Captures; an error names a remedy that works."""
        try:
            self.shop.capture(**self.options)
        except (SourceError, InvalidInputError) as e:
            named = re.search(r"--reload ([\w.]+)", str(e)) or [None, f"no remedy: {e}"]
            reload = named[1] == "all" or [named[1]]
            self.shop.capture(**self.options, reload=reload)

    def check(self):
        """Each log equals its table, and nothing has been left out."""
        found = verify_capture(
            self.shop.postgres.dsn, self.shop.url, TableSettings(tables=["s*.*"])
        )
        wrong = [
            f"{self.plays[one.table.partition('.')[0]]}: {one}"
            for one in found.tables
            if not one.is_equal or one.changed
        ]
        assert not wrong, "\n".join(wrong)
        ((count,),) = self.shop.postgres.query(
            "select count(*) from pg_class where relkind in ('r', 'p') and not relispartition"
            " and relnamespace::regnamespace::text = any(%s)",
            list(self.plays),
        )
        assert len(found.tables) == count >= len(self.plays) * len(self.whats), found.skipped


def test_each_field_that_is_read_is_taken_back(postgres):
    """A field of the catalogue that a capture reads has a pair, or a reason why it needs none."""
    source = Path(catalogue.__file__).read_text()
    columns = postgres.query(
        "select distinct attname::text from pg_attribute a join pg_class c on c.oid = a.attrelid"
        " where c.relname = any(%s) and attname ~ '^[a-z]{6,}$'",
        list(set(re.findall(r"\bpg_[a-z_]+", source))),
    )
    read = {name for (name,) in columns if re.search(rf"\b{name}\b", source)}
    has = {field for pair in PAIRS.values() for field in pair.fields.split()}
    assert read - has - {field for fields in NEVER for field in fields.split()} == set()


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_taken_back(shop, name):
    """H-C9, H-C10, H-C11: whatever came between, the logs equal the tables."""
    ways = PAIRS[name].ways
    played = Played(shop, [name], ways)
    for way in ways:
        played.play(way)
    played.settle()
    played.check()


def test_what_is_taken_back_once(shop):
    """H-C9, H-C10, H-C11: the same for the best known pairs, stopped and in one transaction."""
    played = Played(shop, KNOWN, ("stopped", "running at once"), ["all"])
    played.play("stopped")
    played.play("running at once")
    played.settle()
    played.check()
