"""Which blocks a log has whose files were lost, as far as its commits tell (`repair`, H1).

Without the file of a block nobody who reads can say which of its commits were made: it may have
been closed, and then its commits were being deleted, and committers that slept may have left some
of their own (COMMIT.md §4). With all that is there at hand one can:

- blocks are closed from the oldest on, so those before one that is closed were;
- the one that holds the newest version never was: its commits are genuine;
- of the others one that has all its commits needs no file to be told: they follow one another to
  the newest version, or `repair` leaves out what does not. One that lacks any was closed, where no
  open one comes before it: what is left of it goes.

A file that cannot be read counts as lost.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clog.storage.commit.versions import Block, block_body, read_block
from clog.storage.errors import CorruptionError
from clog.storage.format import documents, paths
from clog.storage.store.base import Store


@dataclass(frozen=True, slots=True)
class Blocks:
    """What is known of a log's blocks.

    Attributes:
        first_open: the first version after those that were closed.
        lost: the first versions of blocks without a file that can be read.
    """

    first_open: int
    lost: tuple[int, ...]

    def files(self) -> Mapping[str, bytes]:
        """Returns by their paths the files that a copy needs in place of those that were lost. Of
        a closed block none of the ids is known, and no committer of the copy can have slept.
        """
        return {
            paths.block_path(first): documents.encode(
                "block", block_body(first, {} if first < self.first_open else None)
            )
            for first in self.lost
        }


def blocks_of(store: Store, versions: Collection[int]) -> Blocks:
    """Returns what the files of blocks and the versions of which there are commits tell; a LIST,
    and a GET for each block.
    """
    there = _read(store)
    known = {*versions}
    newest, step = paths.block_of(max(versions, default=0)), paths.BLOCK_VERSIONS
    closed = [first for first, block in there.items() if block.ids is not None]
    at = max(closed, default=-step) + step
    while at < newest and at not in there and not {*range(at, at + step)} <= known:
        at += step
    return Blocks(at, tuple(first for first in range(0, newest + 1, step) if first not in there))


def _read(store: Store) -> dict[int, Block]:
    found = {}
    for stored in store.list(paths.BLOCKS):
        first = paths.version_of(stored.path)
        if first is not None and first == paths.block_of(first):
            try:
                block = read_block(store, first)
            except CorruptionError:
                continue
            if block is not None:
                found[first] = block
    return found
