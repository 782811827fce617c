"""Transactions whose records are undecided for a time: what their holders mean, and what each log
has heard.

A *deal* is one transaction of an actor: of several logs, of one, or visible. The ledger knows all
of a world, by name; the logs' oracles tell it what they see (`fates`). What must be true:

- the home decides, once; committed by nobody but the holder, or by who takes its proposal along,
  while the id has its epoch, and with all that it appended to any log (atomicity, no lost write);
- aborted by the holder, by who takes the id up, by an operator, or past the timeout;
- what its holder was told stays true;
- a participant is told what the home has decided, or what an operator forced upon it; what was
  told is never prepared again (no late prepare, no guess);
- the home forgets no outcome before all who wait for it have heard, unless an operator gives them
  up there by force.

Of a deal whose home somebody deletes no more is promised than that no two logs are told otherwise.
"""

from collections import Counter
from dataclasses import dataclass, field

from facts import Intent

from clog.storage.format.transactions import ABORTED, COMMITTED, TransactionName


@dataclass(eq=False)
class Deal:
    """One transaction.

    Attributes:
        holder: who began it, and may commit it.
        intents: what its holder was told is in it, by log id.
        outcome: what the home has decided.
        never: somebody was told that it is not committed.
        began_ms: when its first commit was written in the home.
        prepared, told: the logs that have its records undecided, and what those that ended heard.
        forced: those that ended without the home.
        is_given_up: an operator made the home forget it while others waited.
    """

    name: TransactionName
    holder: object
    timeout_ms: int
    is_visible: bool
    intents: dict[str, list[Intent]] = field(default_factory=dict)
    outcome: str | None = None
    never: bool = False
    began_ms: int | None = None
    prepared: set[str] = field(default_factory=set)
    told: dict[str, str] = field(default_factory=dict)
    forced: set[str] = field(default_factory=set)
    is_given_up: bool = False

    def __str__(self) -> str:
        name = self.name
        return f"transaction {name.number} of epoch {name.epoch} of {name.id}"


class Ledger:
    """All deals of a world.

    Attributes:
        acting: whose call is being made.
        oracles: by log id.
        aborting, forcing: how many operators are about to end what is open under an id; by force,
            in a log.
    """

    def __init__(self) -> None:
        self.deals: dict[TransactionName, Deal] = {}
        self.oracles: dict[str, object] = {}
        self.acting: object = None
        self.aborting: Counter[str] = Counter()
        self.forcing: Counter[tuple[str, str]] = Counter()

    def begin(self, deal: Deal) -> None:
        """Hears that a holder begins one."""
        assert deal.name not in self.deals, f"{deal} was begun before"
        self.deals[deal.name] = deal

    def of(self, name: TransactionName) -> Deal:
        """The deal of this name."""
        assert name in self.deals, f"nobody began {name}"
        return self.deals[name]

    def home_of(self, deal: Deal):
        """The oracle of its home."""
        return self.oracles[deal.name.home]

    def is_lost(self, deal: Deal) -> bool:
        """Whether somebody deletes its home."""
        return self.home_of(deal).is_over

    def outcome(self, deal: Deal) -> str | None:
        """What became of it; without a decision it is aborted once its id was taken up again."""
        epoch, _ = self.home_of(deal).taken.states[deal.name.id]
        return deal.outcome or (ABORTED if epoch > deal.name.epoch else None)

    def commit(self, deal: Deal, *, epoch: int, holders: list) -> None:
        """Hears that the home commits it, at this epoch of its id; ``holders``: who commits, and
        whose proposals are taken along.
        """
        assert deal.outcome is None, f"{deal} was {deal.outcome}, and is committed"
        assert not deal.never, f"{deal} is committed, and somebody was told that it never will be"
        assert deal.holder in holders, f"{deal} is committed by another"
        assert deal.name.epoch == epoch, f"{deal} is committed at epoch {epoch}"
        deal.outcome = COMMITTED

    def check_whole(self, deal: Deal) -> None:
        """Checks that what is being committed has all its records in all its logs."""
        for log_id, intents in deal.intents.items():
            if self.oracles[log_id].is_over or log_id in deal.forced:
                continue
            missing = [intent.name for intent in intents if not intent.commits]
            assert not missing, f"{deal} is committed without {missing}"
            heard = deal.told.get(log_id, COMMITTED)
            assert heard == COMMITTED, f"{deal} is committed, {log_id} heard that it is {heard}"

    def abort(self, deal: Deal, *, is_taken_up: bool, age_ms: int | None) -> None:
        """Hears that the home aborts it."""
        assert deal.outcome is None, f"{deal} was {deal.outcome}, and is aborted"
        is_late = age_ms is None or age_ms > deal.timeout_ms
        allowed = (
            self.acting is deal.holder or is_taken_up or self.aborting[deal.name.id] or is_late
        )
        assert allowed, f"{deal} is aborted after {age_ms} ms, allowed are {deal.timeout_ms}"
        deal.outcome = ABORTED

    def prepare(self, deal: Deal, log_id: str) -> None:
        """Hears that a log has records of it that are undecided, or the home that it is begun."""
        assert log_id not in deal.told, f"{deal} is prepared where it had ended"
        if log_id == deal.name.home:
            assert deal.outcome is None, f"{deal} is prepared in its home, which {deal.outcome} it"
        deal.prepared.add(log_id)

    def tell(self, deal: Deal, log_id: str, outcome: str, *, forced: bool) -> None:
        """Hears that a participant is told of the outcome."""
        before = deal.told.get(log_id, outcome)
        assert before == outcome or forced, f"{deal} was {before} in {log_id}, now {outcome}"
        if forced:
            assert self.forcing[log_id, deal.name.id], f"{deal} was forced in {log_id} by nobody"
            assert outcome == ABORTED, f"{deal} was forced to be {outcome}"
            deal.forced.add(log_id)
        elif self.is_lost(deal):
            others = {o for i, o in deal.told.items() if i not in deal.forced}
            assert others <= {outcome}, f"{deal} is {outcome} in {log_id}, and {others} elsewhere"
        else:
            known = self.outcome(deal)
            assert outcome == known, f"{log_id} is told {outcome}: {deal} is {known}"
        deal.told[log_id] = outcome

    def forget(self, deal: Deal) -> None:
        """Hears that the home, which has decided it, does not list it any more."""
        waiting = self.waiting(deal)
        if waiting and self.forcing[deal.name.home, deal.name.id]:
            deal.is_given_up = True
        assert deal.is_given_up or not waiting, (
            f"{deal} is forgotten, {waiting} wait for its outcome"
        )

    def waiting(self, deal: Deal) -> list[str]:
        """The participants whose readers stop before its records."""
        waiting = deal.prepared - {deal.name.home} - deal.told.keys()
        return sorted(i for i in waiting if not self.oracles[i].is_over)
