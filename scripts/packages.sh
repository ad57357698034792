#!/usr/bin/env bash
# need_packages PACKAGE...: installs what is missing of these Debian packages, without questions; quick if nothing is.
# Sourced by the other scripts. On a system without dpkg it does nothing: CMake then names what it does not find.
need_packages() {
  command -v dpkg-query >/dev/null || return 0
  local package missing=()
  for package in "$@"; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) != installed ]]; then
      missing+=("$package")
    fi
  done
  ((${#missing[@]})) || return 0

  local as_root=()
  if (($(id -u) != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "packages: need root to install ${missing[*]}, and there is no sudo; run as root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    # Ask for a password only where somebody can type one.
    if ! sudo -n true 2>/dev/null && [[ ! -t 0 ]]; then
      echo "packages: sudo asks for a password; run first: sudo apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "packages: installing ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    echo "packages: apt-get failed: $(grep -E '^E:' "$log" | tail -1); whole log in $log" >&2
    return 1
  fi
  rm -f "$log"
}
