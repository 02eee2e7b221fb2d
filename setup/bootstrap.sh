#!/usr/bin/env bash
# Makes what must exist before Ansible can run: Debian packages, a Rust toolchain, the locked Python environment.
# Called by `make setup`; safe to call again: a second call compares stamps and changes nothing.
#   setup/bootstrap.sh            do it
#   setup/bootstrap.sh --python   only the Python environment: what figures, claims and report need
#   setup/bootstrap.sh --peers    only the packages of `PEERS=1 make bench`, which nothing else needs
#   setup/bootstrap.sh --counts   only those of `make counts`, likewise
#   setup/bootstrap.sh --lock     only make requirements.lock anew from requirements.in
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
TOOLS=.tools
RUST_DIRECTORIES=("$(dirname "$(command -v cargo || echo /usr/bin/cargo)")" /usr/bin)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'setup: FAILED: %s\n' "$*" >&2; exit 1; }

# --- Debian packages -------------------------------------------------------------------------------------------------

installed() { [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Whether a line of a list of packages asks for one that is missing.
missing() {
  local package=$1 condition=${2:-} argument=${3:-}
  case $condition in
    '') ;;
    unless-command) command -v "$argument" >/dev/null && return 1 ;;
    rust) [ -n "$(rust_directory)" ] && return 1 ;;
    *) fail "setup/*packages*.txt: unknown condition \"$condition\" of package $package: unless-command NAME or rust" ;;
  esac
  ! installed "$package"
}

# install_packages LIST...: install what the lists ask for and is missing.
install_packages() {
  command -v dpkg-query >/dev/null || fail "this is not a Debian system (no dpkg-query); Debian 12 is what is supported"
  local wanted=() package condition argument
  while read -r package condition argument; do
    case $package in ''|'#'*) continue ;; esac
    if missing "$package" "$condition" "$argument"; then wanted+=("$package"); fi
  done < <(cat "$@")
  [ ${#wanted[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; } ||
      fail "these Debian packages are missing and installing them needs root: run as root: apt-get install ${wanted[*]}"
    as_root=(sudo)
  fi
  say "installing Debian packages: ${wanted[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq || fail "apt-get update: see above"
  "${as_root[@]}" apt-get install -qq -y --no-install-recommends "${wanted[@]}" >"$TOOLS/apt.log" 2>&1 || {
    tail -n 20 "$TOOLS/apt.log" >&2
    fail "apt-get install ${wanted[*]}: log in $TOOLS/apt.log, its end above"
  }
}

# --- Rust ------------------------------------------------------------------------------------------------------------

# The first directory whose cargo is at least the workspace's rust-version; nothing when there is none.
rust_directory() {
  local wanted directory version
  wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
  for directory in "${RUST_DIRECTORIES[@]}"; do
    version=$("$directory/cargo" --version 2>/dev/null | cut -d' ' -f2) || continue
    if [ "$(printf '%s\n' "$wanted" "$version" | sort -V | head -n 1)" = "$wanted" ]; then
      echo "$directory"
      return
    fi
  done
}

record_rust() {
  local directory
  directory=$(rust_directory)
  [ -n "$directory" ] || fail "no cargo >= $(sed -n 's/^rust-version *= *//p' Cargo.toml): apt-get install cargo-web (Debian 12)"
  if [ "$(cat "$TOOLS/cargo-directory" 2>/dev/null)" != "$directory" ]; then
    echo "$directory" > "$TOOLS/cargo-directory"      # the Makefile puts it first on PATH
    say "Rust: $("$directory/cargo" --version) in $directory"
  fi
}

# --- Python ----------------------------------------------------------------------------------------------------------

python_311() {
  local candidate
  for candidate in /usr/bin/python3.11 "$(command -v python3.11 || true)" "$(command -v python3 || true)"; do
    if [ -x "$candidate" ] && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
    then echo "$candidate"; return; fi
  done
  fail "no Python 3.11 with the venv module: apt-get install python3 python3-venv (Debian 12)"
}

# The packages of the lock; the first lines, uv's own, are installed by pip. What uv cannot get (it reads no settings of
# pip, such as those of a mirror) pip gets, in ten times the time. Either checks every hash.
install_lock() {
  local checked=(--quiet --require-hashes --no-deps --only-binary :all:)
  local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check "${checked[@]}")
  awk '/^[a-z]/ { uv = /^uv==/ } uv' requirements.lock > "$TOOLS/uv.lock"
  "${pip[@]}" -r "$TOOLS/uv.lock" || fail "pip could not install uv, see above; the mirror that it asks may not have all of requirements.lock"
  "$VENV/bin/uv" pip install --no-config --python "$VENV/bin/python" "${checked[@]}" -r requirements.lock && return
  say "uv could not install them, see above; pip tries it (about a minute)"
  "${pip[@]}" -r requirements.lock || fail "pip could not install requirements.lock: see above"
}

# An environment is used only with the stamp of the lock that it was installed from, so an interrupted one is made anew.
install_python() {
  local stamp=$VENV/.installed-from wanted python
  [ ! -L "$VENV" ] || fail "$VENV is a link to $(readlink "$VENV"): another checkout uses that environment; remove the link"
  wanted="$(sha256sum < requirements.lock) $PWD"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    python=$(python_311)
    say "installing the locked Python packages into $VENV"
    "$python" -m venv --clear "$VENV"
    install_lock
    # The project's own packages are found where they are, without building them.
    printf '%s\n' "$PWD/drivers/runner" "$PWD/notebooks" > "$VENV/lib/python3.11/site-packages/anticache_eval.pth"
    "$VENV/bin/python" -m pip check --disable-pip-version-check >/dev/null || fail "the locked Python packages contradict each other: run $VENV/bin/pip check"
    echo "$wanted" > "$stamp"
  fi
}

make_lock() {
  install_python
  # --no-config and --no-emit-*: the file names no index, so that it serves behind any mirror.
  "$VENV/bin/uv" pip compile --quiet --no-config --upgrade --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
      --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
      --output-file requirements.lock requirements.in
}

# ---------------------------------------------------------------------------------------------------------------------

mkdir -p "$TOOLS"
if [ "${1:-}" = --lock ]; then make_lock; exit; fi
case $* in
  ''|--python|--peers|--counts) ;;
  *) fail "unknown argument \"$*\": none, --python, --peers, --counts or --lock" ;;
esac
exec 9> "$TOOLS/setup.lock"
flock -w 900 9 || fail "another set-up has been running for 15 minutes (lock $TOOLS/setup.lock)"
case ${1:-} in --peers|--counts) install_packages "setup/${1#--}-packages.txt"; exit ;; esac
if [ $# -eq 0 ]; then
  install_packages setup/debian-packages-python.txt setup/debian-packages.txt
  record_rust
else
  install_packages setup/debian-packages-python.txt
fi
install_python
