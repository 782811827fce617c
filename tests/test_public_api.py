"""The Python API that users call is a contract: names, parameters, their order and defaults."""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import get_type_hints

import pyarrow as pa
import pytest

import clog.storage
from clog.storage import (
    READ_SCHEMA,
    AppendResult,
    Log,
    LogDescription,
    ManualClock,
    PartitionDescription,
    SegmentInfo,
    StateStore,
    StateTable,
    Table,
    TransactionInfo,
    snapshot,
)
from clog.storage.config.units import MOMENTS

PACKAGES = ("clog.storage", "clog.cleaner", "clog.connector", "clog.bridge", "clog.jobs")
NOT_FOR_USERS = {
    "Log.handle",
    "NamedReader.commit_at",
    "NamedReader.followed",
    "Source.handle",
    "Transaction.append_objects",
    "Log.object_writer",
    "Log.append_objects",
}
"""What the cleaner and the connector build on; the docstring of each says so."""
MADE_BY_CLOG = {"Log", "Following", "NamedReader", "Table", "Transaction", "BatchTransaction"}
"""Their constructors are not called by users: they come from `Log.create`, `Log.open` and other
methods.
"""
CALLED_BY_SPARK = {"ClogDataSource"}
"""Users hand the class to Spark, which alone calls its methods."""

SIGNATURES = {
    Log: {
        "create": "url, partitions=4, config=None, storage_options=None, clock=None",
        "open": "url, storage_options=None, clock=None",
        "append": "self, data, partition=None, producer=None",
        "read": "self, partition=None, start=None, end=None, isolation='read_committed'",
        "table": "self, partition=None, at=None",
        "start_offsets": "self",
        "end_offsets": "self",
        "offsets_for_times": "self, ts_ms",
        "delete_records": "self, before",
        "alter": "self, config",
        "describe": "self",
        "roll": "self, partition=None",
        "segments": "self, partition",
        "transaction": "self, id, timeout_ms=60000",
        "transactions": "self",
        "positions": "self, id",
    },
    StateTable: {
        "__init__": "self, url, cache_dir, storage_options=None, clock=None",
        "get": "self, key",
        "get_many": "self, keys",
        "scan": "self, prefix=None",
        "refresh": "self",
        "follow": "self",
    },
    StateStore: {
        "__init__": "self, url, cache_dir, id, storage_options=None, clock=None",
        "get": "self, key",
        "get_many": "self, keys",
        "scan": "self, prefix=None",
        "put": "self, key, value",
        "put_many": "self, rows",
        "delete": "self, key",
        "commit": "self, positions=None",
        "rollback": "self",
        "refresh": "self",
        "follow": "self",
        "take_over": "self",
    },
}


