"""What `clog describe URL WHAT` lists: a row of `DETAILS` for each thing.

Most are what a user asks of a log; `commit`, `history`, `objects` and `markers` are what is on
disk, without keys and values. Long lists are printed as they are read, in JSON as one line each.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from clog.cli.options import Given, partitions_of
from clog.cli.output import (
    count,
    counted,
    dated,
    print_json_line,
    print_table,
    say,
    size,
    stdout,
    table,
)
from clog.storage.config.units import duration, moment

if TYPE_CHECKING:
    from clog.storage import Log, Reader, Store, TransactionDescription, TransactionInfo
    from clog.storage.format.commits import EditRecord
    from clog.storage.format.manifest import Manifest
    from clog.storage.format.transactions import TransactionName


class Asked(NamedTuple):
    """What is asked beside the log: options of `clog describe`."""

    partition: int | None
    time_ms: int | None
    at: int | None
    given: Given


def _offsets(log: "Log", asked: Asked) -> None:
    """Prints first and next offsets, where readers stop, and the offset for a time."""
    wanted = partitions_of(log, asked.partition)
    starts, ends, stable = log.start_offsets(), log.end_offsets(), log.stable_offsets()
    of_each: dict[str, Mapping[int, int | None]]
    of_each = {"start_offset": starts, "stable_offset": stable, "end_offset": ends}
    if asked.time_ms is not None:
        of_each["offset_for_time"] = log.offsets_for_times(dict.fromkeys(wanted, asked.time_ms))
    rows: list[dict[str, Any]]
    rows = [{"partition": p} | {name: at[p] for name, at in of_each.items()} for p in wanted]
    left_out = "stable_offset" if stable == ends else None  # Usually nothing is undecided.
    shown = [{name: n for name, n in row.items() if name != left_out} for row in rows]
    document = {"url": log.url, "time_ms": asked.time_ms, "partitions": rows}
    asked.given.emit(document, lambda: _print(shown))


def _segments(log: "Log", asked: Asked) -> None:
    """Prints the segments; the active one of a partition is last."""
    found = {
        p: [asdict(one) for one in log.segments(p)] for p in partitions_of(log, asked.partition)
    }

    def draw() -> None:
        for p, rows in found.items():
            _print([_readable(row) for row in rows], title=f"partition {p}")

    rows = [{"partition": p} | row for p, rows in found.items() for row in rows]
    asked.given.emit(dated({"url": log.url, "segments": rows}), draw)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a segment as a row for people."""
    state = "active" if row["active"] else "clean" if row["clean"] else "dirty"
    largest, horizon = row["largest_timestamp"], row["delete_horizon_ms"]
    return {
        "base": row["base_offset"],
        "next": row["next_offset"],
        "records": row["records"],
        "dead": row["dead_rows"],
        "size": size(row["size_bytes"]),
        "largest timestamp": "" if largest is None else moment(largest),
        "state": state,
        "delete horizon": "" if horizon is None else moment(horizon),
    }


def _print(rows: list[dict[str, Any]], title: str | None = None) -> None:
    """Prints rows with right-aligned numbers; None is a dash."""
    first = {name.replace("_", " "): value for name, value in (rows[0] if rows else {}).items()}
    right = [name for name, value in first.items() if isinstance(value, int | None)]
    cells = [map(_cell, row.values()) for row in rows]
    print_table(table(list(first), cells, right=right, title=title))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return count(value) if isinstance(value, int) else str(value)


_COLUMNS = (
    *("reader", "records", "bytes", "behind", "reported"),
    *("retention", "tombstone", "version", "waited for"),
)


def _readers(log: "Log", asked: Asked) -> None:
    """Prints the named readers, how soon something overtakes each, and who waits for it."""
    found = log.readers()

    def draw() -> None:
        if not found:
            say("no named readers")
            return
        now_ms = log.handle.clock.now_ms()
        rows = [_row(reader, now_ms) for reader in found]
        print_table(table(_COLUMNS, rows, right=_COLUMNS[1:]))

    shown = [asdict(reader) | {"position": dict(reader.position)} for reader in found]
    asked.given.emit(dated({"url": log.url, "readers": shown}), draw)


def _row(reader: "Reader", now_ms: int) -> tuple[str, ...]:
    if reader.damage is not None:
        return reader.name, f"ignored: {reader.damage}"
    return (
        reader.name,
        count(reader.lag_records),
        size(reader.lag_bytes),
        duration(reader.lag_ms),
        moment(reader.committed_ms),
        _left(reader.until_retention_ms),
        _left(reader.until_tombstone_ms),
        _left(reader.until_version_ms),
        duration(reader.held_until_ms - now_ms) if reader.held_until_ms else "-",
    )


def _left(ms: int | None) -> str:
    return "-" if ms is None else "overtaken" if ms == 0 else duration(ms)


