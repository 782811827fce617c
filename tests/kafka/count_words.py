"""An application of quix-streams that counts words, with its state in logs; for `test_quix`.

    python count_words.py BROKER TOPIC URL CACHE_DIR [grouped]

``grouped`` adds a second stream with state. The word "unseen" never comes as far as state.

It runs until it is ended. As a *static* member of its group it takes over at once from one that was
killed, whose place the broker would otherwise keep for it until its session is over.
"""

import sys
from datetime import timedelta

from quixstreams import Application

from clog.bridge import keep_state


def count(value, state):
    """Counts a word, in two stores' worth of keys: how often it came, and its last place."""
    number = state.get(value, 0) + 1
    state.set(value, number)
    state.set(f"seen-{value}", number, ttl=timedelta(days=30))
    return {"word": value, "count": number}


def main(broker, topic, url, cache_dir, grouped=""):
    app = Application(
        broker_address=broker,
        consumer_group=f"count-{topic}",
        auto_offset_reset="earliest",
        use_changelog_topics=False,
        auto_create_topics=False,
        commit_every=20,
        commit_interval=0.2,
        consumer_extra_config={"group.instance.id": f"counts-{topic}"},
        loglevel="WARNING",
    )
    keep_state(app, url, cache_dir)
    words = app.dataframe(app.topic(topic, value_deserializer="str", key_deserializer="bytes"))
    words = words.filter(lambda word: word != "unseen").apply(count, stateful=True)
    if grouped:
        words.group_by("word").apply(lambda row, state: state.set("seen", True), stateful=True)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
