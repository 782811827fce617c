"""What is at a local path where no log is: a misspelt name, a table of another kind, a file.

Only local folders are looked at: on other stores a question costs, and may not be allowed.
"""

from itertools import islice
from pathlib import Path

_NAMED_MAX = 3
_LOOKED_AT_MAX = 1000
_KINDS = {
    "_delta_log": "a Delta table",
    ".hoodie": "a Hudi table",
    "metadata/version-hint.text": "an Iceberg table",
    "_spark_metadata": "a folder that Spark streams files to",
    "metadata": "a checkpoint of a Spark query",
}
"""What a folder is that has this: the first one counts."""


def local_logs(begun: str) -> list[str]:
    """Returns the local logs whose paths begin with a text, with at most one more folder between;
    if there are none, the shell completes file names.
    """
    if "://" in begun:
        return []
    above, _, name = begun.rpartition("/")
    around = Path(f"{above}/" if begun.startswith("/") else above or ".")
    found: list[str] = []
    for depth in ("*", "*/*"):
        for path in islice(around.glob(f"{depth}/_clog/log"), _LOOKED_AT_MAX):
            log = str(path.parent.parent.relative_to(around))
            if log.startswith(name):
                found.append(f"{above}/{log}" if above or begun.startswith("/") else log)
    return sorted(found)


def instead_of_log(url: str) -> str:
    """Returns what is at a URL without a log, as the rest of a sentence, and what to do."""
    create = 'create one with Log.create or "clog create"'
    path = Path(url)
    if not path.is_absolute():
        return f"; {create}"
    try:
        return _there(path) or f"{_alike(path)}; {create}"
    except OSError:
        return f"; {create}"


def _there(path: Path) -> str:
    if path.is_file():
        return ", which is a file; a log is a folder: create one, and append what it has"
    if "_clog" in path.parts:
        above = (one for one in (path, *path.parents) if (one / "_clog/log").exists())
        return f", but files of the log at {log}" if (log := next(above, None)) else ""
    if below := local_logs(f"{path}/"):
        return f"; there are logs below: {_few(below)}"
    for name, kind in _KINDS.items():
        if (path / name).exists():
            return f", which is {kind}; create a log elsewhere, and append its rows"
    return ""


def _alike(path: Path) -> str:
    """Returns which logs beside the path have a name like it."""
    from difflib import get_close_matches

    beside = map(Path, local_logs(f"{path.parent}/"))
    logs = [log.name for log in beside if log.parent == path.parent]
    alike = get_close_matches(path.name, logs, _NAMED_MAX)
    return f", but at {_few([str(path.parent / name) for name in alike])}" if alike else ""


def _few(logs: list[str]) -> str:
    more = f" and {len(logs) - _NAMED_MAX} more" if len(logs) > _NAMED_MAX else ""
    return ", ".join(logs[:_NAMED_MAX]) + more
