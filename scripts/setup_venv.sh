#!/usr/bin/env bash
# Makes .venv from Debian's Python with the packages of scripts/requirements-*.txt. A stamp holds the digest of the
# lists, so that a second run does nothing. Where torch cannot be downloaded, Debian's torch serves instead.
. "$(dirname "$0")/lib.sh"

[ -x "$SYSTEM_PYTHON" ] || die "$SYSTEM_PYTHON is missing; run: make install-deps"
stamp=$VENV/.troupe-stamp
lists=(scripts/requirements-venv.txt scripts/requirements-torch.txt)
want="$(hash_of "${lists[@]}" scripts/setup_venv.sh) $("$SYSTEM_PYTHON" -V)"
[ -x "$VENV/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && exit 0

# make_venv OPTION...: a fresh .venv.
make_venv() {
  rm -rf "$VENV"
  "$SYSTEM_PYTHON" -m venv "$@" "$VENV" || die "python3 -m venv failed; run: make install-deps"
}
pip_install() {
  "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --retries 3 --timeout 60 \
    --progress-bar off "$@"
}

say "Setting up .venv (Python packages of scripts/requirements-*.txt)"
# A half-made or outdated folder is not repaired but replaced: the result is then that of a first run.
make_venv
if ! pip_install -r scripts/requirements-torch.txt; then
  note "torch could not be downloaded; using Debian's python3-torch in .venv instead"
  make_venv --system-site-packages
  "$VENV/bin/python" -c 'import torch' 2>/dev/null ||
    die "there is neither a download of torch nor Debian's; check the network, then run: make install-deps"
fi
pip_install -r scripts/requirements-venv.txt ||
  die "the Python packages named above could not be downloaded; check the network, then run: make install-deps"
printf '%s' "$want" >"$stamp"
versions='import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
note ".venv is ready: $("$VENV/bin/python" -c "$versions" 2>/dev/null)"
