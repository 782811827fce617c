"""How much goes into a batch."""

from hypothesis import assume, given
from hypothesis import strategies as st

from clog.connector.admission import limited

PARTITIONS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 10_000)), min_size=1)


def bounds(partitions):
    starts = {p: start for p, (start, _) in enumerate(partitions)}
    return starts, {p: start + size for p, (start, size) in enumerate(partitions)}


@given(PARTITIONS, st.integers(1, 20_000))
def test_a_batch_lies_between_its_bounds(partitions, most):
    """Each partition with a backlog moves by at least 1, none beyond its end; the sum keeps to the
    limit.
    """
    starts, ends = bounds(partitions)
    got = limited(starts, ends, most)
    busy = sum(1 for p in ends if ends[p] > starts[p])
    for p, end in ends.items():
        assert starts[p] <= got[p] <= end
        assert got[p] > starts[p] or end == starts[p]
    assert sum(got[p] - starts[p] for p in got) < most + max(1, busy)


@given(PARTITIONS, st.integers(1, 5000))
def test_batches_come_to_the_end(partitions, most):
    """Repeated, the limit lets everything through, in about as many batches as it takes."""
    starts, ends = bounds(partitions)
    total = sum(ends[p] - starts[p] for p in ends)
    assume(total / most < 200)
    batches = 0
    while starts != ends:
        starts = limited(starts, ends, most)
        batches += 1
        assert batches <= total / most * 2 + len(partitions) + 1


def test_shares_are_in_proportion():
    """As Spark's Kafka source shares."""
    assert limited({0: 0, 1: 0}, {0: 300, 1: 100}, 40) == {0: 30, 1: 10}


def test_without_a_limit_all_goes():
    """Also where the limit is not reached."""
    assert limited({0: 0}, {0: 7}, None) == {0: 7}
    assert limited({0: 0}, {0: 7}, 7) == {0: 7}