def _transactions(log: "Log", asked: Asked) -> None:
    """Finishes decided or overdue transactions, as the cleaner does, and prints the others."""
    from clog.storage.transactions.several import finish_all

    log.handle.refresh()
    waiting = finish_all(log.handle)
    asked.given.emit(
        {
            "url": log.url,
            "transactions": [{**_shown(w.info), "waits_because": w.reason} for w in waiting],
        },
        [f"{transaction_words(_shown(w.info))}; waiting: {w.reason}" for w in waiting]
        or "no open transactions",
    )


def transaction_words(transaction: "TransactionDescription") -> str:
    """Returns a line about a transaction that has not ended."""
    first, held = transaction["first_offsets"], transaction["held_offsets"]
    where = f"; undecided in partitions {_from(first)}" if first else ""
    where += f"; readers wait in partitions {_from(held)}" if held != first else ""
    home = f"; decided by {transaction['home']}" if transaction["home"] else ""
    return (
        f"{transaction['id']!r}, epoch {transaction['epoch']}, number {transaction['number']}:"
        f" {transaction['state']} since {moment(transaction['started_ms'])}{where}{home}"
    )


def _from(offsets: Mapping[str, int]) -> str:
    return ", ".join(f"{p} from {offset}" for p, offset in sorted(offsets.items()))


def _shown(info: "TransactionInfo") -> "TransactionDescription":
    return {
        "id": info.id,
        "epoch": info.epoch,
        "number": info.number,
        "state": info.state,
        "started_ms": info.started_ms,
        "timeout_ms": info.timeout_ms,
        "home": info.home,
        "first_offsets": {str(p): offset for p, offset in info.first_offsets.items()},
        "held_offsets": {str(p): offset for p, offset in info.held_offsets.items()},
    }


def _erasures(log: "Log", asked: Asked) -> None:
    """Prints erasures, and what they wait for."""
    found = log.erasures()

    def draw() -> None:
        for one in found:
            since = f"{one.id}: {counted(one.keys, 'key')}, requested {moment(one.requested_ms)}"
            if one.completed_ms is None:
                say(f"{since}, pending: {one.reason}")
            else:
                say(f"{since}, done {moment(one.completed_ms)}")
        if not found:
            say("no erasures")

    asked.given.emit({"url": log.url, "erasures": [asdict(one) for one in found]}, draw)


def _features(log: "Log", asked: Asked) -> None:
    """Prints the features of the format, and which of them the log has."""
    features = log.upgrade()
    lines = [
        f"{f.name:<24}{f.state:<10}  "
        + (
            f"{f.summary} ({'readers and writers' if f.readers else 'writers'})"
            if f.summary
            else ""
        )
        for f in features
    ]
    document = {"url": log.url, "features": [asdict(f) for f in features]}
    asked.given.emit(document, map(str.rstrip, lines))


def _commit(log: "Log", asked: Asked) -> None:
    """Prints a commit, the newest or that of a version."""
    version = log.handle.tip.version if asked.at is None else asked.at
    document = _commit_document(log.handle.store, version)
    asked.given.emit(document, lambda: _print_document(document))


def _history(log: "Log", asked: Asked) -> None:
    """Prints all commits, oldest first."""
    _print_rows(_commit_rows(log.handle.store), asked.given)


def _objects(log: "Log", asked: Asked) -> None:
    """Prints all data objects: live, replaced, or in no manifest."""
    _print_rows(_object_rows(log.handle.store, log.handle.manifest()), asked.given)


def _markers(log: "Log", asked: Asked) -> None:
    """Prints undecided transactions by partition, with their objects, and markers of ended ones."""
    _print_rows(_transaction_rows(log.handle.manifest()), asked.given)


def _commit_document(store: "Store", version: int) -> dict[str, Any]:
    """Returns a commit as JSON, with its edit inline even if stored apart; without the seed."""
    from clog.storage.commit.tip import try_read
    from clog.storage.errors import VersionExpiredError
    from clog.storage.format.commits import edit_of, edit_to_json, head_to_json

    commit = try_read(store, version)
    if commit is None:
        raise VersionExpiredError(
            f'there is no commit of version {version} in {store.url}; give one that "clog'
            f' describe {store.url} history" lists'
        )
    edit, head = edit_to_json(edit_of(store, commit.record)), head_to_json(commit.head)
    for info in (edit.get("create"), head["log"]):
        if info is not None:
            del info["seed"]
    return {
        **_record_row(commit.record),
        "parent": commit.parent,
        "carries": [record.version for record in commit.earlier],
        "edit": edit,
        "head": head,
    }


