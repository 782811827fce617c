"""What commits may take along of what others proposed (FORMAT.md §21): the oracle's own reading of
it, from the files that it saw created and the heads that it saw.

Who commits is known by the id of the commit, which begins as its author's. What somebody commits of
another's was posted, of that number, with a stamp that is not forgotten; it is applied while its
time has not come, and its data are not below the floor. A number is answered once.

That nothing is there twice, nothing that its author was told is not, and nothing before what the
same handle appended earlier, is checked for all appends, proposed or not (`oracle`).
"""

from dataclasses import dataclass, field

from clog.storage.format import documents

_PREFIX_DIGITS = 8


@dataclass
class Proposed:
    """What was posted in one log.

    Attributes:
        posted: by author and number the bodies of the proposals that were created.
        taken: how many others have applied, and withdrawn.
        posters: the actor of each author.
    """

    posted: dict[tuple[str, int], list[dict]] = field(default_factory=dict)
    posters: dict[str, object] = field(default_factory=dict)
    taken: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def created(self, store, path: str, poster: object) -> None:
        """Hears of a proposal."""
        body = documents.decode("proposal", store.get(path), where=path)
        stamp, author, number, attempt = documents.proposal_of(path)
        named = (body["stamp"], body["author"], body["number"], body.get("attempt", 0))
        assert named == (stamp, author, number, attempt), f"{path} says {named}"
        self.posted.setdefault((author, number), []).append(body)
        self.posters[author] = poster

    def takes_from(self, edit) -> list:
        """The actors whose proposals a commit applies."""
        answers = () if edit.combined is None else edit.combined.authors
        return [self.posters.get(one.author) for one in answers if one.is_applied]

    def check(self, before, record, edit) -> None:
        """Hears of a commit upon a head."""
        if edit.combined is None:
            return
        known = {} if before.combined is None else {a.author: a for a in before.combined.authors}
        first = 0 if before.combined is None else before.combined.first
        answered = [one.author for one in edit.combined.authors]
        assert len(set(answered)) == len(answered), f"version {record.version} answers one twice"
        for one in edit.combined.authors:
            was = known.get(one.author)
            assert was is None or was.number < one.number, f"{one} is answered after {was}"
            if one.author.startswith(record.commit_id[:_PREFIX_DIGITS]):
                continue
            where = f"{one} of version {record.version}"
            posted = self.posted.get((one.author, one.number), ())
            assert posted, f"{where} was never posted"
            alive = [p for p in posted if p["stamp"] >= first]
            assert alive, f"{where} was posted with stamps that are forgotten, up to {first}"
            if one.is_applied:
                assert any(p["until_ms"] >= record.time_ms for p in alive), (
                    f"{where} comes too late"
                )
            self.taken[one.is_applied] += 1
