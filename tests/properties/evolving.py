"""A log whose columns change, beside a model: values by identities of fields, which have names."""

import copy
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clog.storage import Log

NAMES = "abcd"
KINDS = {"int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "text": pa.string()}
WIDER = {"int": "long"}


@dataclass
class Node:
    """A field: an identity for ever, a name for now."""

    uid: int
    name: str
    kind: str
    inner: "list[Node]" = field(default_factory=list)

    @property
    def arrow(self) -> pa.DataType:
        if self.kind == "struct":
            return pa.struct([(node.name, node.arrow) for node in self.inner])
        if self.kind == "list":
            return pa.list_(self.inner[0].arrow)
        if self.kind == "map":
            return pa.map_(pa.string(), self.inner[0].arrow)
        return KINDS[self.kind]

    def shown(self, value: Any) -> Any:
        """A stored value by the names of now."""
        if value is None:
            return None
        if self.kind == "struct":
            return {node.name: node.shown(value.get(node.uid)) for node in self.inner}
        if self.kind == "list":
            return [self.inner[0].shown(one) for one in value]
        if self.kind == "map":
            return [(k, self.inner[0].shown(one)) for k, one in value]
        return value

    def walk(self, above: str = "") -> "list[tuple[str, Node]]":
        path = f"{above}{self.name}"
        return [(path, self), *(p for node in self.inner for p in node.walk(f"{path}."))]


class Evolving:
    """Draws what happens to a log from ``random``; `check` compares all that can be read."""

    def __init__(self, log: Log, draw: random.Random) -> None:
        self.log, self.draw = log, draw
        self.uids = itertools.count()
        self.value = Node(next(self.uids), "value", "struct", [self.node("a"), self.node("b")])
        self.key = ["k", "l"]
        self.rows: dict[int, Any] = {}
        self.records: list[tuple[int, Any]] = []
        self.versions: dict[int, tuple[list[str], Node, dict[int, Any]]] = {}
        self.evolutions = 0
        self.is_cleaned = False

    @classmethod
    def create(cls, url: Any, draw: random.Random, partitions: int = 2, **given: Any) -> "Evolving":
        model = cls(None, draw)  # type: ignore[arg-type]
        schema = pa.schema([("k", pa.int32()), ("l", pa.string()), *model.value.arrow])
        model.log = Log.create(url, partitions, key=["k", "l"], schema=schema, **given)
        model.note()
        return model

    def node(self, name: str, depth: int = 0) -> Node:
        kinds = [*KINDS, *(["struct", "list", "map"] if depth < 2 else [])]
        kind = self.draw.choice(kinds)
        made = Node(next(self.uids), name, kind)
        if kind == "struct":
            names = self.draw.sample(NAMES, self.draw.randint(1, 2))
            made.inner = [self.node(inner, depth + 1) for inner in names]
        elif kind in ("list", "map"):
            made.inner = [self.node("element" if kind == "list" else "value", depth + 1)]
        return made

    def value_of(self, node: Node) -> Any:
        n = self.draw.randint(0, 9)
        if n == 0 and node is not self.value:
            return None
        if node.kind == "struct":
            return {inner.uid: self.value_of(inner) for inner in node.inner}
        if node.kind == "list":
            return [self.value_of(node.inner[0]) for _ in range(n % 3)]
        if node.kind == "map":
            return [(str(i), self.value_of(node.inner[0])) for i in range(n % 3)]
        return {"int": n, "long": n + (n << 40), "float": n / 4, "text": "x" * n}[node.kind]

    def note(self) -> None:
        shape = [*self.key], copy.deepcopy(self.value), dict(self.rows)
        self.versions[self.log.version] = shape

    def append(self, log: Log | None = None) -> None:
        keys = [self.draw.randint(0, 5) for _ in range(self.draw.randint(1, 4))]
        rows = [(key, self.value_of(self.value)) for key in keys]
        (log or self.log).append([self.row(key, self.value.shown(value)) for key, value in rows])
        self.records += rows
        self.rows.update(rows)
        self.note()

    def delete(self) -> None:
        gone = self.draw.randint(0, 5)
        self.log.delete([(gone, str(gone))])
        self.records.append((gone, None))
        self.rows.pop(gone, None)
        self.note()

    def row(
        self, key: int, value: dict[str, Any], names: list[str] | None = None
    ) -> dict[str, Any]:
        first, second = self.key if names is None else names
        return {first: key, second: str(key), **value}

    def evolve(self) -> None:
        """Changes some fields, in one commit: drops, names that move or swap, new ones, wider."""
        fields = self.value.walk()
        structs = [(path, node) for path, node in fields if node.kind == "struct"]
        path, around = self.draw.choice(structs)
        change: dict[str, Any] = {"drop": [], "rename": {}, "add": {}, "widen": {}}
        left = [*around.inner]
        if len(left) > 1 and self.draw.random() < 0.4:
            gone = left.pop(self.draw.randrange(len(left)))
            change["drop"].append(f"{path}.{gone.name}")
        for node in left:
            if node.kind in WIDER and self.draw.random() < 0.3:
                change["widen"][f"{path}.{node.name}"] = KINDS[WIDER[node.kind]]
                node.kind = WIDER[node.kind]
        names = [*NAMES]
        if self.draw.random() < 0.6:
            self.draw.shuffle(names)
            for node, name in zip(left, names, strict=False):
                if node.name != name:
                    change["rename"][f"{path}.{node.name}"] = name
            for node, name in zip(left, names, strict=False):
                node.name = name
        if around is self.value and self.draw.random() < 0.3:
            before, self.key = self.key, self.draw.sample(["k", "l", "m"], 2)
            pairs = zip(before, self.key, strict=True)
            change["rename"] |= {old: new for old, new in pairs if old != new}
        around.inner = left
        free = [name for name in NAMES if name not in {node.name for node in left}]
        if free and (self.draw.random() < 0.6 or not any(change.values())):
            added = self.node(self.draw.choice(free), path.count("."))
            now = next(p for p, node in self.value.walk() if node is around)
            change["add"][f"{now}.{added.name}"] = added.arrow
            around.inner = [*left, added]
        if any(change.values()):
            self.log.evolve(**change)
            self.evolutions += 1
            self.note()

    def table(self, version: int) -> list[dict[str, Any]]:
        names, value, rows = self.versions[version]
        return [self.row(key, value.shown(one), names) for key, one in sorted(rows.items())]

    def check(self, versions: "list[int] | None" = None) -> None:
        """Versions show their columns, records the newest; so do look-ups and filters."""
        for version in versions or [*self.versions]:
            names, value, _ = self.versions[version]
            table = self.log.table(at=version)
            assert table.schema.names == [*names, *(node.name for node in value.inner)]
            assert in_order(table.to_pylist(), names[0]) == self.table(version), version
        table, shown = self.log.table(), self.table(max(self.versions))
        for key in range(6):
            found = self.rows.get(key)
            assert table.get((key, str(key))) == self.value.shown(found)
        records = [row for batch in self.log.read() for row in batch.to_pylist()]
        left = Counter(repr((row["key"][self.key[0]], row["value"])) for row in records)
        appended = Counter(repr((key, self.value.shown(value))) for key, value in self.records)
        assert left <= appended  # Passes remove records that no table shows.
        assert left == appended or self.is_cleaned
        for path, node in self.value.walk():
            if node.kind not in ("int", "long") or ".element" in path or ".value" in path[1:]:
                continue
            column, *inner = path.split(".")[1:]
            where = pc.field(column, *inner) > 4 if inner else pc.field(column) > 4
            wanted = [row for row in shown if (_at(row, [column, *inner]) or 0) > 4]
            assert in_order(self.log.table(filter=where).to_pylist(), self.key[0]) == wanted
            narrow = self.log.table(columns=[self.key[0], ".".join([column, *inner])])
            found = {row[self.key[0]]: _at(row, [column, *inner]) for row in narrow.to_pylist()}
            assert found == {row[self.key[0]]: _at(row, [column, *inner]) for row in shown}


def in_order(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row[key])


def _at(row: Any, path: list[str]) -> Any:
    for name in path:
        row = None if row is None else row[name]
    return row
