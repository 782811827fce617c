"""How a log opens the others that it names: with its own options, where the filesystem is the same
(S50: credentials are stored nowhere).
"""

import pytest

from clog.cleaner.daemon.finder import Finder
from clog.connector.options.location import Location
from clog.storage import Log, ManualClock
from clog.storage.ids import SeededIds
from clog.storage.store import open_store
from clog.storage.store.reach import Reach

OPTIONS = {"fsync": False}


@pytest.fixture
def url(tmp_path):
    return Log.create(str(tmp_path / "log"), 1, clock=ManualClock()).url


def opened_by_the_cleaner(url):
    (log,) = Finder([url], storage_options=OPTIONS, clock=ManualClock(), ids=SeededIds(1))().logs
    return log


WAYS = {
    "a URL": lambda url: Log.open(url, OPTIONS),
    "a store": lambda url: Log.open(open_store(url, OPTIONS), OPTIONS),
    "the cleaner": opened_by_the_cleaner,
    "Spark": lambda url: Location(url, '{"fsync": false}').log(),
}


@pytest.mark.parametrize("way", WAYS)
def test_options_go_along_however_it_was_opened(url, way):
    """A cleaner that was given credentials could not open the home with them, and ended nothing."""
    reach = WAYS[way](url).handle.reach
    assert reach == Reach("file", OPTIONS)
    assert "fsync" not in repr(reach)


def test_a_promise_goes_along(url):
    """Who is the single writer, as creates are not exclusive there, is so in all of its logs."""
    assert Log.open(url, single_writer=True).handle.reach == Reach("file", {}, single_writer=True)


def test_another_filesystem_gets_nothing():
    """Options of one are not sent to another."""
    reach = Reach.of("s3://bucket/log", {"key": "secret"})
    assert reach("memory://elsewhere/log").url == "memory://elsewhere/log"
