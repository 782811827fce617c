"""The tree of errors is API: its shape, its kinds, and that every error survives pickling."""

import pickle

import pytest

from clog.storage import errors
from clog.storage.errors import ClogError, ErrorKind, OffsetOutOfRangeError

TREE = {
    "InvalidInputError": ("ClogError", ValueError, "invalid_input"),
    "MissingPackageError": ("InvalidInputError", ModuleNotFoundError, "missing_package"),
    "OptionError": ("ClogError", ValueError, "option"),
    "NotFoundError": ("ClogError", LookupError, "not_found"),
    "OffsetOutOfRangeError": ("NotFoundError", LookupError, "offset_out_of_range"),
    "VersionExpiredError": ("NotFoundError", LookupError, "version_expired"),
    "LogReplacedError": ("NotFoundError", LookupError, "log_replaced"),
    "AlreadyExistsError": ("ClogError", FileExistsError, "already_exists"),
    "CommitConflictError": ("ClogError", Exception, "commit_conflict"),
    "CommitStateUnknownError": ("ClogError", Exception, "commit_state_unknown"),
    "TransactionFencedError": ("ClogError", Exception, "transaction_fenced"),
    "StateFencedError": ("TransactionFencedError", Exception, "state_fenced"),
    "StateFileError": ("ClogError", OSError, "state_file"),
    "SourceError": ("ClogError", Exception, "source"),
    "SourceReplacedError": ("SourceError", Exception, "source_replaced"),
    "SourceTruncatedError": ("SourceError", Exception, "source_truncated"),
    "SourcePurgedError": ("SourceError", Exception, "source_purged"),
    "SourcePartitionsError": ("SourceError", Exception, "source_partitions"),
    "SourceDamagedError": ("SourceError", Exception, "source_damaged"),
    "SourceUndecodableError": ("SourceError", Exception, "source_undecodable"),
    "SourceUnavailableError": ("ClogError", OSError, "source_unavailable"),
    "TransactionTimeoutError": ("ClogError", Exception, "transaction_timeout"),
    "UnsupportedFilesystemError": ("ClogError", Exception, "unsupported_filesystem"),
    "StoreUnavailableError": ("ClogError", OSError, "store_unavailable"),
    "OutOfMemoryError": ("StoreUnavailableError", MemoryError, "out_of_memory"),
    "UnsupportedFormatError": ("ClogError", Exception, "unsupported_format"),
    "CorruptionError": ("ClogError", Exception, "corruption"),
}


def make(name: str) -> ClogError:
    cls = getattr(errors, name)
    if cls is OffsetOutOfRangeError:
        return OffsetOutOfRangeError("offset 41 is gone", partition=3, offset=41, start=57, end=90)
    return cls("what happened; the remedy")


def test_the_module_has_these_errors_and_no_others():
    """An added class is pinned here too."""
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ClogError) and value is not ClogError
    }
    assert found == set(TREE)


@pytest.mark.parametrize("name", TREE)
def test_an_error_keeps_its_place_its_builtin_and_its_kind(name):
    """Handlers catch by parent or by builtin and switch on the kind."""
    parent, builtin, kind = TREE[name]
    cls = getattr(errors, name)
    assert cls.__bases__[0].__name__ == parent
    assert issubclass(cls, builtin)
    assert cls.kind == kind
    assert isinstance(cls.kind, ErrorKind)


def test_kinds_are_distinct_and_complete():
    """One kind for each class, and no kind without a class."""
    assert sorted(getattr(errors, name).kind for name in TREE) == sorted(ErrorKind)


@pytest.mark.parametrize("name", TREE)
def test_an_error_survives_pickling_with_message_attributes_and_notes(name):
    """Spark pickles the errors of a task; nothing of them may get lost on the way to the driver."""
    error = make(name)
    error.add_note("while reading partition 3")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)


def test_out_of_range_carries_the_range():
    """S38: partition, requested offset, and the existing range."""
    error = pickle.loads(pickle.dumps(make("OffsetOutOfRangeError")))
    assert (error.partition, error.offset, error.start, error.end) == (3, 41, 57, 90)


@pytest.mark.parametrize("name", TREE)
def test_the_message_is_what_was_said(name):
    """No builtin parent quotes the message or adds an errno (as KeyError and OSError would)."""
    assert str(make(name)) == make(name).args[0]


@pytest.mark.parametrize("name", TREE)
def test_the_tree_in_the_docstring_is_the_tree(name):
    """The picture names each class with its builtin."""
    _, builtin, _ = TREE[name]
    line = next(line for line in errors.__doc__.splitlines() if f" {name}" in line)
    assert f"({builtin.__name__})" in line or builtin in {Exception, LookupError}