def positional(function):
    """The parameters that can be given by position, as one writes them."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            bare = parameter.replace(annotation=parameter.empty)
            shown.append(str(bare).replace(" = ", "="))
    return ", ".join(shown)


def test_signatures():
    """Of a log, of state tables and of state stores."""
    shown = {
        cls: {name: positional(getattr(cls, name)) for name in SIGNATURES[cls]}
        for cls in SIGNATURES
    }
    assert shown == SIGNATURES


def test_further_parameters_are_keywords_with_defaults():
    """What was added to the contract can be left out, and never changes a position."""
    for name in SIGNATURES[Log]:
        for parameter in inspect.signature(getattr(Log, name)).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert parameter.default is not parameter.empty, (name, parameter)


def test_properties_of_log():
    names = ("url", "id", "config", "version", "partitions")
    assert [name for name in names if not isinstance(getattr(Log, name), property)] == []


def test_fields_of_results():
    assert [f.name for f in fields(AppendResult)] == ["version", "offsets", "duplicate"]
    assert AppendResult(3) == AppendResult(3, {}, duplicate=False)
    assert [f.name for f in fields(SegmentInfo)] == [
        "base_offset",
        "next_offset",
        "records",
        "size_bytes",
        "largest_timestamp",
        "active",
        "clean",
        "delete_horizon_ms",
        "dead_rows",
    ]
    names = [f.name for f in fields(clog.storage.TransactionResult)]
    assert names == ["version", "offsets", "logs"]
    names = [f.name for f in fields(clog.storage.TransactionInfo)]
    assert names == [
        "id",
        "epoch",
        "number",
        "state",
        "first_offsets",
        "started_ms",
        "timeout_ms",
        "home",
        "held_offsets",
    ]
    for name in ("to_arrow", "to_pandas", "to_polars", "to_duckdb", "to_batches"):
        assert positional(getattr(Table, name)) == "self"


def test_the_schema_of_what_is_read():
    """Record batches have these columns in this order, also if there is nothing to read."""
    log = Log.create("memory://clog-public-api/schema", clock=ManualClock())
    log.append([{"key": "a", "value": "1"}])
    expected = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(
            pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        ),
    }
    (batch,) = log.read()
    assert batch.schema == READ_SCHEMA
    for schema in (batch.schema, log.table().to_arrow().schema):
        assert dict(zip(schema.names, schema.types, strict=True)) == expected
    table = log.table()
    assert (table.version, table.offsets) == (1, log.end_offsets())
    assert len(table.to_pandas()) == 1


def test_all_that_is_exported_is_there():
    """Also for `dir`, so that completion shows what is not loaded yet."""
    for module in map(import_module, PACKAGES):
        assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), n))
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
        assert set(module.__all__) <= set(dir(module))


def test_the_package_itself_has_what_storage_and_the_cleaner_export():
    """And two short forms, and the packages; all of it loaded when it is asked for."""
    packages = (clog.storage, import_module("clog.cleaner"))
    names = {name for package in packages for name in package.__all__}
    assert set(clog.__all__) == names | {"create", "open"} <= set(dir(clog))
    assert all(any(getattr(clog, n) is getattr(p, n, 0) for p in packages) for n in names)
    assert (clog.create, clog.open) == (Log.create, Log.open)
    assert [name for name in PACKAGES if getattr(clog, name[5:]).__name__ != name] == []
    code = "import sys; old = {*sys.modules}; import clog; print({*sys.modules} - old)"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "{'clog'}"


def test_what_is_not_exported_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Logg'"):
        clog.Logg  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Logg'"):
        clog.storage.Logg  # noqa: B018


def test_exports_load_arrow_only_when_asked():
    """Spark's fresh processes import the errors; Arrow waits until one of its names is used."""
    code = (
        "import sys, clog.storage as s; before = 'pyarrow' in sys.modules; s.READ_SCHEMA;"
        "print(before, 'pyarrow' in sys.modules, 'fsspec' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", "True", "False"]


DURATIONS = {
    *("clean_ms", "eta_ms", "hold_ms", "index_ms", "interval_ms", "lag_ms", "overdue_ms"),
    *("retention_check_ms", "timeout_ms", "until_retention_ms", "until_tombstone_ms"),
    *("until_version_ms", "wait_ms", "watch_readers_ms"),
}


def test_each_time_is_a_moment_or_a_duration():
    """People see a moment as a date, a duration with its unit: a new field is put into
    `units.MOMENTS`, or here.
    """
    types = [value for value in exported().values() if isinstance(value, type)]
    named = {name for each in types for name in getattr(each, "__annotations__", ())}
    times = {name for name in named if name.endswith("_ms")}
    assert times - MOMENTS == DURATIONS


def exported() -> dict[str, object]:
    """All exported names and what they stand for."""
    modules = [import_module(package) for package in PACKAGES]
    return {name: getattr(module, name) for module in modules for name in module.__all__}


def origins(tree: ast.Module, module: str) -> dict[str, str]:
    """The module that each name of a source file comes from, whenever it is imported there."""
    found = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = module
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = module
    return found


