#!/usr/bin/env bash
# Install a wheel into an empty environment, where neither mmaction2 nor mmcv is, and run its demo.
# Usage: bash tools/dev/check_wheel.sh [WHEEL]         (default: built here, in dist/)
#   PYTHON  interpreter of that environment (that of .venv)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=.venv/bin/python
[ -x "$python" ] || python=python3
wheel=${1:-}
if [ -z "$wheel" ]; then
    rm -rf build dist # an old build would be copied, too
    "$python" setup.py --quiet sdist # of which the wheel is built, as on an index of packages
    "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation \
        -w dist dist/*.tar.gz
    wheel=$(echo dist/*.whl)
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-$python}" -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install --quiet -c requirements/constraints.txt setuptools torch
pip install --quiet -c requirements/constraints.txt "$wheel"
pip check
"$folder/venv/bin/python" tools/dev/licences.py
du -h "$wheel"
wheel_commands=$folder/venv/bin
cd "$folder" # not in the clone: what runs is what was installed
"$wheel_commands/sce-video" demo --smoke --no-serve --out generated
"$wheel_commands/sce-video" finetune generated/run --train generated/videos/train --test generated/videos/test \
    --out generated/classifier --epochs 2
"$wheel_commands/sce-video" predict generated/classifier generated/videos/test --csv predictions.csv
"$wheel_commands/sce-video" index generated/videos/test --checkpoint demo --out index # of the package
if "$wheel_commands/python" -c 'import mmaction' 2>/dev/null; then
    echo "check_wheel: mmaction2 is there, so this shows nothing of an installation without it" >&2
    exit 1
fi
echo "check_wheel: $(basename "$wheel") works"
