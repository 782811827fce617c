"""A Ceph cluster of one monitor, one disk in memory and one S3 gateway, from Debian's packages."""

import os
import shutil
import subprocess
import uuid
from contextlib import ExitStack, contextmanager

from servers import free_port, program, running

REMEDY = "apt-get install --no-install-recommends ceph-mon ceph-osd radosgw ceph-common"
PROGRAMS = (
    "ceph",
    "ceph-authtool",
    "ceph-mon",
    "ceph-osd",
    "monmaptool",
    "radosgw",
    "radosgw-admin",
)
TIMEOUT_S = 120

CONFIG = """
[global]
fsid = {fsid}
mon_host = {mon}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
osd_objectstore = memstore
memstore_device_bytes = 4294967296
run_dir = {folder}/run
log_file = {folder}/log/$name.log
admin_socket = {folder}/run/$name.asok
mon_data = {folder}/mon
osd_data = {folder}/osd
[client]
keyring = {folder}/keyring
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_data = {folder}/rgw
"""


@contextmanager
def ceph(folder):
    """The gateway's endpoint, while the cluster runs."""
    for name in PROGRAMS:
        program(name, REMEDY)
    mon_port, port, fsid = free_port(), free_port(), str(uuid.uuid4())
    mon = f"[v2:127.0.0.1:{mon_port},v1:127.0.0.1:{free_port()}]"
    for part in ("run", "log", "mon", "osd", "rgw"):
        (folder / part).mkdir()
    config = CONFIG.format(fsid=fsid, mon=mon, port=port, folder=folder)
    (folder / "ceph.conf").write_text(config)
    with ExitStack() as cluster:
        _make_monitor(folder, fsid, mon)
        cluster.enter_context(running(_daemon("ceph-mon", "-i", "a"), mon_port, cwd=folder))
        _make_disk(folder)
        cluster.enter_context(_disk(folder))
        shutil.copy(folder / "keyring", folder / "rgw/keyring")
        cluster.enter_context(running(_daemon("radosgw", "-n", "client.rgw"), port, cwd=folder))
        keys = ["--access-key=test-access-key", "--secret-key=test-secret-key"]
        _run(folder, "radosgw-admin", "user", "create", "--uid=t", "--display-name=t", *keys)
        yield f"http://127.0.0.1:{port}"


def _make_monitor(folder, fsid, mon):
    create = ("ceph-authtool", "--create-keyring")
    every = ("--cap", "mon", "allow *")
    some = ("--cap", "mon", "allow rwx", "--cap", "osd", "allow rwx")
    _run(folder, *create, "mon.keyring", "--gen-key", "-n", "mon.", *every)
    admin = ("--gen-key", "-n", "client.admin", *every, "--cap", "osd", "allow *")
    _run(folder, *create, "keyring", *admin)
    _run(folder, "ceph-authtool", "keyring", "--gen-key", "-n", "client.rgw", *some)
    _run(folder, "ceph-authtool", "mon.keyring", "--import-keyring", "keyring")
    _run(folder, "monmaptool", "--create", "--addv", "a", mon, "--fsid", fsid, "monmap")
    made = ("--monmap", "monmap", "--keyring", "mon.keyring")
    _run(folder, "ceph-mon", "--mkfs", "-i", "a", *made)


def _make_disk(folder):
    disk = str(uuid.uuid4())
    key = _run(folder, "ceph-authtool", "--gen-print-key").strip()
    _run(folder, "ceph", "osd", "new", disk, "-i", "-", text=f'{{"cephx_secret":"{key}"}}')
    keyring = ("--create-keyring", "osd/keyring", "--name", "osd.0", "--add-key", key)
    _run(folder, "ceph-authtool", *keyring)
    _run(folder, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)


@contextmanager
def _disk(folder):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(_daemon("ceph-osd", "-i", "0"), cwd=folder, **quiet)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def _daemon(name, *words):
    return [program(name, REMEDY), "-c", "ceph.conf", *words, "-f"]


def _run(folder, name, *words, text=""):
    with_config = [] if name in ("ceph-authtool", "monmaptool") else ["-c", "ceph.conf"]
    command = [program(name, REMEDY), *with_config, *words]
    done = subprocess.run(
        command,
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout
