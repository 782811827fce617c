"""Transactions that have not ended, why, by `clog describe`, and ending them, by `alter`."""

from clog.storage import Log
from clog_testing.undecided import append_undecided


def test_nothing_is_open(cli, url):
    """A log without transactions says so."""
    Log.create(url)
    assert cli("describe", url, "transactions").stdout == "no open transactions\n"
    assert cli.json("describe", url, "transactions")["transactions"] == []


def test_what_is_open_where_since_when_and_why(cli, url):
    """Each is listed with where readers stop, and what it waits for."""
    log = Log.create(url, partitions=2)
    append_undecided(log, [{"key": "k", "value": "v"}], partition=1)
    text = " ".join(cli("describe", url, "transactions").stdout.split())
    assert "'job', epoch 0, number 0: open since 20" in text
    assert "undecided in partitions 1 from 0; waiting: its holder may still commit it" in text
    (shown,) = cli.json("describe", url, "transactions")["transactions"]
    assert (shown["id"], shown["first_offsets"], shown["home"]) == ("job", {"1": 0}, None)


def test_an_operator_ends_it(cli, url):
    """Without waiting; a missing one is an error, and so is force alone."""
    log = Log.create(url, partitions=1)
    append_undecided(log, [{"key": "k", "value": "v"}])
    assert "--force requires --abort" in cli("alter", url, "--force", code=2).stderr
    assert "no open transaction with id 'x'" in cli("alter", url, "--abort", "x", code=1).stderr
    done = cli("alter", url, "--abort", "job").stdout
    assert done == "ended transaction 0 of 'job', which was open\n"
    assert log.stable_offsets() == {0: 2}


def test_force(cli, url):
    """A home that cannot be reached is named; force ends it here."""
    log = Log.create(url, partitions=1)
    append_undecided(log, [{"key": "k", "value": "v"}], home="f" * 32)
    text = cli("alter", url, "--abort", "job", code=1).stderr
    assert "outcome cannot be read from its home" in " ".join(text.split())
    assert cli("alter", url, "--abort", "job", "--force").stdout.startswith("ended")
    assert log.stable_offsets() == {0: 2}


def test_what_is_left_out_is_told(cli, url, tmp_path):
    """S51: a copy, an export and a conversion take what readers see, and say that there is more:
    whoever deletes the log then would lose it.
    """
    log = Log.create(url, partitions=2)
    log.append([{"key": "k", "value": "1"}], partition=1)
    commands = {
        "copy": (),
        "export": ("--format", "csv"),
        "decode": ("--decode", "json", "--schema", str(tmp_path / "schema.json")),
    }

    def called(name, target):
        to = str(tmp_path / target)
        return ("consume", url, "--to", to) if name == "export" else ("copy", url, to)

    (tmp_path / "schema.json").write_text('{"key": "string", "value": "int64"}')
    for number, (name, more) in enumerate(commands.items()):
        assert "left out" not in cli(*called(name, f"a{number}"), *more).stderr
    append_undecided(log, [{"key": "k", "value": "2"}], partition=1)
    log.append([{"key": "k", "value": "3"}], partition=1)
    for number, (name, more) in enumerate(commands.items()):
        told = " ".join(cli(*called(name, f"b{number}"), *more).stderr.split())
        assert "left out because of open transactions: the records of partitions 1 from 1" in told
