"""Commands on whole logs: `clog create alter` and `clog delete`, `clog ls`, which lists logs,
`clog publish`, which shows a table to other engines, and `clog snapshot`, which names cuts.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clog.cli.clean import DRY_DELETE, rolled_text
from clog.cli.options import (
    CONFIGS,
    URL,
    Code,
    Given,
    argument,
    choice,
    command,
    config_names,
    configs,
    duration_given,
    flag,
    integer,
    option,
    pairs,
    parse_offsets,
    partition_count,
    schema_file,
    usage_errors,
    waiting_for,
)
from clog.cli.output import (
    count,
    counted,
    dated,
    print_error,
    print_note,
    print_table,
    say,
    size,
    table,
)
from clog.storage.config.units import duration, moment
from clog.storage.env import dataclass
from clog.storage.view_formats import FORMAT_NAMES, FORMATS

if TYPE_CHECKING:
    import pyarrow as pa

    from clog.storage import Clock, Log, WithdrawResult
    from clog.storage.administration import Doomed

_SCHEMA = option("--schema FILE", "A JSON file with the types of keys and values.", Path)
_COLUMNS = ("log", "policy", "partitions", "version", "records", "stored", "dirtiest", "last")
_DONE = {
    "drop": "dropped",
    "rename": "renamed",
    "add": "added",
    "widen": "widened",
    "relax": "nullable now:",
}


@command
def delete(
    url: str = URL,
    *,
    yes: bool = flag("--yes -y", "Do not ask for confirmation."),
    dry_run: bool = DRY_DELETE,
    given: Given,
) -> None:
    r"""Delete a log with all its files, permanently.

    Asks first. Stop the log's writers and its cleaner before; those still running fail. Its
    published table is deleted, too; other files at the URL stay. To finish an interrupted
    deletion, run the command again.

    \b
    clog delete ./orders --dry-run
    clog delete ./orders --yes
    """
    from clog.storage.administration import delete_log, doomed
    from clog.storage.store import open_store
    from clog.storage.store.opening import remove_empty_folders

    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.BadParameter("--yes is required when there is no terminal to ask on")
    # Nothing is created here, so the filesystem need not have exclusive creates.
    store = open_store(url, given.storage, probe=False)
    with waiting_for(url, given.storage):
        found = doomed(store)
    if not dry_run:
        if not yes:
            click.confirm(f"delete {_what(store.url, found)}?", abort=True, err=True)
        found = delete_log(store)
        remove_empty_folders(url, given.storage)
    shown = {"log_id": found.log_id, "files": len(found.files), "size_bytes": found.size_bytes}
    verb = "would delete" if dry_run else "deleted"
    given.emit({"url": store.url, "dry_run": dry_run} | shown, f"{verb} {_what(store.url, found)}")


def _what(url: str, found: "Doomed") -> str:
    files = f"{counted(len(found.files), 'file')}, {size(found.size_bytes)}"
    if found.log_id is None:
        return f"the remains of deleted logs at {url}: {files}"
    return f"the log at {url}: {files}"


@command
def ls(
    prefix: str = argument(
        "[PREFIX]", "A folder, or any fsspec URL; default: this folder.", default="."
    ),
    *,
    long: bool = flag("--long -l", "Also open each log and show its details."),
    given: Given,
) -> Code | None:
    r"""List the logs below a folder.

    Costs one listing for each folder; with --long also a few requests for each log.

    \b
    clog ls
    clog ls s3://bucket/logs --long
    """
    from clog.storage.env import SystemClock
    from clog.storage.errors import InvalidInputError
    from clog.storage.store.opening import find_logs, folder_exists, redact

    with waiting_for(prefix, given.storage):
        found = find_logs(prefix, given.storage)
        urls = found.urls
        is_nowhere = not urls and not folder_exists(prefix, given.storage)
    if is_nowhere:
        raise InvalidInputError(f"there is no folder {prefix}; correct the URL")
    clock = SystemClock()
    rows = [_found(url, given.storage, clock) if long else {"url": url} for url in urls]

    def draw() -> None:
        if not rows:
            print_note(f"no logs below {prefix}")
        elif long:
            print_table(table(_COLUMNS, map(_row, rows), right=_COLUMNS[2:]))
        else:
            for url in urls:
                say(url)

    given.emit({"prefix": prefix, "logs": rows}, draw)
    for folder, why in found.unlisted.items():
        print_error(f"logs below {redact(folder)} cannot be listed: {why}")
    return Code.FAILED if found.unlisted else None


def _found(url: str, options: dict[str, object], clock: "Clock") -> dict[str, Any]:
    """Returns a log's row, or the error if it cannot be opened."""
    from clog.storage import Log
    from clog.storage.errors import ClogError

    try:
        found = Log.open(url, options, clock=clock).describe()
    except ClogError as e:
        return {"url": url, "error": str(e)}
    details = found["partition_details"]
    return {
        "url": url,
        "log_id": found["log_id"],
        "version": found["version"],
        "partitions": found["partitions"],
        "cleanup_policy": found["config"]["cleanup.policy"],
        "records": sum(d["records"] for d in details),
        "object_bytes": found["object_bytes"],
        "dirty_ratio": max(d["dirty_ratio"] for d in details),
        "committed_ms": found["committed_ms"],
        "idle_ms": max(0, clock.now_ms() - found["committed_ms"]),
    }


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    if "error" in found:
        return found["url"], found["error"]
    return (
        found["url"],
        found["cleanup_policy"] or "keep all",
        *(count(found[name]) for name in ("partitions", "version", "records")),
        size(found["object_bytes"]),
        f"{found['dirty_ratio']:.2f}",
        f"{duration(found['idle_ms'])} ago",
    )


