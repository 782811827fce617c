"""Errors as users of Spark see them: the message, without clog's traceback.

Spark prints the traceback of a Python error in full and drops its cause, so each method that Spark
calls raises anew at its own border; the message of a `ClogError` holds the cause already.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from clog.storage.errors import ClogError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def shallow(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wraps a method so that its `ClogError`s have no frames below it."""

    @wraps(method)
    def outermost(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except ClogError as e:
            raise e.with_traceback(None) from None

    return outermost


def shallow_iterator(
    method: Callable[_P, Iterator[_R]],
) -> Callable[_P, Iterator[_R]]:
    """Wraps a generator in the same way."""

    @wraps(method)
    def outermost(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        try:
            yield from method(*args, **kwargs)
        except ClogError as e:
            raise e.with_traceback(None) from None

    return outermost
