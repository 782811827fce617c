"""`clog mirror`: Kafka topics, mirrored into logs with the same offsets."""

from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from clog.cli.options import (
    CONFIGS,
    Code,
    Given,
    argument,
    command,
    configs,
    duration_given,
    environment_object,
    flag,
    option,
    pairs,
    partition_count,
    schema_file,
    until_stopped,
    usage_errors,
)
from clog.cli.output import (
    count,
    counted,
    counting,
    each_minute,
    print_note,
    progress,
    say,
)
from clog.storage.spi import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clog.bridge import Decoding, Mirrored, MirroredTopic, Sent

_ENVIRONMENT = "CLOG_KAFKA_OPTIONS"
_REGISTRY_ENVIRONMENT = "CLOG_REGISTRY_OPTIONS"

_PARTITIONS = option(
    "--partitions N",
    "Number of partitions of a new log; more than the topic has let the topic grow. Default: that"
    " of the topic.",
    partition_count,
)
_FOLLOW_START = flag(
    "--follow-start",
    "Let the log start offset follow the topic's, so that records removed there by retention or"
    " on request are removed here too. Default: the log's own configs decide.",
)
_SKIP_PURGED = flag(
    "--skip-purged",
    "Skip records that retention, a request or compaction removed before they were mirrored; keys"
    " that they deleted may then stay in the log. Default: an error.",
)
_RECONCILE = flag(
    "--reconcile",
    "At the start, compare the keys of log and topic once, and delete those that the topic no"
    " longer has, as after a pause of more than its delete.retention.ms. Default: such a pause is"
    " an error if tombstones may have been missed.",
)
_FROM_BOUND = flag(
    "--from-bound",
    "To a topic: if Kafka has forgotten how far the log was sent, continue from the last known"
    " offset; some records are then sent twice. Default: an error.",
)
_END = flag(
    "--end",
    "End the mirror permanently: mirror what is left, check that nothing is written to the topic"
    " for ten seconds, and let others append to the log.",
)
_FORCE = flag("--force", "With --end: do not access the topic, which may be gone.")
_VERIFY = flag(
    "--verify",
    "Mirror nothing, but compare log and topic: every offset that both have, and the last value"
    " of each key. Records that cleaners may remove do not count as differences. Exit code 1 if"
    " there are any. A typed log needs the same --decode as its mirror.",
)
_WAIT = option(
    "--wait TIME",
    "How long to wait for brokers that do not answer. Default: 1min; after 5 s a message is"
    " printed.",
    duration_given,
)
_TO_A_TOPIC: Final = (
    "sending a log to a topic takes only --once, --skip-purged, --from-bound, --wait and"
    " --kafka-option; omit the other options"
)
_KAFKA_OPTIONS = option(
    "--kafka-option KEY=VALUE",
    "An option of librdkafka, such as security.protocol=SASL_SSL. Keep secrets in"
    f" ${_ENVIRONMENT}, a JSON object. Values are never shown.",
)
_DECODE = option(
    "--decode FORMAT",
    "Make a typed log: values are json, avro, protobuf or connect-json, or Debezium's changes:"
    " debezium-json, debezium-avro, debezium-protobuf. Default: keys and values stay bytes.",
)
_DECODE_KEY = option(
    "--decode-key FORMAT",
    "Keys are bytes, string, json, avro, protobuf or connect-json. Default: bytes; with Debezium,"
    " as its values.",
)
_SCHEMA = option(
    "--schema FILE",
    "A JSON file with the types of keys and values of a new log. Default: from the topic's"
    " schemas.",
    Path,
)
_REGISTRY = option("--registry URL", "The schema registry, for Avro and Protobuf.")
_REGISTRY_OPTIONS = option(
    "--registry-option KEY=VALUE",
    "An option of confluent-kafka's SchemaRegistryClient, such as ssl.ca.location=FILE. Keep"
    f" secrets in ${_REGISTRY_ENVIRONMENT}, a JSON object. Values are never shown.",
)
_ENVELOPE = flag(
    "--envelope", "Keep Debezium's whole change as the value. Default: the row after the change."
)
_DEAD_LETTERS = option(
    "--dead-letters URL",
    "A log for records that cannot be decoded, created if it does not exist; for a pattern, the"
    " folder of these logs. Default: such a record is an error.",
)
_REPLAY = flag(
    "--replay",
    "Replay dead letters: SOURCE is their log, and those that can be decoded now are appended to"
    " URL, a typed log that is not, or no longer, a mirror.",
)


