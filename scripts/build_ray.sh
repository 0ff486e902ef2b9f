#!/usr/bin/env bash
# Installs Ray into .third_party/ray, a virtual environment of its own. Only the benchmark ray_calls needs it, as a
# reference.
. "$(dirname "$0")/lib.sh"

ENVIRONMENT=$ROOT/.third_party/ray
[ ! -x "$ENVIRONMENT/bin/ray" ] || exit 0

say "Installing Ray"
log=$ROOT/.third_party/ray.log
mkdir -p "$ROOT/.third_party"
"$SYSTEM_PYTHON" -m venv "$ENVIRONMENT"
"$ENVIRONMENT/bin/pip" install --quiet ray cloudpickle numpy >> "$log" 2>&1 || {
  rm -rf "$ENVIRONMENT"
  die "Ray was not installed; $log says why"
}
say "$("$ENVIRONMENT/bin/python" -c 'import ray; print("Ray", ray.__version__)') is in ${ENVIRONMENT#"$ROOT"/}"
