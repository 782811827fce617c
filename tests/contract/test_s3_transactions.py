"""A transaction's home on a server whose credentials the other log's keeper lacks (S50).

Credentials are never stored: until somebody gives them nothing is guessed, the last stable offset
stays where it is, and whoever looks is told what is missing.
"""

import json
import logging
import subprocess
import sys

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.daemon.metrics import registry
from clog.storage import InvalidInputError, Log
from clog.storage.transactions.deferred import Several
from clog.storage.transactions.several import finish_all

pytestmark = pytest.mark.s3
ROWS = [{"key": "k", "value": "v"}]
SECRET = "AWS_SECRET_ACCESS_KEY"


@pytest.fixture
def without_credentials(monkeypatch, moto_url, tmp_path):
    """The environment knows where the server is, and has no credentials for it."""
    for name in ("AWS_ACCESS_KEY_ID", SECRET, "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def logs(monkeypatch, without_credentials, s3_url, s3_options, tmp_path):
    """A home on the server, and a log in a folder with records of a transaction that the home has
    committed, and whose outcome was not passed on.
    """
    home = Log.create(s3_url, 1, storage_options=s3_options)
    part = Log.create(str(tmp_path / "part"), 1, {"cleanup.policy": "compact"})
    with monkeypatch.context() as patch:
        patch.setattr(Several, "finish", lambda *_: {})
        with home.transaction("job") as t:
            t.append(ROWS)
            t.append(ROWS, log=part)
    part.append([{"key": "later", "value": "v"}])
    return home, part


def shown(url):
    log = Log.open(url)
    return sum(b.num_rows for b in log.read()), log.table().to_arrow().num_rows


def told(url):
    """The output of `clog describe URL transactions`."""
    program = "import sys; from clog.cli.app import app; app(sys.argv[1:])"
    arguments = [sys.executable, "-c", program, "describe", url, "transactions", "--json"]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)["transactions"]


def test_nothing_is_guessed_without_credentials(logs, monkeypatch, s3_options, caplog):
    """Readers and cleaner stop before the records, and report why, once; with credentials in the
    environment the same cleaner continues.
    """
    home, part = logs
    log = Log.open(part.url)
    with caplog.at_level(logging.WARNING, "clog.cleaner"):
        cleaner = Cleaner(log)
        for _ in range(2):
            log.roll()
            cleaner.run_once(force=True)
    (warning,) = [r.getMessage() for r in caplog.records if "undecided" in r.getMessage()]
    (waiting,) = told(part.url)
    for text in (warning, waiting["waits_because"]):
        assert f"its outcome cannot be read from its home: get of '_clog/log' in {home.url}" in text
        assert "was refused: NoCredentialsError: Unable to locate credentials" in text
        assert "it stays undecided, and readers stop before its records; give access" in text
        assert s3_options["secret"] not in text
    assert (waiting["home"], waiting["first_offsets"]) == (home.url, {"0": 0})
    assert shown(part.url) == (0, 0)
    (description,) = log.describe()["partition_details"]
    assert (description["stable_offset"], description["first_dirty_offset"]) == (0, 0)
    metric = "clog_cleaner_undecided_transactions_count"
    assert registry(cleaner, {}).get_sample_value(metric, {"log": log.url}) == 1
    with pytest.raises(InvalidInputError, match="Unable to locate credentials"):
        log.abort_transaction("job")
    assert shown(part.url) == (0, 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_options["key"])
    monkeypatch.setenv(SECRET, s3_options["secret"])
    cleaner.run_once()
    assert shown(part.url) == (2, 2)
    assert told(part.url) == []


def test_the_home_tells_it_where_there_are_credentials(logs, s3_options):
    """A process that has those of the home, and reaches the log, need not wait for the log's
    cleaner.
    """
    home, part = logs
    assert told(part.url) != []
    assert finish_all(Log.open(home.url, storage_options=s3_options).handle) == []
    assert shown(part.url) == (2, 2)
