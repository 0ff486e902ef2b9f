#!/usr/bin/env bash
# Configures and builds build/$PRESET (default: release), or only the targets given. Ninja and ccache make a second run
# a matter of a second.
. "$(dirname "$0")/lib.sh"

[ -x "$CMAKE" ] || CMAKE=$(command -v cmake) || die "cmake is missing; run: make install-deps"
version=$("$CMAKE" --version | sed -n '1s/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p')
if [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)" != 3.25 ]; then
  die "cmake $version is too old for CMakePresets.json (3.25 or newer); run: make install-deps"
fi

# CMake itself runs again when a CMakeLists.txt or the list of tests changes; only the first time is ours.
if [ ! -f "$BUILD_DIR/build.ninja" ]; then
  say "Configuring build/$PRESET"
  make_program=()
  [ -x /usr/bin/ninja ] && make_program=(-DCMAKE_MAKE_PROGRAM=/usr/bin/ninja)
  "$CMAKE" --preset "$PRESET" "${make_program[@]}" ||
    die "configuring failed; if a package is missing run: make install-deps, to start afresh run: make clean"
fi
say "Building build/$PRESET with $JOBS jobs"
"$CMAKE" --build "$BUILD_DIR" --parallel "$JOBS" ${1:+--target "$@"} ||
  die "the build failed; the first 'FAILED:' above names the file"
# As an installed package has it; else each process compiles all that it imports, where it may not write.
if [ -d "$BUILD_DIR/python" ]; then
  "$SYSTEM_PYTHON" -m compileall -q "$BUILD_DIR/python/troupe" || note "the Python modules could not be compiled ahead"
fi
