"""Combining (COMMIT.md §14, FORMAT.md §21): any number of writers, exactly once, whatever happens.

One process, many handles: each is an author with a clock of its own, and what others do while it
waits is what its clock does when it sleeps.
"""

from functools import partial
from itertools import count

import pyarrow as pa
import pytest

from clog.cleaner import Cleaner
from clog.storage import (
    CommitStateUnknownError,
    Log,
    StoreUnavailableError,
)
from clog.storage.administration import reset_times
from clog.storage.commit import combining as combining_module
from clog.storage.commit.combining import (
    ANSWERED_VERSIONS,
    ANSWERS_MAX,
    ELIGIBLE_MS,
    RECENT_VERSIONS,
    is_crowded,
)
from clog.storage.commit.proposals import Proposal, Waits, encode_proposal, waits_of
from clog.storage.env import SeededIds
from clog.storage.format import documents
from clog.storage.format.commits import Edit, head_to_json
from clog.storage.format.transactions import Answer, Combined, Combining
from clog.storage.store.contract import StoredObject, StoreRefusedError, WrappingStore
from clog_testing.counting import CountingStore
from clog_testing.crash import discard, memory_store
from clog_testing.delaying import Sleeper
from clog_testing.model import rows_in


class Crowd:
    """Authors of one log."""

    def __init__(self, store, partitions=1, config=None, schema=None):
        self.store, self.seeds = store, count(10)
        ids = SeededIds(next(self.seeds))
        log = Log.create(
            store, partitions, config, schema=schema, clock=Sleeper(1_000_000), ids=ids
        )
        self.log = log

    def author(self, store=None, now_ms=1_000_000):
        """Another handle, at the newest version; it does not know what is committed later."""
        ids = SeededIds(next(self.seeds))
        return Log.open(store or self.store, clock=Sleeper(now_ms), ids=ids)

    def values(self):
        return [row[2].value for row in rows_in(self.log.read())]

    def proposals(self):
        """The names of the existing proposals."""
        return sorted(f.path for f in self.log.handle.store.list(documents.PROPOSALS))

    @property
    def combined(self):
        return self.log.handle.refresh().head.combined


def asleep(log, *doing):
    """Lets others act while a handle waits."""
    log.handle.clock.during.extend(doing)


def one(value):
    return [{"key": "k", "value": value}]


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture
def crowd(store):
    return Crowd(store)


def left_waiting(crowd, value="a", ends=interrupt):
    """An author whose append was proposed, and then ended in this way."""
    a = crowd.author()
    crowd.author().append(one("first"))  # The race that it loses.
    asleep(a, ends)
    with pytest.raises(KeyboardInterrupt):
        a.append(one(value))
    return a


def combining(crowd, value="c", **opened):
    """An append that combines, by an author that lost a race."""
    c = crowd.author(**opened)
    crowd.author(**opened).append(one("race"))
    return c.append(one(value))


# F1 to F4


def test_who_loses_a_race_is_taken_along(crowd):
    """The author learns its version and offsets from the head of another's commit."""
    a, b, c = crowd.author(), crowd.author(), crowd.author()
    b.append(one("b"))
    asleep(a, lambda: c.append(one("c")))
    done = a.append(one("a"))
    assert crowd.values() == [b"b", b"c", b"a"]
    assert done.version == c.handle.tip.version == crowd.log.handle.refresh().version
    assert (done.offsets, done.duplicate) == ({0: (2, 3)}, False)


