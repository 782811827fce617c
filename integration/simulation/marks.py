"""Which numbered points of the protocol were hit, and how: coverage that the run must reach.

A call of the store is named by what it is to the protocol: the crash points C1 to C7 and C10 of
COMMIT.md §3, B1 and B2 of §4, W1 to W6 of §5, E1 to E7 of §8, X1 to X5, Z1 and Z2 of §9, C31 to C36
of §14; commits besides by their operation. It is hit in one of three ways: the process dies before
it, dies after it, or its reply is lost. C5 and C6 are one call, the create of a commit: before is
C5, after it, and with the reply lost, is C6.
"""

from collections import Counter

from clog.storage.format import documents
from clog.storage.format.transactions import COMMITTED, TransactionName
from clog_testing.faults import FaultKind

MODES = {
    FaultKind.CRASH_BEFORE: "before",
    FaultKind.CRASH_AFTER: "after",
    FaultKind.FAIL_AFTER: "lost reply",
}
POINTS = (
    *("C1", "C2", "C3", "C4", "C5/C6", "C7", "C10"),
    *("B1", "B2", "W1", "W2", "W3", "W4", "W5", "W6"),
    *("commit of clean", "commit of coalesce", "commit of trim", "commit of retention"),
    *("commit of seal", "commit of roll", "commit of delete-records", "commit of alter"),
    *("X1", "X2", "X3 commit", "X3 abort", "X4", "X5", "Z1", "Z2 commit", "Z2 abort"),
    *("C31/C32", "C33/C34", "C35/C36"),
    *("E1", "E2", "E3", "E4", "E5", "E6", "E7 request", "E7 receipt", "E7 commit"),
)
_PLAIN = (
    (documents.SNAPSHOTS, "create", "C4"),
    (documents.BLOCKS, "put", "B1"),
    (documents.PROPOSALS, "create", "C31/C32"),
    (documents.ERASURES, "put", "E1"),
    (documents.ERASURES, "delete", "E7 request"),
    (documents.RECEIPTS, "create", "E7 receipt"),
)
"""Folder, operation, and the point that it is."""
HITS_MIN = 100
GHOSTS_MIN = 1000

GHOST = "zombie past a closed block"
REPLACED = "told that the log is gone"
ERASED = "erased, and has its receipt"
INTERRUPTED = "interrupted, and lives on"


def points_of(call, actor, oracle, data: bytes) -> list[str]:
    """The points that a call is at; ``actor`` says what it did since its last commit, ``data`` is
    what is created.
    """
    operation, path = call.operation, call.path
    if path.startswith(documents.DATA):
        if operation == "put":
            return ["C1"]
        if operation == "delete":
            released = {r.path for r in oracle.manifest.released}
            return ["W5" if path in released else "W3"]
        if operation == "list":
            return ["W2"]
    if (
        path.startswith((documents.PAGES, documents.EDITS, documents.COLUMNS))
        and operation == "put"
    ):
        return ["C10" if path.startswith(documents.COLUMNS) else "C3"]
    for folder, done, point in _PLAIN:
        if path.startswith(folder) and operation == done:
            return [point]
    if path.startswith(documents.COMMITS):
        if operation == "create":
            return ["C5/C6", *_of_commit(data, oracle.fates.ledger), *_of_combined(data)]
        if operation == "delete":
            return ["B2"]
    if actor.since == "objects":
        return ["C2"]
    return ["C7"] if actor.since == "commit" else []


def _of_commit(data: bytes, ledger) -> list[str]:
    body = documents.decode("commit", data, where="a commit")
    operation = body["operation"]
    if operation == "transaction":
        return _of_transaction(body, ledger)
    if operation == "erase":
        return [_of_erasure(body)]
    if operation == "floor":
        return ["W1"]
    if operation == "sweep":
        return ["W4" if "oldest_readable" in body.get("edit", ()) else "W6"]  # W6 may be large.
    return [f"commit of {operation}"]


def _of_erasure(body: dict) -> str:
    """The step of COMMIT.md §8 that a commit does."""
    entries = list(body.get("edit", {}).get("erasures", {}).values())
    if None in entries:
        return "E7 commit"
    if any("swept" in one for one in entries):
        return "E5"
    steps = ("killed", "E3"), ("gone", "E6"), ("rewritten", "E4"), ("version", "E2")
    now = (step for name, step in steps if any(one.get(name) == body["version"] for one in entries))
    return next(now, "E4")


def _of_combined(data: bytes) -> list[str]:
    """What a commit does of what others proposed, and of what its author gives up."""
    body = documents.decode("commit", data, where="a commit")
    answers = body.get("edit", {}).get("combined", {}).get("authors", ())
    mine = body["id"][:8]
    withdraws = any(not is_applied for _, _, is_applied in answers)
    takes = any(applied and not author.startswith(mine) for author, _, applied in answers)
    return ["C33/C34"] * takes + ["C35/C36"] * withdraws


def _of_transaction(body: dict, ledger) -> list[str]:
    """What a commit does for transactions whose records are undecided."""
    edit, home = body.get("edit", {}), body["head"]["log"]["log_id"]
    points = [
        "Z1" if joining["state"] == "open" else "X1" if joining["home"] == home else "X2"
        for joining in edit.get("unended", ())
    ]
    for ending in edit.get("ends", ()):
        name = TransactionName(*(ending[part] for part in ("home", "id", "epoch", "number")))
        deal = ledger.of(name)
        decision = "Z2" if deal.is_visible else "X3"
        step = "commit" if ending["outcome"] == COMMITTED else "abort"
        at_home = "X5" if deal.outcome is not None else f"{decision} {step}"
        points.append(at_home if name.home == home else "X4")
    return points


def missing(marks: Counter) -> list[str]:
    """What was hit too seldom."""
    short = [
        f"{point}, {mode}: {marks[f'{point}, {mode}']} of {HITS_MIN}"
        for point in POINTS
        for mode in MODES.values()
        if marks[f"{point}, {mode}"] < HITS_MIN
    ]
    short += [
        f"{name}: {marks[name]} of {GHOSTS_MIN}"
        for name in (GHOST, REPLACED, INTERRUPTED)
        if marks[name] < GHOSTS_MIN
    ]
    return short


def table(marks: Counter) -> str:
    """The marks, a line for each point."""
    lines = [f"{'point':28}" + "".join(f"{mode:>12}" for mode in MODES.values())]
    lines += [
        f"{point:28}" + "".join(f"{marks[f'{point}, {mode}']:>12}" for mode in MODES.values())
        for point in POINTS
    ]
    lines += [f"{name:28}{marks[name]:>12}" for name in (GHOST, REPLACED, INTERRUPTED, ERASED)]
    return "\n".join(lines)
