# Shared by the scripts of this folder: where things are, how progress and failures are told.
# Sourced, never run.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

PRESET=${PRESET:-release}
BUILD_DIR=$ROOT/build/$PRESET
VENV=$ROOT/.venv
SYSTEM_PYTHON=/usr/bin/python3
JOBS=${JOBS:-$(nproc)}
# Debian's own tools first: a shim of the same name in PATH may belong to another environment.
CMAKE=${CMAKE:-/usr/bin/cmake}
CTEST=${CTEST:-/usr/bin/ctest}

say() { printf '==> %s\n' "$*" >&2; }
note() { printf '    %s\n' "$*" >&2; }
# One sentence: what failed, and what to do next.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# hash_of FILE...: one digest of names and contents.
hash_of() { sha256sum -- "$@" | sha256sum | cut -c1-32; }

# Runs a command as root, through sudo where that is needed.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    die "installing Debian packages needs root and there is no sudo; run as root: scripts/install_debian.sh"
  fi
}
