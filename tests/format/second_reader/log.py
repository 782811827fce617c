"""A log at a local folder: its versions, their states and records (FORMAT.md §1, §3, §7, §8)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from second_reader import edits, masks, objects, snapshots
from second_reader.documents import (
    HEX32,
    ExpiredError,
    Folder,
    Json,
    MissingError,
    integer,
    need,
    parse_document,
    version_path,
)
from second_reader.objects import Record
from second_reader.state import State, check_cut_logs, check_known


@dataclass(frozen=True)
class Edit:
    """One version's edit, from its own commit or from ``earlier`` of a later one."""

    commit: Json
    edit: Json


class Log:
    """A reader of one log."""

    def __init__(self, root: Path | str) -> None:
        """Opens the log that is at a root (§1)."""
        self.folder = Folder(log_folder(Path(root)))
        self.id = self.folder.root.name
        self.closed = self._closed_blocks()
        genuine = self.versions()
        need(bool(genuine), "7", "a log without a commit")
        self.newest = self.state(genuine[-1], newest=True)

    def _closed_blocks(self) -> dict[int, dict[int, str]]:
        closed = {}
        for first in self.folder.numbered("blocks"):
            body = self.folder.document(version_path("blocks", first), "block")
            need(body["block"] == first and first % 1024 == 0, "7", "a block under another name")
            if body["ids"] is not None:
                ids = {int(version): each for version, each in body["ids"].items()}
                need(
                    sorted(ids) == list(range(first, first + 1024)),
                    "7",
                    "a closed block without all its commits",
                )
                closed[first] = ids
        return closed

    def versions(self) -> list[int]:
        """The versions whose genuine commits are still there, ascending."""
        return [version for version in self.folder.numbered("commits") if self._genuine(version)]

    def _genuine(self, version: int) -> bool:
        """Whether a commit file was committed: in a closed block only the listed ids were (§7)."""
        ids = self.closed.get(version - version % 1024)
        return ids is None or self._body(version).get("id") == ids[version]

    def _body(self, version: int) -> Json:
        return self.folder.document(version_path("commits", version), "commit")

    def commit(self, version: int) -> Json:
        """The commit of a version, checked by itself (§3.1)."""
        body = self._body(version)
        need(body.get("version") == version, "3.1", "a commit under another version's name")
        need(self._genuine(version), "7", "a commit that was never committed")
        check_names(body)
        parent = body.get("parent")
        need((parent is None) == (version == 0), "3.1", "a commit without its parent")
        check_known(body["head"]["log"])
        need(body["head"]["log"]["log_id"] == self.id, "1", "a commit of another log")
        for each in body["earlier"]:
            check_names(each)
        leave_leading(body)
        return body

    def edit(self, entry: Json) -> Json:
        """The edit of a commit or of an entry of ``earlier``."""
        need(("edit" in entry) != ("edit_at" in entry), "3.1", "one edit, inline or not")
        return (
            dict(entry["edit"])
            if "edit" in entry
            else self.folder.reference(entry["edit_at"], "edit")
        )

    def cut(self, name: str) -> dict[str, int]:
        """The version of each log of a cut, by log id (§20)."""
        cut = self.newest.cuts.get(name)
        need(cut is not None, "20", f"there is no cut {name}")
        logs = cut.get("logs")
        if "logs_at" in cut:
            logs = self.folder.reference(cut["logs_at"], "page")["logs"]
        check_cut_logs(logs)
        return {log_id: version for log_id, _, version, _ in logs}

    def state(self, version: int, newest: bool = False) -> State:
        """The state at a version that is readable, checked against its head."""
        if not newest:
            need(0 <= version <= self.newest.version, "8", f"there is no version {version}")
            if version < self.newest.oldest_readable:
                raise ExpiredError("8", f"version {version}")
        try:
            return self._state(version)
        except MissingError as error:
            if newest or version == self.newest.version:
                raise
            raise ExpiredError("8", f"version {version}: {error}") from error

    def _state(self, version: int) -> State:
        commit = self.commit(version)
        base = commit["head"]["snapshot"]
        state = None
        if base is not None:
            path = version_path("snapshots", integer(base["version"], "3.4"))
            state = snapshots.load_snapshot(self.folder, path, self.id)
            need(state.id == base["id"], "3.1", "a snapshot of another history")
        for entry, parent in self._chain(commit, -1 if state is None else state.version):
            edit = self.edit(entry)
            if state is None:
                state = edits.create(self.id, entry, edit)
                continue
            need(parent is None or parent == state.id, "3.1", "a commit of another history")
            edits.apply(state, entry, edit)
        assert state is not None
        snapshots.check_head(self.folder, state, commit["head"])
        for partition in state.partitions:
            snapshots.check_tiling(partition)
        return state

    def _chain(self, newest: Json, after: int) -> list[tuple[Json, str | None]]:
        """What was committed after a version, up to a commit, each with its parent's id."""
        found: dict[int, tuple[Json, str | None]] = {}
        commit = newest
        while True:
            _known(found, commit["version"], commit, commit["parent"])
            parent = commit.get("earlier_parent")
            for entry in commit["earlier"]:
                _known(found, entry["version"], entry, parent)
                parent = entry["id"]
            lowest = commit["version"] - len(commit["earlier"])
            if lowest <= after + 1:
                break
            commit = self.commit(lowest - 1)
        return [found[each] for each in range(after + 1, newest["version"] + 1)]

    def records(
        self, partition: int, version: int | None = None, *, committed: bool = True
    ) -> list[Record]:
        """The records of a partition as a version has them, in the order of offsets (§8); those
        that were committed, or undecided ones, too (§11.2).
        """
        state = self._at(version)
        start = max(state.partitions[partition].start, self.newest.partitions[partition].start)
        found = []
        for chunk in state.partitions[partition].chunks():
            if chunk.next > start and not chunk.aborted:
                rows = objects.read_object(self.folder, chunk.object, state.schema)
                found += objects.records(chunk, rows, objects.dead_rows(self.folder, chunk))
        end = state.stable(partition) if committed else state.partitions[partition].end
        return [record for record in found if start <= record.offset < end]

    def _at(self, version: int | None) -> State:
        return self.newest if version is None else self.state(version)

    def writer(self, kind: str, writer: str, version: int | None = None) -> list[Any] | None:
        """The newest entry of a writer, wherever it is (§3.4, §4)."""
        return snapshots.find_writer(self.folder, self._at(version), kind, writer)

    def check(self) -> None:
        """Checks every version, snapshot, object, bitmap, index and writers' page."""
        for version in self.versions():
            if version >= self.newest.oldest_readable:
                self.check_version(version)

    def paged_writers(self, state: State) -> list[list[Any]]:
        """The entries in the pages of older writers. Only who commits reads them: a sweep takes
        those of versions between the oldest readable and the newest (COMMIT.md W3).
        """
        root = state.older_writers
        is_needed = state.version in (self.newest.oldest_readable, self.versions()[-1])
        if root is None or not (is_needed or (self.folder.root / root["path"]).exists()):
            return []
        return snapshots.older_writers(self.folder, state)

    def check_version(self, version: int) -> None:
        """Checks a version with everything that it refers to."""
        state = self.state(version)
        newest = {(entry[1], entry[0]): entry for entry in state.writers}
        for entry in self.paged_writers(state):
            found = self.writer(entry[1], entry[0], version)
            need(found == newest.get((entry[1], entry[0]), entry), "4", f"{entry[:2]} is not found")
        if version in self.folder.numbered("snapshots"):
            kept = snapshots.load_snapshot(self.folder, version_path("snapshots", version), self.id)
            for name, fact in state.facts().items():
                need(kept.facts()[name] == fact, "4", f"the snapshot of {version} has other {name}")
        for number, partition in enumerate(state.partitions):
            self.records(number, version, committed=False)
            stored: dict[str, objects.Rows] = {}
            for chunk in partition.chunks():
                rows = stored[chunk.object.path] = objects.read_object(
                    self.folder, chunk.object, state.schema
                )
                objects.check_statistics(chunk, rows)
                objects.check_index(self.folder, chunk.object, rows, state.log["seed"])
                objects.dead_rows(self.folder, chunk)
            if partition.covered:
                masks.check_table(self.folder, partition, stored)