@command
def create(
    url: str = URL,
    *,
    partitions: int = option(
        "--partitions N",
        "Number of partitions; cannot be changed later.",
        partition_count,
        default=4,
    ),
    config: list[str] | None = CONFIGS,
    schema: Path | None = _SCHEMA,
    feature: list[str] | None = option(
        "--feature NAME",
        "Create the log with this feature; clog describe URL features lists them. May be repeated.",
    ),
    given: Given,
) -> None:
    r"""Create a log.

    The log keeps the latest value of each key, unless cleanup.policy says otherwise. With a schema
    its keys and values have types, which clog describe --json shows as the file has them:
    {"key": "string", "value": {"city": "string", "minutes": "int32 not null", "tags": ["string"]}}.

    \b
    clog create ./orders
    clog create ./events -c cleanup.policy=delete -c retention.ms=1d
    clog create s3://bucket/orders --partitions 8 -o anon=false
    clog create ./trips --schema trips.json
    """
    from clog.storage.administration import addable

    with usage_errors():
        for name in feature or ():
            addable(name)
    wanted = schema_file(schema)
    named = configs(config)
    log = given.create(url, partitions, named, schema=wanted, features=feature or ())
    said = f"created {log.url} with {counted(partitions, 'partition')}"
    given.emit(
        {"url": log.url, "partitions": log.partitions, "config": log.config},
        [said, *_of_retention(log.config, named)],
    )


