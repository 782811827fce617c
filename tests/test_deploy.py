"""The contents of deploy/ are checked by the tools they are for, and against the command line."""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clog.storage import Log

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
RULES = DEPLOY / "prometheus" / "alerts.yml"
UNIT = DEPLOY / "systemd" / "clog-cleaner.service"


def run(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def tool(name, package):
    """A program, or a skip that says where it comes from."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}, of {package}")
    return found


def test_there_is_something_to_check():
    """A wrong folder would let every other test here pass."""
    assert len(MANIFESTS) == 2
    assert len(yaml.safe_load(RULES.read_text())["groups"][0]["rules"]) > 5


def test_the_rules_fire_when_they_should():
    """promtool: the syntax, and each rule over series that call for it and ones that do not."""
    promtool = tool("promtool", "Debian's package prometheus")
    run(promtool, "check", "config", "prometheus.yml", cwd=RULES.parent)
    run(promtool, "test", "rules", "alerts_test.yml", cwd=RULES.parent)


def test_the_rules_ask_for_metrics_that_there_are(tmp_path):
    """Those that the daemon serves, and Prometheus's own up."""
    from clog.cleaner import Cleaner
    from clog.cleaner.daemon.metrics import registry

    cleaner = Cleaner(Log.create(str(tmp_path / "log"), partitions=1))
    served = text_string_to_metric_families(generate_latest(registry(cleaner, {})).decode())
    names = {family.name for family in served}
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        asked = re.findall(r"clog_\w+|\bup\b", rule["expr"])
        assert asked, rule
        assert {name.removesuffix("_total") for name in asked} <= names | {"up"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_valid(path):
    """By the schemas of the newest Kubernetes that kubernetes-validate has; nothing unknown."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for document in yaml.safe_load_all(path.read_text()):
        validate.validate(document, validate.latest_version(), strict=True)


CHART = DEPLOY / "helm"
CHART_OPTIONS = {
    "as it is": (),
    "by schedule": ("schedule=*/10 * * * *", "storageOptionsSecret=options"),
    "with a page": ("ui.enabled=true", "serviceAccount.annotations.role=arn:cleaner"),
    "with a page for others": ("ui.enabled=true", "ui.tokenSecret=token", "ui.mask={value.mail}"),
}


def rendered(given):
    """The documents that the chart makes, by kind and name."""
    helm = tool("helm", "Helm (go install helm.sh/helm/v3/cmd/helm@latest)")
    options = [word for one in given for word in ("--set", one)]
    made = run(helm, "template", "clog", str(CHART), *options)
    documents = [one for one in yaml.safe_load_all(made) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


@pytest.mark.parametrize("given", CHART_OPTIONS.values(), ids=[*CHART_OPTIONS])
def test_the_chart_is_valid(given):
    """helm lint, and what it makes, by the schemas of Kubernetes; the page takes its options."""
    from clog.cli.app import app

    made = rendered(given)
    run(tool("helm", "Helm"), "lint", "--strict", str(CHART))
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for document in made.values():
        validate.validate(document, validate.latest_version(), strict=True)
    page = made.get(("Deployment", "clog-ui"))
    assert (page is not None) == ("ui.enabled=true" in given)
    if page is not None:
        (container,) = page["spec"]["template"]["spec"]["containers"]
        known = app.commands["ui"]
        known.make_context("ui", container["args"][1:])
        is_open = "0.0.0.0:8470" in container["args"]
        assert is_open == ("--token-variable" in container["args"])


def test_the_chart_makes_the_manifests():
    """Its cleaner is the one beside it, and so is its CronJob."""
    made = rendered(()) | rendered(CHART_OPTIONS["by schedule"][:1])
    plain = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]
    assert made == {(one["kind"], one["metadata"]["name"]): one for one in plain}


def test_the_chart_has_the_projects_version():
    """So has the image that it runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    image = yaml.safe_load((CHART / "values.yaml").read_text())["image"]
    assert {chart["version"], chart["appVersion"], image.rpartition(":")[2]} == {project["version"]}


def test_the_unit_is_valid(tmp_path):
    """systemd-analyze verify, with the program where it is here."""
    analyze = tool("systemd-analyze", "systemd")
    text = re.sub(
        r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text(), flags=re.MULTILINE
    )
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    assert "clog-cleaner.service" not in run(analyze, "verify", copy)


def test_who_restarts_asks_whether_the_process_goes_on():
    """Liveness is /healthz, which one bad log or an unavailable store does not turn red; /readyz,
    which they do, restarts nothing, and delays neither an update nor the metrics.
    """
    deployment, service = {}, {}
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / "cleaner.yaml").read_text()):
        if document["kind"] == "Deployment":
            deployment = document["spec"]
        elif document["kind"] == "Service":
            service = document["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert deployment["strategy"] == {"type": "Recreate"}
    assert service["publishNotReadyAddresses"] is True
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["cleaner"]
    assert "/healthz" in compose["healthcheck"]["test"][-1]


DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "cleaner" / "README.md"]
DAEMON = re.compile(
    r"^\s*(?:\$ )?(?:CLOG_UI_TOKEN=\S+ )?clog ((?:cleaner|ui) [^#>\n]+)", re.MULTILINE
)
FINISHED = {"--once", "--dry-run"}


