"""The rows of kinds of stores."""

from itertools import chain
from pathlib import Path
from typing import get_args

import pytest

from clog.storage.store.contract import Failure, OnlyRequestError
from clog.storage.store.failures import failure_of
from clog.storage.store.kinds import KINDS


@pytest.mark.parametrize("field", ["protocols", "aliases", "classes", "makers", "failures"])
def test_nothing_is_of_two_kinds(field):
    """Each is looked up by the contents of a URL or of a client's error."""
    said = list(chain.from_iterable(getattr(kind, field) for kind in KINDS))
    assert len(said) == len(set(said))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.protocols], ids=lambda k: k.extra)
def test_the_documents_show_a_url_of_each(kind):
    """In the table of URLs, by one of the names that the row has."""
    page = (Path(__file__).parents[4] / "docs/running.md").read_text()
    shown = [p for p in (*kind.protocols, *kind.aliases) if f"| `{p}://" in page]
    assert shown, f"docs/running.md has no URL with one of {kind.protocols}"


def test_kinds_say_failures_in_the_words_that_all_share():
    """The behaviour of `failed` follows from them."""
    words = {word for kind in KINDS for word in kind.failures.values()}
    assert words <= set(get_args(Failure))


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (OSError("Forbidden: no such right"), "denied"),
        (FileNotFoundError("a"), "absent"),
        (FileExistsError("a"), "exists"),
        (PermissionError("a"), "denied"),
        (OSError(28, "No space left on device"), "full"),
        (RuntimeError("a"), None),
    ],
)
def test_an_error_says_one_word(error, word):
    """Also if it is the response to the only request of a create."""
    assert failure_of(error) == word
    only = OnlyRequestError()
    only.__cause__ = error
    assert failure_of(only) == word
