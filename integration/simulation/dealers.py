"""Jobs over several logs, and those who end what the jobs leave behind.

Two processes and a sleeper fight for each job (`transactors`); each of their transactions appends
to any of the world's logs, or, visible, to its home. They walk away from some, abort some, commit
some of which they do not learn what became. Meanwhile finishers come by, as cleaners do, and an
operator who aborts, by force too. What each was told is compared with what the ledger knows
(`deals`).
"""

from actors import Actor
from deals import Deal
from inputs import items
from transactors import Transactor

from clog.storage.errors import (
    ClogError,
    CommitConflictError,
    CommitStateUnknownError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    TransactionFencedError,
    TransactionTimeoutError,
)
from clog.storage.format.transactions import COMMITTED, TransactionName
from clog.storage.transactions.several import finish_all
from clog_testing.faults import FaultKind

_TRIES_MAX = 4
_PASSING = (StoreUnavailableError, CommitStateUnknownError, CommitConflictError)


class _Wanderer(Actor):
    """Works on all logs of the world."""

    works_on_log = False

    def act(self) -> None:
        changes = self._changes()
        try:
            self.work()
        except _PASSING:
            pass  # The next turn tries again.
        except (ClogError, FileNotFoundError):
            sites = self.world.sites
            is_over = any(o is None or o.is_over for o in map(self.oracle_at, sites))
            if not is_over and changes == self._changes():
                raise
            self.close()

    def _changes(self) -> int:
        return sum(site.logs.changes for site in self.world.sites)

    def work(self) -> None:
        """One piece of work; raises only what passes, or what the deletion of a log explains."""
        raise NotImplementedError


class Dealer(_Wanderer, Transactor):
    """One of the processes of a job.

    Attributes:
        timeouts_ms: of its transactions, one of these.
        visible: of 100 are so many.
        aborts: and of 8 it aborts so many.
    """

    timeouts_ms = (60_000, 15 * 60_000, 86_400_000)
    visible = 25
    aborts = 1

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self.deal: Deal | None = None

    def work(self) -> None:
        world, home = self.world, self.log
        timeout_ms = self.timeouts_ms[world.roll(len(self.timeouts_ms))]
        is_visible = world.roll(100) < self.visible
        try:
            t = home.transaction(self.job, timeout_ms, visible=is_visible)
            if self.oracle.is_over:
                return  # In a log that is being deleted an epoch may come again.
            name = TransactionName(home.id, self.job, t.epoch, t.number)
            self.deal = Deal(name, self, timeout_ms, is_visible)
            world.ledger.begin(self.deal)
            self._fill(t, home)
            self.dwell()
            choice = world.roll(8)
            if 0 < choice <= self.aborts:
                self._abort(t)
            elif choice:
                self._commit(t)
        except TransactionFencedError:
            self.close()  # It is opened again, to take the job back.
        except TransactionTimeoutError:
            pass

    def dwell(self) -> None:
        """Takes its time before the end."""

    def _fill(self, t, home) -> None:
        """Appends to some logs; what fails is aborted."""
        try:
            item = home.positions(self.job).get(items().id, {}).get(0, 0)
            for n in range(1 + self.world.roll(3)):
                self._append(t, n)
            t.positions(items(), {0: item + 1})
        except ClogError:
            self._abort(t)
            raise

    def _append(self, t, n: int) -> None:
        deal = self.deal
        site = self.site if deal.is_visible else self.place(n)
        log, batch = self.log_at(site), self.world.batch()
        oracle = self.oracle_at(site)
        intent = oracle.intent(f"append {n} of {deal} of {deal.name.home}")
        intent.deal = deal
        self.putting = intent, batch.rows
        t.append(batch.table, batch.partition, log=None if site is self.site else log)
        self.putting = None
        deal.intents.setdefault(log.id, []).append(intent)
        there = intent.commits or oracle.is_over
        assert there or not deal.is_visible, f"{intent.name} is acknowledged, and not in the log"

    def place(self, n: int):
        """The site to whose log it appends next; ``n``: so many were before."""
        del n
        return self.world.sites[self.world.roll(len(self.world.sites))]

    def _commit(self, t) -> None:
        for tries in range(_TRIES_MAX):
            kinds = (None, None, None, FaultKind.FAIL_BEFORE, FaultKind.FAIL_AFTER)
            self._storm = kinds[self.world.roll(len(kinds))]
            try:
                self._check_told(t.commit())
                return
            except CommitStateUnknownError:
                pass
            except (CommitConflictError, StoreUnavailableError) as e:
                self._check_not_committed(e)
            except ClogError as e:
                self._check_not_committed(e)
                self.deal.never = True
                if tries and isinstance(e, InvalidInputError) and not t.is_open:
                    return  # A try before that failed has made certain that it never will be.
                raise
            finally:
                self._storm = None
            if self.world.roll(2) == 0:
                break
        if self.world.roll(3):
            self._abort(t)

    def _abort(self, t) -> None:
        try:
            t.abort()
        except _PASSING:
            return
        except InvalidInputError:
            self._check_told(t.result)
            return
        self._check_not_committed("aborted")
        self.deal.never = True

    def _check_told(self, result) -> None:
        deal, ledger = self.deal, self.world.ledger
        if ledger.is_lost(deal):
            return
        assert deal.outcome == COMMITTED, f"{deal} is told to be committed, is {deal.outcome}"
        if not result.offsets:
            return  # Not known any more, or nothing was appended to the home.
        offsets: dict[int, tuple[int, int]] = {}
        for intent in deal.intents.get(deal.name.home, ()):
            for _, mine in intent.commits:
                for p, (base, end) in mine.items():
                    offsets[p] = (min(base, offsets.get(p, (base, 0))[0]), end)
        assert dict(result.offsets) == offsets, f"{deal} is at {offsets}, told {result.offsets}"

    def _check_not_committed(self, told) -> None:
        deal = self.deal
        done = deal.outcome == COMMITTED and not self.world.ledger.is_lost(deal)
        assert not done, f"{deal} is committed, and was told {told}"


