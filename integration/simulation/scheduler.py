"""Actors in threads of their own, of which exactly one runs: a baton goes from hand to hand.

Code that is simulated is written for real stores, so it cannot yield; a thread can stop anywhere.
An actor gives the baton away only in `turn`, and to whom is for the dice. Nothing else decides
what comes after what, so the same dice make the same run.
"""

import threading
from collections.abc import Callable


class StoppedError(BaseException):
    """The run is over; no ``except Exception`` survives it."""


class Scheduler:
    """Runs actors one call at a time.

    Args:
        roll: a number below its argument.

    Attributes:
        stay: of 100 turns so many keep the baton.
        failure: what the first actor that failed raised.
    """

    def __init__(self, roll: Callable[[int], int], *, stay: int) -> None:
        self._roll = roll
        self.stay = stay
        self._ready: list[_Actor] = []
        self._asleep: dict[_Actor, Callable[[], bool]] = {}
        self._current: _Actor | None = None
        self._over = threading.Lock()
        self._stopping = False
        self.failure: BaseException | None = None

    def add(self, name: str, run: Callable[[], None]) -> None:
        """An actor; it begins when its turn comes."""
        self._ready.append(_Actor(self, name, run))

    def run(self) -> None:
        """Runs until every actor has ended, or one fails.

        Raises:
            what it raised.
        """
        self._over.acquire()
        for actor in self._ready:
            actor.start()
        self._pass_on()
        self._over.acquire()
        if self.failure is not None:
            raise self.failure

    def turn(self) -> None:
        """A point where others may come first."""
        if self._roll(100) >= self.stay:
            self.give_way()

    def give_way(self) -> None:
        """Any other may come first."""
        actor = self._current
        self._pass_on()
        actor.baton.acquire()
        self.begin()

    def begin(self) -> None:
        """Called by an actor when it has the baton.

        Raises:
            StoppedError: the run is over.
        """
        if self._stopping:
            raise StoppedError

    def sleep(self, until: Callable[[], bool]) -> None:
        """Sleeps: others run until it holds, or none of them can; who sleeps longest wakes then."""
        actor = self._current
        if len(self._ready) < 2:
            return
        self._ready.remove(actor)
        self._asleep[actor] = until
        self.give_way()

    def wake(self) -> None:
        """Wakes those whose time has come."""
        for actor, until in list(self._asleep.items()):
            if until():
                del self._asleep[actor]
                self._ready.append(actor)

    def fail(self, failure: BaseException) -> None:
        """Ends the run, as if the actor whose turn it is had failed.

        Raises:
            StoppedError: always.
        """
        self.failure, self._stopping = failure, True
        raise StoppedError

    def ended(self, actor: "_Actor", failure: BaseException | None) -> None:
        """Called by an actor at its end."""
        self._ready.remove(actor)
        if failure is not None and not self._stopping:
            self.failure, self._stopping = failure, True
        self._pass_on()

    def _pass_on(self) -> None:
        while self._asleep and (self._stopping or not self._ready):
            first = next(iter(self._asleep))
            del self._asleep[first]
            self._ready.append(first)
        if not self._ready:
            self._over.release()
            return
        self._current = self._ready[self._roll(len(self._ready))]
        self._current.baton.release()


class _Actor(threading.Thread):
    def __init__(self, scheduler: Scheduler, name: str, run: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._scheduler = scheduler
        self._body = run
        self.baton = threading.Lock()
        self.baton.acquire()

    def run(self) -> None:
        self.baton.acquire()
        failure = None
        try:
            self._scheduler.begin()
            self._body()
        except StoppedError:
            pass
        except BaseException as e:
            failure = e
        self._scheduler.ended(self, failure)
