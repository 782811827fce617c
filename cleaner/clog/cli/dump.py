"""`clog dump`: what is on disk."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from clog.cli.options import URL, Given, command, flag, integer, option
from clog.cli.output import count, moment, print_json_line, size, stdout

if TYPE_CHECKING:
    from clog.storage import Store
    from clog.storage.format.commits import EditRecord
    from clog.storage.format.manifest import Manifest
    from clog.storage.format.transactions import TransactionName


@command()
def dump(
    url: str = URL,
    *,
    version: int | None = option("--version N", "Show the commit of this version.", integer()),
    commits: bool = flag("--commits", "List all commits, oldest first."),
    snapshots: bool = flag("--snapshots", "List all snapshots."),
    objects: bool = flag("--objects", "List all data objects: live, replaced, or in no manifest."),
    transactions: bool = flag(
        "--transactions", "List transactions that have not ended, and markers of those that have."
    ),
    given: Given,
) -> None:
    r"""Show what is on disk.

    Shows the newest commit or that of a version, or lists what exists. Leaves out the seed of the
    log's key hashes. With --json, lists are JSON lines.

    \b
    clog dump ./orders                     # the newest commit: edit and head
    clog dump ./orders --version 3 --json
    clog dump ./orders --commits
    clog dump ./orders --objects --json
    clog dump ./orders --transactions
    """
    chosen = [version is not None, commits, snapshots, objects, transactions]
    if sum(chosen) > 1:
        raise typer.BadParameter(
            "give one of --version, --commits, --snapshots, --objects, --transactions"
        )
    log = given.open(url)
    store = log.handle.store
    if commits:
        _print_rows(_commit_rows(store), given)
    elif snapshots:
        _print_rows(_snapshot_rows(store), given)
    elif objects:
        _print_rows(_object_rows(store, log.handle.manifest()), given)
    elif transactions:
        _print_rows(_transaction_rows(log.handle.manifest()), given)
    else:
        document = _commit_document(store, log.handle.tip.version if version is None else version)
        given.tell(document, lambda: _print_document(document))


def _commit_document(store: "Store", version: int) -> dict[str, Any]:
    """Returns a commit as JSON, its edit inline wherever it is stored; without the seed."""
    from clog.storage.commit.tip import try_read
    from clog.storage.errors import VersionExpiredError
    from clog.storage.format.commits import edit_of, edit_to_json, head_to_json

    commit = try_read(store, version)
    if commit is None:
        raise VersionExpiredError(
            f"there is no commit of version {version} in {store.url}; ask for one that"
            ' "clog dump --commits" lists'
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


def _snapshot_rows(store: "Store") -> Iterator[dict[str, Any]]:
    from clog.storage.format import documents
    from clog.storage.format.manifest import read_snapshot

    for found in sorted(store.list(documents.SNAPSHOTS), key=lambda found: found.path):
        version = documents.version_of(found.path)
        if version is None:
            continue
        manifest = read_snapshot(store, version)
        yield {
            "version": version,
            "time_ms": manifest.time_ms,
            "bytes": found.size_bytes,
            "segments": sum(map(len, manifest.segments)),
            "pages": len(manifest.pages),
        }


def _transaction_rows(manifest: "Manifest") -> Iterator[dict[str, Any]]:
    """Yields what is undecided, by partition, with its objects; then markers."""
    objects: dict[tuple[TransactionName, int], list[str]] = {}
    for p, chunk in manifest.chunks():
        if chunk.undecided is not None:
            objects.setdefault((chunk.undecided, p), []).append(chunk.object.path)
    for entry in manifest.head.unended:
        named = {"id": entry.name.id, "epoch": entry.name.epoch, "number": entry.name.number}
        more = {"home": entry.home_url, "time_ms": entry.started_ms}
        if not entry.first:  # Decided; others have yet to hear of it.
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
    """Yields what is in the manifest or in the store."""
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
    """Prints a commit for people: what it is in one line, then its edit and its head as JSON."""
    import json

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
