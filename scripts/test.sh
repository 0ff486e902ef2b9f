#!/usr/bin/env bash
# Runs every test: C++ through CTest, then Python through pytest, once with .venv and once with Debian's Python and
# torch. All parts run even if one fails; the closing lines of each are repeated at the end. Needs a finished build.
# TEST_JOBS=N runs N Python tests at once, 2 by default.
. "$(dirname "$0")/lib.sh"

logs=$BUILD_DIR/test-logs
mkdir -p "$logs"
failed=()
parts=()

# run_part NAME COMMAND...: runs, shows and records one part; exit status 5 of pytest means "no tests".
run_part() {
  local name=$1 log=$logs/${1// /-}.log rc=0
  shift
  say "Tests: $name"
  "$@" 2>&1 | tee "$log" || rc=${PIPESTATUS[0]}
  parts+=("$name")
  if [ "$rc" -eq 5 ] && grep -q 'no tests ran' "$log"; then
    note "$name: there are no tests in this part"
  elif [ "$rc" -ne 0 ]; then
    failed+=("$name")
  fi
}

if "$CTEST" --test-dir "$BUILD_DIR" -N 2>/dev/null | grep -q 'Total Tests: 0'; then
  say "Tests: C++: there are no tests in this part"
else
  run_part "C++" "$CTEST" --test-dir "$BUILD_DIR" --output-on-failure -j2 --timeout 300 -LE "gpu|slow"
fi

# Without the built core integration tests fail; they are not left out.
export TROUPE_REQUIRE_CORE=1
export PYTHONPATH=$BUILD_DIR/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
python_tests=()
for folder in tests/tools tests/python tests/integration; do
  [ -n "$(find "$folder" -name 'test_*.py' -print -quit 2>/dev/null)" ] && python_tests+=("$folder")
done
if [ "${#python_tests[@]}" -eq 0 ]; then
  say "Tests: Python: there are no tests in this part"
else
  # A path that is short enough for the sockets that tests make below it.
  scratch=$(mktemp -d /tmp/tt-XXXX)
  trap 'rm -rf "$scratch"' EXIT
  # Most tests wait for processes most of the time, so that two at once take two thirds of the time.
  jobs=${TEST_JOBS:-2}
  pytest=(-m pytest -p no:cacheprovider --durations=15)
  # A process of tests that crashes is a failure at once: with another in its place the runner waits for ever.
  [ "$jobs" -gt 1 ] && pytest+=(-n "$jobs" --dist loadfile --max-worker-restart=0)
  run_part "Python venv" "$VENV/bin/python" "${pytest[@]}" --basetemp "$scratch/v" "${python_tests[@]}"
  # What needs packages that Debian lacks is marked venv_only, and `once` what its torch cannot change; everything else
  # must pass on that as well.
  run_part "Python Debian" "$SYSTEM_PYTHON" "${pytest[@]}" --basetemp "$scratch/d" -m "not venv_only and not once" \
    "${python_tests[@]}"
fi

# failures LOG: the names of the tests that failed, as CTest and pytest list them.
failures() {
  sed -n -e '/^The following tests FAILED:/,$s/^[[:space:]]*[0-9]* - /  /p' -e 's/^\(FAILED\|ERROR\) /  /p' "$1"
}

printf '\n' >&2
say "Summary"
for name in "${parts[@]}"; do
  case $name in
    C++) line=$(grep -E '% tests passed' "$logs/C++.log" || tail -n 1 "$logs/C++.log") ;;
    *) line=$(tail -n 1 "$logs/${name// /-}.log") ;;
  esac
  printf '%s: %s\n' "$name" "$line"
  failures "$logs/${name// /-}.log"
done
[ "${#failed[@]}" -eq 0 ] || die "tests failed in: $(IFS=,; printf '%s' "${failed[*]}"); the logs are in $logs"