_FEATURE = option(
    "--feature NAME",
    "Add this feature of the format, permanently: releases of clog that do not know it refuse"
    " the log. clog describe URL features lists them. May be repeated.",
)
_DELETE_RECORDS = option(
    "--delete-records PARTITION:OFFSET",
    "Delete the records of a partition below this offset, permanently; end (or -1) deletes all"
    " of them. May be repeated: all named partitions change, or none.",
)
_ROLL = option(
    "--roll PARTITION",
    "Seal the active segment of this partition, or with all that of each, so that it can be"
    " cleaned.",
    lambda text: text if text == "all" else str(integer()(text)),
)
_RESET_TIMES = flag(
    "--reset-times",
    "Give commits that are ahead of the clock, as a wrong clock leaves them, and their records"
    " under message.timestamp.type=LogAppendTime, the time of the repair. Correct the clock"
    " first, and stop every process that uses the log.",
)
_RENAME = option(
    "--rename FIELD=NAME",
    "Give this field another name, value.minutes=duration; a column of a table is named as it is"
    " there, minutes=duration. May be repeated; with --drop and --schema it is one change.",
)
_DROP = option(
    "--drop FIELD",
    "Drop this field of the value, such as value.note. A new field of that name has none of its"
    " values. May be repeated.",
)
_DRY_RUN = flag(
    "--dry-run -n",
    "Show the log's schema beside the one that --rename, --drop and --schema would give it, and"
    " change nothing.",
)
_ABORT = option("--abort ID", "End the undecided transactions of this transactional id now.")
_FORCE = flag(
    "--force",
    "With --abort: also if the log that decides cannot be reached (if it had committed the"
    " transaction, its records are lost here), or if another log of the transaction cannot be"
    " reached because it no longer exists.",
)


@command
def alter(  # noqa: PLR0913 - one for each option
    url: str = URL,
    *,
    config: list[str] | None = CONFIGS,
    delete_config: list[str] | None = option(
        "--delete-config NAME", "Reset this config to its default.", complete=config_names
    ),
    schema: Path | None = _SCHEMA,
    rename: list[str] | None = _RENAME,
    drop: list[str] | None = _DROP,
    dry_run: bool = _DRY_RUN,
    feature: list[str] | None = _FEATURE,
    delete_records: list[str] | None = _DELETE_RECORDS,
    roll: str | None = _ROLL,
    reset_times: bool = _RESET_TIMES,
    abort: str | None = _ABORT,
    forget: list[str] | None = option(
        "--forget NAME", "Forget this named reader and its position; may be repeated."
    ),
    force: bool = _FORCE,
    given: Given,
) -> None:
    r"""Change configs or schema; delete records, roll, abort, forget.

    Configs take effect with the next append, pass or read. Give the whole schema: it may add
    fields that can be null, widen numbers, and drop NOT NULL; --rename and --drop come before it.

    \b
    clog alter ./orders -c min.cleanable.dirty.ratio=0.2
    clog alter ./orders --delete-config min.cleanable.dirty.ratio
    clog alter ./trips --schema trips.json
    clog alter ./trips --rename value.minutes=duration --drop value.note --dry-run
    clog alter ./orders --delete-records 0:25 --delete-records 1:end
    clog alter ./orders --roll all
    """
    from clog.storage.administration import addable

    changes: dict[str, Any] = {**configs(config), **_to_delete(delete_config or ())}
    starts = parse_offsets(delete_records or ())
    evolution = _Evolution(schema_file(schema), pairs(rename, what="--rename"), drop or [])
    with usage_errors():
        for name in feature or ():
            addable(name)
    if force and abort is None:
        raise click.BadParameter("--force requires --abort ID")
    asked: list[tuple[object, Callable[[Log], Change]]] = [
        (forget, lambda log: _forgotten(log, forget or [])),
        (abort, lambda log: _aborted(log, abort or "", force=force)),
        (evolution.asked, lambda log: evolution.carried_out(log, dry_run=dry_run)),
        (changes, lambda log: _altered(log, changes)),
        (feature, lambda log: _upgraded(log, feature or [])),
        (starts, lambda log: _started(log, starts)),
        (roll, lambda log: _rolled(log, None if roll == "all" else int(roll or 0))),
        (reset_times or None, _set_back),
    ]
    wished = [change for value, change in asked if value not in (None, [], {})]
    if dry_run and (evolution.asked is None or len(wished) > 1):
        raise click.BadParameter("--dry-run is for --rename, --drop and --schema, and only these")
    if not wished:
        raise click.BadParameter(
            "nothing to change; give --config NAME=VALUE or another option (clog alter --help)"
        )
    log = given.open(url)
    document: dict[str, Any] = {"url": log.url}
    said: list[str] = []
    try:
        for change in wished:
            done, lines = change(log)
            document |= done
            said += lines
    except BaseException:
        if said:
            print_note(f"before the error: {'; '.join(said)}")
        raise
    given.emit(document, said)


