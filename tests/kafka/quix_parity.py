"""The fixtures of quix-streams' own tests of state, with the store that keeps it in logs; a plugin
of pytest for a Python that has it, quix-streams and clog:

    cd CHECKOUT_OF_QUIX_STREAMS/tests/test_quixstreams/test_state
    PYTHONPATH=CLOG/tests/kafka python -m pytest --noconftest -p quix_parity \\
        test_partition.py test_transaction.py test_store.py

Decision 0065 says which of them pass, and why the others do not.
"""

from unittest.mock import MagicMock

import pytest
from quixstreams.state import manager
from quixstreams.state.base import PartitionTransactionCache

from clog.bridge.quix.stores import ClogStateStoreManager, ClogStore

manager.SUPPORTED_STORES[:] = [ClogStore]


@pytest.fixture
def store_type(request):
    return request.param


@pytest.fixture
def stores(tmp_path):
    app = MagicMock()
    app.config.consumer_group = "group"
    made = ClogStateStoreManager(app, str(tmp_path / "logs"), tmp_path / "cache")
    made._init_state_dir()
    return made


@pytest.fixture
def store_factory(store_type, stores):
    def factory(topic="stream", name="default", changelog_producer_factory=None):
        made = store_type(name, topic, stores)
        made._changelog_producer_factory = changelog_producer_factory
        return made

    return factory


@pytest.fixture
def store(store_factory):
    made = store_factory()
    yield made
    made.close()


@pytest.fixture
def store_partition_factory(store_factory):
    def factory(name="default", **_):
        return store_factory(name=name).create_new_partition(0)

    return factory


@pytest.fixture
def store_partition(store_partition_factory):
    made = store_partition_factory()
    yield made
    made.close()


@pytest.fixture
def cache():
    return PartitionTransactionCache()
