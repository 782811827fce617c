"""Raises `KeyboardInterrupt` at one line of the product, and knows the lines where nothing strikes.

A trace function counts the lines that one thread passes, and the returns of its functions, and
raises at one of them. CPython looks for signals at fewer places: when it enters a function, jumps
back, or comes back from C code. Apart are the lines at which a ``with`` block on a C lock is
*left*: they are lines of their own to a trace function, and no signal is looked for between the
block and the release. `locked_lines` finds them; a test holds each of those locks to be in C.
Apart, too, are instructions that do nothing, such as a ``try``: no signal is looked for there, and
CPython 3.11 has them in no block, so that nothing raised there would leave a ``with`` around it.
"""

import ast
import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_TESTING = "clog_testing"
_NOP = dis.opmap["NOP"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line that is about to run, or from which a function returns."""

    module: str
    line: int
    event: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} ({self.event})"


@cache
def locked_lines(path: str) -> dict[int, str]:
    """Returns by line the lock of each ``with`` statement of a file that is on one."""
    found: dict[int, str] = {}
    if path.startswith("<"):  # Made by `dataclass`, say.
        return found
    blocks = [n for n in ast.walk(ast.parse(Path(path).read_text())) if isinstance(n, ast.With)]
    for block in blocks:
        last = block.items[-1].context_expr.end_lineno or block.lineno
        for name in (ast.unparse(item.context_expr) for item in block.items):
            if name.split(".")[-1] == "_lock":
                found |= dict.fromkeys(range(block.lineno, last + 1), name)
    return found


@cache
def _first_offsets(code: CodeType) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for start, _, line in code.co_lines():
        if line is not None:
            offsets[line] = min(start, offsets.get(line, start))
    return offsets


@cache
def _idle(code: CodeType) -> frozenset[int]:
    return frozenset(at for at in range(0, len(code.co_code), 2) if code.co_code[at] == _NOP)


def _is_apart(frame: FrameType, event: str) -> bool:
    """Tells whether no signal strikes there, or it is not asked for."""
    if event != "line":
        return event != "return"
    code, line = frame.f_code, frame.f_lineno
    if frame.f_lasti in _idle(code):
        return True
    # Else the block of a lock is being left.
    return line in locked_lines(code.co_filename) and frame.f_lasti != _first_offsets(code)[line]


class Tracer:
    """Counts places in modules whose name begins so, and raises at the one with number ``at``.

    Attributes:
        places: that one, once it was passed; all of them where ``at`` is -1.
    """

    def __init__(self, at: int = -1, *, under: str = "clog.") -> None:
        self.at = at
        self._under = under
        self._passed = 0
        self.places: list[Place] = []

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        """Counts what ``sys.settrace`` tells of, and raises in its place."""
        del arg
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(self._under) or module.startswith(_TESTING):
            return None
        if not _is_apart(frame, event):
            if self.at in (-1, self._passed):
                self.places.append(Place(module, frame.f_lineno, event))
            self._passed += 1
            if self._passed == self.at + 1:
                raise KeyboardInterrupt(str(self.places[0]))
        return self


def passed(act: Callable[[], object]) -> list[Place]:
    """Returns the places that a call passes, in their order."""
    tracer = Tracer()
    with tracing(tracer):
        act()
    return tracer.places


def interrupted(act: Callable[[], object], at: int) -> Place | None:
    """Interrupts a call at a place; returns it, or None where the call ended before."""
    tracer = Tracer(at)
    try:
        with tracing(tracer):
            _confined(act)
    except KeyboardInterrupt:
        pass
    return tracer.places[0] if tracer.places else None


def _confined(act: Callable[[], object]) -> None:
    """Calls it in a generator, with which all ends that is being handled in it."""
    # Of what is raised where an ``except`` block is left, CPython 3.11 goes on to take the block's
    # exception for one that is being handled, and so for the context of all later ones.

    def called() -> Iterator[object]:
        yield act()

    next(called())


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Has it see what this thread does in the block."""
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(None)
