"""Handles that continue after an interrupt (`integration/interrupts`): a short run, and which lines
it leaves out.
"""

import ast
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from clog.storage.commit.tip import try_read
from clog_testing.crash import memory_store
from clog_testing.interrupts import Tracer, interrupted, locked_lines, tracing

ROOT = Path(__file__).parents[2]
RUN = ROOT / "integration" / "interrupts" / "run.py"
IN_C = ("env.lock()", "threading.Lock()", "threading.RLock()", "lock", "lock()")
"""What makes a lock whose ``with`` runs no Python code; ``lock`` is one that was handed on."""


def run(*options):
    """Runs the command; its exit code and output."""
    command = [sys.executable, str(RUN), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_handle_lives_on_after_an_interrupt_at_any_line():
    """It neither hangs nor refuses, what was acknowledged is there once, and readers can use each
    commit (COMMIT.md §3): some lines, at each version mod 4.
    """
    flows = ("append", "lost race", "poll", "table", "transaction")
    named = [option for flow in flows for option in ("--flow", flow)]
    code, output = run(*named, "--sample", 6, "--under", "clog.storage.")
    assert code == 0, output
    assert "120 interrupts at lines, 0 failed" in output


def test_others_live_on_after_an_interrupt_at_any_line():
    """A state store and its file, a state table, a publication, an idempotent append, visible or
    aborted transactions, a look that searches; what is proposed, included by others, combined and
    withdrawn (COMMIT.md §14), where an interrupt makes no requests.
    """
    flows = (
        "state store",
        "state file",
        "state table",
        "publish",
        "producer",
        "visible transaction",
        "far poll",
    )
    begun = ("abandoned transaction", "aborted transaction", "visible transaction")
    combined = ("propose", "taken along", "combine", "withdraw")
    named = [option for flow in (*flows, *begun, *combined) for option in ("--flow", flow)]
    code, output = run(*named, "--sample", 2)
    assert code == 0, output
    assert "112 interrupts at lines, 0 failed" in output


def test_a_handle_lives_on_after_signals():
    """Real ones, at random moments."""
    code, output = run("--signals", 200)
    assert code == 0, output
    assert " signals struck" in output


_lock = threading.Lock()


def held(values):
    with _lock:
        if values:
            try:
                return len(values)
            except ValueError:
                return 0
    return 1


def test_an_interrupt_at_any_place_lets_go_of_a_lock():
    """Also at a ``try`` in its block, where CPython 3.11 would not, and no signal strikes."""
    tracer = Tracer(under=__name__)
    with tracing(tracer):
        held([1])
    assert len(tracer.places) > 3
    for at in range(len(tracer.places)):
        with suppress(KeyboardInterrupt), tracing(Tracer(at, under=__name__)):
            held([1])
        assert not _lock.locked(), tracer.places[at]


def test_lines_that_are_left_out_are_those_of_locks_in_c():
    """No signal strikes between the block of such a lock and its release; the list contains all
    modules that have such lines, and each makes its locks that way.
    """
    found = {}
    for part in ("storage", "cleaner", "connector", "bridge"):
        for path in sorted((ROOT / part / "clog").rglob("*.py")):
            if path.name != "conformance.py" and (names := {*locked_lines(str(path)).values()}):
                found[str(path.relative_to(ROOT))] = names
    assert set(found) >= {
        "storage/clog/storage/commit/handle.py",
        "storage/clog/state/store.py",
    }
    for path, names in found.items():
        tree = ast.parse((ROOT / path).read_text())
        made = {
            (ast.unparse(node.targets[0]), ast.unparse(node.value))
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
        }
        kinds = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        if any("Shared" in map(ast.unparse, kind.bases) for kind in kinds):
            made.add(("self._lock", "env.lock()"))
        for name in names:
            ways = {way for target, way in made if target == name}
            assert ways, (path, name)
            assert ways <= set(IN_C), (path, ways)


def test_what_lives_on_in_storage_waits_for_no_lock_in_python():
    """``threading.Condition`` and ``threading.Event`` stay locked if an interrupt comes as they are
    entered or left.
    """
    for path in sorted((ROOT / "storage" / "clog").rglob("*.py")):
        if "clog_testing" not in path.parts and path.name != "conformance.py":
            tree = ast.parse(path.read_text())
            used = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
            assert not used & {"threading.Condition", "threading.Event"}, path


def test_nothing_is_being_handled_after_an_interrupt():
    """Wherever it struck: otherwise every later error of the thread would have it as its
    context.
    """
    store, at = memory_store(), 0
    while interrupted(lambda: try_read(store, 5), at) is not None:
        assert sys.exception() is None
        at += 1
    assert at > 40