def log_folder(root: Path) -> Path:
    """The folder of the log that is at a root (§1)."""
    body = parse_document((root / "_clog" / "log").read_bytes(), "log")
    log_id = str(body.get("log_id"))
    need(bool(HEX32.fullmatch(log_id)), "1", "no log id")
    integer(body.get("created_ms"), "1")
    return root / "_clog" / log_id


def _known(
    found: dict[int, tuple[Json, str | None]], version: int, entry: Json, parent: str | None
) -> None:
    """Keeps what is first known about a version, and refuses another commit of it."""
    if version not in found:
        found[version] = (entry, parent)
    need(found[version][0]["id"] == entry["id"], "3.1", f"two commits of version {version}")


def leave_leading(body: Json) -> None:
    """Keeps of ``earlier`` what leads to the commit without gaps, where the id of each one's parent
    is known (§3.1).
    """
    entries, expected = body["earlier"], (body["version"] - 1, body["parent"])
    for at in range(len(entries) - 1, -1, -1):
        if (entries[at]["version"], entries[at]["id"]) != expected:
            usable = entries[at + 2 :]
            body["earlier_parent"] = entries[at + 1]["id"] if usable else None
            body["earlier"] = usable
            return
        expected = (expected[0] - 1, entries[at - 1]["id"] if at else None)


def check_names(entry: Json) -> None:
    """Refuses a commit, or an entry of ``earlier``, without its id or time."""
    need(bool(HEX32.fullmatch(str(entry.get("id")))), "3.1", "a commit without id")
    integer(entry.get("time_ms"), "3.1")
    integer(entry.get("version"), "3.1")
