"""Produces to a topic until it is told to stop, or killed: batches of a transaction each, of which
some are aborted. It notes the last number of each key, once the broker has acknowledged it.

    python topic_producer.py WORLD BROKER TOPIC
"""

import random
import signal
import sys
import time
import uuid

from confluent_kafka import KafkaError, KafkaException, Producer
from world import World

BATCH, KEYS = 50, 2_000
ABORTS_EVERY = 7
PAUSE_S = 0.2
WAIT_S = 60
PADDING = "." * 80


def main() -> None:
    world, broker, topic = World.load(sys.argv[1]), sys.argv[2], sys.argv[3]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    told = world.acknowledged("producer", topic)
    n = 1 + max((line["n"] for line in told), default=-1)
    producer = None
    while not stopping:
        try:
            producer = producer or begun(broker, topic)
            keys = send(producer, topic, n)
        except KafkaException as e:
            error: KafkaError = e.args[0]
            print(f"again: {error.str()}", file=sys.stderr)
            producer = None
            time.sleep(1)
            n += BATCH  # What is in doubt may be there; later records of its keys are higher.
            continue
        if keys:
            world.acknowledge("producer", topic, {"n": n + BATCH - 1, "keys": keys})
        n += BATCH
        time.sleep(PAUSE_S)


def begun(broker: str, topic: str) -> Producer:
    """One id: who is started again takes over what was left open."""
    settings = {
        "bootstrap.servers": broker,
        "transactional.id": f"{topic}-producer",
        "client.id": uuid.uuid4().hex,
        "log_level": 2,
    }
    made = Producer(settings)
    made.init_transactions(WAIT_S)
    return made


def send(producer: Producer, topic: str, n: int) -> dict[str, int]:
    """Sends a batch; returns the last number of each of its keys, none where it was aborted."""
    aborts = n // BATCH % ABORTS_EVERY == ABORTS_EVERY - 1
    producer.begin_transaction()
    keys: dict[str, int] = {}
    for i in range(n, n + BATCH):
        key = f"k{random.randrange(KEYS)}"
        keys[key] = i
        producer.produce(topic, f"{-1 if aborts else i}:{PADDING}", key)
    if aborts:
        producer.abort_transaction(WAIT_S)
        return {}
    producer.commit_transaction(WAIT_S)
    return keys


if __name__ == "__main__":
    main()