class Spreader(Dealer):
    """One whose transactions are never visible, and go on from log to log."""

    visible = 0

    def place(self, n: int):
        sites = self.world.sites
        return sites[(self.site.number + n) % len(sites)]


class Quitter(Dealer):
    """One that aborts most of what it appends, and what it appends is there, undecided, at once."""

    visible = 100
    aborts = 6


class Hanging(Dealer):
    """One whose records stay undecided for long, while others append, seal and clean."""

    timeouts_ms = (86_400_000,)
    visible = 100

    def dwell(self) -> None:
        world = self.world
        then = world.calls_left - 60 - world.roll(world.calls_left // 2)
        world.scheduler.sleep(lambda: world.calls_left < then)


class ZombieDealer(Dealer):
    """One that sleeps over its commits, until others have decided, or much happened."""

    sleeps = True
    sleepiness = 20

    def awaited(self, oracle, version: int):
        world, deal = self.world, self.deal
        then = world.calls_left - 20 - world.roll(80)
        if deal is None or deal.outcome is not None:  # It is about to tell what is decided.
            return lambda: world.calls_left < then
        return lambda: world.calls_left < then or deal.outcome is not None


class Dawdler(ZombieDealer, Spreader):
    """One that sleeps over what it is about to tell: some logs know what is decided, others not."""

    sleepiness = 5

    def doze(self, call, oracle):
        is_decided = self.deal is not None and self.deal.outcome is not None
        self.sleepiness = 80 if is_decided else type(self).sleepiness
        return super().doze(call, oracle)


class Finisher(_Wanderer):
    """Ends what others left, as a cleaner does; now and then an operator ends more."""

    may_be_off = True

    def work(self) -> None:
        world = self.world
        log = self.log_at(world.sites[world.roll(len(world.sites))])
        log.handle.refresh()
        if world.roll(8):
            finish_all(log.handle)
            return
        if infos := log.transactions():
            self._order(log, infos[world.roll(len(infos))].id, force=world.roll(3) == 0)

    def _order(self, log, job: str, *, force: bool) -> None:
        """An operator says that what is undecided under an id is to end."""
        ledger = self.world.ledger
        ledger.aborting[job] += 1
        ledger.forcing[log.id, job] += force
        try:
            log.abort_transaction(job, force=force)
        except (NotFoundError, InvalidInputError):
            pass  # Nothing is there any more, or its home cannot say what became of it.
        finally:
            ledger.aborting[job] -= 1
            ledger.forcing[log.id, job] -= force


class ZombieFinisher(Finisher):
    """One that sleeps before it tells what it knows, perhaps until the next transaction of the
    same id is undecided there.
    """

    sleeps = True
    sleepiness = 30

    def awaited(self, oracle, version: int):
        world, known = self.world, set(oracle.fates.open)
        ids = {(name.home, name.id) for name in known}
        then = world.calls_left - 20 - world.roll(100)

        def is_time() -> bool:
            fresh = (name for name in oracle.fates.open if name not in known)
            return world.calls_left < then or any((n.home, n.id) in ids for n in fresh)

        return is_time