def _commit_rows(store: "Store") -> Iterator[dict[str, Any]]:
    from clog.storage.format import documents
    from clog.storage.format.commits import edit_of, read_commit

    stored = sorted(store.list(documents.COMMITS), key=lambda found: found.path)
    for found in stored:
        version = documents.version_of(found.path)
        if version is None:
            continue
        record = read_commit(store, version).record
        edit = edit_of(store, record)
        added = edit.add.chunks if edit.add else ()
        yield _record_row(record) | {
            "bytes": found.size_bytes,
            "appended_records": sum(chunk.rows for _, chunk in added),
            "partitions": sorted(edit.changed_partitions() | {p for p, _ in added}),
        }


def _record_row(record: "EditRecord") -> dict[str, Any]:
    return {
        "version": record.version,
        "time_ms": record.time_ms,
        "operation": record.operation,
        "id": record.commit_id,
    }


def _transaction_rows(manifest: "Manifest") -> Iterator[dict[str, Any]]:
    """Yields undecided transactions, by partition, with their objects; then markers."""
    objects: dict[tuple[TransactionName, int], list[str]] = {}
    for p, chunk in manifest.chunks():
        if chunk.undecided is not None:
            objects.setdefault((chunk.undecided, p), []).append(chunk.object.path)
    for entry in manifest.head.unended:
        named = {"id": entry.name.id, "epoch": entry.name.epoch, "number": entry.name.number}
        more = {"home": entry.home_url, "time_ms": entry.started_ms}
        if not entry.first:  # Decided; other logs have yet to learn of it.
            yield {"state": entry.state, **named, **more}
        for p, offset in sorted(entry.first.items()):
            stable = manifest.head.stable_offset(p)
            where: dict[str, Any] = {"partition": p, "offset": offset, "stable_offset": stable}
            where["objects"] = objects.get((entry.name, p), [])
            yield {"state": entry.state, **named, **where, **more}
    for m in manifest.markers:
        horizon = {"horizon_ms": None if m.horizon_ms < 0 else m.horizon_ms}
        named = {"id": m.id, "epoch": m.epoch, "number": m.number, "outcome": m.outcome}
        yield {"state": "marker", **named, "partition": m.partition, "offset": m.offset, **horizon}


def _object_rows(store: "Store", manifest: "Manifest") -> Iterator[dict[str, Any]]:
    """Yields the objects in the manifest or in the store."""
    from clog.storage.format import documents

    live: dict[str, dict[str, Any]] = {}
    for p, chunk in manifest.chunks():
        ref = chunk.object
        row = live.setdefault(ref.path, asdict(ref) | {"live_rows": 0, "partitions": []})
        row["live_rows"] += chunk.live_rows
        if p not in row["partitions"]:
            row["partitions"].append(p)
        for path, size_bytes in chunk.files.items():
            live.setdefault(path, {"path": path, "size_bytes": size_bytes})  # its bitmap
    replaced = {r.path for r in manifest.released}
    stored = {found.path: found.size_bytes for found in store.list(documents.DATA)}
    for path in sorted({*live, *stored}):
        state = "live" if path in live else "replaced" if path in replaced else "in no manifest"
        row = live.get(path, {"path": path, "size_bytes": stored.get(path)})
        yield {"state": state if path in stored else "missing", **row}


def _print_rows(rows: Iterator[dict[str, Any]], given: Given) -> None:
    if given.json:
        for row in rows:
            print_json_line(row)
        return
    console = stdout()
    for row in rows:
        console.print("  ".join(_fact(name, value) for name, value in row.items()), soft_wrap=True)


def _fact(name: str, value: Any) -> str:
    if name == "time_ms":
        return moment(value)
    if name in ("bytes", "size_bytes", "footer_bytes"):
        return f"{name.removesuffix('_bytes').removesuffix('bytes')} {size(value)}".strip()
    if name in ("path", "state", "operation", "id", "checksum"):
        return str(value)
    if isinstance(value, list):
        return f"{name.replace('_', ' ')} {','.join(map(str, value)) or '-'}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{name.replace('_', ' ')} {count(value) if is_number else value}"


def _print_document(document: dict[str, Any]) -> None:
    """Prints a commit for people: a line that identifies it, then its edit and its head as JSON."""
    console = stdout()
    console.print(
        f"version {document['version']}: {document['operation']} at {moment(document['time_ms'])}",
        style="bold",
    )
    console.print(f"id {document['id']}, parent {document['parent']}", soft_wrap=True)
    for name in ("edit", "head"):
        console.print(name, style="bold")
        text = json.dumps(document[name], indent=2, ensure_ascii=False)
        # Columns of numbers read better across the page than down it.
        flat = re.sub(r"\[[^][{}]*]", lambda found: " ".join(found[0].split()), text)
        console.print(flat, soft_wrap=True)


DETAILS: Mapping[str, Callable[["Log", Asked], None]] = {
    "offsets": _offsets,
    "segments": _segments,
    "readers": _readers,
    "transactions": _transactions,
    "erasures": _erasures,
    "features": _features,
    "history": _history,
    "commit": _commit,
    "objects": _objects,
    "markers": _markers,
}
"""What is listed, by the word on the command line."""
