"""The policies of docs/permissions.md: each is enough for its role, and each action is needed.

moto enforces the policies of a user once its authentication is switched on. It answers 404 where S3
would answer 403 for want of `s3:ListBucket`, so that the need for this one shows where names are
listed only.
"""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage import ClogError, Log, StateTable
from clog.storage.format import documents
from clog.storage.store import open_store

pytestmark = pytest.mark.s3

DOCUMENT = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()
_BLOCK = r"^\*(\w+)\*[^\n]*\n\n```json\n(.*?)```"
POLICIES = {role.lower(): p for role, p in re.findall(_BLOCK, DOCUMENT, re.DOTALL | re.MULTILINE)}
CONFIG = {"min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0, "delete.retention.ms": 0}


@pytest.fixture
def enforced(moto_url, s3_options, s3_bucket):
    """Makes users with a policy, and has the server enforce it from then on."""
    from botocore.session import Session

    client = Session().create_client(
        "iam",
        region_name="us-east-1",
        endpoint_url=moto_url,
        aws_access_key_id=s3_options["key"],
        aws_secret_access_key=s3_options["secret"],
    )
    numbers = iter(range(1000))

    def as_user(policy):
        """The storage options of a user who may do no more than this."""
        enforce(moto_url, "inf")
        name = f"user-{s3_bucket}-{next(numbers)}"
        client.create_user(UserName=name)
        client.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=json.dumps(policy))
        key = client.create_access_key(UserName=name)["AccessKey"]
        enforce(moto_url, "0")
        return {**s3_options, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}

    yield as_user
    enforce(moto_url, "inf")


def enforce(url, after):
    """Has the server enforce policies after so many requests."""
    headers = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{url}/moto-api/reset-auth", after.encode(), headers)
    urllib.request.urlopen(request).close()


@pytest.fixture
def log(s3_url, s3_options):
    """A log with something to clean, and to delete."""
    made = Log.create(s3_url, 1, CONFIG, storage_options=s3_options)
    for n in range(3):
        made.append([{"key": "a", "value": str(n)}, {"key": f"b{n}", "value": "x"}])
        made.roll()
    return made


def read(url, options, folder):
    log = Log.open(url, storage_options=options)
    assert log.table().to_arrow().num_rows == 4
    assert sum(batch.num_rows for batch in log.read()) == 6
    assert (log.end_offsets(), log.table().get("a")) == ({0: 6}, b"2")
    assert log.describe()["version"] == log.version
    with StateTable(url, folder, storage_options=options) as table:
        assert table.get(b"a") == b"2"


def append(url, options, _):
    made = Log.create(f"{url}-of-mine", storage_options=options)
    for n in range(5):
        made.append([{"key": "k", "value": str(n)}], producer=("p", n))
    log = Log.open(url, storage_options=options)
    log.append([{"key": "k", "value": "x"}])
    log.alter({"segment.ms": 99})
    log.delete_records({0: 1})


def follow(url, options, _):
    reader = Log.open(url, storage_options=options).reader("billing", interval_ms=0)
    assert sum(batch.num_rows for batch in reader.follow(poll_ms=None)) == 6
    (found,) = Log.open(url, storage_options=options).readers()
    assert (found.name, found.position) == ("billing", {0: 6})


def publish(url, options, _):
    log = Log.open(url, storage_options=options)
    assert log.publish("delta").published
    for n in range(3):
        log.publish("iceberg")
        log.append([{"key": "a", "value": str(n)}])
    left = {found.path for found in open_store(url, options).list("metadata/")}
    assert not left & {"metadata/v1.metadata.json", "v1.metadata.json"}, "the expired one goes"


def clean(url, options, _):
    log = Log.open(url, storage_options=options)
    for _ in range(2):
        Cleaner(log).run_once(force=True)
    assert log.version > 6
    assert not log.handle.manifest().released


def sweep(url, options, _):
    log = Log.open(url, storage_options=options)
    swept = sweep_orphans(Work(log.handle, log.handle.clock.now_ms()), age_ms=0)
    assert len(swept.objects) == 1


ROLES = {f.__name__: f for f in (read, follow, append, clean, sweep, publish)}


@pytest.fixture
def orphan(log, s3_url, s3_options):
    """An object that no commit names, older than all that is in progress."""
    path = f"{documents.folder_of(log.handle.standing.log_id)}/{documents.data_path(0, 'e' * 32)}"
    open_store(s3_url, s3_options).put(path, b"x")


def policy_of(role, bucket, without=None):
    """The document's policy, for a bucket, without an action."""
    policy = json.loads(POLICIES[role].replace("my-bucket", bucket))
    for statement in policy["Statement"]:
        actions = statement["Action"]
        actions = [actions] if isinstance(actions, str) else actions
        statement["Action"] = [action for action in actions if action != without]
    return {**policy, "Statement": [s for s in policy["Statement"] if s["Action"]]}


def test_every_role_has_a_policy():
    """A block that is named otherwise would go untested. What *erase* needs besides *sweep* is
    asked of a server with versions, in test_s3_erasures.
    """
    assert POLICIES.keys() == ROLES.keys() | {"erase"}


@pytest.mark.parametrize("role", ROLES)
def test_the_policy_is_enough(role, enforced, orphan, s3_url, s3_bucket, tmp_path):
    """docs/permissions.md: the role does all of its work with it."""
    ROLES[role](s3_url, enforced(policy_of(role, s3_bucket)), tmp_path)


@pytest.mark.parametrize(
    ("role", "without"),
    [
        ("read", "s3:GetObject"),
        *(("append", action) for action in ("s3:GetObject", "s3:PutObject")),
        ("follow", "s3:GetObject"),
        *(("clean", f"s3:{action}Object") for action in ("Get", "Put", "Delete")),
        *(("publish", f"s3:{action}Object") for action in ("Get", "Put", "Delete")),
        ("sweep", "s3:DeleteObject"),
        ("sweep", "s3:ListBucket"),
    ],
)
def test_each_action_is_needed(role, without, enforced, orphan, s3_url, s3_bucket, tmp_path):
    """docs/permissions.md: without one the role is refused, by an error of clog's own."""
    options = enforced(policy_of(role, s3_bucket, without))
    with pytest.raises(ClogError, match=r"denied|refused|credentials"):
        ROLES[role](s3_url, options, tmp_path)


def test_who_may_only_read_has_no_position(enforced, log, s3_url, s3_bucket, caplog):
    """docs/permissions.md: a named reader with the role *read* reads, and is warned."""
    options = enforced(policy_of("read", s3_bucket))
    mine = Log.open(s3_url, storage_options=options)
    found = mine.reader("billing", interval_ms=0).follow(poll_ms=None)
    assert sum(batch.num_rows for batch in found) == 6
    assert "the position of reader billing was not recorded" in caplog.text
    assert mine.readers() == []