@command
def mirror(  # noqa: PLR0913 - one for each option
    source: str = argument(
        "SOURCE",
        "kafka://HOST:PORT/TOPIC; TOPIC may be a pattern: orders-*. Or a log, to send to a topic.",
    ),
    url: str = argument("URL", "The log; for a pattern, the folder of the logs. Or the topic."),
    *,
    once: bool = flag("--once", "Stop after the records that exist now. Default: follow."),
    end: bool = _END,
    force: bool = _FORCE,
    verify: bool = _VERIFY,
    partitions: int | None = _PARTITIONS,
    follow_start: bool = _FOLLOW_START,
    skip_purged: bool = _SKIP_PURGED,
    reconcile: bool = _RECONCILE,
    from_bound: bool = _FROM_BOUND,
    decode: str | None = _DECODE,
    decode_key: str | None = _DECODE_KEY,
    schema: Path | None = _SCHEMA,
    registry: str | None = _REGISTRY,
    registry_option: list[str] | None = _REGISTRY_OPTIONS,
    envelope: bool = _ENVELOPE,
    dead_letters: str | None = _DEAD_LETTERS,
    replay: bool = _REPLAY,
    config: list[str] | None = CONFIGS,
    kafka_option: list[str] | None = _KAFKA_OPTIONS,
    wait: int | None = _WAIT,
    given: Given,
) -> Code | None:
    r"""Mirror topics of Kafka into logs, or send a log to a topic.

    The log has the topic's partitions, offsets, keys, values, headers and timestamps, each record
    once, however often this is killed and run again. A log that this creates adopts the topic's
    configs. A topic that was deleted and recreated, truncated, or purged before it was read is an
    error that says how to continue. With --decode the log has columns, at the same offsets. With a
    log first and a topic second, its records are sent there, with their offsets in a header.

    \b
    clog mirror kafka://broker:9092/orders s3://bucket/orders --once
    clog mirror 'kafka://broker:9092/orders-*' s3://bucket/mirror
    clog mirror kafka://broker:9092/users ./users --decode json --schema u.json
    clog mirror s3://bucket/orders kafka://broker:9092/orders-2
    """
    from clog.bridge.topic import SCHEME, address_of

    own, client = configs(config), _client(kafka_option, wait)
    decoding = _decoding(decode, decode_key, schema, registry, registry_option, envelope=envelope)
    is_back = url.startswith(SCHEME) and not source.startswith(SCHEME)
    _refuse(
        {
            "--replay needs --decode, which says how letters are decoded": replay and not decoding,
            _TO_A_TOPIC: is_back
            and any((end, force, verify, follow_start, reconcile, partitions, config, decoding)),
            "--verify only compares; omit --reconcile": verify and reconcile,
            "--from-bound is only for sending a log to a topic": from_bound and not is_back,
            "--force needs --end": force and not end,
            "--dead-letters needs --decode: bytes always decode": dead_letters and not decoding,
        }
    )
    if replay and decoding:
        return _replay(source, url, decoding, given)
    with usage_errors():
        address_of(url if is_back else source)
    if is_back:
        ways = {"skip_purged": skip_purged, "from_bound": from_bound}
        return _send(given, source, url, once=once, **ways, **client)
    if verify:
        return _verify(given, source, url, decode=decoding, dead_letters=dead_letters, **client)
    flags = {**client, "once": once, "end": end, "force": force, "reconcile": reconcile}
    return _followed(
        *(given, source, url),
        decode=decoding,
        skip_purged=skip_purged,
        partitions=partitions,
        config=own,
        follow_start=follow_start,
        dead_letters=dead_letters,
        **flags,
    )


def _followed(given: Given, source: str, url: str, **settings: Any) -> Code | None:
    """Mirrors, and prints what it did."""
    from clog.bridge import MirrorSettings
    from clog.bridge import mirror as run

    ends = settings["once"] or settings["end"]
    with until_stopped() as should_stop, _shown(given, once=ends) as on_progress:
        hooks: dict[str, Any] = {"on_progress": on_progress, "should_stop": should_stop}
        done = run(source, url, MirrorSettings(**settings, **given.reach, **hooks))
    given.emit(_as_json(done), lambda: _say(done))
    return Code.INTERRUPTED if should_stop() else None


def _refuse(wrong: "Mapping[str, object]") -> None:
    """Raises a usage error for the first condition that holds, by message."""
    for message, is_so in wrong.items():
        if is_so:
            raise click.BadParameter(message)


def _client(kafka_option: list[str] | None, wait_ms: int | None) -> dict[str, Any]:
    """Returns the library's arguments for the connection to brokers."""
    own = pairs(kafka_option, what="--kafka-option", is_secret=True)
    made = {"kafka_options": {**environment_object(_ENVIRONMENT), **own}}
    return made if wait_ms is None else {**made, "wait_ms": wait_ms}


def _decoding(
    values: str | None,
    keys: str | None,
    schema: Path | None,
    registry: str | None,
    registry_option: list[str] | None,
    *,
    envelope: bool,
) -> "Decoding | None":
    """Returns how to decode records, by the options; None: they stay bytes."""
    if values is None:
        if keys or schema or registry or registry_option or envelope:
            raise click.BadParameter("--decode says how values are decoded; give it as well")
        return None
    from clog.bridge import Decoding
    from clog.bridge.decoding import Decoder

    own = pairs(registry_option, what="--registry-option", is_secret=True)
    made = Decoding(
        values=values,
        keys=keys,
        schema=schema_file(schema),
        registry=registry,
        registry_options={**environment_object(_REGISTRY_ENVIRONMENT), **own},
        envelope=envelope,
    )
    with usage_errors():
        Decoder(made, "")
    return made


