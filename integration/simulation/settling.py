"""The end of a world with several logs: all timeouts pass, somebody comes by, and nothing is left
undecided that has a home; markers go, once passes have covered them twice, and tombstones. And of
one in which keys were erased: each erasure has its receipt.
"""

from functools import partial

from disk import Clock
from marks import ERASED

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.commit.handle import Handle
from clog.storage.cuts import drop_cut
from clog.storage.diagnostics.verify_erasure import Verifier
from clog.storage.env import SeededIds
from clog.storage.format.documents import NONE
from clog.storage.transactions.several import finish_all

_DAYS_MS = 3 * 24 * 3_600_000
_HOURS_MS = 2 * 3_600_000
_ROUND_MS = 26 * 3_600_000
_ROUNDS_MAX = 6


def settle(world) -> None:
    """Ends what can be ended, and checks that nothing else is left."""
    world.ledger.acting = None
    for site in world.sites:
        site.disk.failed = _fail
    world.clock.advance(_DAYS_MS)
    standing = [site for site in world.sites if site.logs.is_stable]
    logs = [_opened(world, site) for site in standing]
    for _ in range(2):
        for log in logs:
            log.handle.refresh()
            for left in finish_all(log.handle):
                assert _is_explained(world, log, left), f"{left} waits, and its home stands"
    for site in standing:
        for name in site.logs.standing.fates.open:
            deal = world.ledger.of(name)
            is_left = world.ledger.is_lost(deal) or deal.is_given_up
            assert is_left, f"{deal} is undecided, and its home stands"
    if world.seed % 4 == 0:
        for log, site in zip(logs, standing, strict=True):
            if not site.logs.standing.fates.open:
                _clean(world, log, site.logs.standing)


def settle_erasures(world, site) -> None:
    """Rounds of a cleaner that nothing disturbs end each erasure, in a log that is quiet."""
    oracle = site.logs.standing
    site.disk.failed = _fail
    if not oracle.erased.asked:
        return
    log = _opened(world, site)
    for name in log.handle.refresh().head.cuts if len(world.sites) == 1 else ():
        drop_cut(log.handle, name)
    for _ in range(_ROUNDS_MAX):
        if all(one.state == "done" for one in log.erasures()):
            break
        Cleaner(log).run_once()
        world.clock.advance(_ROUND_MS)
    left = [one for one in log.erasures() if one.state != "done"]
    waits = oracle.fates.open or oracle.manifest.head.kept
    assert not left or waits, f"{left} wait for nothing"
    world.marks[ERASED] += len(oracle.erased.asked)
    if world.parquet:
        for one in log.erasures():
            files = {f.path: partial(site.disk.get, f.path) for f in site.disk.list("")}
            found = Verifier(files, one.receipt, world.secrets.get(one.id, "")).run()
            assert found.problems == [], found.problems


def _fail(failure: Exception) -> None:
    raise AssertionError(str(failure)) from failure


def _opened(world, site) -> Log:
    disks = {other.disk.url: other.disk for other in world.sites}
    # One log is opened twice, and who finishes what another began writes there: no two may draw
    # the same names.
    clock, ids = Clock(world.clock, 0), SeededIds(world.roll(1 << 40))
    return Log(Handle(site.disk, clock=clock, ids=ids, reach=disks.__getitem__))


def _is_explained(world, log, left) -> bool:
    """Whether a log is gone that would have to be asked or told, or an operator was wrong."""
    over = {log_id for log_id, oracle in world.ledger.oracles.items() if oracle.is_over}
    info = left.info
    for entry in log.handle.tip.head.unended:
        name = entry.name
        if (name.id, name.epoch, name.number) == (info.id, info.epoch, info.number):
            concerned = {name.home, *(log_id for log_id, _ in entry.participants)}
            deal = world.ledger.of(name)
            if concerned & over or deal.forced or deal.is_given_up:
                return True
    return False


def _clean(world, log, oracle) -> None:
    log.roll()
    for _ in range(3):
        cleaned_ms = world.clock.now_ms()
        Cleaner(log).run_once(force=True)
        world.clock.advance(_HOURS_MS)
    manifest = log.handle.manifest()
    left = [  # No pass comes for a marker where there is nothing else.
        m
        for m in manifest.markers
        for s in manifest.segments[m.partition][:-1]
        if s.chunks and s.base <= m.offset < s.next
    ]
    assert not left, f"markers are left: {left}"
    for p, rows in enumerate(oracle.seen[oracle.newest].rows):
        expired = [(o, horizon) for o, horizon in rows if NONE < horizon <= cleaned_ms]
        assert not expired, f"tombstones of {p} are left, cleaned at {cleaned_ms}: {expired}"
