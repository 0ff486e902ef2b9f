#!/usr/bin/env bash
# Unpacks the headers (and licences) that scripts/requirements-cuda-headers.txt names into .third_party/cuda. A stamp
# holds the digest of the list, so that a second run does nothing. The packages carry GPU libraries too (some 400 MB to
# download); these are thrown away. Without the headers everything else is built, only without NCCL.
# TROUPE_NCCL_HEADERS=0 skips it.
. "$(dirname "$0")/lib.sh"

[ "${TROUPE_NCCL_HEADERS:-1}" = 0 ] && exit 0
list=scripts/requirements-cuda-headers.txt
target=$ROOT/.third_party/cuda
want=$(hash_of "$list" scripts/fetch_cuda_headers.sh)
[ "$(cat "$target/stamp" 2>/dev/null)" = "$want" ] && exit 0

say "Fetching the headers of NCCL and CUDA ($list)"
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
without() {
  note "$1; the build goes on without NCCL (to try again run: make install-deps)"
  exit 0
}
case $(uname -m) in
  x86_64) platforms=(--platform manylinux_2_18_x86_64 --platform manylinux2014_x86_64
    --platform manylinux2010_x86_64 --platform manylinux_2_17_x86_64) ;;
  aarch64) platforms=(--platform manylinux_2_18_aarch64 --platform manylinux2014_aarch64
    --platform manylinux_2_17_aarch64) ;;
  *) without "there are no packages for $(uname -m)" ;;
esac
"$VENV/bin/python" -m pip download --disable-pip-version-check --no-input --retries 3 --timeout 60 --progress-bar off \
  --quiet --no-deps --only-binary=:all: "${platforms[@]}" --dest "$temporary/wheels" -r "$list" ||
  without "they could not be downloaded"
# nvidia/<package>/include/... becomes include/..., and a licence keeps its package's name.
"$VENV/bin/python" - "$temporary" <<'PYTHON' || without "they could not be unpacked"
import pathlib, sys, zipfile

root = pathlib.Path(sys.argv[1])
for wheel in sorted((root / "wheels").glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            head, found, tail = name.partition("/include/")
            if found and head.startswith("nvidia/"):
                target = root / "cuda" / "include" / tail
            elif "icense" in name and ".dist-info/" in name:
                target = root / "cuda" / "licenses" / (wheel.name.split("-")[0] + ".txt")
            else:
                continue
            if not name.endswith("/"):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
for header in ("nccl.h", "cuda.h", "cuda_runtime.h"):
    if not (root / "cuda" / "include" / header).is_file():
        sys.exit(f"no {header} in the packages")
PYTHON
printf '%s' "$want" >"$temporary/cuda/stamp"
mkdir -p "$ROOT/.third_party"
rm -rf "$target"
mv "$temporary/cuda" "$target"
version=$(sed -n 's/#define NCCL_\(MAJOR\|MINOR\|PATCH\) //p' "$target/include/nccl.h" | paste -sd.)
note "the headers of NCCL $version are ready"
