"""`clog mirror`: what of its command line gets to the library; tests/kafka has the rest."""

import json
from dataclasses import fields

import pytest

from clog.bridge import Decoding, Mirrored

TOPIC = "kafka://broker:9092/users"


@pytest.fixture
def given(monkeypatch):
    """What the library was called with."""
    found = {}

    def mirror(source, url, settings):
        named = {field.name: getattr(settings, field.name) for field in fields(settings)}
        found.update(named, args=(source, url))
        return Mirrored({}, {})

    monkeypatch.setattr("clog.bridge.mirror", mirror)
    return found


def test_how_a_topic_is_followed(cli, given, tmp_path):
    """Log starts only where they are asked for; configs and partitions are of a log that is
    made.
    """
    cli("mirror", TOPIC, tmp_path, "--once")
    assert (given["once"], given["follow_start"], given["decode"]) == (True, False, None)
    cli("mirror", TOPIC, tmp_path, "--once", "--follow-start", "--partitions", 3)
    assert (given["follow_start"], given["partitions"]) == (True, 3)
    assert given["args"] == (TOPIC, str(tmp_path))


def test_how_a_registry_is_asked(cli, given, tmp_path, monkeypatch):
    """Options of its client come from the environment, and those of the command line win; neither
    is shown, nor is what is no option.
    """
    own = {"max.retries": 5, "basic.auth.user.info": "me:hunter2"}
    monkeypatch.setenv("CLOG_REGISTRY_OPTIONS", json.dumps(own))
    asked = ["mirror", TOPIC, tmp_path, "--once", "--registry", "http://registry:8081"]
    cli(*asked, "--decode", "avro", "--registry-option", "basic.auth.user.info=me:other")
    decoding = given["decode"]
    assert isinstance(decoding, Decoding)
    assert (decoding.values, decoding.registry) == ("avro", "http://registry:8081")
    assert decoding.registry_options == own | {"basic.auth.user.info": "me:other"}
    assert "--decode says how values are decoded" in cli(*asked, code=2).stderr
    wrong = cli(*asked, "--decode", "avro", "--registry-option", "hunter2", code=2)
    assert "hunter2" not in wrong.stderr