def _replay(source: str, url: str, decoding: "Decoding", given: Given) -> Code | None:
    """Replays dead letters."""
    from clog.bridge import replay as run

    with counting("playing", None) as more:
        done = run(
            source,
            url,
            decode=decoding,
            **given.reach,
            on_progress=more,
        )
    message = f"appended {counted(done.records, 'record')} of {source} to {done.url}"
    if done.superseded:
        message += f"; {count(done.superseded)} superseded by later records of their keys"
    given.emit(asdict(done), f"{message}; {counted(done.dead_letters, 'dead letter')} left")
    return None


def _verify(given: Given, source: str, url: str, **settings: Any) -> Code | None:
    """Compares a log with its topic."""
    from clog.bridge import verify as run

    with counting("comparing", None) as more:
        found = run(source, url, **settings, storage_options=given.storage, on_progress=more)
    summary = (
        f"{counted(found.same, 'offset')} with the same records in both;"
        f" {count(found.only_topic)} only in the topic and {count(found.only_log)} only in the"
        f" log, as allowed; {counted(found.keys, 'key')} with the same last value"
    )
    if found.undecodable:
        summary += f"; {counted(found.undecodable, 'offset')} that do not decode"
    differences = [
        f"offset {one.offset} of partition {one.partition} {one.why}" for one in found.differences
    ]
    given.emit(asdict(found), [summary, *differences])
    return Code.FAILED if found.differences else None


def _send(given: Given, url: str, target: str, **settings: Any) -> Code | None:
    """Sends a log to a topic."""
    from clog.bridge import send

    with until_stopped() as should_stop, progress(hidden=given.json) as bars:
        bar = bars.add_task("sending", total=None)

        def on_progress(done: "Sent") -> None:
            has = sum(done.offsets.values())
            bars.update(bar, completed=has, total=has + done.lag)

        done = send(
            *(url, target),
            **settings,
            storage_options=given.storage,
            on_progress=on_progress,
            should_stop=should_stop,
        )
    ends = ", ".join(f"{p}: {offset}" for p, offset in sorted(done.offsets.items()))
    given.emit(
        {**asdict(done), "lag": done.lag},
        f"sent {counted(done.records, 'record')} of {done.url} to {done.topic}; up to {ends};"
        f" {counted(done.lag, 'offset')} behind",
    )
    return Code.INTERRUPTED if should_stop() else None


@contextmanager
def _shown(given: Given, *, once: bool) -> "Iterator[Callable[[Mirrored], None]]":
    """Yields a function that shows the progress: a bar, or lines if there is no terminal."""
    emit = each_minute(json=given.json)
    with progress(hidden=given.json) as bars:
        bar = bars.add_task("mirroring", total=None)

        def on_progress(done: "Mirrored") -> None:
            has = sum(sum(topic.offsets.values()) for topic in done.topics.values())
            bars.update(bar, description=_pace(done), completed=has, total=has + done.lag)
            if bars.disable and not once:
                emit(lambda: _as_json(done), lambda: _pace(done))

        yield on_progress


def _pace(done: "Mirrored") -> str:
    parts = [f"{counted(done.lag, 'offset')} behind", f"{count(int(done.records_per_s))} records/s"]
    if done.lag and done.eta_ms is not None:
        parts.append(f"{duration(done.eta_ms)} left")
    if held := sum(sum(topic.undecided.values()) for topic in done.topics.values()):
        parts.append(f"{count(held)} behind open transactions")
    return ", ".join(parts)


def _say(done: "Mirrored") -> None:
    for topic in done.topics.values():
        ends = ", ".join(f"{p}: {offset}" for p, offset in sorted(topic.offsets.items()))
        say(
            f"mirrored {counted(topic.records, 'record')} of {topic.topic} into {topic.url}; up to"
            f" {ends}; {counted(topic.lag, 'offset')} behind"
        )
        for note in _notes(topic):
            print_note(f"{topic.topic}: {note}")


def _notes(topic: "MirroredTopic") -> "Iterator[str]":
    if topic.undecided:
        waiting = ", ".join(f"{p}: {n}" for p, n in sorted(topic.undecided.items()))
        yield f"offsets behind transactions that have not ended, by partition: {waiting}"
    if topic.keyless:
        yield f"left out, because a compacted log has no records without a key: {topic.keyless}"
    if topic.reconciled:
        yield f"keys deleted, because the topic no longer has them: {topic.reconciled}"
    if topic.clamped:
        yield (
            "timestamps that a log cannot store, changed to the nearest possible one:"
            f" {topic.clamped}; the header clog.mirror.timestamp has the original"
        )
    if topic.dead_letters:
        yield f"written to the dead letters, because they cannot be decoded: {topic.dead_letters}"
    for name, why in topic.configs_left.items():
        yield f"config {name} is not copied: {why}"


def _as_json(done: "Mirrored") -> dict[str, Any]:
    return {"topics": [{**asdict(topic), "lag": topic.lag} for topic in done.topics.values()]}
