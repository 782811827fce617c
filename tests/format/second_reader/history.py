"""The history of a log from version 0, and what commits say of each other (FORMAT.md §3.1)."""

import json
from typing import Any

from second_reader import edits, snapshots
from second_reader.documents import Json, need
from second_reader.log import Log
from second_reader.state import State

ENTRY = ("version", "id", "time_ms", "operation", "edit", "edit_at")


def replay(log: Log, version: int) -> State:
    """The state at a version by all edits from 0, each head and each link checked on the way."""
    state: State | None = None
    entries: dict[int, Json] = {}
    before: Json | None = None
    writers: dict[tuple[str, str], list[Any]] = {}
    for number in range(version + 1):
        commit = log.commit(number)
        entries[number] = {name: commit[name] for name in ENTRY if name in commit}
        need(commit["parent"] == (state.id if state else None), "3.1", f"parent of {number}")
        check_earlier(commit, entries)
        edit = log.edit(commit)
        if state is None:
            state = edits.create(log.id, commit, edit)
        else:
            edits.apply(state, commit, edit)
        check_writers(log, state, writers, edit.get("writers", []))
        rest = commit["head"]["partitions"].get("rest")
        follows = rest is None or rest == before or rest["version"] == number - 1
        need(follows, "3.4", f"the columns that {number} refers to")
        before = rest
        snapshots.check_head(log.folder, state, commit["head"])
        for partition in state.partitions:
            snapshots.check_tiling(partition)
    assert state is not None
    return state


def check_earlier(commit: Json, entries: dict[int, Json]) -> None:
    """Refuses `earlier` and a snapshot of another history, or ones that do not reach far enough."""
    version, earlier, snapshot = commit["version"], commit["earlier"], commit["head"]["snapshot"]
    for entry in earlier:
        own = {name: entry[name] for name in ENTRY if name in entry}
        need(own == entries[entry["version"]], "3.1", f"earlier of {version}")
    first = earlier[0]["version"] if earlier else 0
    parent: Any = entries[first - 1]["id"] if first else None
    need(commit.get("earlier_parent") == parent, "3.1", f"earlier_parent of {version}")
    after = 0 if snapshot is None else snapshot["version"] + 1
    if snapshot is not None:
        need(snapshot["id"] == entries[after - 1]["id"], "3.4", f"snapshot of {version}")
    if version % 4 == 0:
        need(version - len(earlier) <= after, "3.1", f"earlier of {version} begins too late")
    elif version % 2 == 0:
        need(bool(earlier), "3.1", f"{version} is even and carries nothing")


def check_writers(
    log: Log, state: State, writers: dict[tuple[str, str], list[Any]], named: list[list[Any]]
) -> None:
    """Refuses a commit that drops a writer, or keeps an older entry of one (§3.4, §4)."""
    for entry in named:
        name = (entry[1], entry[0])
        new = [*entry[:5], state.version, *entry[7:]]
        if entry[1] == "transaction":
            check_transaction(writers.get(name), new, appends=entry[5] != entry[6])
        if entry[1] == "participant" and name in writers:
            before = (writers[name][6][part] for part in ("epoch", "number"))
            now = (new[6][part] for part in ("epoch", "number"))
            need(tuple(before) <= tuple(now), "11.2", "a participant that forgets")
        writers[name] = new
    older = snapshots.older_writers(log.folder, state)
    found = {(entry[1], entry[0]): entry for entry in [*older, *state.writers]}
    need(found.keys() == writers.keys(), "3.4", "a writer is forgotten")
    for name, entry in writers.items():
        same = with_positions(log, found[name]) == with_positions(log, entry)
        need(same, "3.4", f"{name} has an older entry")
    inline = all(entry[1] != "transaction" or "positions_at" not in entry[6] for entry in older)
    need(inline, "11.1", "positions of a page's entry are elsewhere")


def with_positions(log: Log, entry: list[Any]) -> list[Any]:
    """An entry with the positions of its transaction, wherever they are (§11.1)."""
    if entry[1] != "transaction":
        return entry
    kept = ("positions", "positions_at", "foreign")
    rest = {name: value for name, value in entry[6].items() if name not in kept}
    return [*entry[:6], rest, snapshots.transaction_positions(log.folder, entry)]


def check_transaction(old: list[Any] | None, new: list[Any], *, appends: bool) -> None:
    """Refuses an entry that does not take over the id as it was left, or drops what was committed
    or aborted under it (§11.1, §11.2).
    """
    nothing = {"epoch": -1, "number": -1, "committed": None}
    before: Json = old[6] if old else nothing
    now: Json = new[6]
    if now["epoch"] == before["epoch"]:
        need(now["number"] >= before["number"], "11.1", "a transaction before the last")
        own = [now["epoch"], now["number"], new[5]]
        kept = (own, before["committed"])
        need(now["committed"] in kept, "11.1", "another commit of a transaction")
    else:
        taken = (before["epoch"] + 1, -1, before["committed"])
        found = (now["epoch"], now["number"], now["committed"])
        need(found == taken and not appends, "11.1", "an id that is not taken up as it was left")
    inline = [now[name] for name in ("positions", "foreign") if name in now]
    size = sum(
        len(json.dumps(part, separators=(",", ":"), ensure_ascii=False).encode()) for part in inline
    )
    need(size <= 1024, "11.1", "long positions stand inline")
