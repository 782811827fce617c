"""Draws what transactions do to a made-up log: undecided records, ends, and what becomes of markers
(FORMAT.md §11); `histories` draws the rest. Needs hypothesis.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from clog.storage.format.chunks import Chunk, Segment
from clog.storage.format.commits import Edit
from clog.storage.format.documents import NONE
from clog.storage.format.log_info import (
    TRANSACTIONS,
    UNDECIDED_RECORDS,
    WHOLE_TRANSACTIONS,
    FeatureNames,
)
from clog.storage.format.manifest import Manifest
from clog.storage.format.transactions import (
    ABORTED,
    COMMITTED,
    OPEN,
    PARTICIPANT,
    PREPARED,
    TRANSACTION,
    AppendedBy,
    Committed,
    Ending,
    Joining,
    TransactionName,
    TransactionState,
    Unended,
    WriterEntry,
)

_OLD = FeatureNames((UNDECIDED_RECORDS,), (TRANSACTIONS,))
_FEATURES = (_OLD, _OLD.with_added(FeatureNames(write=(WHOLE_TRANSACTIONS,))))
_OTHER = "2" * 32
_UNENDED_MAX = 4
_OUTCOMES = (COMMITTED, ABORTED)
_LOG_IDS = st.integers(0, 2**128 - 1).map(lambda n: f"{n:032x}")


def kinds_now(manifest: Manifest) -> list[str]:
    """Returns what may happen to transactions after the manifest, as `undecided_edits` takes it."""
    unended, markers = manifest.head.unended, manifest.markers
    kinds = ["undecided"] * (len(unended) < _UNENDED_MAX) + ["deferred"]
    kinds += ["end", "end"] * bool(unended)
    kinds += ["marked"] * any(m.horizon_ms == NONE for m in markers)
    kinds += ["unmarked"] * any(m.horizon_ms != NONE for m in markers)
    return kinds


@st.composite
def undecided_edits(draw: st.DrawFn, manifest: Manifest, kind: str, append: Edit) -> Edit:
    """Returns a strategy for an edit of this kind; ``append`` is one, whose records are undecided
    where the kind says so.
    """
    free = [m for m in manifest.markers if (m.horizon_ms == NONE) == (kind == "marked")]
    match kind:
        case "undecided":
            return draw(_joining(manifest, append))
        case "deferred":
            version = manifest.version + 1
            state = TransactionState(0, version, Committed(0, version, version))
            writer = WriterEntry("late", TRANSACTION, None, NONE, None, version, state)
            by = AppendedBy(writer, 0, len(append.by_object()))
            return replace(append, features=draw(st.sampled_from(_FEATURES)), writers=(by,))
        case "end":
            entry = draw(st.sampled_from(manifest.head.unended))
            outcome = entry.state if entry.is_decided else draw(st.sampled_from(_OUTCOMES))
            return Edit(ends=(Ending(entry.name, outcome),))
        case "marked":
            marker = draw(st.sampled_from(free))
            return Edit(marked=((*marker.place, 1_000 + manifest.version),))
        case _:
            return Edit(unmarked=(draw(st.sampled_from(free)).place,))


@st.composite
def _joining(draw: st.DrawFn, manifest: Manifest, append: Edit) -> Edit:
    """Returns an append of a visible transaction, a participant's or a home's entry."""
    version, mine = manifest.version + 1, manifest.head.log.log_id
    state = draw(st.sampled_from([OPEN, OPEN, PREPARED]))
    going_on = [e for e in manifest.head.unended if e.state == OPEN]
    if state == OPEN and going_on and draw(st.booleans()):
        entry = replace(draw(st.sampled_from(going_on)), version=NONE, started_ms=NONE, first={})
        entry = replace(entry, held={}, since=NONE)
    else:
        home = mine if state == OPEN else draw(st.sampled_from([mine, _OTHER]))
        entry = Unended(
            name=TransactionName(home, "job", 0, version), state=state, timeout_ms=60_000
        )
        if home != mine:
            entry = replace(entry, home_url="memory://elsewhere")
        elif state == PREPARED:
            entry = replace(entry, participants=((_OTHER, "memory://elsewhere"),))
    is_home = entry.name.home == mine
    number = TransactionState(entry.name.epoch, entry.name.number)
    named = ("job", TRANSACTION) if is_home else (f"{_OTHER}/job", PARTICIPANT)
    writer = WriterEntry(*named, None, NONE, None, version, number)
    objects = 0 if entry.participants else len(append.by_object())
    return replace(
        Edit() if entry.participants else append,
        features=draw(st.sampled_from(_FEATURES)),
        unended=(Joining(entry, 0, objects),),
        writers=(AppendedBy(writer, 0, objects),),
    )


def is_ordinary(chunk: Chunk) -> bool:
    """Tells whether a chunk is neither undecided nor aborted."""
    return chunk.undecided is None and not chunk.aborted


def decided(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Returns those before the first with undecided records."""
    for i, segment in enumerate(segments):
        if any(c.undecided for c in segment.chunks):
            return segments[:i]
    return segments


def any_endings() -> st.SearchStrategy[Ending]:
    """Returns ends of any transaction."""
    return st.builds(Ending, _names(), st.sampled_from(_OUTCOMES), st.booleans())


def any_joinings() -> st.SearchStrategy[Joining]:
    """Returns entries of an edit that appends nothing."""
    texts = st.text(st.characters(codec="utf-8"), max_size=8)
    entries = st.builds(
        Unended,
        name=_names(),
        state=st.sampled_from([OPEN, PREPARED, *_OUTCOMES]),
        timeout_ms=st.integers(0, 2**40),
        home_url=st.none() | texts,
        participants=st.lists(st.tuples(_LOG_IDS, texts), max_size=2).map(tuple),
    )
    return st.builds(Joining, entries)


def _names() -> st.SearchStrategy[TransactionName]:
    numbers = st.integers(0, 2**63 - 1)
    ids = st.text(st.characters(codec="utf-8"), max_size=8)
    return st.builds(TransactionName, _LOG_IDS, ids, numbers, numbers)
