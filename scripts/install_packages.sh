#!/usr/bin/env bash
# Installs what scripts/packages.txt lists: `install_packages.sh build` for the library and the quickstart (the default),
# `install_packages.sh test` for that and the tests. Asks the package tools only for what is missing, so that a second run
# takes no time and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-build}" in
  build) wanted=" build " ;;
  test) wanted=" build test " ;;
  *) echo "usage: install_packages.sh [build|test]" >&2; exit 2 ;;
esac

# Names of one kind (apt, pip) in the wanted sections.
listed() {
  local section="" kind name _
  while read -r kind name _; do
    case "$kind" in
      "[build]" | "[test]") section="${kind:1:-1}" ;;
      "$1") if [[ "$wanted" == *" $section "* ]]; then echo "$name"; fi ;;
      "" | "#"* | apt | pip) ;;
      *) echo "scripts/packages.txt: unknown line '$kind $name'" >&2; return 1 ;;
    esac
  done < scripts/packages.txt
}

installed() { [[ "$(dpkg-query -W -f='${db:Status-Status} ' "$1" 2>/dev/null)" == *"installed "* ]]; }

install_apt() {
  local name missing=()
  for name in $(listed apt); do
    installed "$name" || missing+=("$name")
  done
  ((${#missing[@]} == 0)) && return
  local command=(apt-get install -y --no-install-recommends "${missing[@]}")
  if ((EUID != 0)); then
    echo "Missing Debian packages. Run this, then start again:" >&2
    echo "  sudo apt-get update && sudo ${command[*]}" >&2
    return 1
  fi
  echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  local log
  log="$(mktemp)"
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get update && "${command[@]}"; } > "$log" 2>&1 < /dev/null; then
    tail -n 30 "$log" >&2
    rm -f "$log"
    echo "The installation of Debian packages failed; the log's end is above." >&2
    return 1
  fi
  rm -f "$log"
}

# A virtual environment of the project, so that nothing of the system's Python changes.
install_pip() {
  local names missing
  names="$(listed pip)"
  [[ -z "$names" ]] && return
  if ! .venv/bin/python -m pip --version > /dev/null 2>&1; then
    echo "Making the Python environment .venv"
    rm -rf .venv
    python3 -m venv .venv
  fi
  # shellcheck disable=SC2086  # one word a package
  missing="$(.venv/bin/python - $names << 'PYTHON'
import sys
from importlib import metadata
for requirement in sys.argv[1:]:
    name, version = requirement.split("==")
    try:
        present = metadata.version(name)
    except metadata.PackageNotFoundError:
        present = None
    if present != version:
        print(requirement)
PYTHON
)"
  [[ -z "$missing" ]] && return
  echo "Installing Python packages:" $missing
  # shellcheck disable=SC2086
  .venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check $missing
}

install_apt
install_pip
