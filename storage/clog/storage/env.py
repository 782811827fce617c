"""The process and its machine: time, randomness, locks, memory, and how clog was installed.

Time and randomness are arguments: only this module asks the operating system for the time and
draws random numbers. `SystemClock` is real time; `ManualClock` moves only when it is advanced, so
that tests can skip a week of retention. `SystemIds` draws from the operating system, so forked
processes never agree; `SeededIds` is repeatable, for tests and simulations.

Locks survive forks and interrupts. A thread that holds a lock in the parent does not exist in a
forked child and cannot release it, so each lock is reset in the child before its own code runs. A
value that another thread was changing during the fork may be half changed: its owner registers here
and forgets it. `lock` says why nothing that outlives an interrupt may use another kind of lock.

The type says who may share an object: values are frozen and shared by anyone; `Shared` objects, by
all threads of a process; everything else is a worker and belongs to the thread that made it.

`dataclass` makes values like the standard library's decorator, with less work at import.

Anyone who can write to a log chooses, within the format's limits, how much memory its files take:
`enough_memory` turns the failure into an error of ours. Clog comes as a wheel or a checkout and is
not in an index: `install_extra` and `from_extra` say what to install when a package is missing.
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
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from clog.storage.errors import InvalidInputError, MissingPackageError, OutOfMemoryError


class Clock(Protocol):
    """The source of times."""

    def now_ms(self) -> int:
        """Returns the wall clock: ms since 1970, UTC. May jump, also backwards."""
        ...

    def now_us(self) -> int:
        """Returns the wall clock: µs since 1970, UTC."""
        ...

    def monotonic_ms(self) -> int:
        """Returns ms since some fixed moment; never goes back. For durations and deadlines."""
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
    """A clock that moves only when `advance` or `sleep_ms` is called.

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
    """The source of random numbers."""

    def new_id(self) -> str:
        """Returns 32 unique hex digits: commit ids, names of objects."""
        ...

    def uniform(self) -> float:
        """Returns a number in [0, 1), for jitter."""
        ...

    def seed(self) -> int:
        """Returns a number in [0, 2**64), for hashes that must be unpredictable."""
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
        from random import Random  # Importing it takes as long as three of our modules.

        self._random = Random(seed)  # noqa: S311 - repeatable on purpose

    def new_id(self) -> str:
        return f"{self._random.getrandbits(4 * _ID_HEX_DIGITS):0{_ID_HEX_DIGITS}x}"

    def uniform(self) -> float:
        return self._random.random()

    def seed(self) -> int:
        return self._random.getrandbits(64)


class ForkAware(Protocol):
    """Has state that a forked child must forget."""

    def after_fork(self) -> None:
        """Forgets it. Makes no requests: the child has not begun yet."""
        ...


_owners: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()
_locks: "weakref.WeakSet[threading.RLock]" = weakref.WeakSet()


def register(owner: ForkAware) -> None:
    """Calls the owner's `after_fork` in every child that is forked while it lives."""
    _owners.add(owner)


def lock() -> threading.RLock:
    """Returns a reentrant lock that is free in a forked child.

    An interrupt (Ctrl-C, or a signal handler that raises) can come between any two steps of Python
    code. A lock that C code acquires and releases is held exactly during its ``with`` block;
    ``threading.Condition`` and ``threading.Event`` are Python code: one that was interrupted on
    entry or exit stays locked, and the next user waits for ever.
    """
    made = threading.RLock()
    _locks.add(made)
    return made


class Shared:
    """Base of objects that threads may share. Its methods change state under its one lock, or in a
    single step. Its attributes are values, other shared objects, or used by itself alone.
    """

    def __init__(self) -> None:
        self._lock = lock()


def _after_fork() -> None:
    for held in list(_locks):
        held._at_fork_reinit()  # type: ignore[attr-defined] # noqa: SLF001 - as CPython
    for owner in list(_owners):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class enough_memory:  # noqa: N801 - a context manager; a class is cheaper
    """Turns the errors of NumPy and Arrow for too little memory into ours. The default remedy is
    for a file: anyone who can write to a log chooses, within the format's limits, how much a reader
    needs.
    """

    __slots__ = ("remedy", "where")

    def __init__(self, where: str, remedy: str = "") -> None:
        self.where = where
        self.remedy = remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if isinstance(e, MemoryError) and not isinstance(e, OutOfMemoryError):
            raise too_little_memory(self.where, self.remedy) from e


def too_little_memory(where: str, remedy: str = "") -> OutOfMemoryError:
    """Returns the error for what needs more memory than there is."""
    remedy = remedy or "use a machine with more memory, and read no logs from untrusted sources"
    return OutOfMemoryError(f"{where} needs more memory than is available; {remedy}")


def attribute(path: str) -> Any:
    """Returns a property that is an attribute of an attribute, such as ``record.version``. Reading
    it runs no Python code: flows ask for the tip and its version again and again.
    """
    return property(attrgetter(path))


def loading(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` for a package whose modules are loaded when one of
    their names is first used: a process that needs only errors should not load Arrow.
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
    """Returns the command that installs the packages of an extra of clog."""
    # Imported only on failure: this takes a tenth of the time that importing clog takes.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        stated = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:  # A zip of the sources, on a Spark cluster.
        stated = []
    named = [f'"{one}"' for one in _packages_of(extra, stated)]
    if not named:
        return f'install the packages of the extra "{extra}" in pyproject.toml'
    return f"run pip install {' '.join(named)} (the extra {extra})"


def _packages_of(extra: str, stated: Sequence[str]) -> dict[str, None]:
    """Returns what an extra brings, and those that it names: clog itself is in no index."""
    marker = re.compile(rf"""\s*;\s*extra\s*==\s*["']{extra}["']""")
    found: dict[str, None] = {}
    for one in (marker.sub("", one) for one in stated if marker.search(one)):
        inner = re.fullmatch(rf"{_DISTRIBUTION}\[(.+)]", one)
        for named in inner[1].split(",") if inner else ():
            found |= _packages_of(named, stated)
        if inner is None:
            found[one] = None
    return found


@contextmanager
def from_extra(extra: str, what: str, *packages: str) -> Iterator[None]:
    """Raises an error with the command to run if the block lacks a package that ``what`` needs."""
    try:
        yield
    except ModuleNotFoundError as e:
        if (package := (e.name or "").partition(".")[0]) not in packages:
            raise
        needed = package.replace("_", "-")
        said = f"{what} needs {needed}: {install_extra(extra)}"
        raise MissingPackageError(said, name=package) from e


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
        """Makes a dataclass like the standard library's decorator of that name.

        That one writes six methods of each class as text and compiles them, which takes a
        millisecond for a frozen class with slots; an import of `Log` had 160 of them, half of its
        time. Here the methods that name fields are compiled together when one of them is first
        used, and all classes share the others. ``fields``, ``replace``, ``asdict``, ``match`` and
        pickle work as usual; ``order`` and ``unsafe_hash`` do not exist, and a class may inherit
        only from dataclasses made here.
        """
        bare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)

        def made(cls: type) -> type:
            own = {name for name, value in vars(cls).items() if value is not None}
            cls.__doc__ = cls.__doc__ or cls.__name__  # Otherwise it is built from a signature.
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
        return "<factory>"  # As in the signatures of dataclasses.


_ABSENT = _Absent()


class _Later:
    """Stands for a method until one of those that are compiled together is used."""

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
        assert field.init or not default, "__post_init__ sets such fields"
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
