# shellcheck shell=bash
# Sourced by demo.sh and test.sh: makes a virtual environment and installs fastload in it.
#
#   set_up_environment [EXTRA]    sets VENV_PYTHON; EXTRA is a name from pyproject.toml's optional dependencies
#
# From the outside: PYTHON (which interpreter makes the environment), FASTLOAD_VENV (its folder),
# FASTLOAD_CONSTRAINTS (a pip constraints file).

REPO="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
MODULES="torch numpy lmdb msgpack psutil xxhash yaml tqdm"
DEV_MODULES="pytest xdist hypothesis ruff mypy"

fail() {
  printf '%s: %s\n' "$(basename -- "$0")" "$1" >&2
  exit "${2:-1}"
}

# The absolute form of a path, before we change folders.
absolute() {
  case "$1" in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s/%s\n' "$PWD" "$1" ;;
  esac
}

# A path as short as it can be seen from the repository's root.
shown() {
  printf '%s\n' "${1#"$REPO"/}"
}

# Print a command so that it can be pasted, then run it.
run() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

set_up_environment() {
  local extra="${1:-}" constraints venv given=no
  constraints="$(absolute "${FASTLOAD_CONSTRAINTS:-$REPO/tools/constraints.txt}")"
  [ -z "${FASTLOAD_VENV:-}" ] || given=yes
  venv="$(absolute "${FASTLOAD_VENV:-$REPO/.venv}")"
  [ -r "$constraints" ] || fail "FASTLOAD_CONSTRAINTS: $constraints cannot be read"
  cd -- "$REPO" || fail "$REPO cannot be entered"

  exec 9<"$REPO" # one at a time: the lock goes when the descriptor is closed
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    echo "Waiting for another run of demo.sh or test.sh to finish its installation."
    flock 9
  fi
  make_environment "$venv"
  VENV_PYTHON="$(shown "$venv")/bin/python"
  install_fastload "$venv" "$extra" "$constraints" "$given"
  exec 9<&-
}

make_environment() {
  local venv="$1" python="${PYTHON:-python3}"
  if works "$venv"; then
    return
  fi
  check_python "$python"
  run "$python" -m venv "$(shown "$venv")" || true # also completes one that was left half-made
  works "$venv" || fail "$venv is no working virtual environment; remove it and run this again"
}

works() {
  "$1/bin/python" -c 'import pip' >/dev/null 2>&1
}

check_python() {
  command -v "$1" >/dev/null || fail "$1 is not there; install Python 3.10 or newer, or set PYTHON to one"
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$1 is $("$1" --version 2>&1); Python 3.10 or newer is needed: set PYTHON to one (PYTHON=python3.12 bash ...)"
  "$1" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$1 cannot make virtual environments; install its venv module (Debian, Ubuntu: apt install python3-venv)"
}

# Install fastload as a link to this checkout. Nothing to do where that was done with the same requirements, or in
# an environment of the user's own that has all that is needed.
install_fastload() {
  local venv="$1" extra="$2" constraints="$3" given="$4" wanted mark options=(-qq --disable-pip-version-check --no-input)
  wanted="$REPO $(cat "$REPO/pyproject.toml" "$constraints" | cksum)"
  mark="$venv/.fastload-installed${extra:+-$extra}"
  if grep -qxF -- "$wanted" "$mark" "$venv/.fastload-installed-dev" 2>/dev/null && has_modules "$extra"; then
    return
  fi
  if [ "$given" = yes ] && [ ! -e "$venv/.fastload-installing" ] && has_modules "$extra"; then
    return
  fi
  if [ -e "$venv/.fastload-installing" ]; then
    echo "An earlier installation was cut off: installing everything anew."
    options+=(--ignore-installed)
  fi
  : >"$venv/.fastload-installing"
  echo "Installing fastload and what it needs; the first time takes a minute or more."
  run "$VENV_PYTHON" -m pip install "${options[@]}" -e ".${extra:+[$extra]}" -c "$(shown "$constraints")" ||
    fail "pip could not install fastload; its reason stands above. Run the same command again once that is mended"
  rm -f "$venv/.fastload-installing"
  printf '%s\n' "$wanted" >"$mark"
}

# Whether fastload is importable from this checkout, and all that it needs is there. Run from / since the current
# folder is importable too.
has_modules() {
  local python needed="$MODULES"
  python="$(absolute "$VENV_PYTHON")"
  [ "$1" != dev ] || needed="$needed $DEV_MODULES"
  # shellcheck disable=SC2086  # one word a module
  (cd / && "$python" - "$REPO" $needed) >/dev/null 2>&1 <<'PYTHON'
import sys
from importlib.util import find_spec
from pathlib import Path

repo, *modules = sys.argv[1:]
missing = [module for module in modules if find_spec(module) is None]
spec = find_spec("fastload")
here = spec is not None and Path(spec.origin).resolve().parent.parent == Path(repo).resolve()
sys.exit(not here or bool(missing))
PYTHON
}
