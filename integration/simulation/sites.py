"""Where logs of a simulated world stand: most worlds have one root, some have several."""

from deals import Ledger
from disk import Disk
from logs import Logs


class Site:
    """A root: its disk, and what its logs are like.

    Attributes:
        away_until: nobody reaches the root before so few calls of the world are left.
    """

    def __init__(self, number: int, clock, ledger: Ledger, begun: "Site | None" = None) -> None:
        self.number = number
        self.disk = Disk(clock, {} if begun is None else begun.disk.objects, number)
        self.away_until: int | None = None
        if begun is None:
            self.logs = Logs(self.disk, clock, ledger)
        else:
            self.logs = begun.logs.copy(self.disk, clock, ledger)

    def is_away(self, calls_left: int) -> bool:
        """Whether no call gets through now."""
        return self.away_until is not None and calls_left > self.away_until
