#!/usr/bin/env bash
# Every check of the project: lint, formatting, types, tests. See --help.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/setup_env.sh"

usage() {
  cat <<'TEXT'
usage: bash tools/test.sh [--only CHECK] [PYTEST ARGUMENTS...]

Set up an environment, then run the checks ruff, format, mypy and pytest: all of them, also when
one has failed. Exit code: 0 when all passed, else 1. What is left over goes to pytest,
which runs the tests in two processes (-n 0: in one, for debuggers).

  --only CHECK    run only this one: ruff, format, mypy or pytest

examples:
  bash tools/test.sh                                  everything, as CI does
  bash tools/test.sh --only pytest tests/store -x     a part of the tests, up to the first failure
  bash tools/test.sh -m 'not slow'                    everything but the slow tests

environment variables:
  PYTHON                 the Python (3.10 or newer) to make the environment with (default: python3)
  FASTLOAD_VENV          the environment's folder (default: .venv in the repository); an existing one
                         that has all that is needed is used as it is
  FASTLOAD_CONSTRAINTS   a pip constraints file (default: tools/constraints.txt)
TEXT
}

checks="ruff format mypy pytest"
case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  --only)
    [ $# -ge 2 ] || fail "--only needs the name of a check: $checks" 2
    case " $checks " in
      *" $2 "*) checks="$2" ;;
      *) fail "--only $2: expected one of $checks" 2 ;;
    esac
    shift 2
    ;;
esac

run_check() {
  case "$1" in
    ruff) run "$VENV_PYTHON" -m ruff check ;;
    format) run "$VENV_PYTHON" -m ruff format --check ;;
    mypy) run "$VENV_PYTHON" -m mypy ;;
    pytest) shift && run "$VENV_PYTHON" -m pytest -n 2 --dist worksteal "$@" ;;
  esac
}

set_up_environment dev
summary="" failed=0
for check in $checks; do
  verdict=passed
  run_check "$check" "$@" || verdict="FAILED (exit code $?)"
  [ "$verdict" = passed ] || failed=1
  summary+="$(printf '  %-8s %s' "$check" "$verdict")"$'\n'
done
printf '\nsummary\n%s' "$summary"
exit "$failed"
