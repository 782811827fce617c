"""The examples of tables do what their README says, those without Spark; the others are tested in
`tests/spark`."""

import importlib.util
import random
from pathlib import Path

import pytest

TABLES = Path(__file__).parents[2] / "examples" / "tables"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", TABLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_addresses_and_balances(tmp_path):
    """The last address counts; money is moved once, of two accounts or of none."""
    now, balances, duplicate = example("addresses_and_balances").main(tmp_path)
    assert now == {b"alice": b"9 Quai Perrache, Lyon"}
    assert balances == {"bank": -100, "alice": 70, "bob": 30}
    assert duplicate


def test_event_sourcing(tmp_path):
    """The state that was projected batch by batch equals that of one replay."""
    batches, state, replayed = example("event_sourcing").main(tmp_path)
    assert batches == [2, 2, 2]
    assert state == replayed == {b"ann": {"cake": 2}}


def test_change_data_capture(tmp_path):
    """Both consumers have what the shop has, including deletes, also the one that came late."""
    original, copied, teas, kept = example("cdc").main(tmp_path)
    assert original == copied == [(1, "green tea", 105), (4, "cup", 402), (5, "white tea", 700)]
    assert teas == ["green tea", "white tea"]
    assert kept < 9, "the history was cleaned when the index came"


def test_out_of_order_changes(tmp_path):
    """By the source's position the table is right after each append, in whatever order changes
    arrive; by milliseconds it is not, nor by offset (S56).
    """
    results = example("out_of_order_cdc").main(str(tmp_path))
    assert results["header"] == (0, 0)
    assert min(results["timestamp"]) > 0
    assert min(results["offset"]) > 0
    assert results["timestamp"][1] < results["offset"][1]


def test_what_an_erasure_does_not_reach_is_unreadable(tmp_path):
    """A backup keeps the sealed records of forgotten persons, and nobody opens them (S59)."""
    pytest.importorskip("cryptography")
    found = example("crypto_shredding").main(str(tmp_path))
    assert found["before"] == ["1 Elm Street", "Alice", "Bob"]
    assert found["after"] == [found["bob"]] == ["Bob"]
    assert (found["sealed"], found["done"]) == (3, ["done"])


def test_a_copy_job_that_is_killed(tmp_path, monkeypatch):
    """Two logs are read, and two others written: everything is there once, as the same computation
    without clog has it, whatever died on the way (S50, S54). Three processes do so, after two
    steps, none, and four: however fast the machine.
    """
    job, draw, lives = example("copy_job"), random.randint, [4, 0, 2]
    monkeypatch.setattr(job.random, "randint", lambda *of: lives.pop() if lives else draw(*of))
    found, expected, processes = job.main(str(tmp_path))
    assert found == expected
    assert len(found[0]) == 400
    assert processes > 2