def test_times_that_a_clock_left_are_set_back_in_answers_too(crowd):
    """Otherwise answers would count as of the last 10 s for as long as that clock was ahead."""
    a, b = crowd.author(now_ms=9_000_000), crowd.author(now_ms=9_000_000)
    b.append(one("b"))
    a.append(one("a"))
    assert [answer.time_ms // 1_000_000 for answer in crowd.combined.authors] == [9]
    assert reset_times(crowd.author().handle) > 0
    assert [answer.time_ms // 1_000_000 for answer in crowd.combined.authors] == [1]
    assert crowd.values() == [b"b", b"a"]


def test_alone_it_is_as_it_was(store):
    """A lone writer makes no request for others, and leaves no byte for them in the head."""
    counting = CountingStore(store)
    log = Log.create(counting, 1, clock=Sleeper(1_000_000), ids=SeededIds(3))
    log.append(one("warm"))
    counting.reset()
    for n in range(5):
        log.append(one(f"v{n}"))
    expected = {"put": 5 + 1, "create": 5, "get": 5}  # A hint at version 4.
    assert counting.counts == expected
    assert "combined" not in head_to_json(log.handle.tip.head)


def test_many_go_in_one_commit(crowd):
    """Seven proposals and the combiner's own are one version, each with its own range of
    offsets.
    """
    waiting = [crowd.author() for _ in range(7)]
    c = crowd.author()
    crowd.author().append(one("race"))
    results = []

    def nested(rest):
        if not rest:
            return lambda: results.append(c.append(one("c")))

        def wait():
            asleep(rest[0], nested(rest[1:]))
            results.append(rest[0].append(one(f"w{len(rest)}")))

        return wait

    nested(waiting)()
    assert len({done.version for done in results}) == 1
    assert sorted(done.offsets[0] for done in results) == [(n, n + 1) for n in range(1, 9)]
    assert sorted(crowd.values()) == sorted([b"race", b"c", *(b"w%d" % n for n in range(1, 8))])
    assert len(crowd.combined.authors) == 8


def test_a_second_answer_takes_the_place_of_the_first(crowd):
    """The head has one answer per author, its newest."""
    a = crowd.author()
    for n in range(3):
        crowd.author().append(one(f"race{n}"))
        a.append(one(f"a{n}"))
        a.handle.clock.advance(11_000)  # Else it lets others in first, and loses no race.
    assert [answer.number for answer in crowd.combined.authors] == [3]


# H-W1, H-W8, H-W9: who may commit what was posted


def test_floats_that_are_wider_by_now_are_left_to_their_author(store):
    """S62: only the author knows that it rounded them, and makes them again; a commit that combines
    took them along as they were.
    """
    crowd = Crowd(store, schema={"key": pa.string(), "value": pa.float32()})
    a, other = crowd.author(), crowd.author()

    def evolve():
        assert crowd.proposals()
        other.evolve(widen={"value": pa.float64()})
        late = crowd.author()
        other.append(one(0.5))  # So that the next one combines.
        late.append(one(0.75))

    crowd.author().append(one(0.25))  # The race that it loses.
    asleep(a, evolve)
    a.append(one(0.1))
    found = [value for batch in crowd.log.read() for value in batch["value"].to_pylist()]
    assert found == [0.25, 0.5, 0.75, 0.1]


def test_h_w9_a_forked_child_is_another_author(crowd):
    """H-W9: the author and the ids of commits are drawn again in a forked child."""
    a = crowd.author()
    crowd.author().append(one("b"))
    a.append(one("a"))
    a.handle._committing[1].after_fork()
    crowd.author().append(one("c"))
    a.append(one("d"))
    authors = {answer.author for answer in crowd.combined.authors}
    assert len(authors) == 2
    prefixes = {record.commit_id[:8] for record in a.handle._tip.recent.known}
    assert {author[:8] for author in authors} <= prefixes


# H-W2, H-W3: what a commit names is there


# H-W4, H-W23: what may be said


def aged(crowd, *, ms=70_000, versions=ANSWERED_VERSIONS + 4):
    """Others continue for that long."""

    def go_on():
        d = crowd.author(now_ms=1_000_000 + ms)
        for n in range(versions):
            d.append(one(f"d{n}"))

    return go_on


def forget(log):
    """Commits that answers up to the version before are forgotten."""
    log.handle.refresh()
    log.handle.commit(lambda tip, _: Edit(combined=Combining(tip.version)), operation="forget")


def test_an_answer_is_kept_for_a_minute(crowd):
    """What was answered less than a minute ago is found, after any number of versions."""
    a = crowd.author()
    crowd.author().append(one("race"))

    def meanwhile():
        combining(crowd)
        aged(crowd, ms=50_000)()

    asleep(a, meanwhile)
    assert a.append(one("a")).offsets == {0: (3, 4)}
    assert crowd.values().count(b"a") == 1


# F5: giving up


def test_a_store_that_is_away_leaves_it_unknown(crowd):
    """F5: what can be neither committed nor withdrawn is unknown, and is there at most once."""
    away = Away(crowd.store)
    a = crowd.author(away)
    crowd.author().append(one("race"))
    asleep(a, away.goes)
    with pytest.raises(CommitStateUnknownError):
        a.append(one("a"))
    away.is_away = False
    combining(crowd)
    assert crowd.values().count(b"a") == 1


class Away(WrappingStore):
    """A store that can become unavailable, for reads and writes."""

    is_away = False

    def goes(self):
        self.is_away = True

    def get(self, path, start=None, end=None):
        self._check()
        return self.inner.get(path, start, end)

    def create(self, path, data):
        self._check()
        self.inner.create(path, data)

    def _check(self):
        if self.is_away:
            raise StoreUnavailableError("away")


# Appends of every kind


def test_producers_are_told_of_what_another_committed(crowd):
    """A sequence that was committed in another way meanwhile is a duplicate, and is there once."""
    a, other = crowd.author(), crowd.author()
    crowd.author().append(one("race"))
    asleep(a, lambda: other.append(one("a"), producer=("p", 1)))
    done = a.append(one("a"), producer=("p", 1))
    assert done.duplicate
    combining(crowd)
    assert crowd.values().count(b"a") == 1


def test_two_of_one_producer_go_in_their_order_or_not(crowd):
    """Of two proposals of one id the lower sequence is left out after the higher one."""
    a, b, c = crowd.author(), crowd.author(), crowd.author()
    crowd.author().append(one("race"))
    told = []

    def second():
        asleep(b, lambda: c.append(one("c")))
        told.append(b.append(one("five"), producer=("p", 5)))

    asleep(a, second)
    told.append(a.append(one("five"), producer=("p", 5)))
    assert sorted(done.duplicate for done in told) == [False, True]
    assert crowd.values().count(b"five") == 1


def test_a_transaction_is_taken_along_whole(crowd):
    """A deferred transaction is proposed with its positions, and committed once."""
    a, c = crowd.author(), crowd.author()
    with a.transaction("t") as first:
        first.append(one("zero"))
    c.handle.refresh()
    transaction = a.transaction("t")
    transaction.append(one("a"))
    transaction.positions(crowd.log, {0: 1})
    crowd.author().append(one("race"))
    asleep(a, lambda: c.append(one("c")))
    done = transaction.commit()
    assert done.version == c.handle.tip.version
    assert crowd.values()[done.offsets[0][0]] == b"a"
    state = crowd.author().handle.find_writer("transaction", "t").transaction
    assert state.positions[crowd.log.id][0].offset == 1


def test_positions_in_what_is_no_log_bring_their_feature(crowd):
    """The combiner announces the feature that a proposed transaction needs."""
    a, c = crowd.author(), crowd.author()
    transaction = a.transaction("t")
    transaction.append(one("a"))
    transaction.positions("kafka:x/y", {0: (5, "7")})
    c.handle.refresh()
    crowd.author().append(one("race"))
    asleep(a, lambda: c.append(one("c")))
    assert transaction.commit().version == c.handle.tip.version
    assert "foreign-positions" in crowd.author().handle.tip.head.log.features
    assert crowd.author().positions("t")["kafka:x/y"][0] == 5


def test_other_commits_take_proposals_along(crowd):
    """An alter, a roll and a cut commit what waits, while writers combine."""
    for who in ("x", "y"):
        combining(crowd, who)  # Two authors were answered of late.
    doings = [
        lambda: crowd.log.alter({"retention.ms": "77777"}),
        crowd.log.roll,
        lambda: crowd.log.delete_records({0: 1}),
    ]
    for n, do in enumerate(doings):
        a = crowd.author()
        combiner = a.handle._committing[1]
        combiner._cycle_ms, combiner._place = 1_000.0, lambda *_: 9  # Others come first.
        asleep(a, do)
        done = a.append(one(f"a{n}"))
        assert done.version == crowd.log.handle.tip.version, n


def crowded(store, partitions=1):
    """A log whose writers combine."""
    crowd = Crowd(store, partitions)
    for who in ("x", "y"):
        combining(crowd, who)  # Two authors were answered of late.
    return crowd


def pending(crowd, value, partition=0, **how):
    """Posts an append of an author that is interrupted while others combine; returns the author."""
    a = crowd.author()
    combiner = a.handle._committing[1]
    combiner._cycle_ms, combiner._place = 1_000.0, lambda *_: 9  # Others come first.
    asleep(a, interrupt)
    with pytest.raises(KeyboardInterrupt):
        a.append(one(value), partition, **how)
    return a


def test_a_visible_transaction_is_told_its_own_offsets(store):
    """FORMAT.md §21: what is included comes after the combiner's own, and is not part of that."""
    crowd = crowded(store, 2)
    with crowd.author().transaction("t", visible=True) as transaction:
        pending(crowd, "a", 1)
        transaction.append(one("mine"), partition=0)
    assert list(transaction.result.offsets) == [0]
    assert crowd.values().count(b"a") == 1


class Telling(WrappingStore):
    """A store that reports when something is created in it."""

    def tell(self):
        """Does nothing yet."""

    def create(self, path, data):
        self.inner.create(path, data)
        self.tell()


def test_a_transaction_over_several_logs_is_told_its_own_offsets(store):
    """COMMIT.md §9: the commit that decides it includes others."""
    crowd, inner = crowded(store, 2), memory_store()
    telling = Telling(inner)
    other = Log.create(telling, 1, clock=Sleeper(1_000_000), ids=SeededIds(3))
    with crowd.author().transaction("t") as transaction:
        transaction.append(one("mine"), partition=0)
        transaction.append(one("other"), log=other)
        waiting = []
        telling.tell = lambda: waiting or waiting.append(pending(crowd, "a", 1))
    assert list(transaction.result.offsets) == [0]
    assert crowd.values().count(b"a") == 1
    discard(inner)


# H-W5, H-W6, H-W17, H-W18: stores


class Unproven(WrappingStore):
    """A store whose exclusive creates are not known to be exclusive."""

    create_is_proven = False


def behind(monkeypatch, crowd):
    """Lets all others come after the author of the only proposal."""
    (path,) = crowd.proposals()
    first = documents.proposal_of(path)[1]
    monkeypatch.setattr(combining_module, "_share", lambda author, _: 0.9 * (author != first))


def test_who_lost_a_race_takes_others_along(crowd):
    """What cannot be proposed, such as a takeover, is faster for it: if nobody were included before
    two were answered within ten seconds, it would keep out all who wait on a slow store.
    """
    left_waiting(crowd)
    slow = crowd.author()
    crowd.author().append(one("race"))
    slow.transaction("t")
    assert b"a" in crowd.values()
    assert crowd.log.handle.refresh().record.operation == "transaction"


def test_who_waits_for_half_a_minute_proposes_anew(crowd, monkeypatch):
    """A proposal is eligible for a minute: if ten versions take longer, none would be left."""
    left_waiting(crowd, "z")
    behind(monkeypatch, crowd)
    a, there = crowd.author(), []
    crowd.author().append(one("race"))
    asleep(a, lambda: a.handle.clock.advance(ELIGIBLE_MS // 2 + 1))
    asleep(a, lambda: there.extend(crowd.proposals()))
    a.append(one("a"))
    assert len(there) == 3
    assert crowd.values().count(b"a") == 1


def test_those_who_were_answered_together_settle_in_turn(crowd, monkeypatch):
    """H-W6: where an answer counts only once a version follows, not every answered author commits
    one: one that comes later uses another's.
    """
    left_waiting(crowd, "z")
    behind(monkeypatch, crowd)
    a, c = crowd.author(Unproven(crowd.store)), crowd.author()
    crowd.author().append(one("race"))
    d = crowd.author()
    asleep(a, lambda: c.append(one("c")), lambda: d.append(one("d")))
    done = a.append(one("a"))
    assert done.version + 1 == d.handle.tip.version == crowd.log.handle.refresh().version
    assert crowd.values().count(b"a") == crowd.values().count(b"z") == 1


class Blind(WrappingStore):
    """A store whose LIST shows nothing, or is refused."""

    refuses = False

    def list(self, prefix):
        if self.refuses:
            raise StoreRefusedError("denied")
        return iter(())


@pytest.mark.parametrize("refuses", [False, True])
def test_h_w17_a_list_may_miss_everything(crowd, refuses):
    """H-W17: a writer that sees no proposals leaves them out, and their authors commit them."""
    blind = Blind(crowd.store)
    blind.refuses = refuses
    a, c = crowd.author(), crowd.author(blind)
    crowd.author().append(one("race"))
    asleep(a, lambda: c.append(one("c")))
    a.append(one("a"))
    assert sorted(crowd.values()) == [b"a", b"c", b"race"]


class Denied(WrappingStore):
    """A store that lets nobody write proposals."""

    def create(self, path, data):
        if documents.PROPOSALS in path:
            raise StoreRefusedError("denied", certain=True)
        self.inner.create(path, data)


def test_h_w18_who_may_not_propose_commits_himself(crowd):
    """H-W18: a role without permission for the folder appends all the same."""
    a = crowd.author(Denied(crowd.store))
    crowd.author().append(one("race"))
    assert a.append(one("a")).offsets == {0: (1, 2)}
    assert crowd.proposals() == []


@pytest.mark.parametrize("kind", ["producer", "transaction"])
def test_h_w15_who_reads_a_sequence_ends_what_is_pending_of_it(crowd, kind):
    """H-W15: a producer that continues from `Log.sequence` is not overtaken by a zombie: that is
    withdrawn, by one commit.
    """
    a = crowd.author()
    if kind == "producer":
        append = partial(a.append, one("old"), producer=("p", 5))
    else:
        transaction = a.transaction("p", sequence=5)
        transaction.append(one("old"))
        append = transaction.commit
    crowd.author().append(one("first"))
    asleep(a, interrupt)
    with pytest.raises(KeyboardInterrupt):
        append()
    successor = crowd.author()
    before = successor.version
    assert successor.sequence("p") is None
    assert successor.version == before + 1
    assert [answer.is_applied for answer in crowd.combined.authors] == [False]
    combining(crowd)
    assert b"old" not in crowd.values()
    assert not successor.append(one("new"), producer=("p", 5)).duplicate


class Failing(WrappingStore):
    """A store in which one of the operations on proposals fails, for now."""

    fails = ""

    def list(self, prefix):
        return iter(list(self._asked("list", prefix, lambda: self.inner.list(prefix))))

    def get(self, path, start=None, end=None):
        return self._asked("get", path, lambda: self.inner.get(path, start, end))

    def _asked(self, operation, path, call):
        if operation == self.fails and documents.PROPOSALS in path:
            raise StoreUnavailableError("away")
        return call()


@pytest.mark.parametrize("fails", ["list", "get"])
def test_h_w15_who_cannot_see_what_is_pending_is_told(crowd, fails):
    """H-W15: if the store fails nobody says that nothing is pending; the next look does."""
    a = crowd.author()
    crowd.author().append(one("first"))
    asleep(a, interrupt)
    with pytest.raises(KeyboardInterrupt):
        a.append(one("old"), producer=("p", 5))
    store = Failing(crowd.store)
    successor = crowd.author(store)
    store.fails = fails
    with pytest.raises(StoreUnavailableError):
        successor.sequence("p")
    store.fails = ""
    assert successor.sequence("p") is None
    combining(crowd)
    assert b"old" not in crowd.values()


@pytest.mark.parametrize("fails", ["list", "get"])
def test_what_cannot_be_read_now_is_taken_along_later(crowd, fails):
    """A store that fails for a moment leaves proposals out of one commit, not out of the next."""
    left_waiting(crowd)
    store = Failing(crowd.store)
    c = crowd.author(store)
    store.fails = fails
    crowd.author().append(one("race"))
    c.append(one("c"))
    assert b"a" not in crowd.values()
    store.fails = ""
    c.handle.clock.advance(11_000)
    crowd.author().append(one("race"))
    c.append(one("d"))
    assert crowd.values().count(b"a") == 1


def test_h_w15_whose_author_lives_appends_it_anew(crowd):
    """An author whose append was ended and that still waits is committed under its next number,
    once.
    """
    a, successor = crowd.author(), crowd.author()
    crowd.author().append(one("first"))
    asleep(a, lambda: successor.sequence("p"))
    done = a.append(one("late"), producer=("p", 5))
    assert not done.duplicate
    assert crowd.values().count(b"late") == 1
    assert crowd.author().sequence("p") == 5


def test_h_w15_who_may_only_read_is_told_the_sequence(crowd):
    """A handle that cannot commit ends nothing, and does not continue from it."""
    left = crowd.author()
    left.append(one("four"), producer=("p", 4))
    a = crowd.author()
    crowd.author().append(one("first"))
    asleep(a, interrupt)
    with pytest.raises(KeyboardInterrupt):
        a.append(one("old"), producer=("p", 5))
    assert crowd.author(Reading(crowd.store)).sequence("p") == 4


class Reading(WrappingStore):
    """A store that lets nobody write."""

    def create(self, path, data):
        raise StoreRefusedError("denied", certain=True)

    def put(self, path, data):
        raise StoreRefusedError("denied", certain=True)


def test_what_was_committed_is_told_though_the_store_fails_afterwards(crowd):
    """K3: the snapshot that remains to be made after the commit may fail for any reason."""

    class Failing(WrappingStore):
        """After the commit nothing can be read but what shows that it was committed."""

        has_committed = False

        def create(self, path, data):
            self.inner.create(path, data)
            self.has_committed |= f"/{documents.COMMITS}" in path

        def get(self, path, start=None, end=None):
            if self.has_committed and f"/{documents.BLOCKS}" not in path:
                raise StoreUnavailableError("planted")
            return self.inner.get(path, start, end)

    for n in range(8):
        a = crowd.author(Failing(crowd.store))
        crowd.author().append(one("race"))
        assert a.append(one(f"{n}")).offsets
    assert {b"%d" % n for n in range(8)} < set(crowd.values())


# What is left out


def test_what_is_too_long_for_a_proposal_races(crowd, monkeypatch):
    """FORMAT.md §21: leaving out is always allowed; a commit holds more than a proposal."""
    monkeypatch.setitem(documents.BODY_BYTES_MAX, "proposal", 600)
    a = crowd.author()
    crowd.author().append(one("race"))
    assert a.append(one("a"), producer=("p", 1)).offsets == {0: (1, 2)}
    assert crowd.proposals() == []
    assert crowd.combined is None


@pytest.mark.parametrize(
    "damage",
    ["cut", "renamed", "partition", "again", "gone", "author", "sizes", "huge", "twice"],
)
def test_what_cannot_be_read_is_left_out(crowd, damage):
    """A proposal that is damaged, or someone else's, or of no partition, or with numbers that a
    commit may not have, delays nobody, and gets into no commit.
    """
    left_waiting(crowd)
    store, (path,) = crowd.log.handle.store, crowd.proposals()
    data = store.get(path)
    store.delete(path)
    body = documents.decode("proposal", data, where=path)
    if damage == "cut":
        store.put(path, data[:-5])
    elif damage == "renamed":
        stamp, author, number, attempt = documents.proposal_of(path)
        store.put(documents.proposal_path(stamp, author, number + 1, attempt), data)
    elif damage == "partition":
        body["appends"][0]["objects"][0]["chunks"]["p"] = [7]
        store.put(path, documents.encode("proposal", body))
    elif damage == "again":
        obj = body["appends"][0]["objects"][0]
        obj["rows"], obj["chunks"] = 2, {name: 2 * of for name, of in obj["chunks"].items()}
        store.put(path, documents.encode("proposal", body))
    elif damage == "author":
        body["author"] = "no author"
        store.put(path, documents.encode("proposal", body))
    elif damage in ("sizes", "huge"):
        rows = 1 << 58
        obj = body["appends"][0]["objects"][0]
        obj["rows"], obj["chunks"]["rows"] = rows, [rows]
        if damage == "huge":
            obj["chunks"]["bytes"] = [31 * rows]
        store.put(path, documents.encode("proposal", body))
    elif damage == "twice":
        body["appends"] *= 2
        store.put(path, documents.encode("proposal", body))
    combining(crowd)
    assert Log.open(crowd.store).handle.manifest().version == crowd.log.version
    assert b"a" not in crowd.values()
    assert b"c" in crowd.values()


def test_a_proposal_of_another_kind_is_left_out(crowd):
    """What a later release proposes is ignored by this one."""
    left_waiting(crowd)
    store, (path,) = crowd.log.handle.store, crowd.proposals()
    body = documents.decode("proposal", store.get(path), where=path)
    store.delete(path)
    store.put(path, documents.encode("proposal", {**body, "kind": "later"}))
    combining(crowd)
    assert b"a" not in crowd.values()


# Bounds


def answers(n, version, time_ms):
    return [Answer(f"{i:016x}", 1, version, True, time_ms) for i in range(n)]


def test_who_alone_goes_on_is_soon_as_it_was(store):
    """A chain of commits whose clock is ahead, so that no answer in it becomes old: the authors of
    a crowd that is gone are dropped after some versions.
    """
    counting = CountingStore(store)
    crowd = Crowd(counting)
    for who in range(6):
        combining(crowd, f"c{who}", now_ms=1_600_000)
    log = crowd.author()
    for n in range(RECENT_VERSIONS + 2):
        log.append(one(f"v{n}"))
    assert not is_crowded(log.handle.tip, 1_000_000)
    counting.reset()
    began_ms = log.handle.clock.now_ms()
    for n in range(4):
        log.append(one(f"w{n}"))
    assert log.handle.clock.now_ms() == began_ms
    counting.counts.pop("put")  # Data; and hints, at versions divisible by 4.
    assert counting.counts == {"create": 4, "get": 4}


def test_a_full_head_of_answers_is_not_larger_than_it_may_be():
    """FORMAT.md §21: 64 KiB of JSON, with numbers as large as those after years."""
    some = tuple(
        Answer(f"{i:016x}", 99_999_999, 999_999_999, False, 4_102_444_800_000)
        for i in range(ANSWERS_MAX)
    )
    from clog.storage.format.transactions import COMBINED

    size = len(documents.body_json(COMBINED.write(Combined(999_999_999, some))))
    assert size <= 64 << 10


class Sizes(WrappingStore):
    """A store that knows the bytes of the proposals that were read."""

    def __init__(self, inner):
        super().__init__(inner)
        self.read = []

    def get(self, path, start=None, end=None):
        data = self.inner.get(path, start, end)
        if documents.PROPOSALS in path:
            self.read.append(len(data))
        return data


def test_who_combines_reads_no_more_than_it_has_room_for(crowd, monkeypatch):
    """Of 30 proposals of 20 KB it reads some, the lowest stamps first, and the next commits the
    rest; nothing that was left out in this way is forgotten meanwhile.
    """
    monkeypatch.setattr(combining_module, "_READ_BYTES_MAX", 100_000)
    handle, filler = crowd.log.handle, "".join(SeededIds(5).new_id() for _ in range(1_200))
    for n in range(30):
        proposal = Proposal(author=f"{n:016x}", number=1, stamp=n % 2, since=0, until_ms=1 << 50)
        body = documents.decode("proposal", encode_proposal(proposal), where="made")
        data = documents.encode("proposal", body | {"later": filler})
        handle.store.create(proposal.path, data)
    reading = Sizes(crowd.store)
    c = crowd.author(reading)
    for n in range(9):
        crowd.author().append(one(f"race{n}"))
        before = len(reading.read)
        c.append(one(f"c{n}"))
        assert sum(reading.read[before:]) <= 100_000
        c.handle.clock.advance(11_000)
    assert len(reading.read) == 30
    assert crowd.values().count(b"c8") == 1


def test_who_reads_a_sequence_holds_no_more_than_a_commit_reads(crowd, monkeypatch):
    """H-W15: everything that is pending is read, a part at a time; what belongs to the id
    is ended.
    """
    monkeypatch.setattr(combining_module, "_READ_BYTES_MAX", 2_000)
    for n in range(4):
        left_waiting(crowd, f"of others {n}")
    a = crowd.author()
    crowd.author().append(one("race"))
    asleep(a, interrupt)
    with pytest.raises(KeyboardInterrupt):
        a.append(one("old"), producer=("p", 5))
    held, reading = [], Sizes(crowd.store)
    fetch = combining_module.Combiner._fetch

    def noted(self, *given, **more):
        fetch(self, *given, **more)
        held.append(len(self._known))

    monkeypatch.setattr(combining_module.Combiner, "_fetch", noted)
    successor = crowd.author(reading)
    assert successor.sequence("p") is None
    assert held[:2] == [3, 2]  # Its commit takes others along, and so reads some of them again.
    combining(crowd)
    assert b"old" not in crowd.values()


def test_a_flood_leaves_the_others_their_share(crowd, monkeypatch):
    """Authors take turns, the one that has waited longest first: a writer that floods the log with
    appends that fill a commit delays nobody for longer than that.
    """
    monkeypatch.setattr(combining_module, "GROUP_CHUNKS_MAX", 4)
    flooders = [left_waiting(crowd, f"flood{n}") for n in range(8)]
    for n in range(3):
        left_waiting(crowd, f"small{n}")
    for n, flooder in enumerate(flooders):
        combining(crowd, f"c{n}")
        crowd.author().append(one("race"))
        asleep(flooder, interrupt)
        with pytest.raises(KeyboardInterrupt):
            flooder.append(one(f"again{n}"))
    for n in range(3):
        combining(crowd, f"d{n}")
    placed = [v for v in crowd.values() if v.startswith((b"small", b"again"))]
    smalls = [n for n, value in enumerate(placed) if value.startswith(b"small")]
    assert len(smalls) == 3
    assert smalls[-1] <= 4  # Whoever combines comes first in his own commit.
    assert len(placed) > 3


def test_small_appends_are_few_objects_after_a_round(crowd):
    """The bound of docs/running.md: what combining left, once there are 32 small objects of it,
    is one object after the cleaner's next round, 15 s later.
    """
    for n in range(16):
        combining(crowd, f"c{n}")

    def objects():
        crowd.log.handle.refresh()
        return len({c.object.path for _, c in crowd.log.handle.manifest().chunks()})

    values, before = sorted(crowd.values()), objects()
    cleaner = crowd.author(now_ms=1_015_000)
    Cleaner(cleaner).run_once()
    assert (sorted(crowd.values()), before, objects()) == (values, 32, 1)


def test_one_that_is_larger_than_what_is_read_at_once_is_read_alone(crowd, monkeypatch):
    """Otherwise it would never be included."""
    monkeypatch.setattr(combining_module, "_READ_BYTES_MAX", 10)
    left_waiting(crowd)
    left_waiting(crowd, "b")
    for n in range(2):
        combining(crowd, f"c{n}")
    assert {b"a", b"b"} <= set(crowd.values())


@pytest.mark.parametrize("before", [0, 250])
def test_h_w16_what_was_there_before_costs_nothing(store, before):
    """H-W16: the requests of a combining commit do not depend on earlier commits and proposals."""
    counting = CountingStore(store)
    crowd = Crowd(counting)
    for n in range(before):
        proposal = Proposal(author=f"{n:016x}", number=1, stamp=0, since=0, until_ms=1)
        crowd.log.handle.store.create(
            documents.proposal_path(0, f"{n:016x}", 1, 0), encode_proposal(proposal)
        )
    for n in range(before):
        crowd.log.append(one(f"v{n}"))
    a, b = crowd.author(), crowd.author()
    b.append(one("b"))
    counting.reset()
    a.append(one("a"))
    counts = dict(counting.counts)
    counts.pop("put", None)  # The hint, at versions divisible by 4, snapshots.
    assert counts["list"] <= 2
    assert counts["get"] <= 8


# Sweep and turns


def test_what_is_answered_is_swept_within_a_round(crowd):
    """FORMAT.md §21: answered proposals are deleted, one that may still be included stays, and a
    log in which nobody proposes costs nothing.
    """
    left_waiting(crowd)
    waiting = crowd.proposals()
    for n in range(3):
        combining(crowd, f"c{n}", now_ms=1_000_000 + ELIGIBLE_MS + 1_000)
    assert len(crowd.proposals()) > len(waiting) == 1
    counting = CountingStore(crowd.store)
    cleaner = Cleaner(crowd.author(counting))
    cleaner.run_once()
    assert crowd.proposals() == waiting
    store = crowd.log.handle.store
    store.delete(*waiting)
    cleaner.run_once()
    counting.reset()
    for _ in range(3):
        cleaner.run_once()
    assert counting.counts["list"] == 0


def test_how_long_appends_wait_is_told_where_it_is_asked(crowd):
    """`Log.describe`: what waits and what was answered, by two LISTs at most; by none if it is not
    requested, or no writers have combined yet.
    """
    counting = CountingStore(crowd.store)
    log = crowd.author(counting)
    assert log.describe()["waits"] is log.describe(waits=True)["waits"] is None
    assert counting.counts["list"] == 0
    combining(crowd)
    left_waiting(crowd)
    waits = log.describe(waits=True)["waits"]
    assert (waits["waiting"], waits["answered"] > 0) == (1, True)
    assert counting.counts["list"] <= 2


def test_who_may_not_list_is_not_told_how_long_appends_wait(crowd):
    """Everything else is."""

    class Unlisted(WrappingStore):
        def list(self, prefix):
            raise StoreRefusedError(f"may not list {prefix}")

    log = crowd.author(Unlisted(crowd.store))
    assert log.describe(waits=True) == crowd.author().describe()


def test_waits_are_those_of_the_first_name_of_each_operation():
    """What is posted again has waited since it was first posted; what has not been posted again for
    a minute does not wait, nor does what was answered before, or is forgotten.
    """
    a, b, c, d, e = (letter * 16 for letter in "abcde")

    def posted(author, number, attempt, at_ms):
        path = documents.proposal_path(3, author, number, attempt)
        return StoredObject(path, 1, at_ms)

    files = [
        *(posted(a, 2, 0, 100_000), posted(a, 2, 1, 130_000), posted(a, 1, 0, 1_000)),
        *(posted(b, 7, 0, 139_000), posted(c, 1, 0, 20_000), posted(d, 4, 0, 139_500)),
        posted(e, 3, 0, 138_000),
        StoredObject(f"{documents.PROPOSALS}another", 1, 0),
    ]
    answers = (
        Answer(a, 1, 2, is_applied=True, time_ms=90_000),
        Answer(d, 4, 5, is_applied=True, time_ms=140_000),
        Answer(e, 3, 5, is_applied=False, time_ms=140_000),
    )
    found = waits_of(files, Combined(0, answers), now_ms=140_000)
    assert (found.waiting, found.oldest_ms) == (2, 40_000)
    assert (found.answered, found.median_ms, found.longest_ms) == (3, 2_000, 89_000)
    assert waits_of([], None, now_ms=0) == Waits()


def test_who_cannot_propose_is_let_in(crowd):
    """A cleaner that lost a race asks for a turn: a combiner waits once, and is included."""
    for who in ("x", "y"):
        combining(crowd, who)  # Two authors were answered of late.
    a = crowd.author()
    waits, slept = [], []
    sleep_ms = a.handle.clock.sleep_ms
    a.handle.clock.sleep_ms = lambda ms: (slept.append(ms), sleep_ms(ms))

    class Asking(WrappingStore):
        """When the turn is requested, another writer is about to combine."""

        is_asked = False

        def create(self, path, data):
            self.inner.create(path, data)
            if documents.PROPOSALS in path and not self.is_asked:
                self.is_asked = True
                asleep(a, lambda: waits.append("waited"))
                waits.append(a.append(one("a")).version)

    cleaner = crowd.author(Asking(crowd.store))
    races = iter(["z"])

    def prepare(_tip, _ms):
        for who in races:
            combining(crowd, who)  # The race that the cleaner loses.
        return Edit()

    cleaner.handle.commit(prepare, operation="clean")
    assert waits[0] == "waited"
    assert max(slept) < sum(slept) / 2, "it looks on while it waits"
    kinds = [record.operation for record in cleaner.handle._tip.recent.known]
    assert "clean" in kinds
    assert crowd.values().count(b"a") == 1


def test_who_commits_beside_many_begins_with_the_newest_version(crowd):
    """What waits is read once, and no race is lost on a version that is known to be old."""
    counting = CountingStore(crowd.store)
    cleaner = crowd.author(counting)
    for who in ("x", "y"):
        combining(crowd, who)  # Two authors were answered of late.
    cleaner.handle.refresh()
    for who in ("u", "v", "w"):
        combining(crowd, who)
    counting.reset()
    cleaner.handle.commit(lambda _tip, _ms: Edit(), operation="clean")
    assert counting.counts["create"] == 1
    assert counting.counts["list"] <= 2
