#!/usr/bin/env bash
# Runs benchmarks: bench.sh runs all and prints one table, bench.sh NAME ARG... one of them with its options.
# A benchmark is a program build/$PRESET/bin/troupe-bench-NAME (benchmarks/*.cpp) or a file benchmarks/NAME.py.
. "$(dirname "$0")/lib.sh"

names() {
  find "$BUILD_DIR/bin" -maxdepth 1 -name 'troupe-bench-*' -type f -printf '%f\n' 2>/dev/null | sed 's/^troupe-bench-//'
  find benchmarks -maxdepth 1 -name '*.py' ! -name '_*' -printf '%f\n' | sed 's/\.py$//'
}
run() {
  local name=$1
  shift
  say "Benchmark: $name"
  if [ "$name" = ray ]; then
    PYTHONPATH=$BUILD_DIR/python "$ROOT/.third_party/ray/bin/python" benchmarks/ray_calls.py \
      --program "$BUILD_DIR/bin/troupe-bench-actor-calls" --monarch "$ROOT/.third_party/monarch/bin/python" "$@"
  elif [ -x "$BUILD_DIR/bin/troupe-bench-$name" ]; then
    "$BUILD_DIR/bin/troupe-bench-$name" "$@"
  elif [ -f "benchmarks/$name.py" ]; then
    scripts/run_python.sh "benchmarks/$name.py" "$@"
  else
    die "there is no benchmark called $name; there are: $(names | sort | paste -sd ' ')"
  fi
}

[ -d "$BUILD_DIR" ] || die "build/$PRESET is missing; run: make build"
if [ $# -gt 0 ]; then
  run "$@"
else
  scripts/run_python.sh benchmarks/_table.py --bin-dir "$BUILD_DIR/bin" --results "$BUILD_DIR/bench/results.jsonl"
fi
