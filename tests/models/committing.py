"""An explicit-state model of the commit protocol: writers, processes that close and delete blocks,
a sweep, a reader, and a log that is deleted and recreated at its root (COMMIT.md §1, §2, §4, §5).

Sources of nondeterminism, and how few they are:

- A PUT is *in flight* from when it is sent until the store does it or refuses it, however late:
  its writer may have got an error long before, and continued.
- A suspended process simply makes no step. The model has no time, because only one rule depends on
  it: a check for newer versions and its check of the block are one step, because a check is trusted
  for ten minutes, and a block is closed a day after its youngest commit.
- Other writers, which are neither slow nor unlucky, commit in one step, so that versions advance.
- Truth is the *chain*: what was created first at each version while the log was intact. A file that
  is later created at a version whose file was deleted is a ghost.
- A commit contains its parent's state: the operations that were applied, with their objects.

Blocks have two versions. Not modelled: combining, which has a separate model, and columns, pages
and snapshots, on which correctness does not depend.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from combining import BrokenError, Found, visit

SIZE = 2
OPEN = "open"


@dataclass(frozen=True)
class Rules:
    """Each rule of the protocol; without any one of them the model is wrong."""

    exclusive: bool = True
    """Of all creates of one name, one succeeds, and its bytes stay (A2)."""
    reads_back: bool = True
    """A writer that was refused, or had no reply, reads what is there (K4)."""
    same_version: bool = True
    """If nothing is there, the same version is created again, with the same bytes (K4)."""
    block_is_first: bool = True
    """The file of a block is created before its first commit (K4)."""
    block_is_checked: bool = True
    """A commit counts once the file of its block says so (K5)."""
    block_before_is_checked: bool = True
    """If a commit begins a block, the previous block is read as well (K5)."""
    absent_is_deleted: bool = True
    """If the file of a block is absent, the log was deleted (K5)."""
    head_is_past: bool = True
    """A block is closed when the head is past it (G1)."""
    open_after_reading: bool = True
    """Whether a block is open is read after all its commits (G2)."""
    closed_before_deleted: bool = True
    """Only commits of closed blocks are deleted (G3)."""
    block_stays: bool = True
    """The file of a block is never deleted (§4)."""
    looks_check_blocks: bool = True
    """A writer that checks for newer versions reads the file of their block (§4)."""
    floor_is_checked: bool = True
    """A writer that commits an object compares its stamp with the floor of the head (K2)."""
    swept_by_floor: bool = True
    """The sweep deletes objects whose stamp is below the floor, and no others (W3)."""
    loaded_after_floor: bool = True
    """The references are loaded at or after the commit of the floor (W2)."""
    own_folder: bool = True
    """A handle writes to the folder of the log that it opened (§1)."""
    marker_first: bool = True
    """Deleting a log first deletes the file that says that it is there (D1)."""


class Bounds(NamedTuple):
    """The bounds of the visited world."""

    writers: int = 1
    attempts: int = 2
    versions: int = 2
    others: bool = True
    closers: int = 0
    reader: bool = False
    sweep: bool = False
    deletion: bool = False


class Commit(NamedTuple):
    """A version: its writer, the handle's log, and the state to which it leads."""

    id: tuple
    log: int
    floor: int = 0
    applied: frozenset = frozenset()
    """The stamp of each operation's object."""


class Folder(NamedTuple):
    """Files of one log; ``chain`` is not a file, but the truth."""

    commits: tuple
    blocks: tuple
    chain: tuple = ()
    is_whole: bool = True


class Writer(NamedTuple):
    """A handle with one operation."""

    phase: str = "out"
    log: int = -1
    version: int = -1
    tip: Commit | None = None
    stamp: int = -1
    attempt: int = 0
    made: Commit | None = None


class State(NamedTuple):
    """A complete world; ``root`` is the log that is there, or none."""

    root: int
    folders: tuple
    writers: tuple
    objects: frozenset = frozenset()
    under_way: frozenset = frozenset()
    created: frozenset = frozenset()
    closers: tuple = ()
    reader: tuple | None = None
    sweep: tuple | None = None
    acked: frozenset = frozenset()


