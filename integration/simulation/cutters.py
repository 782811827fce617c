"""Who names cuts over the logs of a home while others write, reads them later, and drops some.

Of each deal that is decided the logs of a cut show all or nothing, as the oracles know its records
and how far each log is stable (`deals`); and a cut reads the same for as long as it is named.
"""

from dealers import _Wanderer
from readers import expected_table, rows_of

from clog.storage.cuts import drop_cut, name_cut
from clog.storage.errors import (
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
    VersionExpiredError,
)
from clog.storage.format.transactions import COMMITTED

_KEEP_MS = (None, 20 * 3_600_000)
NAMED = "named a cut"
BEHIND = "named a cut behind the newest versions"


class Cutter(_Wanderer):
    """One who names, reads and drops; what it named it knows by heart."""

    def __init__(self, world, name: str, clock) -> None:
        super().__init__(world, name, clock)
        self._count = 0
        self._named: list = []

    def work(self) -> None:
        choice, half_told = self.world.roll(4), self._half_told()
        if not self._named or choice < 2 or half_told:
            self._name(half_told)
        elif choice == 2:
            self._read()
        else:
            self._drop()

    def _half_told(self) -> list:
        """The sites of homes that have decided what another log has not heard yet."""
        ledger = self.world.ledger
        decided = [deal for deal in ledger.deals.values() if deal.outcome == COMMITTED]
        homes = {deal.name.home for deal in decided if ledger.waiting(deal)}
        standing = [site for site in self.world.sites if site.logs.standing is not None]
        return [s for s in standing if s.logs.standing.manifest.head.log.log_id in homes]

    def _name(self, homes: list) -> None:
        world = self.world
        among = homes or world.sites
        home = self.log_at(among[world.roll(len(among))])
        home.handle.refresh()
        self._count += 1
        try:
            cut = name_cut(home.handle, f"{self.name}-{self._count}", _KEEP_MS[world.roll(2)])
        except (NotFoundError, CommitConflictError, InvalidInputError):
            return  # A member is away, or something waits that cannot be ended now.
        if not self._is_over(cut):
            self._check(cut)
            self._named.append(cut)
            world.marks[NAMED] += 1

    def _check(self, cut) -> None:
        ledger = self.world.ledger
        versions = {log_id: cut.logs[url] for url, (log_id, _) in cut.ids.items()}
        newest = {log_id: ledger.oracles[log_id].newest for log_id in versions}
        self.world.marks[BEHIND] += any(newest[i] > v + 2 for i, v in versions.items())
        for deal in ledger.deals.values():
            is_told = deal.forced or deal.is_given_up or ledger.is_lost(deal)
            if deal.outcome != COMMITTED or deal.is_visible or is_told:
                continue
            shown = {
                (log_id, p): base < seen.stable[p]
                for log_id, intents in deal.intents.items()
                if log_id in versions
                for seen in [ledger.oracles[log_id].seen[versions[log_id]]]
                for intent in intents
                for _, offsets in intent.commits
                for p, (base, _) in offsets.items()
                if base >= seen.starts[p]
            }
            if len({log_id for log_id, _ in shown}) > 1:
                assert len({*shown.values()}) == 1, f"{cut} shows of {deal}: {shown}"

    def _read(self) -> None:
        cut = self._named[self.world.roll(len(self._named))]
        if self._is_over(cut):
            self._named.remove(cut)
            return
        for site in self.world.sites:
            if (version := cut.logs.get(site.disk.url)) is None:
                continue
            log = self.log_at(site)
            try:
                table = rows_of(log.table(at=cut).to_batches())
            except VersionExpiredError:
                late = cut.until_ms is not None and cut.until_ms <= self.world.clock.now_ms()
                assert late or self._is_over(cut), f"{cut} expired"
                self._named.remove(cut)
                return
            if not self._is_over(cut):
                expected = expected_table(self.oracle_at(site), version, log.handle.tip.version)
                assert table == expected, f"{cut} shows {table}, not {expected}"

    def _drop(self) -> None:
        cut = self._named.pop(self.world.roll(len(self._named)))
        site = next(site for site in self.world.sites if site.disk.url == cut.home)
        if self._is_over(cut):
            return
        try:
            drop_cut(self.log_at(site).handle, cut.name)
        except NotFoundError:
            late = cut.until_ms is not None and cut.until_ms <= self.world.clock.now_ms()
            assert late or self._is_over(cut), f"{cut} was dropped by nobody"

    def _is_over(self, cut) -> bool:
        """Whether a log of the cut does not stand any more."""
        oracles = self.world.ledger.oracles
        return any(
            oracles[log_id].is_over or site.logs.standing is not oracles[log_id]
            for site in self.world.sites
            for url, (log_id, _) in cut.ids.items()
            if url == site.disk.url
        )