def containers(documents):
    """The arguments of everything in manifests that starts clog."""
    for document in documents:
        spec = document.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        for container in spec.get("template", {}).get("spec", {}).get("containers", ()):
            yield container["args"]


def commands():
    """(where, words after clog) of every daemon in deploy/ and in the documents."""
    line = re.search(r"^ExecStart=\S+/clog (.*)", UNIT.read_text(), re.MULTILINE)[1]
    yield UNIT.name, line.split()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["cleaner"]
    yield "compose", compose["command"]
    for path in MANIFESTS:
        for words in containers(yaml.safe_load_all(path.read_text())):
            yield path.name, words
    for path in DOCUMENTS:
        for line in DAEMON.findall(path.read_text()):
            yield path.name, shlex.split(line)


def runs(words, folder):
    """Runs a command as it is, but for its ports, and logs that are in a folder here. A daemon is
    told to stop once it says where it listens, and answers there, or that it cleans.
    """
    Log.create(str(folder / "log"), 1)
    given = []
    for before, word in itertools.pairwise(["clog", *map(str, words)]):
        host = word.rpartition(":")[0]
        if before == "--discover":
            given.append(str(folder))
        elif before in ("--listen", "--port"):
            given.append(f"{host}:0" if host else "0")
        else:
            given.append(str(folder / "log") if re.match(r"s3://|\./", word) else word)
    process = subprocess.Popen(
        [sys.executable, "-c", "from clog_command import main; main()", *given],
        env={**os.environ, "CLOG_UI_TOKEN": "t0ken", "CLOG_STORAGE_OPTIONS": "{}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told = ""
    if FINISHED.isdisjoint(given):
        listens = given[0] == "ui" or "--listen" in given
        sign = re.compile(r"http://\S+:\d+" if listens else "cleaning 1 log")
        while (found := sign.search(told)) is None:
            line = process.stdout.readline()
            assert line, told
            told += line
        if listens:
            path = "/healthz" if given[0] == "cleaner" else "/api/logs"
            headers = {"Authorization": "Bearer t0ken", "X-Forwarded-User": "ann"}
            place = found[0].replace("//0.0.0.0:", "//127.0.0.1:")
            asked = urllib.request.Request(place + path, headers=headers)
            assert urllib.request.urlopen(asked).status == 200
        process.send_signal(signal.SIGTERM)
    told += process.communicate()[0]
    assert process.returncode in (0, 143), told


@pytest.mark.nightly
@pytest.mark.parametrize(("where", "words"), list(commands()), ids=lambda x: str(x)[:20])
def test_a_command_runs(where, words, tmp_path):
    """With the real program: it starts, answers, and ends when it is told to."""
    runs(words, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("given", CHART_OPTIONS.values(), ids=[*CHART_OPTIONS])
def test_a_command_of_the_chart_runs(given, tmp_path):
    """Each that it makes, with any of its options."""
    for number, words in enumerate(containers(rendered(given).values())):
        (tmp_path / str(number)).mkdir()
        runs(words, tmp_path / str(number))


def test_the_image_installs_what_there_is():
    """The folders that are copied, and the extras, are those of the project; the context of the
    build has them.
    """
    text = (DEPLOY / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in sources.split())
        ignored = (ROOT / ".dockerignore").read_text().split()
        assert all(f"!{name}" in ignored for name in sources.split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {extra for found in re.findall(r"\[([\w,]+)\]\"", text) for extra in found.split(",")}
    assert wanted
    assert wanted <= set(project["optional-dependencies"])
    minor = re.search(r"^FROM python:(\S+)-slim$", text, re.MULTILINE)[1]
    assert f"Programming Language :: Python :: {minor}" in project["classifiers"]
