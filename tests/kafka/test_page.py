"""docs/guests/kafka.md, followed by its own commands from a topic to a query and back out."""

import re
import shlex
from pathlib import Path

import pytest
from tests.unit.conftest import Cli

from clog.storage import Log

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).parents[2] / "docs/guests/kafka.md"


def test_a_topic_becomes_a_log_and_a_topic_again(kafka, tmp_path, monkeypatch):
    """Mirror, compare, query, readers, writers, back: each command as it is written there, with the
    addresses of this broker and folder.
    """
    monkeypatch.chdir(tmp_path)
    address, topics = kafka.address, {"orders": 2, "orders-2": 2}
    for name, partitions in topics.items():
        if name in kafka.admin.list_topics(timeout=30).topics:
            kafka.delete(name)
        kafka.topic(partitions, name=name, cleanup_policy="compact")
    for p in range(2):
        kafka.produce_all("orders", [(f"k{i % 5}-{p}", f"{i}") for i in range(40)], p)
    kafka.produce("orders", [{"key": "alice", "value": "tea"}], partition=1)

    run = Cli()

    def here(text):
        return text.replace("broker:9092", address).replace("s3://bucket", str(tmp_path))

    text = PAGE.read_text()
    commands = [shlex.split(here(one))[1:] for one in re.findall(r"`(clog [^`…]*)`", text)]

    def follow(*wanted, **settings):
        """Runs the first command of the page that contains these words."""
        found = next(one for one in commands if {*wanted} <= {*one})
        return run(*found, *settings.get("more", ())).stdout

    url = str(tmp_path / "orders")
    first = here("kafka://broker:9092/orders")
    assert "mirrored 81 records" in follow("mirror", first, url, more=["--once"])
    assert "81 offsets with the same records in both" in follow("mirror", first, "--verify")
    assert follow("--key", url, "alice") == "alice\ttea\n"
    assert "exported 11 records" in follow("--to", url)
    (query,) = re.findall(r"in DuckDB: `([^`]*)`", text)
    assert [row[4] for row in eval(here(query), {"Log": Log}).fetchall()] == [b"tea"]
    (reader,) = re.findall(r"\[named reader\]\([^)]*\): `([^`]*)`", text)
    exec(here(reader).replace("{0: 23, 1: 57}", "{0: 23, 1: 30}"), {"Log": Log, "url": url})
    assert len(run("consume", url, "--reader", "billing").stdout.splitlines()) == 17 + 11
    assert "0 offsets behind" in follow("mirror", first, url, "--end")
    assert "1 [41, 42)" in run("produce", url, stdin="alice\tmate\n").stdout
    back = here("kafka://broker:9092/orders-2")
    assert "sent 82 records" in follow("mirror", url, back, more=["--once"])
    found = [row for p in range(2) for row in kafka.records("orders-2", p)]
    assert len(found) == 82
    assert found[-1][1:3] == (b"alice", b"mate")
    log = run("mirror", back, str(tmp_path / "again"), "--once").stdout
    assert "mirrored 82 records" in log
