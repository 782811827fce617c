"""`clog verify`: checks a log. `clog verify-store`: checks the axioms that logs require of a store.
`clog erase`, `clog erasures`, `clog verify-erasure`: delete every byte of some keys, show how far
that is, and check it. `clog dump`: shows what is on disk.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clog.cli.lines import check_base64, keys_given
from clog.cli.options import (
    URL,
    Code,
    Given,
    argument,
    command,
    flag,
    integer,
    option,
    typed_schema,
    waiting_for,
)
from clog.cli.output import (
    count,
    counted,
    print_json_line,
    print_note,
    progress,
    say,
    size,
    stderr,
    stdout,
)
from clog.storage.config.units import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clog.storage import Erasure, Store
    from clog.storage.diagnostics.repair import RepairReport
    from clog.storage.diagnostics.verify import VerifyReport
    from clog.storage.format.commits import EditRecord
    from clog.storage.format.manifest import Manifest
    from clog.storage.format.transactions import TransactionName
    from clog.storage.store.conformance import Check


@command()
def verify(
    url: str = URL,
    *,
    quick: bool = flag(
        "--quick", "Check only the newest version, and that its objects exist with their full size."
    ),
    repair: str | None = option(
        "--repair URL",
        "Write the longest sound history of a log with inconsistent commits or lost block files"
        " to this empty place. The log itself is not changed.",
    ),
    given: Given,
) -> Code | None:
    r"""Check that a log is sound.

    Checks the history, the segments, and every object against the log's metadata. Reads the whole
    log and changes nothing. The exit code is 1 if something is wrong.

    \b
    clog verify ./orders
    clog verify s3://bucket/orders --quick --json
    clog verify s3://bucket/orders --repair s3://bucket/orders-repaired
    """
    from clog.storage.diagnostics.repair import repair_log
    from clog.storage.store import open_store

    if repair is not None:
        repaired = repair_log(open_store(url, given.storage), open_store(repair, given.storage))
        given.emit(asdict(repaired), partial(_print_repaired, repaired))
        return Code.FAILED if repaired.verified.findings else None
    with waiting_for(url, given.storage) as answered:
        report = _verified(open_store(url, given.storage), answered, quick=quick)
    given.emit(asdict(report), partial(_print, report))
    return Code.FAILED if report.findings else None


def _print_repaired(report: "RepairReport") -> None:
    for commit in report.left_out:
        say(f"left out: commit {commit.version} ({commit.operation or 'cannot be read'})")
    for version in report.rebuilt:
        say(f"rebuilt: commit {version}, from other commits")
    for first in report.blocks:
        say(f"rebuilt: the file of the block from version {first} on, which was lost")
    say(f"{report.copy} has version {report.version} of {report.url}, which is unchanged")
    _print(report.verified)


def _verified(store: "Store", answered: "Callable[[], None]", *, quick: bool) -> "VerifyReport":
    """Verifies and returns the report; on a terminal, shows a bar on standard error."""
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn

    from clog.storage.diagnostics.verify import verify_log

    columns = ("verifying", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with progress(*columns, hidden=quick) as shown:
        task = shown.add_task("verify", total=None)

        def on_progress(done: int, total: int) -> None:
            answered()
            shown.update(task, completed=done, total=total)

        return verify_log(store, quick=quick, on_progress=on_progress)


def _print(report: "VerifyReport") -> None:
    console = stdout()
    for finding in report.findings:
        console.print(f"{finding.check}: ", style="bold red", end="", soft_wrap=True)
        console.print(f"{finding.where}: {finding.message}", soft_wrap=True)
    looked = (
        "its newest version cannot be read"
        if report.version is None
        else (
            f"version {report.version}, {counted(report.commits, 'commit')},"
            f" {counted(report.objects, 'object')} of {size(report.object_bytes)},"
            f" {counted(report.records, 'record')}"
        )
    )
    if report.findings:
        found = f"{counted(len(report.findings), 'finding')} in {report.url}: {looked}"
        console.print(found, style="red", soft_wrap=True)
    else:
        console.print(f"{report.url} is sound: {looked}", style="green", soft_wrap=True)


class _Outcome(NamedTuple):
    """The result of one check: ``problem`` is empty if it passed."""

    check: str
    axiom: str
    fact: str
    problem: str


@command()
def verify_store(
    url: str = argument(
        "URL", "Any location on the store; everything written there is deleted at the end."
    ),
    *,
    rounds: int = option(
        "--rounds N", "Rounds of each race; more rounds find rarer faults.", integer(1), default=20
    ),
    given: Given,
) -> Code | None:
    r"""Check whether a store is safe for several writers.

    Writes, reads, races 16 threads and 8 processes, and deletes what it wrote. The exit code is 1
    if a check fails; a log on that store could then lose commits.

    \b
    clog verify-store s3://bucket/scratch
    clog verify-store sftp://me@host/srv/scratch --rounds 200 --json
    """
    from clog.storage.env import SystemIds
    from clog.storage.store.opening import folder_exists, remove_empty_folders

    root = f"{url.rstrip('/')}/clog-verify-store-{SystemIds().new_id()[:12]}"
    with waiting_for(url, given.storage):
        was_there = folder_exists(url, given.storage)
    try:
        outcomes = _outcomes(root, given.storage, rounds)
    finally:
        remove_empty_folders(root if was_there else url, given.storage)
    document = {"url": url, "checks": [outcome._asdict() for outcome in outcomes]}
    given.emit(document, partial(_print_outcomes, outcomes))
    return Code.FAILED if any(outcome.problem for outcome in outcomes) else None


def _outcomes(root: str, options: dict[str, object], rounds: int) -> list[_Outcome]:
    from clog.storage.errors import UnsupportedFilesystemError
    from clog.storage.store import open_store
    from clog.storage.store.conformance import CHECKS, Effort
    from clog.storage.store.memory import MemoryStore

    outcomes = []
    console = stderr()
    for check in CHECKS:
        store = open_store(f"{root}/{check.name}", options)
        if check.races_processes and isinstance(store, MemoryStore):
            continue
        if console.is_terminal:
            console.print(f"{check.name} …", style="dim")
        try:
            problem = _problem(check, store, Effort(rounds, rounds))
        except UnsupportedFilesystemError as e:
            problem = f"refused: {e}"
        finally:
            for found in [*store.list(""), *store.list_temporary("")]:
                store.delete(found.path)
        outcomes.append(_Outcome(check.name, check.axiom, check.fact, problem))
        if problem.startswith("refused"):
            break  # No other check can run.
    return outcomes


def _problem(check: "Check", store: "Store", effort: object) -> str:
    from clog.storage.errors import (
        InvalidInputError,
        NotFoundError,
        StoreUnavailableError,
        UnsupportedFilesystemError,
    )

    try:
        check.run(store, effort)  # type: ignore[arg-type]
    except (InvalidInputError, NotFoundError, StoreUnavailableError, UnsupportedFilesystemError):
        raise  # It says nothing about the axiom.
    except Exception as e:  # noqa: BLE001 - after any other error the axiom does not hold
        return f"{type(e).__name__}: {e}"[:300] if str(e) else type(e).__name__
    return ""


def _print_outcomes(outcomes: list[_Outcome]) -> None:
    console = stdout()
    for outcome in outcomes:
        style, word = ("red", "FAIL") if outcome.problem else ("green", "ok")
        console.print(f"{word:4} {outcome.axiom:2} ", style=style, end="", soft_wrap=True)
        console.print(outcome.fact, soft_wrap=True)
        if outcome.problem:
            console.print(f"        {outcome.problem}", style=style, soft_wrap=True)
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    if failed:
        say(f"{failed} of {len(outcomes)} checks failed: many writers are not safe here")
    else:
        say(f"all {len(outcomes)} checks passed: many writers are safe here")


VARIABLE = "CLOG_ERASURE_SECRET"


@command(writes=True)
def erase(
    url: str = URL,
    keys: list[str] | None = argument("[KEY]…", "The keys.", default=None),
    *,
    file: Path | None = option("--file PATH", "A file with one key per line.", Path),
    quiet: bool = flag(
        "--no-notify",
        "Append no tombstones: the erasure is done sooner, but followers do not see the deletes.",
    ),
    is_base64: bool = flag("--base64", "The keys are base64, for keys that are not text."),
    given: Given,
) -> None:
    r"""Erase keys from every file, and prove it by a receipt.

    Every byte of their records goes. A request is one commit; the cleaner's rounds carry it out,
    within days, and leave a receipt. Keep the secret that is printed: the receipt is checked with
    it, and it is stored nowhere.

    \b
    clog erase ./orders alice
    clog erase ./orders --file keys.txt --no-notify
    """
    lines = [] if file is None else file.read_text().splitlines()
    texts = [*(keys or []), *lines]
    if not texts:
        raise click.BadParameter("give keys, or --file PATH")
    check_base64(texts, is_base64=is_base64)
    log = given.open(url)
    wanted = keys_given(texts, is_base64=is_base64, schema=typed_schema(log))
    done = log.erase(wanted, notify=not quiet)
    given.emit(
        {"url": log.url, "id": done.id, "secret": done.secret, "version": done.version},
        [
            f"erasure {done.id} of {counted(len(wanted), 'key')}, as of version {done.version}",
            f"keep the secret of its receipt, which clog does not store: {done.secret}",
            f"clog erasures {log.url} shows its progress",
        ],
    )


@command()
def erasures(
    url: str = URL,
    *,
    to: Path | None = option(
        "--to FOLDER",
        "Write the receipts, and the script that verifies them, to this folder.",
        Path,
    ),
    given: Given,
) -> None:
    r"""List erasures, what they wait for, and receipts.

    \b
    clog erasures ./orders
    clog erasures ./orders --to ./receipts
    """
    log = given.open(url, to_read=True)
    found = log.erasures()
    if to is not None:
        _write(found, to)

    def draw() -> None:
        for one in found:
            since = f"{one.id}: {counted(one.keys, 'key')}, requested {moment(one.requested_ms)}"
            if one.completed_ms is None:
                say(f"{since}, pending: {one.reason}")
            else:
                say(f"{since}, done {moment(one.completed_ms)}")
        if not found:
            say("no erasures")

    given.emit({"url": log.url, "erasures": [asdict(one) for one in found]}, draw)


def _write(found: "list[Erasure]", folder: Path) -> None:
    from clog.storage.diagnostics import verify_erasure as script

    folder.mkdir(parents=True, exist_ok=True)
    for one in found:
        if one.receipt is not None:
            (folder / f"{one.id}.json").write_text(json.dumps(one.receipt, indent=1) + "\n")
    own = Path(str(script.__file__))
    (folder / own.name).write_bytes(own.read_bytes())


@command()
def verify_erasure(
    receipt: Path = argument("RECEIPT", "A file with the receipt.", Path),
    url: str = URL,
    *,
    keys: Path | None = option(
        "--keys FILE", "The erased keys, one per line: all bytes are searched for them.", Path
    ),
    secret: str = option(
        "--secret HEX", f"The secret that clog erase printed; better in ${VARIABLE}.", default=""
    ),
    given: Given,
) -> Code | None:
    r"""Verify the receipt of an erasure.

    Every file under the log's URL is decoded, by a script that imports nothing of clog and that
    clog erasures --to writes beside the receipts. It fails for a record of an erased key, a file of
    unknown kind, and a byte that the format does not explain.

    \b
    clog verify-erasure ./receipts/7b90….json ./orders
    clog verify-erasure ./receipts/7b90….json ./orders --keys keys.txt
    """
    from clog.storage.diagnostics import verify_erasure as script

    made: Any = script.Verifier
    try:
        text = receipt.read_bytes()
        said = json.loads(text.partition(b"\n")[2] if text.startswith(b'{"clog":') else text)
        wanted = keys.read_bytes().splitlines() if keys is not None else []
        verifier = made(_files(given, url), said, secret or os.environ.get(VARIABLE, ""), wanted)
        found = verifier.run()  # An unreadable file is one of its problems, not an error.
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as e:
        raise click.BadParameter(
            f"the receipt, the keys or the secret cannot be read: {e}"
        ) from None
    if not (found.secret or wanted):
        print_note("without the secret or --keys, records are not compared with the erased keys")
    later = f"; {counted(found.later, 'record')} of these keys came later" if found.later else ""
    given.emit(
        {
            "problems": found.problems,
            "files": found.seen,
            "records": found.records,
            "later": found.later,
        },
        [
            *found.problems,
            f"{counted(found.seen, 'file')}, {counted(found.records, 'record')} are sound{later}",
        ],
    )
    return Code.FAILED if found.problems else None


def _files(given: Given, url: str) -> "Mapping[str, Callable[[], bytes]]":
    """Returns a function that reads it for each file of a root, by path, temporary ones too."""
    from clog.storage.diagnostics import verify_erasure as script

    root = given.open(url, to_read=True).handle.standing.root
    if "://" not in url:  # Includes links, pipes and whatever stores do not list.
        files_under: Callable[[str], Mapping[str, Callable[[], bytes]]] = script.files_under
        return files_under(url)
    paths = [found.path for listed in (root.list(""), root.list_temporary("")) for found in listed]
    return {path: partial(root.get, path) for path in paths}


@command()
def dump(
    url: str = URL,
    *,
    version: int | None = option("--version N", "Show the commit of this version.", integer()),
    commits: bool = flag("--commits", "List all commits, oldest first."),
    snapshots: bool = flag("--snapshots", "List all snapshots."),
    objects: bool = flag("--objects", "List all data objects: live, replaced, or in no manifest."),
    transactions: bool = flag(
        "--transactions", "List open transactions, and markers of ended ones."
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
        raise click.BadParameter(
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
        given.emit(document, lambda: _print_document(document))


def _commit_document(store: "Store", version: int) -> dict[str, Any]:
    """Returns a commit as JSON, with its edit inline even if stored apart; without the seed."""
    from clog.storage.commit.tip import try_read
    from clog.storage.errors import VersionExpiredError
    from clog.storage.format.commits import edit_of, edit_to_json, head_to_json

    commit = try_read(store, version)
    if commit is None:
        raise VersionExpiredError(
            f'there is no commit of version {version} in {store.url}; give one that "clog dump'
            ' --commits" lists'
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
