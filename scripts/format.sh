#!/usr/bin/env bash
# Formats the C++ sources in place and lets ruff mend what it can in the Python ones.
. "$(dirname "$0")/lib.sh"

git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' | xargs -0 -r clang-format-14 -i
"$VENV/bin/ruff" check --fix --quiet .
