#!/bin/sh
# Build .venv from the pinned requirements: install.sh [PYTHON], which is 3.11 or 3.12. Repeats are harmless.
set -eu

python=${1:-python3.11}
if ! command -v "$python" >/dev/null 2>&1; then python=python3; fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
    echo "verl-pivot needs Python 3.11 or 3.12 here and $python is $("$python" --version 2>&1 | head -n 1);" \
        "install one (apt-get install python3.11 python3.11-venv), or run make with PYTHON=/path/to/python3.12" >&2
    exit 1
fi

version='import sys; print(*sys.version_info[:2], sep=".")'
if [ -x .venv/bin/python ] && [ "$(.venv/bin/python -c "$version")" != "$("$python" -c "$version")" ]; then
    echo ".venv is of Python $(.venv/bin/python -c "$version"), not $("$python" -c "$version"): remove it and run make" \
        "again, or run make with PYTHON=.venv/bin/python" >&2
    exit 1
fi

# Install a package of the system, with new lists of packages where it is not in those that are here.
apt_install() {
    { apt-get install -y -qq "$@" || { apt-get update -qq && apt-get install -y -qq "$@"; }; } >/dev/null
}

# The sandbox needs bubblewrap; everything else is in the virtual environment.
if ! command -v bwrap >/dev/null 2>&1; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing bubblewrap ..."
        apt_install bubblewrap
    else
        echo "bubblewrap is missing; install it with: sudo apt-get install -y bubblewrap" >&2
    fi
fi

# Tests of pages need a browser; they skip without it.
if ! command -v chromium-headless-shell >/dev/null 2>&1; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing chromium-headless-shell, 90 MB ..."
        apt_install --no-install-recommends chromium-headless-shell ||
            echo "chromium-headless-shell cannot be installed here: tests of pages will be skipped" >&2
    else
        echo "chromium-headless-shell is missing, so that tests of pages will be skipped; install it with:" \
            "sudo apt-get install -y --no-install-recommends chromium-headless-shell" >&2
    fi
fi

echo "building .venv with Python $("$python" -c "$version"): about 200 pinned packages, two to three minutes ..."
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile -r requirements/cpu.txt
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

# The site's packages have an environment of their own, so that they decide on no version of what training runs with.
echo "building .venv/docs: 25 small packages and the icons of a theme, 88 MB ..."
[ -x .venv/docs/bin/python ] || "$python" -m venv --without-pip .venv/docs
.venv/bin/python -m pip --python .venv/docs/bin/python install --quiet --disable-pip-version-check --no-deps \
    --no-compile -r requirements/docs.txt ||
    echo "the packages of the site are missing: make docs needs them, and its test is skipped" >&2

# Where the package index serves torch's CUDA build only, its libraries are missing after --no-deps.
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    echo "the torch that pip found does not import on this machine: point PIP_EXTRA_INDEX_URL at PyTorch's index of" \
        "CPU builds, remove .venv and run make again" >&2
    exit 1
fi
