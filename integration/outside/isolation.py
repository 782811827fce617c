"""Judges transactions by the anomalies that Adya and Elle name, as far as docs/transactions.md
promises their absence.

A history has transactions, each with what it read before it wrote, reads of one log (``list``) and
cuts over all logs. A transaction writes to each of its logs, in this order, one of two registers
(a counter that all read and write under one id, or one of its own) and a key that nobody else
writes: so each record says whose it is, and the offsets of a log are the order of versions of all
its registers. Searched for:

- *lost*: a transaction that was acknowledged is not in each of its logs, whole and once;
- *G1a*, an aborted read: a transaction that ended otherwise is in a log, a read or a cut, or what
  is there of one in doubt is not all of it;
- *G1b*, an intermediate read: a read shows a part of what a transaction wrote to this log;
- *G0*, a dirty write: between the records of a transaction in one log are those of another;
- *old read*: a read is not the beginning of the log, or ends before what another read that had
  ended by then showed, or what was acknowledged by then in its home;
- *G1c*, circular information flow: a cycle of reads, and overwrites in one log;
- *lost update*: two transactions under one id read the same version of the counter, and replaced
  it;
- *fractured cut*: a cut shows a transaction in one of its logs, and not in another.

- *crossing under one id*: two transactions of one id have different orders in two logs.

Not promised, and therefore only counted: those of different ids may cross (`crossings`), and so
may cycles lead through several logs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from typing import Any

from history import OK, Operation

HOME = "home"
RECORDS = 2
"""Of a transaction, in each of its logs."""


def anomalies(ops: Iterable[Operation], final: dict[str, list[list[Any]]]) -> list[str]:
    """Returns what contradicts the isolation that is promised, in words.

    Args:
        ops: with the transactions that failed.
        final: by name of a log, all its records when nobody works any more.
    """
    ops = list(ops)
    made = {op["input"]["name"]: op for op in ops if op["op"] == "transaction"}
    crossed = [
        (a, b) for a, b in crossings(final) if made[a]["input"]["id"] == made[b]["input"]["id"]
    ]
    return [
        *(f"crossing under one id: {a} and {b}" for a, b in crossed),
        *_in_the_end(made, final),
        *_in_reads(made, final, ops),
        *_cycles(made, final),
        *_lost_updates(made, final),
        *_fractured(made, ops),
    ]


def crossings(final: dict[str, list[list[Any]]]) -> list[tuple[str, str]]:
    """Returns the pairs of transactions that have different orders in two logs."""
    orders = [_order(rows) for rows in final.values()]
    return [
        (a, b)
        for one, other in combinations(orders, 2)
        for a, b in combinations(sorted(one.keys() & other.keys()), 2)
        if (one[a] < one[b]) != (other[a] < other[b])
    ]


def _order(rows: list[list[Any]]) -> dict[str, int]:
    """By transaction, where its last record is."""
    return {row[3]: i for i, row in enumerate(rows)}


def _in_the_end(made: dict[str, Operation], final: dict[str, list[list[Any]]]) -> Iterator[str]:
    for log, rows in final.items():
        names = [row[3] for row in rows]
        for name in set(names) - made.keys():
            yield f"{log} has {name}, which nobody wrote"
        yield from (f"G1a: {log} has the aborted {n}" for n in _aborted(names, made))
        for name, op in made.items():
            there = names.count(name)
            wanted = RECORDS if log in op["input"]["into"] else 0
            if op["outcome"] == OK and there != wanted:
                yield f"lost: {log} has {there} records of {name}, which wrote {wanted}"
            first = names.index(name) if there else 0
            if there and names[first : first + there] != [name] * there:
                yield f"G0: {name} is not in one piece in {log}"
    for name, op in made.items():
        there = {log: [r[3] for r in final[log]].count(name) for log in op["input"]["into"]}
        if set(there.values()) not in ({0}, {RECORDS}):
            yield f"G1a: {name} is there in part: {there}"


def _aborted(names: Iterable[str], made: dict[str, Operation]) -> list[str]:
    return sorted(n for n in set(names) if n in made and made[n]["outcome"] == "failed")


def _in_reads(
    made: dict[str, Operation], final: dict[str, list[list[Any]]], ops: list[Operation]
) -> Iterator[str]:
    reads = [op for op in ops if op["op"] == "list" and op["outcome"] == OK]
    for op in reads:
        log, rows = op["log"], op["output"]
        names = [row[3] for row in rows]
        yield from (f"G1a: a read of {log} shows the aborted {n}" for n in _aborted(names, made))
        yield from (
            f"G1b: a read of {log} shows {names.count(n)} of {RECORDS} records of {n}"
            for n in sorted(set(names))
            if names.count(n) != RECORDS
        )
        if rows != final[log][: len(rows)]:
            yield f"old read: one of {log} with {len(rows)} records is not how the log begins"
        earlier = [o for o in reads if o["log"] == log and o["return"] < op["call"]]
        if any(len(o["output"]) > len(rows) for o in earlier):
            yield f"old read: one of {log} ends at {len(rows)}, an earlier one later"
        if log == HOME:
            known = (n for n, t in made.items() if t["outcome"] == OK and t["return"] < op["call"])
            yield from (f"old read: one of {log} is without {n}" for n in known if n not in names)


def _cycles(made: dict[str, Operation], final: dict[str, list[list[Any]]]) -> Iterator[str]:
    """Looks for a way back from a writer to who read from it."""
    committed = {row[3] for rows in final.values() for row in rows}
    reads = [
        (wrote, name)
        for name in sorted(committed & made.keys())
        for wrote in ((made[name]["output"] or {}).get("reads") or {}).values()
        if wrote is not None
    ]
    for wrote, name in reads:
        if made.get(wrote, {}).get("outcome") == "failed":
            yield f"G1a: {name} read of the aborted {wrote}"
    for log, rows in final.items():
        after: dict[str, set[str]] = defaultdict(set)
        for wrote, name in reads:
            after[wrote].add(name)
        for key in {row[2] for row in rows}:
            versions = [row[3] for row in rows if row[2] == key]
            for before, then in pairwise(versions):
                after[before].add(then)
        for wrote, name in reads:
            if wrote in _reachable(after, name):
                yield f"G1c: {name} read of {wrote}, which comes after it in {log}"


def _reachable(after: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        new = after[left.pop()] - seen
        seen |= new
        left += new
    return seen


def _lost_updates(made: dict[str, Operation], final: dict[str, list[list[Any]]]) -> Iterator[str]:
    committed = {row[3] for row in final[HOME]}
    read: dict[str | None, list[str]] = defaultdict(list)
    for name, op in made.items():
        reads = (op["output"] or {}).get("reads")
        if op["input"]["id"] == "shared" and name in committed and reads:
            read[reads[HOME]].append(name)
    for version, names in read.items():
        if len(names) > 1:
            yield f"lost update: {' and '.join(names)} both replaced {version}"


def _fractured(made: dict[str, Operation], ops: list[Operation]) -> Iterator[str]:
    for op in ops:
        if op["op"] != "cut" or op["outcome"] != OK:
            continue
        shown = {log: {*keys} & made.keys() for log, keys in op["output"].items()}
        for name in set().union(*shown.values()):
            into = made[name]["input"]["into"]
            logs = [log for log in into if name in shown.get(log, ())]
            if len(logs) != len(into):
                yield f"fractured cut: {name} is in {logs} of {into}"
            if made[name]["outcome"] == "failed":
                yield f"G1a: a cut shows the aborted {name}"