def signature_names(member: ast.stmt) -> set[str]:
    """The names in the annotations of a function, or of a field of a class, quoted ones too."""
    match member:
        case ast.FunctionDef(args=args, returns=returns):
            every = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
            annotations = [a.annotation for a in every if a is not None] + [returns]
        case ast.AnnAssign(annotation=annotation):
            annotations = [annotation]
        case _:
            return set()
    nodes = [node for a in annotations if a is not None for node in ast.walk(a)]
    quoted = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    nodes += [node for text in quoted for node in ast.walk(ast.parse(text, mode="eval"))]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def public_members(name: str, definition: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """The function itself, or the public methods, constructor and fields of the class."""
    if isinstance(definition, ast.FunctionDef):
        yield name, definition
    if not isinstance(definition, ast.ClassDef) or name in CALLED_BY_SPARK:
        return
    for member in definition.body:
        match member:
            case ast.FunctionDef(name=own) | ast.AnnAssign(target=ast.Name(id=own)):
                made = own == "__init__" and name not in MADE_BY_CLOG
                if (made or not own.startswith("_")) and f"{name}.{own}" not in NOT_FOR_USERS:
                    yield f"{name}.{own}", member


def unexported(name: str, known: set[str]) -> dict[str, set[str]]:
    """By member of something exported, the names of clog in its signature that are not in
    ``known``.
    """
    module = inspect.getmodule(exported()[name])
    tree = ast.parse(inspect.getsource(module))
    home = origins(tree, module.__name__)
    (definition,) = [node for node in tree.body if getattr(node, "name", None) == name]
    missing = {
        member: {
            used
            for used in signature_names(node) - known
            if home.get(used, "").partition(".")[0] == "clog"
        }
        for member, node in public_members(name, definition)
    }
    return {member: names for member, names in missing.items() if names}


DEFINED = sorted(
    name for name, value in exported().items() if inspect.isclass(value) or callable(value)
)


def test_what_a_signature_mentions_is_exported():
    """A reader of a public signature can import every type in it."""
    known = set(exported())
    assert len(DEFINED) > 50
    found = {name: unexported(name, known) for name in DEFINED if name != "Appendable"}
    assert {name: hidden for name, hidden in found.items() if hidden} == {}


def test_a_signature_with_a_hidden_type_is_found():
    """The test above can fail, for arguments, results, fields and quoted names."""
    known = set(exported())
    hidden = {"AppendResult"}
    assert unexported("Log", known - hidden) == {"Log.append": hidden, "Log.delete": hidden}
    assert unexported("Log", known - {"Appendable"}) == {"Log.append": {"Appendable"}}
    assert unexported("PassResult", known - {"PassStats"}) == {"PassResult.stats": {"PassStats"}}
    quoted = unexported("PassStats", known - {"PassStats"})
    assert quoted == {"PassStats.add_records": {"PassStats"}}


TOLD_AT_ANOTHER = {"Log.open"}
"""Its arguments are those of `Log.create`, and it says so."""


def parameters() -> Iterator[tuple[str, list[str], str]]:
    """Of all that is exported and documented: its name, its parameters or fields, its docstring."""
    for name, value in exported().items():
        if inspect.isclass(value) and is_dataclass(value):
            bases = [each for each in value.__mro__ if is_dataclass(each)]
            docstring = "\n".join(inspect.getdoc(each) or "" for each in bases)
            yield name, [field.name for field in fields(value)], docstring
        members = {name: value} if inspect.isfunction(value) else {}
        if inspect.isclass(value) and name not in CALLED_BY_SPARK:
            members = {f"{name}.{own}": getattr(value, own) for own in vars(value) if own[0] != "_"}
        for path, member in members.items():
            if callable(member) and member.__doc__ and path not in NOT_FOR_USERS | TOLD_AT_ANOTHER:
                yield path, list(inspect.signature(member).parameters), member.__doc__


def test_every_method_of_a_log_has_an_example():
    """In its docstring, where `tests/test_docs.py` runs it; and who completes names at TAB sees
    what is for users."""
    methods = {name: inspect.getdoc(getattr(Log, name)) or "" for name in vars(Log)}
    hidden = {name.removeprefix("Log.") for name in NOT_FOR_USERS}
    public = {n: text for n, text in methods.items() if n[0] != "_" and callable(getattr(Log, n))}
    lacking = [n for n, text in public.items() if ">>> " not in text and n not in hidden]
    assert lacking == []
    assert not hidden & set(dir(Log.create("memory://what-is-listed")))


def test_help_explains_every_parameter_and_field():
    """Each is a word of the docstring: of its ``Args``, its ``Attributes`` or its sentences."""
    explained = list(parameters())
    assert len(explained) > 50
    unexplained = {
        path: missing
        for path, names, docstring in explained
        if (missing := {*names} - {"self"} - {*re.findall(r"\w+", docstring)})
    }
    assert unexplained == {}


REFERENCE = (Path(__file__).parent.parent / "docs" / "api.md").read_text()


def test_the_reference_names_what_is_exported():
    """docs/api.md has a line for each name, in the section of its package, and for no other."""
    for package in PACKAGES[:3]:
        section = REFERENCE.partition(f"## {package}\n")[2].partition("\n## ")[0]
        first_cells = "".join(re.findall(r"^\|(.*?)\|", section, re.MULTILINE))
        named = {*re.findall(r"`(\w+)`", first_cells), *re.findall(r"kinds of `(\w+)`", section)}
        assert named == set(import_module(package).__all__), package


def test_the_reference_names_the_jobs():
    assert all(f"`{name}`" in REFERENCE for name in import_module("clog.jobs").__all__)


def shown_type(hint) -> str:
    """A type as the reference writes it."""
    text = hint.__name__ if type(hint) is type else str(hint)
    return text.replace("clog.storage.diagnostics.describe.", "").replace(" | ", " or ")


def test_the_reference_has_every_key_of_a_description():
    """docs/api.md names the keys of `Log.describe` in order, with their types."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$",
        REFERENCE.partition("## What describe returns")[2],
        re.MULTILINE,
    )
    hints = [*get_type_hints(LogDescription).items(), *get_type_hints(PartitionDescription).items()]
    assert rows == [(name, shown_type(hint)) for name, hint in hints]


def test_a_description_has_the_keys_of_its_type():
    """`Log.describe` returns these keys, in this order, of these types, and they fit JSON."""
    log = Log.create("memory://clog-public-api/described", partitions=2, clock=ManualClock())
    log.append([{"key": "a", "value": None}])
    log.roll()
    described = log.describe()
    assert list(described) == list(LogDescription.__annotations__)
    assert json.loads(json.dumps(described)) == described
    assert len(described["partition_details"]) == 2
    for detail in described["partition_details"]:
        assert list(detail) == list(PartitionDescription.__annotations__)
        for name, hint in get_type_hints(PartitionDescription).items():
            assert isinstance(detail[name], hint), name


def test_what_is_not_for_users_says_so():
    """The exceptions above are told in the docstrings that `help` shows."""
    for path in NOT_FOR_USERS:
        owner, _, member = path.partition(".")
        value = getattr(exported()[owner], member)
        assert "not for users" in " ".join(inspect.getdoc(value).lower().split()), path


def test_a_manual_clock():
    clock = ManualClock(now_ms=5)
    clock.advance(3)
    assert clock.now_ms() == 8
    assert ManualClock().now_ms() == 0


SECRET = re.compile("(storage|registry)_options|hash_key|token|secret|password")


def test_no_value_shows_a_secret_that_it_holds():
    """Options of stores and registries, keys of hashes and tokens: errors and tracebacks of other
    programs show values by their repr.
    """
    modules = [found.name for found in walk_packages(clog.__path__, "clog.")]
    assert len(modules) > 150
    shown = []
    for module in modules:
        try:
            names_there = vars(import_module(module))
        except ModuleNotFoundError as e:
            if str(e.name).startswith("clog"):
                raise
            continue  # It needs a package that is not here.
        for made in names_there.values():
            if not isinstance(made, type) or made.__module__ != module:
                continue
            names = [*getattr(made, "_fields", ())]
            if is_dataclass(made) and made.__repr__.__module__ != module:
                names += [each.name for each in fields(made) if each.repr]
            shown += [f"{module}.{made.__name__}.{n}" for n in names if SECRET.fullmatch(n)]
    assert shown == []


def test_a_log_is_shown_without_secrets():
    log = Log.create("memory://clog-public-api/shown", storage_options={"token": "hush"})
    assert log.url == "memory://clog-public-api/shown"
    assert repr(log) == "Log('memory://clog-public-api/shown', version=0)"
    assert "hush" not in repr(log.handle.store)


def test_times_are_shown_as_people_read_them(tmp_path):
    """Beside the milliseconds: a moment in UTC, a length in words; a value without times is as any
    dataclass shows it."""
    clock = ManualClock(now_ms=1_700_000_000_000)
    log = Log.create(tmp_path / "log", partitions=1, clock=clock)
    log.append([{"key": "k", "value": "v"}])
    cut = snapshot(log.url, name="cut", keep_ms=60_000, clock=clock)
    log.reader("r", hold_ms=60_000).commit({0: 0})
    was = "1700000000000 (2023-11-14 22:13:20Z)"
    assert all(f"time_ms={was}" in repr(commit) for commit in log.history())
    assert f"largest_timestamp={was}" in repr(log.segments(0)[0])
    assert f"time_ms={was}, until_ms=1700000060000 (2023-11-14 22:14:20Z))" in repr(cut)
    assert "lag_ms=0, expires_ms=" in repr(log.readers()[0])
    assert "hold_ms=60000 (1 min)" in repr(log.readers()[0])
    assert "(" not in repr(TransactionInfo("t", 0, 1, "open")).removeprefix("TransactionInfo(")
