"""SFTP: which servers are checked, by their names; what the check does is tested on a real one."""

import pytest

from clog.storage import InvalidInputError
from clog.storage.store.kinds.sftp import KIND, HostCheck
from clog.storage.store.opening import parse


def settings_of(url, options=()):
    return KIND.config(parse(url), dict(options))


@pytest.mark.parametrize(
    ("url", "options", "name"),
    [
        ("sftp://me@Host/log", {}, "host"),
        ("ssh://host:22/log", {}, "host"),
        ("sftp://host:2222/log", {}, "[host]:2222"),
        ("sftp://host/log", {"port": 2222}, "[host]:2222"),
        ("sftp://alias/log", {"host": "10.0.0.1"}, "10.0.0.1"),
    ],
)
def test_a_server_has_the_name_that_known_hosts_gives_it(url, options, name):
    """The port only if it is not SSH's own."""
    assert settings_of(url, options) == {**options, "transport_factory": HostCheck(name)}


def test_a_given_key_goes_to_the_check_alone():
    """paramiko knows no such option."""
    assert settings_of("sftp://host/log", {"host_key": "ssh-ed25519 AAAA", "username": "me"}) == {
        "username": "me",
        "transport_factory": HostCheck("host", "ssh-ed25519 AAAA"),
    }


def test_the_check_is_left_out_by_fsspecs_option():
    """``auto_add`` is what fsspec does by itself; its other policies are not clog's concern."""
    assert settings_of("sftp://host/log", {"host_key_policy": "auto_add"}) == {}
    assert settings_of("sftp://host/log", {"host_key_policy": "warning"}) == {
        "host_key_policy": "warning"
    }
    checked = settings_of("sftp://host/log", {"host_key_policy": "reject"})
    assert checked == {"transport_factory": HostCheck("host")}


def test_the_servers_of_a_chain_are_checked():
    """Their options are given under their protocol's name; those of others stay as they are."""
    options = {"sftp": {"username": "me"}, "simplecache": {"cache_storage": "/tmp"}}
    assert settings_of("simplecache::sftp://host/log", options) == {
        "sftp": {"username": "me", "transport_factory": HostCheck("host")},
        "simplecache": {"cache_storage": "/tmp"},
    }
    assert settings_of("s3://bucket/log", {"key": "k"}) == {"key": "k"}


def test_a_key_must_be_text():
    """The error names the option."""
    with pytest.raises(InvalidInputError, match="'host_key' of sftp://host/log is a bytes"):
        settings_of("sftp://host/log", {"host_key": b"ssh-ed25519 AAAA"})
