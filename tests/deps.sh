#!/usr/bin/env bash
# Installs what the tests and the documentation need and is missing: Debian packages, with sudo unless run by root, and
# Python packages in .venv, without root.
set -euo pipefail
cd "$(dirname "$0")/.."

debian=(gcc g++ libcmocka-dev clang-format cppcheck valgrind gdb binutils git python3 python3-venv
  doxygen libjs-mathjax chromium-headless-shell fonts-dejavu-core)
# Steps for arm64, and what runs them here.
[ "$(uname -m)" != x86_64 ] || debian+=(gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user)
python=(numpy pytest pytest-xdist matplotlib playwright nbclient ipykernel ruff
  sphinx==8.1.3 myst-parser==4.0.1 furo==2025.12.19 sphinx-copybutton==0.5.2 breathe==4.36.0 sphinx-revealjs==3.2.1 pygments==2.21.0
  axe-playwright-python==0.1.8)
status=0

install_debian() {
  local sudo=
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y "$@"
}

deps_debian() {
  local missing=() package
  for package in "${debian[@]}"; do
    [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "deps: all Debian packages are installed"
  elif ! command -v apt-get >/dev/null; then
    echo "deps: there is no apt-get (Debian, Ubuntu) here. Install these in another way: ${missing[*]}" >&2
    status=1
  else
    echo "deps: installing Debian packages: ${missing[*]}"
    install_debian "${missing[@]}" || {
      echo "deps: these are missing. Install them as root: apt-get install ${missing[*]}" >&2
      status=1
    }
  fi
}

deps_python() {
  .venv/bin/python -c 'import pip' 2>/dev/null || { echo "deps: making .venv" && python3 -m venv .venv; }
  # Found, not imported, which would take seconds.
  if .venv/bin/python -c 'import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, sys.argv[1:]))' \
    axe_playwright_python breathe furo ipykernel matplotlib myst_parser nbclient numpy playwright pytest ruff \
    sphinx_copybutton sphinx_revealjs xdist 2>/dev/null; then
    echo "deps: all Python packages are installed"
  else
    echo "deps: installing Python packages in .venv: ${python[*]}"
    .venv/bin/python -m pip install -q --no-compile "${python[@]}"
  fi
}

deps_debian
deps_python
exit $status
