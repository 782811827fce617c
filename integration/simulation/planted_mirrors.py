"""Bugs to plant in given offsets; see `planted`."""

from dataclasses import replace

from limits import Patch

from clog import storage
from clog.storage.commit.appends import AppendRequest


def end_left_behind(patch: Patch) -> None:
    """What has no record behind the last one is not covered (S75)."""
    bind = storage.commit.appends.bind_given

    def short(*given, **named):
        return replace(bind(*given, **named), reached_after={})

    patch(storage.commit.appends, "bind_given", short)


def offsets_given_anew(patch: Patch) -> None:
    """Records get the offsets that are next, not their own."""
    bind = storage.commit.appends.bind_given

    def dense(objects, covered, head, *, url):
        bound = bind(objects, covered, head, url=url)
        ranges, ends = [], dict(enumerate(head.partitions.end))
        for stats in (stats for obj in objects for stats in obj.chunks):
            base = max(ends[stats.partition], bound.reached.get(stats.partition, 0))
            ends[stats.partition] = base + stats.rows
            ranges.append((base, base + stats.rows))
        return replace(bound, ranges=tuple(ranges), reached_after={})

    patch(storage.commit.appends, "bind_given", dense)


def plain_appends_taken(patch: Patch) -> None:
    """A record without an offset gets one of the source's."""
    bound = AppendRequest._bound

    def careless(self, head):
        plain = self.covered is None and not self.append.is_given
        return None if plain else bound(self, head)

    patch(storage.append, "check_takes_offsets", lambda _handle, *, given: None)
    patch(AppendRequest, "_bound", careless)


def start_comes_later(patch: Patch) -> None:
    """The source's start is not in the commit that covers what is below it, but what was below is
    left out all the same (H-B10).
    """
    prepare = AppendRequest.prepare

    def without(self, tip, time_ms):
        edit = prepare(self, tip, time_ms)
        return replace(edit, start={}) if self.covered is not None else edit

    patch(AppendRequest, "prepare", without)


MIRROR_BUGS = {
    "mirror's end left behind": end_left_behind,
    "mirror's offsets given anew": offsets_given_anew,
    "plain append in a mirror": plain_appends_taken,
    "mirror's start comes later": start_comes_later,
}
