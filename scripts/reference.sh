#!/usr/bin/env bash
# Writes the API reference from the docstrings and headers: build/reference/python (pdoc) and build/reference/cpp
# (doxygen). Needs a finished build.
. "$(dirname "$0")/lib.sh"

tools=$ROOT/.third_party/reference-tools
want=$(hash_of scripts/requirements-reference.txt)
if [ "$(cat "$tools/stamp" 2>/dev/null)" != "$want" ]; then
  say "Setting up the tools of the reference (scripts/requirements-reference.txt)"
  rm -rf "$tools"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check --target "$tools" -r scripts/requirements-reference.txt ||
    die "pdoc could not be installed; check the network, then run: make reference"
  printf '%s' "$want" >"$tools/stamp"
fi
command -v doxygen >/dev/null 2>&1 || as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y \
  --no-install-recommends doxygen || die "doxygen could not be installed; run: apt-get install doxygen"

out=$ROOT/build/reference
rm -rf "$out"
mkdir -p "$out/cpp"
say "Python"
PYTHONPATH=$BUILD_DIR/python:$tools "$VENV/bin/python" -m pdoc --no-show-source --docformat google -o "$out/python" \
  troupe || die "pdoc failed; the lines above say why"
say "C++"
# Comments of this project are plain // blocks above what they describe.
doxygen - >"$out/doxygen.log" 2>&1 <<DOXYGEN || die "doxygen failed; see $out/doxygen.log"
PROJECT_NAME = Troupe
INPUT = include/troupe actors collective_groups collective_groups/torch runtime/result.h \\
  runtime/error.h
FILE_PATTERNS = *.h
INPUT_FILTER = "sed -e s,^\([[:space:]]*\)//\([^/]\),\1///\2,"
EXTRACT_ALL = YES
GENERATE_LATEX = NO
QUIET = YES
WARNINGS = NO
OUTPUT_DIRECTORY = $out/cpp
DOXYGEN
say "The reference is in build/reference: python/index.html and cpp/html/index.html"
