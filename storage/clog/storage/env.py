"""What is of this process and its machine: time, chance, locks, memory, and how clog was installed.

Time and randomness are arguments: only this module asks the operating system what time it is, and
draws random numbers. `SystemClock` is real time, `ManualClock` moves when it is told to, so that
tests wait for a week of retention in no time. `SystemIds` draws from the operating system, so that
two processes forked from one never agree; `SeededIds` repeats itself, for tests and simulations.

Locks outlive a fork and an interrupt. In a forked child a thread that holds one in the parent is
not there to release it. So in a child each lock is made anew, before the child's own code runs.
What another thread was changing while the process forked may be half changed: its owner registers,
and forgets it.

An interrupt (Ctrl-C, a signal handler that raises) comes between two steps of Python code, in a
method written in Python, too. A lock that is entered and left by C code (`lock`) is held in its
``with`` block and nowhere else. ``threading.Condition`` and ``threading.Event`` are Python code:
one that was interrupted as it entered or left stays taken, and whoever comes next waits for ever.
They have no place in what lives on after an interrupt.

Who may share what is told by type: values, which are frozen, anybody; what is `Shared`, all threads
of a process; anything else is a worker, of the one that made it.

`dataclass` makes values as the standard library's decorator does, with less work at import: that
one writes six methods of each class as text, and compiles them: a millisecond for a frozen class
with slots, of which an import of `Log` had 160, half of what it took. Here those that name fields
are compiled together, when one of them is first called or looked at; the other methods are the same
functions for all classes. ``fields``, ``replace``, ``asdict``, ``match`` and pickles take them as
they are. Parameters that nobody uses (``order``, ``unsafe_hash``) are refused; a class inherits
from ones made here, or from none that are dataclasses.

Who can write to a log chooses how much memory its files take, within the format's limits:
`enough_memory` makes an error of ours of it where it is too much.

Clog comes as a wheel or a checkout, and is in no index, so that its extras cannot be installed by
name: `install_extra` says what to install where something is missing, for `from_extra`, too.
"""

import dataclasses
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from clog.storage.errors import InvalidInputError, OutOfMemoryError


class Clock(Protocol):
    """Where clog takes times from."""

    def now_ms(self) -> int:
        """Returns the wall clock: ms since 1970, UTC. May jump, also backwards."""
        ...

    def now_us(self) -> int:
        """Returns the wall clock: µs since 1970, UTC."""
        ...

    def monotonic_ms(self) -> int:
        """Returns the ms since some fixed moment; never goes back. For durations and deadlines."""
        ...

    def sleep_ms(self, ms: int) -> None:
        """Waits for ``ms`` milliseconds."""
        ...


class SystemClock:
    """The clock of this host."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, ms: int) -> None:
        time.sleep(ms / 1000)


class ManualClock:
    """A clock that moves when `advance` or `sleep_ms` is called, and at no other time.

    >>> clock = ManualClock(now_ms=1_000)
    >>> clock.advance(500)
    >>> clock.now_ms(), clock.monotonic_ms()
    (1500, 500)
    """

    __slots__ = ("_elapsed_ms", "_start_ms")

    def __init__(self, now_ms: int = 0) -> None:
        self._start_ms = now_ms
        self._elapsed_ms = 0

    def advance(self, ms: int) -> None:
        """Moves the clock forward by ``ms`` milliseconds.

        Raises:
            InvalidInputError: ``ms`` is negative.
        """
        if ms < 0:
            raise InvalidInputError(f"the clock cannot go back by {-ms} ms; advance by 0 or more")
        self._elapsed_ms += ms

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed_ms

    def now_us(self) -> int:
        return self.now_ms() * 1_000

    def monotonic_ms(self) -> int:
        return self._elapsed_ms

    def sleep_ms(self, ms: int) -> None:
        self.advance(ms)


_ID_HEX_DIGITS = 32
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
        return os.urandom(_ID_HEX_DIGITS // 2).hex()

    def uniform(self) -> float:
        return (self.seed() >> 11) / (1 << 53)

    def seed(self) -> int:
        return int.from_bytes(os.urandom(8), "big")


class SeededIds:
    """Ids that follow from a seed.

    >>> SeededIds(7).new_id() == SeededIds(7).new_id()
    True
    """

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        from random import Random  # It takes as long as three of our modules.

        self._random = Random(seed)  # noqa: S311 - it is to be repeatable

    def new_id(self) -> str:
        return f"{self._random.getrandbits(4 * _ID_HEX_DIGITS):0{_ID_HEX_DIGITS}x}"

    def uniform(self) -> float:
        return self._random.random()

    def seed(self) -> int:
        return self._random.getrandbits(64)


class ForkAware(Protocol):
    """Whoever has something to forget in a forked child."""

    def after_fork(self) -> None:
        """Forgets it. No requests: the child has not begun yet."""
        ...


_owners: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()
_locks: "weakref.WeakSet[threading.RLock]" = weakref.WeakSet()


def register(owner: ForkAware) -> None:
    """Calls the owner's `after_fork` in each child that is forked while it lives."""
    _owners.add(owner)


def lock() -> threading.RLock:
    """Returns a lock that nobody holds in a forked child; a thread may enter it again."""
    made = threading.RLock()
    _locks.add(made)
    return made