Change = tuple[Mapping[str, Any], Sequence[str]]
"""What a change of a log did, for programs and for people."""


def _altered(log: "Log", changes: Mapping[str, Any]) -> Change:
    before = log.config
    after = log.alter(changes)
    changed = {name: [before[name], after[name]] for name in after if before[name] != after[name]}
    lines = [_change(name, *both) for name, both in changed.items()]
    lines += _of_retention(after, changes)
    nothing = ["nothing changed: the configs already had these values"]
    return {"changed": changed, "config": after}, lines or nothing


def _of_retention(config: Mapping[str, str], named: Iterable[str]) -> list[str]:
    """Returns a line if limits of retention are named that have no effect: Kafka's users set them
    for topics, whose policy is delete by default.
    """
    limits = sorted({"retention.ms", "retention.bytes"}.intersection(named))
    if not limits or "delete" in config["cleanup.policy"]:
        return []
    policy = config["cleanup.policy"]
    waits = f"{', '.join(limits)} waits for a policy that deletes: with cleanup.policy={policy}"
    remedy = "nothing expires; with -c cleanup.policy=compact,delete the latest records do, too"
    return [f"{waits} {remedy}"]


def _change(name: str, before: str, after: str) -> str:
    from clog.storage.config.units import config_text

    return f"{name}: {config_text(name, before)} -> {config_text(name, after)}"


def _to_delete(names: Iterable[str]) -> dict[str, None]:
    """Returns configs to reset."""
    from clog.storage.config.log_config import check_known

    with usage_errors():
        for name in names:
            check_known(name)
    return dict.fromkeys(names)


@dataclass(frozen=True, slots=True)
class _Evolution:
    """A schema that is ``wanted``, perhaps, after fields were renamed and dropped."""

    wanted: "pa.Schema | None"
    rename: Mapping[str, str]
    drop: Sequence[str]

    @property
    def asked(self) -> "bool | None":
        return True if self.wanted is not None or self.rename or self.drop else None

    def carried_out(self, log: "Log", *, dry_run: bool) -> Change:
        from clog.storage.administration import evolution
        from clog.storage.types.evolve import Changes, evolution_to, schema_words, side_by_side

        log.handle.refresh()
        before = log.handle.tip.head.log.schema
        changes: dict[str, Any] = {"rename": dict(self.rename), "drop": list(self.drop)}
        changes = {name: given for name, given in changes.items() if given}
        if self.wanted is not None:
            between = before
            if changes:
                between = evolution(log.handle, Changes.given({}, {}, (), self.rename, self.drop))
            changes |= evolution_to(between, self.wanted, named=before)
        after = before
        if changes and not dry_run:
            log.evolve(**changes)
            after = log.handle.tip.head.log.schema
        elif changes:
            add, widen, relax = (changes.get(name, {}) for name in ("add", "widen", "relax"))
            after = evolution(log.handle, Changes.given(add, widen, relax, self.rename, self.drop))
        document = {
            "evolved": {name: list(found) for name, found in changes.items()},
            "schema": schema_words(after),
        }
        if dry_run:
            return {**document, "before": schema_words(before)}, side_by_side(before, after)
        lines = [f"{_DONE[name]} {', '.join(_named(found))}" for name, found in changes.items()]
        return document, lines or ["nothing changed: the log already has this schema"]


def _named(found: Iterable[str]) -> list[str]:
    pairs = found.items() if isinstance(found, Mapping) else [(path, None) for path in found]
    return [f"{path} -> {name}" if isinstance(name, str) else path for path, name in pairs]


