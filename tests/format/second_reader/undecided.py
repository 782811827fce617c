"""Transactions that have not ended, and the markers of those that have (FORMAT.md §11.2, §11.3)."""

from dataclasses import dataclass
from typing import Any

from second_reader.documents import HEX32, Json, columns, integer, need
from second_reader.replacements import partition_at
from second_reader.state import Chunk, DataObject, Name, State

UNENDED_MAX = 64
DECIDED = ("committed", "aborted")
STATES = ("open", "prepared", *DECIDED)
MAYBE = ("held", "since")
MARKER_COLUMNS = "p offset id epoch number outcome horizon"


@dataclass
class Joining:
    """An entry that joins the list, and which objects of ``add`` are its own."""

    entry: Json
    first: int
    next: int


def name_of(body: Any) -> Name:
    """The four fields that name a transaction."""
    need(isinstance(body, dict), "11.2", "no transaction")
    need(isinstance(body.get("id"), str), "11.2", "a transaction without id")
    need(bool(HEX32.fullmatch(str(body.get("home")))), "11.2", "a transaction without home")
    epoch, number = integer(body.get("epoch"), "11.2"), integer(body.get("number"), "11.2")
    return str(body["home"]), str(body["id"]), epoch, number


def entry_of(body: Any) -> Json:
    """What edits and heads have in common about a transaction."""
    home, writer, epoch, number = name_of(body)
    need(body.get("state") in STATES, "11.2", "no state of a transaction")
    url, participants = body.get("home_url"), body.get("participants", [])
    need(url is None or isinstance(url, str), "11.2", "no URL")
    pairs = isinstance(participants, list) and all(
        isinstance(each, list) and [type(part) for part in each] == [str, str]
        for each in participants
    )
    need(pairs, "11.2", "no participants")
    return {
        "home": home,
        "id": writer,
        "epoch": epoch,
        "number": number,
        "home_url": url,
        "state": body["state"],
        "timeout_ms": integer(body.get("timeout_ms"), "11.2"),
        "participants": participants,
    }


def unended_of(body: Any, count: int) -> list[Json]:
    """The list of a head with this many partitions."""
    need(isinstance(body, list) and len(body) <= UNENDED_MAX, "11.2", "no list, or a long one")
    entries = []
    for each in body:
        entry = entry_of(each)
        first = each.get("first")
        need(isinstance(first, dict), "11.2", "no first offsets")
        held = each.get("held", {})
        need(isinstance(held, dict), "11.5", "no held offsets")
        for number, offset in (*first.items(), *held.items()):
            proper = number.isdecimal() and str(int(number)) == number and int(number) < count
            need(proper, "2", f"no partition {number}")
            integer(offset, "11.2")
        numbers = {name: integer(each.get(name), "11.2") for name in ("version", "started_ms")}
        integer(each.get("since", 0), "11.5")
        more = {name: each[name] for name in MAYBE if name in each}
        entries.append({**entry, **numbers, "first": first, **more})
    names = [name_of(each) for each in entries]
    need(len(set(names)) == len(names), "11.2", "a transaction is listed twice")
    return entries


def ends(state: State, value: list[Any]) -> None:
    """Decides transactions: their chunks, their markers, their entries."""
    for body in value:
        name, outcome = name_of(body), body.get("outcome")
        need(outcome in DECIDED, "11.2", "no outcome")
        known = [entry for entry in state.unended if name_of(entry) == name]
        for entry in known:
            state.unended.remove(entry)
            if entry["state"] in DECIDED:
                need(entry["state"] == outcome, "11.2", "another outcome than before")
                continue
            _decide(state, name, outcome, sorted(map(int, entry["first"])))
            if entry["participants"]:
                left = {name: value for name, value in entry.items() if name not in MAYBE}
                state.unended.append({**left, "state": outcome, "first": {}})


def _decide(state: State, name: Name, outcome: str, partitions: list[int]) -> None:
    for partition in state.partitions:
        for chunk in partition.chunks():
            if chunk.undecided == name:
                chunk.undecided, chunk.aborted = None, outcome == "aborted"
    for p in partitions:
        partition = state.partitions[p]
        state.markers.append((p, partition.end, *name[1:], outcome, -1))
        partition.active.next += 1
        partition.changed = state.version
    state.markers.sort()


def joins(state: State, value: list[Any]) -> list[Joining]:
    """Puts entries into the list; what they hold is known once ``add`` was applied."""
    joining = []
    for body in value:
        entry, name = entry_of(body), name_of(body)
        known = [each for each in state.unended if name_of(each) == name]
        need(all(each["state"] not in DECIDED for each in known), "11.2", "it is decided")
        new = {"version": state.version, "started_ms": state.time_ms, "first": {}}
        kept = {n: known[0][n] for n in (*new, *MAYBE) if n in known[0]} if known else new
        entry = {**entry, **kept, "first": dict(kept["first"])}
        state.unended = [each for each in state.unended if name_of(each) != name] + [entry]
        need(len(state.unended) <= UNENDED_MAX, "11.2", "too many transactions")
        objects = body.get("objects")
        need(isinstance(objects, list) and len(objects) == 2, "11.2", "no range of objects")
        first, end = (integer(each, "11.2") for each in objects)
        joining.append(Joining(entry, first, end))
    return joining


