#!/usr/bin/env bash
# Create or update .venv with the tested versions. If nothing has changed, this does nothing.
# Usage: bash tools/setup_env.sh [EXTRAS]       (PYTHON=python3.11 chooses the interpreter)
# EXTRAS are optional dependencies of setup.py. "dev" installs what the tests need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-}
if [ -z "$python" ]; then
    for candidate in python3.11 python3 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
            python=$candidate
            break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "setup_env: Python 3.11 is needed and was not found; install it or set PYTHON" >&2
    exit 1
fi

extras=${1:-transfer,mmaction,teacher}
stamp=.venv/.sce_video_installed
wanted=$(cat setup.py requirements/constraints.txt sce_video/version.py | sha256sum | cut -d' ' -f1)
installed=$(cat "$stamp" 2>/dev/null || true)
if [ "$installed" = "$wanted dev" ]; then
    extras=dev  # which has everything
fi
if [ -x .venv/bin/python ] && [ "$installed" = "$wanted $extras" ]; then
    echo "setup_env: .venv is up to date"
    exit 0
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "setup_env: installing into .venv (a few minutes the first time)"
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
pip install --quiet -c requirements/constraints.txt setuptools wheel
# Install torch first, so that no other package selects another build of it.
pip install --quiet -c requirements/constraints.txt torch
pip install --quiet -c requirements/constraints.txt --no-build-isolation -e ".[$extras]"
# Install timm for the tests without torchvision. PyPI's build is for CUDA, and no network needs it.
if [ "$extras" = dev ]; then
    pip install --quiet -c requirements/constraints.txt --no-deps timm
fi
# Import mmengine once, because its first import writes a cache (of yapf) and several ranks must not
# do this together.
.venv/bin/python -c 'import mmengine, sce_video; print("setup_env: sce_video", sce_video.__version__)'
echo "$wanted $extras" >"$stamp"
