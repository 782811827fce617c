"""The axioms of a store (`clog.storage.store.contract`) as pytest tests, for any filesystem.

Subclass in a test module, give a fixture ``store``, and run it where it counts: on the
filesystem, the mount options, the server and the version that you have::

    class TestOurServer(StoreConformance):
        @pytest.fixture
        def store(self):
            return open_store("s3://bucket/conformance-1", {"endpoint_url": "https://…"})

The root must be empty at the start of each test. Set ``processes = False`` for a store that lives
in one process, and ``secrets`` to what must appear in no message.
"""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from clog.storage.store.conformance import CHECKS, Check, Effort
from clog.storage.store.contract import Store


class StoreConformance:
    """Subclass it and give the fixture ``store``."""

    processes: ClassVar[bool] = True
    thread_rounds: ClassVar[int] = 20
    process_rounds: ClassVar[int] = 25
    secrets: ClassVar[Sequence[str]] = ()

    @pytest.fixture
    def store(self) -> Store:
        """Returns the store under test, empty."""
        raise NotImplementedError("give a fixture named store")

    @pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
    def test_it_keeps_the_axioms(self, store: Store, check: Check) -> None:
        """Each check of `clog.storage.store.conformance` passes."""
        if check.races_processes and not self.processes:
            pytest.skip("this store lives in one process")
        check.run(store, Effort(self.thread_rounds, self.process_rounds))

    def test_secrets_are_not_shown(self, store: Store) -> None:
        """Neither by its texts nor by its errors."""
        with pytest.raises(FileNotFoundError) as raised:
            store.get("absent")
        texts = [repr(store), str(store), store.url, str(raised.value), repr(raised.value)]
        assert not [text for text in texts for secret in self.secrets if secret in text]