def _upgraded(log: "Log", names: Sequence[str]) -> Change:
    before = {f.name for f in log.upgrade() if f.state == "on"}
    features = log.upgrade(names)
    added = [f.name for f in features if f.state == "on" and f.name not in before]
    nothing = "nothing to add: the log has all of these features"
    return (
        {"added": added, "features": [asdict(f) for f in features]},
        [f"added {', '.join(added)}" if added else nothing],
    )


def _started(log: "Log", wanted: Mapping[int, int]) -> Change:
    starts = log.delete_records(wanted)
    return (
        {"partitions": [{"partition": p, "start_offset": start} for p, start in starts.items()]},
        [f"partition {p} starts at offset {count(start)}" for p, start in starts.items()],
    )


def _rolled(log: "Log", partition: int | None) -> Change:
    sealed = log.roll(partition)
    return {"sealed": sealed}, [rolled_text(sealed)]


def _set_back(log: "Log") -> Change:
    from clog.storage.administration import reset_times

    ahead_ms = reset_times(log.handle)
    nothing = "nothing to do: no timestamp is ahead"
    return {"ahead_ms": ahead_ms}, [f"set back by {count(ahead_ms)} ms" if ahead_ms else nothing]


def _aborted(log: "Log", name: str, *, force: bool) -> Change:
    ended = log.abort_transaction(name, force=force)
    named = [{"id": i.id, "epoch": i.epoch, "number": i.number, "state": i.state} for i in ended]
    lines = [f"ended transaction {i.number} of {i.id!r}, which was {i.state}" for i in ended]
    return {"ended": named}, lines


def _forgotten(log: "Log", names: Sequence[str]) -> Change:
    """Forgets readers; none of them if one is unknown, as its name may be misspelt."""
    from clog.storage.errors import InvalidInputError

    known = {reader.name for reader in log.readers()}
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InvalidInputError(
                f"{log.url} has no reader {name!r}; no reader was forgotten; the log has: {there}"
            )
    for name in names:
        log.forget_reader(name)
    return {"forgotten": [*names]}, [f"{counted(len(names), 'reader')} forgotten"]


@command
def publish(
    url: str = URL,
    *,
    formats: list[str] | None = option(
        f"--format {FORMAT_NAMES}",
        "May be repeated. Default: the log's table.publish, or delta.",
        choice(*FORMATS),
    ),
    withdraw: bool = flag("--withdraw", "Withdraw the views: they are empty from then on."),
    force: bool = flag("--force", "With --withdraw: also if the store refuses to write them."),
    given: Given,
) -> None:
    r"""Publish the table for other engines.

    Delta readers then open the log's own URL, Iceberg readers its metadata file. The view refers to
    the log's objects and copies none; a version that is published already is left alone. With
    table.publish=delta, the cleaner publishes by itself.

    \b
    clog publish ./orders
    clog publish ./orders --format delta --json
    clog publish ./orders --format delta --withdraw
    """
    if force and not withdraw:
        raise click.BadParameter("--force requires --withdraw")
    log = given.open(url)
    configured = [name for name in log.config["table.publish"].split(",") if name != "none"]
    if withdraw:
        _withdraw(log, formats, configured, given, force=force)
        return
    made = {name: log.publish(name) for name in formats or configured or ["delta"]}
    given.emit(
        {"url": log.url, "views": [{"format": name} | asdict(done) for name, done in made.items()]},
        (
            f"{'published' if done.published else 'already published'} version {done.version} as"
            f" version {done.table_version} of the {name} table"
            for name, done in made.items()
        ),
    )


def _withdraw(
    log: "Log", formats: list[str] | None, configured: list[str], given: Given, *, force: bool
) -> None:
    there = [view["format"] for view in log.describe()["views"]]
    names = formats or sorted({*there, *configured}) or ["delta"]
    taken = {name: log.withdraw(name, force=force) for name in names}
    shown = [
        {
            "format": name,
            "table_version": done.table_version,
            "withdrawn": done.withdrawn,
            "kept": done.is_kept,
            "given_up": done.given_up,
        }
        for name, done in taken.items()
    ]
    lines: list[str] = []
    for name, done in taken.items():
        lines.append(_withdrawn(name, done))
        if done.table_version is not None and name in configured:
            lines.append(f"table.publish still names {name}: the cleaner will publish it again")
    given.emit({"url": log.url, "views": shown}, lines)


