"""A Kafka-style compacted log without a broker: ``import clog``.

Begin with `create`, `open` and `Cleaner`. Here is what `clog.storage` and `clog.cleaner` export,
and each name is loaded when it is first used, so that an import costs nothing; what needs PySpark
or another extra stands in a package of its own: `clog.connector`, `clog.bridge`, `clog.jobs`.

In a wheel all packages are beside this file. A checkout has four source roots, each with a part of
this package and a link to this file, and whichever is imported joins the parts of its checkout.
"""

import os

TYPE_CHECKING = False  # As checkers know it, without an import.
if TYPE_CHECKING:
    from typing import Any

    from clog import bridge as bridge
    from clog import cleaner as cleaner
    from clog import connector as connector
    from clog import jobs as jobs
    from clog import storage as storage
    from clog.cleaner import *
    from clog.storage import *

    create = Log.create
    open = Log.open

_ROOTS = ("storage", "cleaner", "connector", "bridge")
_EXPORTED = ("storage", "cleaner")
_PACKAGES = (*_EXPORTED, "bridge", "connector", "jobs")
_MADE_BY = ("create", "open")
_ELSEWHERE = {
    "bridge": ("capture", "mirror", "replay", "send"),
    "connector": ("append_batches", "read_log", "read_table", "transact_batches", "upsert_batches"),
    "jobs": ("convert",),
}
"""What is asked for here, and needs an extra."""


def _join() -> None:
    """Makes the parts of a checkout one package."""
    own = __path__[0]
    checkout = os.path.dirname(os.path.dirname(own))
    parts = [f"{checkout}/{root}/clog" for root in _ROOTS]
    if own in parts and all(map(os.path.isdir, parts)):
        __path__[:] = parts
        # It has several places, like a namespace package: import-linter looks at all of them.
        __spec__.has_location = False


_join()

if not TYPE_CHECKING:  # A checker would take any name for one of ours.

    def __getattr__(name: str) -> "Any":
        if not name.startswith("_") or name == "__all__":
            from importlib import import_module

            if name in _PACKAGES:
                return import_module(f"clog.{name}")
            packages = [import_module(f"clog.{package}") for package in _EXPORTED]
            if name in _MADE_BY:
                return getattr(packages[0].Log, name)
            if name == "__all__":
                return sorted([*_MADE_BY, *packages[0].__all__, *packages[1].__all__])
            for package in packages:
                if name in package.__all__:
                    return getattr(package, name)
            hint = "".join(f"; clog.{p} has it" for p, names in _ELSEWHERE.items() if name in names)
        else:
            hint = ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PACKAGES, *__getattr__("__all__")})
