#!/usr/bin/env bash
# Builds Horovod into .third_party/horovod: a virtual environment over Debian's Python and torch. Only the benchmark
# training_recovery needs it, as a reference; it takes some minutes.
. "$(dirname "$0")/lib.sh"

VERSION=0.28.1
ENVIRONMENT=$ROOT/.third_party/horovod
[ ! -x "$ENVIRONMENT/bin/horovodrun" ] || exit 0

"$SYSTEM_PYTHON" -c 'import torch' 2>/dev/null || die "Debian's torch is missing; run: make install-deps"
say "Building Horovod $VERSION"
log=$ROOT/.third_party/horovod.log
mkdir -p "$ROOT/.third_party"
"$SYSTEM_PYTHON" -m venv --system-site-packages "$ENVIRONMENT"
install() { "$ENVIRONMENT/bin/pip" install --quiet "$@" >> "$log" 2>&1; }
# Debian's cmake: newer ones refuse what Horovod's Gloo asks for.
export PATH="$ENVIRONMENT/bin:/usr/bin:/bin" MAKEFLAGS=-j$JOBS HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 \
  HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_CPU_OPERATIONS=GLOO
install cloudpickle psutil pyyaml packaging && install --no-build-isolation --no-deps "horovod==$VERSION" || {
  rm -rf "$ENVIRONMENT"
  die "Horovod was not built; $log says why"
}
say "Horovod $VERSION is in ${ENVIRONMENT#"$ROOT"/}"
