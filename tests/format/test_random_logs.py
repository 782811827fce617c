"""Random logs of every feature that is built: clog, and a reader that shares no code with it, find
the same at every version and in every file. More of them: CONTRIBUTING.md.
"""

import random_logs

SEEDS = (1, 7, 9, 11, 12, 19, 20, 22, 26, 27, 104)
"""They have all between them."""


def test_both_readers_find_the_same():
    """FORMAT.md: the state in two ways, records, tables of old versions, writers, every file; and
    everything that a log can have is in one of these logs.
    """
    seen = set()
    for seed in SEEDS:
        random_logs.check_seed(seed, 16, lambda log: seen.update(random_logs.found_in(log)))
    assert seen == random_logs.EVERYTHING
