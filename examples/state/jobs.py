"""Two jobs that keep state: what each makes of one record, and the same of all of them at once."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

GAP_MINUTES = 9 * 60
"""A flight that leaves so long after the last one of its aircraft begins another session."""


class State(Protocol):
    """What a job needs of a store; a dict does for the oracle."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: str) -> None: ...


def count_words(state: State, _: str, line: str) -> None:
    """Counts each word of a line."""
    for word in line.split():
        state.put(f"word/{word}", str(int(state.get(f"word/{word}") or 0) + 1))


def sessions_of_flights(state: State, aircraft: str, value: str) -> None:
    """Joins the flights of an aircraft to sessions; one that has ended is output, and stays."""
    minute = int(value)
    known = state.get(f"open/{aircraft}")
    first, last, legs = json.loads(known) if known else (minute, minute, 0)
    if minute - last > GAP_MINUTES:
        state.put(f"session/{aircraft}/{first:08}", json.dumps([last, legs]))
        first, legs = minute, 0
    state.put(f"open/{aircraft}", json.dumps([first, minute, legs + 1]))


JOBS: dict[str, Callable[[State, str, str], None]] = {
    "words": count_words,
    "flights": sessions_of_flights,
}
_WORDS = [
    "a",
    "rose",
    "is",
    "and",
    "of",
    "the",
    "log",
    "state",
    "reader",
    "writer",
    "disk",
    "host",
    "kill",
    "record",
    "commit",
]


def records(job: str, first: int, number: int) -> list[dict[str, str]]:
    """Returns records of a job's input; record i is always the same."""
    made = words if job == "words" else flights
    return [made(i) for i in range(first, first + number)]


def words(i: int) -> dict[str, str]:
    """Returns a line of one to seven words."""
    line = " ".join(_WORDS[(i * 7 + j * j * 3) % len(_WORDS)] for j in range(1 + i % 7))
    return {"key": f"page-{i % 11}", "value": line}


def flights(i: int) -> dict[str, str]:
    """Returns a departure: 23 aircraft, each some hours after its last, now and then a day."""
    aircraft, turn = i % 23, i // 23
    minute = turn * 200 + (aircraft * 37) % 90 + (turn // 5) * 600 * (aircraft % 3)
    return {"key": f"N{aircraft:03}", "value": str(minute)}


def expected(job: str, rows: Iterable[dict[str, str]]) -> dict[bytes, bytes]:
    """Returns the state after all records, made in one go: the oracle."""
    state = Dict()
    for row in rows:
        JOBS[job](state, row["key"], row["value"])
    return {key.encode(): value for key, value in state.values.items()}


def words_in(rows: Iterable[dict[str, str]]) -> Counter[str]:
    """Returns the words of lines, counted without any of the above."""
    return Counter(word for row in rows for word in row["value"].split())


class Dict:
    """A state in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def put(self, key: str, value: str) -> None:
        self.values[key] = value.encode()