def _withdrawn(name: str, done: "WithdrawResult") -> str:
    if done.given_up:
        return (
            f"abandoned the {name} view: its files will be deleted, even if a suspended publisher"
            " still needs them"
        )
    if done.table_version is None:
        return f"there is no {name} view"
    what = "withdrew" if done.withdrawn else "already withdrawn:"
    kept = "; files of its older versions are kept for file.delete.delay.ms" if done.is_kept else ""
    return f"{what} the {name} table; its version {done.table_version} is empty{kept}"


@command
def snapshot(
    url: str = URL,
    name: str | None = argument(
        "[NAME]", "Name of the new cut; without one, cuts are listed.", default=None
    ),
    *,
    keep: int | None = option(
        "--keep DURATION",
        "How long to keep it, such as 90d; default: until it is dropped.",
        duration_given,
    ),
    publish: list[str] | None = option(
        f"--publish {FORMAT_NAMES}",
        "Publish each log at its version in the cut, for engines that read these; may be repeated.",
        choice(*FORMATS),
    ),
    without: list[str] | None = option(
        "--without LOG",
        "URL or id of a log that no longer exists: this cut and later ones leave it out; may be"
        " repeated.",
    ),
    drop: str | None = option("--drop NAME", "Drop this cut: nothing is kept for it from then on."),
    force: bool = flag(
        "--force",
        "With --drop: URL is a log that keeps a version for a cut whose home no longer exists.",
    ),
    given: Given,
) -> None:
    r"""Name, list or drop cuts over several logs.

    A cut is one version of each log that transactions of this one have written. Of each
    transaction over them it shows all or nothing, and it can be read (Log.table(at=...)) until
    it is dropped or its time is up.

    \b
    clog snapshot ./orders month-end --keep 365d
    clog snapshot ./orders month-end --publish delta
    clog snapshot ./orders
    clog snapshot ./orders --drop month-end
    """
    if name is not None and drop is not None:
        raise click.BadParameter("give NAME or --drop NAME")
    if force and drop is None:
        raise click.BadParameter("--force requires --drop NAME")
    if name is None and (keep is not None or without or publish):
        raise click.BadParameter("--keep, --publish and --without require NAME")
    from clog.storage.cuts import cuts_of, drop_cut, name_cut, views_of

    home, said = given.open(url).handle, []
    views: dict[str, dict[str, int]] = {}
    if name is not None:
        cut = name_cut(home, name, keep, publish=publish or (), without=without or ())
        said.append(f"created the cut {cut.name} over {counted(len(cut.logs), 'log')}")
        views = views_of(home, cut) if publish else {}
    if drop is not None:
        drop_cut(home, drop, force=force)
        said.append(f"dropped the cut {drop}")
    found = cuts_of(home)

    def draw() -> None:
        for line in said:
            say(line)
        for one in found:
            until = "it is dropped" if one.until_ms is None else moment(one.until_ms)
            say(f"{one.name}: of {moment(one.time_ms)}, kept until {until}")
            for of_log, version in one.logs.items():
                shows = views.get(of_log, {}) if one.name == name else {}
                also = [f"version {number} of its {as_} table" for as_, number in shows.items()]
                say(", ".join([f"  version {version} of {of_log}", *also]))
        if not (said or found):
            say("no named cuts")

    names = ("name", "time_ms", "until_ms", "logs")
    shown = [{name: getattr(one, name) for name in names} for one in found]
    document = {"url": home.store.url, "cuts": dated(shown), "views": views, "dropped": drop}
    given.emit(document, draw)
