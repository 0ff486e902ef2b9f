#!/usr/bin/env bash
# Installs Monarch, without torch, into .third_party/monarch, a virtual environment of its own. Only the benchmark
# ray_calls needs it, as a reference.
. "$(dirname "$0")/lib.sh"

ENVIRONMENT=$ROOT/.third_party/monarch
[ ! -x "$ENVIRONMENT/bin/python" ] || exit 0

say "Installing Monarch"
log=$ROOT/.third_party/monarch.log
mkdir -p "$ROOT/.third_party"
"$SYSTEM_PYTHON" -m venv "$ENVIRONMENT"
"$ENVIRONMENT/bin/pip" install --quiet torchmonarch >> "$log" 2>&1 || {
  rm -rf "$ENVIRONMENT"
  die "Monarch was not installed; $log says why"
}
say "$("$ENVIRONMENT/bin/pip" list 2> /dev/null | grep torchmonarch) is in ${ENVIRONMENT#"$ROOT"/}"
