"""TAB in each shell, set up by the line that `clog --help` names."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clog.cli.app import COMPLETION
from clog.storage import Log

LINES = dict(zip(("bash", "zsh", "fish"), COMPLETION.values(), strict=True))
ASKED = {
    "bash": """
{line}
COMP_WORDS=(clog {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_clog_completion clog
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
autoload -U compinit; compinit -u -D
{line}
[ "$_comps[clog]" = _clog_completion ] || exit
compadd() {{ echo ${{(P)@[-1]}} ${{(P)@[-2]}}; }}
_describe() {{ echo ${{(P)3}}; }}
words=(clog {words}); CURRENT=$#words
_clog_completion
""",
    "fish": """
{line}
complete -C "clog {words}"
""",
}
"""Each shell's own way to ask a completion what it would offer."""
OF_NO_USER = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}


@pytest.mark.nightly
@pytest.mark.parametrize("shell", ASKED)
def test_a_line_completes_commands_and_logs(shell, tmp_path):
    """The command is one letter short, and the log is in the folder."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    Log.create(tmp_path / "orders", 1)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for words, wanted in (("describ", "describe"), ("describe ord", "orders")):
        script = ASKED[shell].format(line=LINES[shell], words=words)
        done = subprocess.run(
            [shell, OF_NO_USER[shell], "-c", script],
            cwd=tmp_path,
            env={"PATH": path, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert wanted in done.stdout, done.stderr
