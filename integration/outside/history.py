"""Histories: what clients of a log did and saw, as a checker wants it.

A client notes an operation before it begins (`Recorder.call`) and after it ended
(`Recorder.answer`), one line of JSON each, written at once: a kill between the two leaves an
operation without an end, and nothing else. `operations` makes one list of what all clients noted.

An operation ends in one of these ways:

- ``ok``: it happened between its call and its end, and ``output`` is what the client saw;
- ``gone``: its log was deleted, and it had no effect; only a log that someone has begun to delete
  may say so;
- ``failed``: it had no effect, and saw nothing. It is left out, so that the checker takes each
  trace of it for a record from nowhere;
- ``unknown``: it happened at any time after its call, or never. So does one without an end.

Times are those of the machine's monotonic clock, which its processes share.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

OK, GONE, FAILED, UNKNOWN = "ok", "gone", "failed", "unknown"
NEVER = (1 << 63) - 1
"""The end of an operation that may still happen."""

Operation = dict[str, Any]
"""Keys: ``client``, ``op``, ``log``, ``input``, ``outcome``, ``output``, ``call``, ``return``."""


class Recorder:
    """Notes what one client does, in a file of its own, which its later lives go on with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = sum("call" in line for line in lines_of(path))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def call(self, op: str, log: str, given: Any = None) -> int:
        """Notes that an operation begins; returns its number, for `answer`."""
        number, self._next = self._next, self._next + 1
        self._note({"call": number, "op": op, "log": log, "input": given})
        return number

    def answer(self, number: int, outcome: str, output: Any = None, *, log: str = "") -> None:
        """Notes how it ended; ``log``: of an operation that learnt only then which log it was."""
        line = {"return": number, "outcome": outcome, "output": output}
        self._note({**line, "log": log} if log else line)

    def _note(self, line: dict[str, Any]) -> None:
        data = json.dumps({**line, "at": time.monotonic_ns()}).encode() + b"\n"
        os.write(self._file, data)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns what a client noted; nothing if it never lived."""
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def operations(paths: Iterable[Path], *, failed: bool = False) -> list[Operation]:
    """Returns the operations of all clients that had, or may have had, an effect; or with those
    that ``failed``.
    """
    found: list[Operation] = []
    for client, path in enumerate(sorted(paths)):
        began: dict[int, Operation] = {}
        for line in lines_of(path):
            if "call" in line:
                began[line["call"]] = {
                    "client": client,
                    "op": line["op"],
                    "log": line["log"],
                    "input": line["input"],
                    "outcome": UNKNOWN,
                    "output": None,
                    "call": line["at"],
                    "return": NEVER,
                }
                continue
            op = began[line["return"]]
            op["outcome"] = line["outcome"]
            op["log"] = line.get("log", op["log"])
            if line["outcome"] != UNKNOWN:
                op["output"], op["return"] = line["output"], line["at"]
        found += (op for op in began.values() if failed or op["outcome"] != FAILED)
    return sorted(found, key=lambda op: op["call"])
