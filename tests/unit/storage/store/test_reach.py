"""How a log opens the others that it names: with its own options, if the filesystem is the same
(S50: credentials are stored nowhere).
"""

from tempfile import TemporaryDirectory

import pytest

from clog.cleaner.daemon.broker_config import Finder
from clog.storage import Log, ManualClock, StateStore
from clog.storage.env import SeededIds
from clog.storage.store import open_store
from clog.storage.store import opening as reach_module
from clog.storage.store.opening import Reach

OPTIONS = {"fsync": False}


@pytest.fixture
def url(tmp_path):
    return Log.create(str(tmp_path / "log"), 1, clock=ManualClock()).url


def opened_by_spark(url):
    pytest.importorskip("pyspark")
    from clog.connector.options import Location

    return Location(url, '{"fsync": false}').log()


def opened_by_the_cleaner(url):
    (log,) = Finder([url], storage_options=OPTIONS, clock=ManualClock(), ids=SeededIds(1))().logs
    return log


def opened_by_a_state_store(url):
    with TemporaryDirectory() as folder, StateStore(url, folder, "job", OPTIONS) as store:
        return store._file


WAYS = {
    "a URL": lambda url: Log.open(url, OPTIONS),
    "a store": lambda url: Log.open(open_store(url, OPTIONS), OPTIONS),
    "the cleaner": opened_by_the_cleaner,
    "Spark": opened_by_spark,
    "a state store": opened_by_a_state_store,
}


@pytest.mark.parametrize("way", WAYS)
def test_options_go_along_however_it_was_opened(url, way):
    """A cleaner that was given credentials could not open the home with them, and ended nothing; a
    state store on such a server could not end what the last holder of its id had left in outputs.
    """
    reach = WAYS[way](url).handle.reach
    assert reach == Reach("file", OPTIONS)
    assert "fsync" not in repr(reach)


def test_a_promise_goes_along(url):
    """A single writer, as creates are not exclusive there, is one in all of its logs."""
    assert Log.open(url, single_writer=True).handle.reach == Reach("file", {}, single_writer=True)


@pytest.mark.parametrize(
    ("mine", "other", "goes"),
    [
        ("s3://bucket/log", "s3a://another/log", True),
        ("s3://bucket/log", "memory://elsewhere/log", False),
        ("gs://bucket/log", "gs://another/log", True),
        ("sftp://me@host/log", "sftp://host/other", True),
        ("sftp://host/log", "sftp://stranger/log", False),
        ("abfss://c@mine.dfs.core.windows.net/a", "abfss://d@mine.dfs.core.windows.net/b", True),
        ("abfss://c@mine.dfs.core.windows.net/a", "abfss://c@evil.dfs.core.windows.net/a", False),
        ("abfs://c/a", "abfs://d/b", True),
        ("abfs://c/a", "abfs://c@evil.dfs.core.windows.net/a", False),
        ("https://host/log", "https://host:8443/log", False),
    ],
)
def test_credentials_go_to_no_other_host(monkeypatch, mine, other, goes):
    """A foreign log may name any host as the home of a transaction; a cleaner must not send it the
    password of its own.
    """
    given = []
    monkeypatch.setattr(
        reach_module, "open_store", lambda _, options=None, **__: given.append(options)
    )
    Reach.of(mine, {"password": "secret"})(other)
    assert given == [{"password": "secret"} if goes else None]