class Model:
    """The steps, and where they lead."""

    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        self.bounds, self.rules = bounds, rules
        self.reached: set[str] = set()
        blocks = bounds.versions // SIZE + 1
        self.empty = Folder((None,) * (blocks * SIZE), (None,) * blocks)

    def first(self) -> State:
        """One log that was just created."""
        return State(
            root=0,
            folders=(self.made_log(0), self.empty),
            writers=(Writer(),) * self.bounds.writers,
            closers=(None,) * self.bounds.closers,
            reader=(0, 0, self.made_log(0).chain[0]) if self.bounds.reader else None,
        )

    def made_log(self, log: int) -> Folder:
        """The folder of a log that was just created."""
        zero = Commit(("created",), log)
        commits, blocks = put(self.empty.commits, 0, zero), put(self.empty.blocks, 0, OPEN)
        return Folder(commits, blocks, (zero,))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yields each possible next step; raises if an invariant is violated."""
        self.check(state)
        for w, writer in enumerate(state.writers):
            for name, there in getattr(self, f"when_{writer.phase}")(state, w, writer):
                yield f"{name} {w}", there
        for sent in state.under_way:
            yield f"the store does {sent[2].id}", self.landed(state, *sent)
        if self.bounds.others and state.root >= 0:
            yield from self.others(state)
        for k, closer in enumerate(state.closers):
            yield from self.closing(state, k, closer)
        if state.closers:
            yield from self.deleting(state)
        if self.bounds.sweep:
            yield from self.sweeping(state)
        if state.reader is not None:
            yield from self.reading(state, *state.reader)
        if self.bounds.deletion:
            yield from self.recreating(state)

    def check(self, state: State) -> None:
        """Raises if a reported outcome, or the state of the files, is wrong."""
        for log, folder in enumerate(state.folders):
            own = [c.id[0] for c in folder.chain if isinstance(c.id[0], int)]
            if len(own) > len({*own}):
                raise BrokenError("AppliedOnce")
            if any(c.log != log for c in folder.chain):
                raise BrokenError("NotMixed")
            for b, block in enumerate(folder.blocks):
                if isinstance(block, tuple) and block != folder.chain[b * SIZE : (b + 1) * SIZE]:
                    raise BrokenError("ClosedIsTrue")
        if any(c not in state.folders[log].chain for log, c in state.acked):
            raise BrokenError("AckedIsThere")
        if state.root >= 0:
            folder = state.folders[state.root]
            if not folder.is_whole:
                raise BrokenError("StandsWhole")
            if any((state.root, *named) not in state.objects for named in folder.chain[-1].applied):
                raise BrokenError("NoDangling")
        if state.reader is not None:
            log, version, seen = state.reader
            if state.folders[log].chain[version] != seen:
                raise BrokenError("ReadersSeeTheChain")

    # A writer, step by step.

    def when_out(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """It opens the log that is there."""
        if state.root >= 0:
            opened = writer._replace(phase="in", log=state.root)
            yield "open", with_writer(state, w, self.newest(state, opened))

    def when_in(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """It writes its object (K1), checks for newer versions (§6), prepares (K2)."""
        is_below = self.rules.floor_is_checked and writer.stamp < writer.tip.floor
        if writer.stamp < 0 or is_below:
            written = writer._replace(stamp=writer.version)
            named = (writer.log, w, writer.version)
            if not self.rules.own_folder or state.folders[writer.log].is_whole:
                state = state._replace(objects=state.objects | {named})
            yield "write", with_writer(state, w, written)
        elif writer.version < self.bounds.versions and writer.attempt < self.bounds.attempts:
            applied = writer.tip.applied | {(w, writer.stamp)}
            made = Commit((w, writer.attempt), writer.log, writer.tip.floor, applied)
            prepared = writer._replace(phase="prepared", made=made, attempt=writer.attempt + 1)
            yield "prepare", with_writer(state, w, prepared)
        yield from self.following(state, w, writer)

    def following(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """It checks for newer versions."""
        folder = state.folders[writer.log]
        if not folder.is_whole:
            yield "told gone", self.gone(state, w, writer)
        elif not self.rules.looks_check_blocks:
            beyond = writer.version + 1
            if beyond < len(folder.commits) and (found := folder.commits[beyond]) is not None:
                yield "follow", with_writer(state, w, writer._replace(version=beyond, tip=found))
        elif (there := self.newest(state, writer)) != writer:
            yield "follow", with_writer(state, w, there)

    def when_prepared(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """It creates the file of the block, and sends the commit (K4)."""
        at = writer.version + 1
        log = writer.log if self.rules.own_folder or state.root < 0 else state.root
        folder = state.folders[log]
        if at % SIZE == 0 and folder.blocks[at // SIZE] is None and self.rules.block_is_first:
            opened = folder._replace(blocks=put(folder.blocks, at // SIZE, OPEN))
            state = with_folder(state, log, opened)
        state = state._replace(under_way=state.under_way | {(log, at, writer.made)})
        yield "send", with_writer(state, w, writer._replace(phase="sent"))

    def when_sent(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """The reply: created, or anything else, whatever the store did or will do."""
        if writer.made in state.created:
            yield "created", with_writer(state, w, writer._replace(phase="made"))
        yield "no reply", with_writer(state, w, writer._replace(phase="asking"))

    def when_asking(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """It reads back what is there (K4)."""
        at = writer.version + 1
        again = writer._replace(phase="in", made=None)
        if not self.rules.reads_back:
            yield "take for lost", with_writer(state, w, again)
            return
        log = writer.log if self.rules.own_folder or state.root < 0 else state.root
        found = state.folders[log].commits[at]
        if found == writer.made:
            yield "find it", with_writer(state, w, writer._replace(phase="made"))
        elif found is not None:
            self.reached.add("lost")
            yield "find another", with_writer(state, w, again._replace(version=at, tip=found))
        elif not self.rules.same_version:
            yield "take for lost", with_writer(state, w, again)
        else:
            self.reached.add("told unknown")
            yield "told unknown", with_writer(state, w, Writer("done"))
            more = state._replace(under_way=state.under_way | {(log, at, writer.made)})
            yield "send again", with_writer(more, w, writer._replace(phase="sent"))

    def when_made(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """It checks the block (K5), and reports the outcome."""
        at, folder = writer.version + 1, state.folders[writer.log]
        b = at // SIZE
        block = folder.blocks[b]
        if block is None and at % SIZE == 0 and not self.rules.block_is_first:
            block = OPEN
            state = with_folder(
                state, writer.log, folder._replace(blocks=put(folder.blocks, b, OPEN))
            )
        before = at % SIZE == 0 and self.rules.block_before_is_checked
        is_gone = block is None or (before and folder.blocks[b - 1] is None)
        if not self.rules.block_is_checked or (is_gone and not self.rules.absent_is_deleted):
            yield "told", self.told(state, w, writer)
        elif is_gone:
            yield "told gone", self.gone(state, w, writer)
        elif block == OPEN or writer.made in block:
            yield "told", self.told(state, w, writer)
        else:
            self.reached.add("slept while the block was closed")
            again = writer._replace(phase="in", made=None)
            yield "open anew", with_writer(state, w, self.newest(state, again))

    def when_done(self, state: State, w: int, writer: Writer) -> Iterator[tuple[str, State]]:
        """The outcome is reported."""
        yield from ()

    def told(self, state: State, w: int, writer: Writer) -> State:
        """The state in which a writer knows that it committed."""
        acked = state.acked | {(writer.log, writer.made)}
        self.reached.add("told")
        return with_writer(state._replace(acked=acked), w, Writer("done"))

    def gone(self, state: State, w: int, writer: Writer) -> State:
        """The state in which a writer knows that its log was deleted."""
        if state.root == writer.log:
            raise BrokenError("ToldGoneIsGone")
        self.reached.add("told gone")
        return with_writer(state, w, Writer("done"))

    @staticmethod
    def newest(state: State, writer: Writer) -> Writer:
        """The writer at the newest version, as a search with its checks finds it (§6)."""
        chain = state.folders[writer.log].chain
        return writer._replace(version=len(chain) - 1, tip=chain[-1])

    # The store, and all others.

    def landed(self, state: State, log: int, at: int, commit: Commit) -> State:
        """The store does what was sent, or refuses it."""
        folder = state.folders[log]
        state = state._replace(under_way=state.under_way - {(log, at, commit)})
        if folder.commits[at] is not None and self.rules.exclusive:
            return state
        chain = folder.chain
        if folder.is_whole and at <= len(chain) and (at == len(chain) or folder.commits[at]):
            chain = (*chain[:at], commit, *chain[at + 1 :])
        else:
            self.reached.add("a ghost")
        done = folder._replace(commits=put(folder.commits, at, commit), chain=chain)
        return with_folder(state._replace(created=state.created | {commit}), log, done)

    def others(self, state: State) -> Iterator[tuple[str, State]]:
        """Another writer commits in one step: an append, or a floor (W1)."""
        folder = state.folders[state.root]
        at = len(folder.chain)
        if at > self.bounds.versions or folder.commits[at] is not None:
            return
        tip = folder.chain[-1]

        def with_commit(floor: int) -> State:
            made = Commit(("others", at), state.root, floor, tip.applied)
            blocks = folder.blocks
            if blocks[at // SIZE] is None:
                blocks = put(blocks, at // SIZE, OPEN)
            done = folder._replace(
                commits=put(folder.commits, at, made), blocks=blocks, chain=(*folder.chain, made)
            )
            return with_folder(state, state.root, done)

        yield "others commit", with_commit(tip.floor)
        if self.bounds.sweep:
            for floor in range(tip.floor + 1, at):
                loaded = tip.applied
                if not self.rules.loaded_after_floor:
                    if state.sweep is None:
                        continue
                    loaded = state.sweep[1]
                yield f"floor {floor}", with_commit(floor)._replace(sweep=(floor, loaded))

    def sweeping(self, state: State) -> Iterator[tuple[str, State]]:
        """The committer of the floor deletes objects to which nothing refers (W2, W3)."""
        if state.sweep is None:
            if not self.rules.loaded_after_floor and state.root >= 0:
                loaded = state.folders[state.root].chain[-1].applied
                yield "load", state._replace(sweep=(0, loaded))
            return
        floor, loaded = state.sweep
        for log, operation, stamp in state.objects:
            is_below = stamp < floor or not self.rules.swept_by_floor
            if is_below and (operation, stamp) not in loaded:
                self.reached.add("swept")
                left = state.objects - {(log, operation, stamp)}
                yield f"sweep the object of {operation}", state._replace(objects=left)

    # Blocks.

    def closing(self, state: State, k: int, closer: tuple | None) -> Iterator[tuple[str, State]]:
        """A process that closes blocks of the first log reads (G1), and writes (G2)."""
        folder = state.folders[0]

        def with_closer(there: State, one: tuple | None) -> State:
            return there._replace(closers=put(there.closers, k, one))

        if closer is not None and closer[1] is not None:
            b, read = closer
            closed = folder._replace(blocks=put(folder.blocks, b, read))
            if folder.is_whole:
                self.reached.add("closed by two" if folder.blocks[b] == read else "closed")
                yield f"close {b}", with_closer(with_folder(state, 0, closed), None)
            return
        for b, block in enumerate(folder.blocks):
            found = tuple(c for c in folder.commits[b * SIZE : (b + 1) * SIZE] if c is not None)
            is_past = len(folder.chain) > (b + 1) * SIZE and len(found) == SIZE
            may = is_past if self.rules.head_is_past else bool(found)
            if self.rules.open_after_reading:
                if may and block == OPEN:
                    yield f"read {b}", with_closer(state, (b, found))
            elif closer is None and block == OPEN:
                yield f"ask whether {b} is open", with_closer(state, (b, None))
            elif closer == (b, None) and may:
                yield f"read {b}", with_closer(state, (b, found))

    def deleting(self, state: State) -> Iterator[tuple[str, State]]:
        """Commits of closed blocks are deleted, ghosts included (G3); the file of the
        block stays.
        """
        folder = state.folders[0]
        for b, block in enumerate(folder.blocks):
            span = range(b * SIZE, (b + 1) * SIZE)
            is_past = len(folder.chain) > (b + 1) * SIZE
            may = isinstance(block, tuple) or (is_past and not self.rules.closed_before_deleted)
            there = [v for v in span if folder.commits[v] is not None]
            if may and there:
                left = folder._replace(commits=put(folder.commits, there[0], None))
                yield f"delete {there[0]}", with_folder(state, 0, left)
            elif may and block is not None and not self.rules.block_stays:
                left = folder._replace(blocks=put(folder.blocks, b, None))
                yield f"delete the file of {b}", with_folder(state, 0, left)

    # Who reads, and who deletes the log.

    def reading(
        self, state: State, log: int, version: int, seen: Commit
    ) -> Iterator[tuple[str, State]]:
        """A reader advances to the next version."""
        folder = state.folders[log]
        found = folder.commits[version + 1] if version + 1 < len(folder.commits) else None
        if self.rules.looks_check_blocks:
            found = folder.chain[version + 1] if version + 1 < len(folder.chain) else None
        if found is not None and folder.is_whole and version + 1 < len(folder.chain):
            yield f"the reader sees {version + 1}", state._replace(reader=(log, version + 1, found))

    def recreating(self, state: State) -> Iterator[tuple[str, State]]:
        """The first log is deleted, in two steps, and another is created at its root (§1)."""
        folder = state.folders[0]
        if state.root == 0:
            yield "D1", state._replace(root=-1)
        if folder.is_whole and (state.root != 0 or not self.rules.marker_first):
            emptied = self.empty._replace(chain=folder.chain, is_whole=False)
            left = frozenset(named for named in state.objects if named[0] != 0)
            yield "D2", with_folder(state._replace(objects=left), 0, emptied)
        if state.root == -1:
            self.reached.add("recreated")
            yield "recreate", with_folder(state._replace(root=1), 1, self.made_log(1))


def put(values: tuple, at: int, value: object) -> tuple:
    """Returns the values with one of them replaced."""
    return (*values[:at], value, *values[at + 1 :])


def with_writer(state: State, w: int, writer: Writer) -> State:
    """Returns the state with one writer changed."""
    return state._replace(writers=put(state.writers, w, writer))


def with_folder(state: State, log: int, folder: Folder) -> State:
    """Returns the state with one folder changed."""
    return state._replace(folders=put(state.folders, log, folder))


def explore(bounds: Bounds, rules: Rules | None = None) -> Found:
    """Visits every state within bounds, breadth first, until an invariant is violated."""
    return visit(Model(bounds, rules or Rules()))


RULES = tuple(field.name for field in fields(Rules))
