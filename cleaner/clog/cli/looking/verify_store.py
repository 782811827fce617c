"""`clog verify-store`: the axioms that logs need, checked on a store of yours."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from clog.cli.arguments import Json, Options, integer, storage_options, waiting_for
from clog.cli.output import print_json, say, stderr, stdout

if TYPE_CHECKING:
    from clog.storage.store.base import Store
    from clog.storage.testing.axioms import Check

Place = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Any location on the store; everything written there is deleted at the end.",
        show_default=False,
    ),
]
Rounds = Annotated[
    int,
    typer.Option(
        parser=integer(1), metavar="N", help="Rounds of each race; more rounds find rarer faults."
    ),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found: ``problem`` is empty where it passed."""

    check: str
    axiom: str
    fact: str
    problem: str


def verify_store(
    url: Place, *, rounds: Rounds = 20, options: Options = None, json: Json = False
) -> None:
    r"""Check whether a store is safe for several writers.

    Writes, reads, races 16 threads and 8 processes, and deletes what it wrote. The exit code is 1
    if a check fails; a log on that store could then lose commits.

    \b
    clog verify-store s3://bucket/scratch
    clog verify-store sftp://me@host/srv/scratch --rounds 200 --json
    """
    from clog.storage.ids import SystemIds
    from clog.storage.store.folders import folder_exists, remove_empty_folders

    given = storage_options(options)
    root = f"{url.rstrip('/')}/clog-verify-store-{SystemIds().new_id()[:12]}"
    with waiting_for(url, given):
        was_there = folder_exists(url, given)
    try:
        outcomes = _outcomes(root, given, rounds)
    finally:
        remove_empty_folders(root if was_there else url, given)
    if json:
        print_json({"url": url, "checks": [asdict(outcome) for outcome in outcomes]})
    else:
        _print(outcomes)
    if any(outcome.problem for outcome in outcomes):
        raise typer.Exit(1)


def _outcomes(root: str, options: dict[str, object], rounds: int) -> list[Outcome]:
    from clog.storage.errors import UnsupportedFilesystemError
    from clog.storage.store import open_store
    from clog.storage.store.memory import MemoryStore
    from clog.storage.testing.axioms import CHECKS, Effort

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
            _clear(store)
        outcomes.append(Outcome(check.name, check.axiom, check.fact, problem))
        if problem.startswith("refused"):
            break  # Nothing else can be asked of it.
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
    except Exception as e:  # noqa: BLE001 - whatever it is, the axiom does not hold
        return f"{type(e).__name__}: {e}"[:300] if str(e) else type(e).__name__
    return ""


def _clear(store: "Store") -> None:
    for found in [*store.list(""), *store.list_temporary("")]:
        store.delete(found.path)


def _print(outcomes: list[Outcome]) -> None:
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
