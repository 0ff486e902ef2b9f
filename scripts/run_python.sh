#!/usr/bin/env bash
# Runs a Python program of the project with .venv's interpreter and the built package: run_python.sh FILE ARG...
. "$(dirname "$0")/lib.sh"

[ $# -ge 1 ] || die "usage: scripts/run_python.sh FILE ARG..."
[ -f "$1" ] || die "$1 is not in this checkout"
[ -x "$VENV/bin/python" ] || die ".venv is missing; run: make install-deps"
[ -d "$BUILD_DIR/python/troupe" ] || die "the Python package is not built; run: make build"
export PYTHONPATH=$BUILD_DIR/python${PYTHONPATH:+:$PYTHONPATH}
exec "$VENV/bin/python" "$@"
