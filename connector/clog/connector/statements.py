"""SQL statements on a table of the catalog (``connector/jvm``) that need no rows.

The catalog knows a log only through the data source. It sends a statement as JSON, in an option of
this source, when it asks for the columns; each statement is one call of `Log`, and the answer is
one column, ``done`` or ``refused``, with the sentence in its comment. So the user reads that, and
not the traceback in which Spark wraps what a source raises.

Statements::

    {"alter": [change, …]}          changes of columns, or of configs: one commit
    {"delete": {column: [value]}}   keys, by the values of each of their columns
    {"truncate": true}              all records

Also what a statement with rows needs to know of the log that it reads (`described`).
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StringType, StructField, StructType, _parse_datatype_json_string

from clog.connector.schema import arrow_type
from clog.storage.errors import ClogError, InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.connector.options import Location
    from clog.storage.format.commits import Commit
    from clog.storage.log import Log

STATEMENT = "__statement"
"""The option that has a statement."""
DESCRIBED = "__described"
"""The option that asks for `described`, and the metadata of a column that has it."""
_LOCATION = (
    "the table stands for the log at its location; DROP TABLE keeps the log, and CREATE TABLE names"
    " another one"
)
_NO_PLACE = {
    "position": "columns are shown in the order of their addition; leave FIRST and AFTER out",
    "comment": "a log keeps no comments of columns; leave COMMENT out",
    "default": "a log keeps no defaults of columns; leave DEFAULT out",
}
"""What Spark's changes may say of a column, and a log cannot keep."""


def answered(location: "Location", statement: str) -> StructType:
    """Carries out a statement, and returns the answer."""
    try:
        ((kind, given),) = json.loads(statement).items()
        log = location.log()
        _STATEMENTS[kind](log, given)
    except ClogError as e:
        return _answer("refused", str(e))
    return _answer("done", "")


def described(tip: "Commit", columns: StructType) -> StructType:
    """Returns a table's columns, the first one with what the catalog has to know of the log."""
    from clog.connector.opened_logs import types_at

    types = types_at(tip.head)
    known = {
        "version": tip.version,
        "logId": tip.head.log.log_id,
        "key": [] if types is None else list(types.key_columns),
        "config": dict(tip.head.config),
    }
    if not columns.fields:
        return columns
    first, *others = columns.fields
    told = {DESCRIBED: json.dumps(known)}
    return StructType([StructField(first.name, first.dataType, first.nullable, told), *others])


def _answer(name: str, sentence: str) -> StructType:
    return StructType([StructField(name, StringType(), metadata={"comment": sentence})])


def _alter(log: "Log", changes: Sequence[Mapping[str, Any]]) -> None:
    """Does ALTER TABLE."""
    config = {change["set"]: change.get("value") for change in changes if "set" in change}
    of_columns = [change for change in changes if "set" not in change]
    if config and of_columns:
        raise InvalidInputError(
            "columns and properties are changed by two commits; give them in two statements;"
            " nothing was changed"
        )
    if "location" in config:
        raise InvalidInputError(_LOCATION)
    if config:
        log.alter(config)
        return
    if changes:  # Spark has left out what IF EXISTS did not find, and IF NOT EXISTS found.
        log.evolve(**_evolution(of_columns))


def _evolution(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the arguments of `Log.evolve`."""
    found: dict[str, Any] = {"add": {}, "widen": {}, "relax": [], "rename": {}, "drop": []}
    for change in changes:
        path, what = ".".join(change["field"]), change["do"]
        problem = next((_NO_PLACE[name] for name in _NO_PLACE if change.get(name)), None)
        if change.get("nullable") is False:
            problem = "earlier rows have no value, so it cannot be NOT NULL; leave NOT NULL out"
        if what not in found:
            problem = problem or f"a log cannot do this: {what}"
        if problem is not None:
            where = f"{path}: " if path else ""
            raise InvalidInputError(f"{where}{problem}; nothing was changed")
        if what in ("relax", "drop"):
            found[what].append(path)
        else:
            found[what][path] = change["name"] if what == "rename" else _kind(change["type"])
    return found


def _kind(words: str) -> "pa.DataType":
    return arrow_type(_parse_datatype_json_string(words))


def _delete(log: "Log", asked: Mapping[str, Sequence[Any]]) -> None:
    """Does DELETE by conditions on the key alone."""
    import pyarrow as pa

    from clog.connector.opened_logs import types_of

    types = types_of(log.handle)
    kinds = [pa.binary()]
    if types is not None:
        key = types.schema.field("key").type
        kinds = [f.type for f in key] if pa.types.is_struct(key) else [key]
    columns = [
        [base64.b64decode(value) if _is_octets(kind) else value for value in values]
        for kind, values in zip(kinds, asked.values(), strict=True)
    ]
    keys = list(product(*columns))
    log.delete(keys if len(columns) > 1 else [key for (key,) in keys])


def _is_octets(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _truncate(log: "Log", _: None) -> None:
    """Does TRUNCATE TABLE: the table and its log are empty, and the offsets go on."""
    partitions = log.handle.tip.head.log.partitions
    log.delete_records(dict.fromkeys(range(partitions), -1))


_STATEMENTS: dict[str, Callable[["Log", Any], None]] = {
    "alter": _alter,
    "delete": _delete,
    "truncate": _truncate,
}
