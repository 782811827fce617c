"""The logs of a simulated disk, one after the other: which one stands, and whose a change is.

A log is its folder, and stands where ``_clog/log`` names it (S47). Each has an oracle of its own
(`oracle`), so that what is acknowledged belongs to one log. Who deletes a log says so first: from
then on it is *over*, and nothing is promised of it. Once nothing of it is left it is *gone*: who
still has a handle may write into its folder, for a moment, and is told of none of it that it
happened.

- Nothing but the creation of a log makes ``_clog/log``, after its first version.
- An object goes into the folder of the log whose handle puts it.
- Of a folder that is no log nothing goes but what a creator left.
- Beside the log somebody restores another one, to take it elsewhere: nothing of that goes.
"""

from disk import Folder, folder_and_name
from oracle import Oracle
from records import PARTITIONS

from clog.storage.format import documents

_OF_A_CREATION = (documents.commit_path(0), documents.block_path(0))
_NEIGHBOUR = documents.folder_of("ab" * 16)
NEIGHBOURS = (
    *(f"{_NEIGHBOUR}/{documents.commit_path(version)}" for version in (0, 7)),
    *(f"{_NEIGHBOUR}/{documents.block_path(0)}", f"{_NEIGHBOUR}/{documents.LATEST}"),
)
"""Some files of the other log."""


class Logs:
    """Hears of every change of the disk.

    Attributes:
        standing: the oracle of the log that stands; None where none does.
        changes: how often another one came to stand, or none, or one was about to go.
    """

    def __init__(self, disk, clock, ledger) -> None:
        self.disk, self.clock, self.ledger = disk, clock, ledger
        self.standing: Oracle | None = None
        self.changes = 0
        self._oracles: dict[str, Oracle] = {}

    def copy(self, disk, clock, ledger) -> "Logs":
        """Those that know as much, of a copy of the disk."""
        other = Logs(disk, clock, ledger)
        for folder, known in self._oracles.items():
            other._oracles[folder] = known.copy(Folder(disk, folder), clock, ledger)
            if known is self.standing:
                other.standing = other._oracles[folder]
        return other

    @property
    def is_stable(self) -> bool:
        """Whether a log stands that nobody deletes."""
        return self.standing is not None and not self.standing.is_over

    @property
    def ghosts(self) -> int:
        """Commits in closed blocks, of all logs."""
        return sum(oracle.ghosts for oracle in self._oracles.values())

    def at(self, folder: str) -> Oracle | None:
        """The oracle of the log in this folder."""
        return self._oracles.get(folder)

    def of(self, log) -> Oracle:
        """The oracle of an open log."""
        return self._oracles[documents.folder_of(log.handle.standing.log_id)]

    def left(self) -> list[str]:
        """What is left of logs that are over, all of it, ``_clog/log`` last."""
        over = {folder for folder, oracle in self._oracles.items() if oracle.is_over}
        whole = [path for path in self.disk.objects if folder_and_name(path)[0] in over]
        named = self.standing is not None and self.standing.is_over
        return [*sorted(whole), documents.LOG_FILE] if named else sorted(whole)

    def end(self) -> None:
        """Hears that the log that stands is about to be deleted."""
        self.standing.is_over = True
        self.changes += 1

    def written(self, path: str, *, is_new: bool) -> None:
        """Hears of an object that was put or created."""
        folder, name = folder_and_name(path)
        if folder == _NEIGHBOUR:
            return
        if folder:
            if folder not in self._oracles:
                inside = Folder(self.disk, folder)
                self._oracles[folder] = Oracle(inside, self.clock, PARTITIONS, self.ledger)
            self._oracles[folder].written(name, is_new=is_new)
            return
        assert name == documents.LOG_FILE, f"{name} is in no folder"
        assert is_new, f"{name} was overwritten"
        body = documents.decode("log", self.disk.get(path), where=path)
        made = self._oracles.get(documents.folder_of(body["log_id"]))
        assert made is not None and made.newest == 0, f"{body} has no first version"
        self.standing = made
        self.changes += 1

    def deleted(self, path: str) -> None:
        """Hears of an object that is gone."""
        folder, name = folder_and_name(path)
        if not folder:
            assert name == documents.LOG_FILE, f"{name} is in no folder"
            assert self.standing.is_over, f"{name} deleted, the log stands"
            over, self.standing = self.standing, None
            self.changes += 1
            over.note_deletion()
            return
        assert folder != _NEIGHBOUR, f"{path} deleted, which is of a log that is restored"
        oracle = self._oracles[folder]
        if oracle.is_over:
            if oracle is not self.standing:
                oracle.note_deletion()
        elif oracle is self.standing:
            oracle.deleted(name)
        else:
            left = name in _OF_A_CREATION or name.startswith(documents.CLOCKS)
            assert left, f"{path} deleted, which is of another log"