def hold(state: State, joining: list[Joining], objects: list[DataObject]) -> None:
    """Makes the chunks of a transaction's objects undecided."""
    for each in joining:
        need(each.first <= each.next <= len(objects), "11.2", "objects that are not there")
        before = held_by(each.entry)
        added = _first_of(state, objects[each.first : each.next], name_of(each.entry))
        each.entry["first"] = {**added, **each.entry["first"]}
        _keep_together(state, added, each.entry, before)


def committed(state: State, writers: list[Any], objects: list[DataObject]) -> None:
    """What transactions add that are committed by this edit (§11.5)."""
    for each in writers:
        if each[1] == "transaction" and (each[7].get("committed") or [-1])[-1] == state.version:
            _keep_together(state, _first_of(state, objects[each[5] : each[6]]))


def held_by(entry: Json) -> dict[str, int]:
    """From which offsets on it holds back, by partition (§11.5)."""
    return {**entry["first"], **entry.get("held", {})}


def _first_of(state: State, objects: list[DataObject], name: Name | None = None) -> dict[str, int]:
    paths, first = {each.path for each in objects}, {}
    for p, partition in enumerate(state.partitions):
        for chunk in partition.chunks():
            if chunk.object.path in paths:
                chunk.undecided = name or chunk.undecided
                first.setdefault(str(p), chunk.base)
    return first


def _keep_together(
    state: State, added: Json, mine: Json | None = None, before: Json | None = None
) -> None:
    if "whole-transactions" not in state.features:
        return
    now = added if mine is None else held_by(mine)
    for other in state.unended:
        theirs = held_by(other)
        touches = any(number in theirs for number in added)
        holds = bool(before) and all(
            number in theirs and theirs[number] <= offset for number, offset in before.items()
        )
        lower = {n: at for n, at in now.items() if n not in theirs or at < theirs[n]}
        if other is not mine and (touches or holds) and lower:
            other["held"] = {**other.get("held", {}), **lower}
            oldest = other.get("since", other["version"])
            since = oldest if mine is None else mine.get("since", mine["version"])
            if since < oldest:
                other["since"] = since


def marked(state: State, value: list[Any]) -> None:
    """Gives markers their horizon."""
    for p, offset, horizon_ms in _of_markers(state, value, 3):
        at = _place(state, p, offset)
        need(state.markers[at][-1] == -1, "11.3", "a marker gets a horizon twice")
        state.markers[at] = (*state.markers[at][:-1], integer(horizon_ms, "11.3"))


def unmarked(state: State, value: list[Any]) -> None:
    """Removes markers."""
    for p, offset in _of_markers(state, value, 2):
        del state.markers[_place(state, p, offset)]


def _of_markers(state: State, value: Any, size: int) -> list[list[Any]]:
    entries = isinstance(value, list) and all(
        isinstance(each, list) and len(each) == size for each in value
    )
    need(entries, "11.3", "no list of markers")
    return list(value)


def _place(state: State, p: Any, offset: Any) -> int:
    partition_at(state, p)
    place = (integer(p, "11.3"), integer(offset, "11.3"))
    found = [at for at, marker in enumerate(state.markers) if marker[:2] == place]
    need(len(found) == 1, "11.3", "no such marker")
    return found[0]


def drop_markers(state: State) -> None:
    """Drops the markers below the log start offsets."""
    state.markers = [m for m in state.markers if m[1] >= state.partitions[m[0]].start]


def read_markers(state: State, manifest: Json) -> None:
    """The markers of a snapshot."""
    if "markers" not in manifest:
        return
    for p, offset, writer, epoch, number, outcome, horizon_ms in columns(
        manifest["markers"], MARKER_COLUMNS, "11.3"
    ):
        partition_at(state, integer(p, "11.3"))
        need(isinstance(writer, str) and outcome in DECIDED, "11.3", "no marker")
        numbers = [integer(each, "11.3") for each in (offset, epoch, number)]
        after = integer(horizon_ms, "11.3", -1)
        state.markers.append((p, numbers[0], writer, *numbers[1:], outcome, after))
    places = [marker[:2] for marker in state.markers]
    need(places == sorted(set(places)), "11.3", "markers out of order")


def read_chunks(body: Json, chunks: list[Chunk], *, in_page: bool) -> None:
    """Which chunks of a snapshot or a page are undecided or aborted."""
    undecided, aborted = body.get("undecided", []), body.get("aborted", [])
    need(not (in_page and undecided), "11.2", "an undecided chunk in a page")
    for number, name in undecided:
        need(integer(number, "11.2") < len(chunks), "11.2", "no such chunk")
        need(chunks[number].undecided is None, "11.2", "a chunk is undecided twice")
        chunks[number].undecided = name_of(name)
    for number in aborted:
        need(integer(number, "11.2") < len(chunks), "11.2", "no such chunk")
        chunk = chunks[number]
        need(chunk.undecided is None and not chunk.aborted, "11.2", "a chunk is aborted twice")
        chunk.aborted = True
    for chunk in chunks:
        need(chunk.is_ordinary or chunk.dead is None, "11.2", "dead rows of no ordinary chunk")