class Shared:
    """What threads may share. It has one lock: what its methods change they change under it, or in
    a single step; and what it holds is values, others that may be shared, or its own alone.
    """

    def __init__(self) -> None:
        self._lock = lock()


def _after_fork() -> None:
    for held in list(_locks):
        held._at_fork_reinit()  # type: ignore[attr-defined] # noqa: SLF001 - as CPython
    for owner in list(_owners):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class enough_memory:  # noqa: N801 - a context manager, as a class: it costs less
    """Makes an error of ours of what NumPy and Arrow raise where something takes more memory than
    there is. By default it is a file: who can write to a log chooses how much of it a reader needs,
    within the format's limits.
    """

    __slots__ = ("remedy", "where")

    def __init__(
        self,
        where: str,
        remedy: str = "read it where there is more, and no logs of people whom you do not trust",
    ) -> None:
        self.where = where
        self.remedy = remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, MemoryError) and not isinstance(e, OutOfMemoryError):
            what = f"{self.where} takes more memory than there is; {self.remedy}"
            raise OutOfMemoryError(what) from e


def loading(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a package whose modules are loaded when somebody
    asks for a name of theirs: cold processes want errors, and who only looks needs no Arrow.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{places[name]}", package), name)

    return load, lambda: sorted({*vars(sys.modules[package]), *places})


_DISTRIBUTION = "pyspark-clog"
UPGRADE = "upgrade clog: install a newer wheel, or update the checkout"


def install_extra(extra: str) -> str:
    """Returns the command that installs what an extra of clog names."""
    # Here, where something is missing anyway: to import it takes a tenth of what clog does.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        stated = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:  # A zip of the sources, on a Spark cluster.
        stated = []
    marker = re.compile(rf"""\s*;\s*extra\s*==\s*["']{extra}["']""")
    named = [f'"{marker.sub("", one)}"' for one in stated if marker.search(one)]
    if not named:
        return f'install what the extra "{extra}" in pyproject.toml names'
    return f"run pip install {' '.join(named)}"


@contextmanager
def from_extra(extra: str, what: str, *packages: str) -> Iterator[None]:
    """Says what brings a package of an extra, which ``what`` needs, where the block lacks it."""
    try:
        yield
    except ModuleNotFoundError as e:
        if (package := (e.name or "").partition(".")[0]) not in packages:
            raise
        needed = package.replace("_", "-")
        raise InvalidInputError(f"{what} needs {needed}: {install_extra(extra)}") from e


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        kw_only: bool = False,
    ) -> Any:
        """Makes a dataclass, as the standard library's decorator of that name does."""
        bare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)

        def made(cls: type) -> type:
            own = {name for name, value in vars(cls).items() if value is not None}
            cls.__doc__ = cls.__doc__ or cls.__name__  # Else it would be made of a signature.
            found = bare(cls)
            asked = {"__init__": True, "__eq__": eq, "__hash__": eq and frozen}
            compiled = [name for name, is_asked in asked.items() if is_asked and name not in own]
            methods: dict[str, Any] = {name: _Later(found, name, compiled) for name in compiled}
            methods |= {"__repr__": _repr} | ({"__hash__": None} if eq and not frozen else {})
            if frozen:
                methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
                methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
            for name in methods.keys() - own:
                setattr(found, name, methods[name])
            return found

        return made if cls is None else made(cls)


class _Absent:
    def __repr__(self) -> str:
        return "<factory>"  # As signatures of dataclasses say.


_ABSENT = _Absent()


class _Later:
    """Stands for a method until somebody asks for one of those that are compiled together."""

    def __init__(self, cls: type, name: str, together: Collection[str]) -> None:
        self._cls, self._name, self._together = cls, name, together

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        made = _compiled(self._cls)
        for name in self._together:
            setattr(self._cls, name, made[name])
        method = made[self._name]
        return method if instance is None else method.__get__(instance, owner)


def _compiled(cls: type) -> dict[str, Any]:
    """Returns the methods of a class that name its fields."""
    given: list[str] = []
    by_name: list[str] = []
    lines: list[str] = []
    names: dict[str, Any] = {"_set": object.__setattr__, "_absent": _ABSENT}
    for field in dataclasses.fields(cls):
        name = value = field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            names[f"_{name}"], default = field.default, f"=_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_{name}"], default = field.default_factory, "=_absent"
            value = f"_{name}() if {name} is _absent else {name}"
        assert field.init or not default, "such fields are set by __post_init__"
        if field.init:
            (by_name if field.kw_only else given).append(name + default)
            lines.append(f"    _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    parameters = ["self", *given, *(["*", *by_name] if by_name else [])]
    compared = [f.name for f in dataclasses.fields(cls) if f.compare]
    mine, others = ("".join(f"{of}.{name}, " for name in compared) for of in ("self", "other"))
    text = [
        f"def __init__({', '.join(parameters)}) -> None:",
        *(lines or ["    pass"]),
        "def __eq__(self, other):",
        "    same = other.__class__ is self.__class__",
        f"    return ({mine}) == ({others}) if same else NotImplemented",
        "def __hash__(self):",
        f"    return hash(({mine}))",
    ]
    exec("\n".join(text), names)  # noqa: S102 - names of fields
    for name in ("__init__", "__eq__", "__hash__"):
        names[name].__qualname__ = f"{cls.__qualname__}.{name}"
    names["__init__"].__annotations__ |= {f.name: f.type for f in dataclasses.fields(cls)}
    return names


def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
