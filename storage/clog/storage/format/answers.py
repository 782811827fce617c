"""What became of the newest operation of each author who proposes (FORMAT.md §21): who commits
takes proposals along (`commit.combining`), and their authors learn it from the heads that they
follow. Answers are forgotten up to version ``first``.
"""

from dataclasses import replace
from typing import Annotated, Final

from clog.storage.env import dataclass
from clog.storage.errors import CorruptionError
from clog.storage.format.documents import AUTHOR, KEPT, NATURAL, Flag, Natural, record, row, seq


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an author's newest operation: the commit of ``version`` at ``time_ms`` applied
    it, or withdrew it, so that none ever will.
    """

    author: Annotated[str, AUTHOR]
    number: Natural
    version: Natural
    is_applied: Flag
    time_ms: Natural


_ANSWERS = seq(row(Answer))


@dataclass(frozen=True, slots=True)
class Combined:
    """The answers that are remembered: all of versions after ``first``."""

    first: Annotated[int, NATURAL, KEPT] = 0
    authors: Annotated[tuple[Answer, ...], _ANSWERS, KEPT] = ()

    def of(self, author: str) -> Answer | None:
        """Returns what became of an author's newest operation; None where nobody knows."""
        return next((answer for answer in self.authors if answer.author == author), None)

    def after(self, given: "Combining", *, version: int, time_ms: int) -> "Combined":
        """Returns what is remembered after an edit that answers some, and forgets as it says."""
        known = {answer.author: answer for answer in self.authors}
        first = max(self.first, given.first)
        if first >= version:
            raise CorruptionError(f"version {version} forgets answers up to version {first}")
        for one in given.authors:
            was = known.pop(one.author, None)
            if was is not None and was.number >= one.number:
                raise CorruptionError(
                    f"an edit answers operation {one.number} of author {one.author}, after"
                    f" {was.number} was answered by version {was.version}"
                )
            known[one.author] = Answer(one.author, one.number, version, one.is_applied, time_ms)
        return Combined(first, tuple(a for a in known.values() if a.version > first))

    def reset(self, time_ms: int) -> "Combined":
        """Returns the same, in which no time is later."""
        kept = (replace(a, time_ms=min(a.time_ms, time_ms)) for a in self.authors)
        return replace(self, authors=tuple(kept))


COMBINED: Final = record(Combined)


@dataclass(frozen=True, slots=True)
class Answered:
    """An operation of an author, and whether this edit applies it or withdraws it."""

    author: Annotated[str, AUTHOR]
    number: Natural
    is_applied: Flag


@dataclass(frozen=True, slots=True)
class Combining:
    """What an edit answers, and up to which version it forgets; 0: no further than before."""

    first: Natural = 0
    authors: Annotated[tuple[Answered, ...], seq(row(Answered))] = ()


COMBINING: Final = record(Combining)
