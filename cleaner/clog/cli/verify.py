"""`clog verify`: checks a log, the axioms that logs require of a store, or the receipt of an
erasure. `clog erase`: deletes every byte of some keys.
"""

import json
import os
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
    counted,
    print_note,
    progress,
    say,
    size,
    stderr,
    stdout,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clog.storage import Store
    from clog.storage.diagnostics.repair import RepairReport
    from clog.storage.diagnostics.verify import VerifyReport
    from clog.storage.store.conformance import Check


VARIABLE = "CLOG_ERASURE_SECRET"


@command
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
    receipt: Path | None = option(
        "--receipt FILE",
        "Verify this receipt of an erasure instead: every file under URL is decoded by a script"
        " that imports nothing of clog, the one that clog erase --receipts writes. It fails for a"
        " record of an erased key, a file of unknown kind, and a byte that the format does not"
        f" explain. ${VARIABLE} has the secret that clog erase printed.",
        Path,
    ),
    keys: Path | None = option(
        "--keys FILE",
        "With --receipt: the erased keys, one per line; all bytes are searched for them.",
        Path,
    ),
    store: bool = flag(
        "--store",
        "Check instead whether the store is safe for several writers: URL is any location there."
        " Writes, reads, races 16 threads and 8 processes, and deletes what it wrote.",
    ),
    rounds: int = option(
        "--rounds N",
        "With --store: rounds of each race; more rounds find rarer faults.",
        integer(1),
        default=20,
    ),
    given: Given,
) -> Code | None:
    r"""Check that a log, a store or a receipt is sound.

    Checks the history, the segments, and every object against the log's metadata. Reads the whole
    log and changes nothing. The exit code is 1 if something is wrong: a log on a store that fails
    could lose commits.

    \b
    clog verify ./orders
    clog verify s3://bucket/orders --quick --json
    clog verify s3://bucket/orders --repair s3://bucket/orders-repaired
    clog verify s3://bucket/scratch --store
    clog verify ./orders --receipt ./receipts/7b90….json --keys keys.txt
    """
    ways = {"--quick": quick, "--repair": repair, "--receipt": receipt, "--store": store}
    chosen = [name for name, value in ways.items() if value]
    if len(chosen) > 1:
        raise click.BadParameter(f"give one of {', '.join(chosen)}")
    if keys is not None and receipt is None:
        raise click.BadParameter("--keys needs --receipt")
    if store:
        return _store_verified(url, rounds, given)
    if receipt is not None:
        return _receipt_verified(receipt, url, keys, given)
    if repair is not None:
        return _repaired(url, repair, given)
    from clog.storage.store import open_store

    with waiting_for(url, given.storage) as answered:
        report = _verified(open_store(url, given.storage), answered, quick=quick)
    given.emit(asdict(report), partial(_print, report))
    return Code.FAILED if report.findings else None


def _repaired(url: str, place: str, given: Given) -> Code | None:
    from clog.storage.diagnostics.repair import repair_log
    from clog.storage.store import open_store

    repaired = repair_log(open_store(url, given.storage), open_store(place, given.storage))
    given.emit(asdict(repaired), partial(_print_repaired, repaired))
    return Code.FAILED if repaired.verified.findings else None


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


def _store_verified(url: str, rounds: int, given: Given) -> Code | None:
    """Checks the axioms in a folder of its own."""
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


@command
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
    receipts: Path | None = option(
        "--receipts FOLDER",
        "Erase nothing: write the receipts of erasures that are done, and the script that verifies"
        " them, to this folder.",
        Path,
    ),
    given: Given,
) -> None:
    r"""Erase keys from every file, and prove it by a receipt.

    Every byte of their records goes. A request is one commit; the cleaner's rounds carry it out,
    within days, and leave a receipt. Keep the secret that is printed: the receipt is checked with
    it, and it is stored nowhere.

    \b
    clog erase ./orders alice
    clog erase ./orders --file keys.txt --no-notify
    clog erase ./orders --receipts ./receipts
    """
    if receipts is not None:
        if keys or file or quiet:
            raise click.BadParameter("--receipts erases nothing; omit keys and other options")
        _write(given, url, receipts)
        return
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
            f"clog describe {log.url} erasures shows its progress",
        ],
    )


def _write(given: Given, url: str, folder: Path) -> None:
    """Writes receipts, and their verifier."""
    from clog.storage.diagnostics import verify_erasure as script

    log = given.open(url, to_read=True)
    done = {one.id: one.receipt for one in log.erasures() if one.receipt is not None}
    folder.mkdir(parents=True, exist_ok=True)
    for name, receipt in done.items():
        (folder / f"{name}.json").write_text(json.dumps(receipt, indent=1) + "\n")
    own = Path(str(script.__file__))
    (folder / own.name).write_bytes(own.read_bytes())
    given.emit(
        {"url": log.url, "folder": str(folder), "receipts": [*done]},
        f"wrote {counted(len(done), 'receipt')} and {own.name} to {folder}",
    )


def _receipt_verified(receipt: Path, url: str, keys: Path | None, given: Given) -> Code | None:
    """Runs the script that verifies a receipt."""
    from clog.storage.diagnostics import verify_erasure as script

    made: Any = script.Verifier
    try:
        text = receipt.read_bytes()
        said = json.loads(text.partition(b"\n")[2] if text.startswith(b'{"clog":') else text)
        wanted = keys.read_bytes().splitlines() if keys is not None else []
        verifier = made(_files(given, url), said, os.environ.get(VARIABLE, ""), wanted)
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
