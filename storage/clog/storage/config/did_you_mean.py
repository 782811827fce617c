"""The nearest valid name to one that is not, for messages: "did you mean …?"."""

from collections.abc import Iterable


def did_you_mean(name: str, valid: Iterable[str]) -> str | None:
    """Returns the valid name that was probably meant, or None when none is near.

    Case and separators do not count, so a Python or Java spelling finds the name.

    >>> did_you_mean("minCompactionLag", ["min.compaction.lag.ms", "max.compaction.lag.ms"])
    'min.compaction.lag.ms'
    """
    import difflib

    plain = {_plain(candidate): candidate for candidate in sorted(valid)}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else None


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
