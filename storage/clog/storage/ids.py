"""Randomness as an argument: the only module that draws a random number.

`SystemIds` draws from the operating system, so that two processes forked from one never agree.
`SeededIds` repeats itself, for tests and simulations.
"""

import random
import secrets
from typing import Protocol

ID_HEX_DIGITS = 32
"""Length of an id: 128 random bits, in lower-case hex."""


class Ids(Protocol):
    """Where clog takes random numbers from."""

    def new_id(self) -> str:
        """Returns 32 unique hex digits: commit ids, names of objects."""
        ...

    def uniform(self) -> float:
        """Returns a number in [0, 1), for jitter."""
        ...

    def seed(self) -> int:
        """Returns a number in [0, 2**64), for hashes that nobody may predict."""
        ...


class SystemIds:
    """Ids from the operating system."""

    __slots__ = ()

    def new_id(self) -> str:
        return secrets.token_hex(ID_HEX_DIGITS // 2)

    def uniform(self) -> float:
        return secrets.randbits(53) / (1 << 53)

    def seed(self) -> int:
        return secrets.randbits(64)


class SeededIds:
    """Ids that follow from a seed.

    >>> SeededIds(7).new_id() == SeededIds(7).new_id()
    True
    """

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - it is to be repeatable

    def new_id(self) -> str:
        return f"{self._random.getrandbits(4 * ID_HEX_DIGITS):0{ID_HEX_DIGITS}x}"

    def uniform(self) -> float:
        return self._random.random()

    def seed(self) -> int:
        return self._random.getrandbits(64)
