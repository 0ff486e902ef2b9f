#!/usr/bin/env bash
# Everything about the sources that a program can judge: format, lint, types, include directions, limits.
# All parts run even if one fails. Needs a configured build (compile_commands.json).
. "$(dirname "$0")/lib.sh"

failed=()
# part NAME NEXT COMMAND...: runs one check; NEXT says what to do when it fails.
part() {
  local name=$1 next=$2
  shift 2
  say "Check: $name"
  "$@" || {
    note "$name failed; $next"
    failed+=("$name")
  }
}

format() {
  git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' |
    xargs -0 -r -n 8 -P "$JOBS" sh -c 'rc=0
      for file; do
        clang-format-14 --dry-run -Werror "$file" 2>/dev/null || { echo "$file: not formatted"; rc=1; }
      done
      exit $rc' sh
}
types() {
  [ -d pyapi/troupe ] || { note "there is no Python package yet"; return 0; }
  "$VENV/bin/mypy"
}

nccl() {
  grep -rqs 'collective_groups/gpu/nccl_library\.cpp' "$BUILD_DIR/compile_commands.json" \
    "$BUILD_DIR/collective_groups/CMakeFiles/troupe_collective_groups.dir/Unity"
}

part "format" "run: make format" format
part "ruff" "run: make format, then mend the rest by hand" "$VENV/bin/ruff" check .
part "mypy" "the lines above name the places" types
part "include directions" "the graph is in tests/tools/rules.toml" "$SYSTEM_PYTHON" tests/tools/check_includes.py
part "tidy" "limits and exceptions are in tests/tools/rules.toml" "$SYSTEM_PYTHON" tests/tools/check_tidy.py
part "NCCL is compiled" "run: make install-deps; the headers of scripts/requirements-cuda-headers.txt are missing" nccl
part "clang-tidy" "the checks are in .clang-tidy" "$SYSTEM_PYTHON" tests/tools/run_clang_tidy.py \
  --build "$BUILD_DIR" --jobs "$JOBS"

printf '\n' >&2
[ "${#failed[@]}" -eq 0 ] || die "checks failed: $(IFS=,; printf '%s' "${failed[*]}")"
say "All checks passed"
