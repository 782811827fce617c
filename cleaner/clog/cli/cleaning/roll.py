"""`clog roll`: active segments are sealed, so that they can be cleaned."""

from collections.abc import Sequence

from clog.cli.arguments import Json, Options, Partition, SingleWriter, Url, open_log
from clog.cli.output import print_json, say


def roll(
    url: Url,
    *,
    partition: Partition = None,
    options: Options = None,
    single_writer: SingleWriter = False,
    json: Json = False,
) -> None:
    r"""Seal active segments, so that they can be cleaned.

    The active segment of a partition is never cleaned. It is sealed by appends that fill it, by
    time (segment.ms), or by this command, in one commit over all partitions.

    \b
    clog roll ./orders
    clog roll ./orders --partition 3
    """
    log = open_log(url, options, single_writer=single_writer)
    sealed = log.roll(partition)
    if json:
        print_json({"url": log.url, "sealed": sealed})
    else:
        say(rolled_text(sealed))


def rolled_text(sealed: Sequence[int]) -> str:
    """Returns in a line which partitions were sealed."""
    if not sealed:
        return "nothing to seal: active segments are empty"
    if len(sealed) == 1:
        return f"sealed the active segment of partition {sealed[0]}"
    return f"sealed the active segments of partitions {', '.join(map(str, sealed))}"
