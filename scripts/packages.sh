# Sourced by the scripts that install Debian packages.
#
#   need PACKAGE TEST...   notes the package unless the test command succeeds
#   install_missing        installs what was noted, or says what to install
#   as_root COMMAND...     runs it by sudo, unless this is root

missing=()

need() {
  "${@:2}" >/dev/null 2>&1 || missing+=("$1")
}

install_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    echo "there is no apt-get here; install these yourself, then run this again: ${missing[*]}" >&2
    return 1
  fi
  echo "installing Debian packages: ${missing[*]}"
  as_root apt-get -q update >/dev/null
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "there is no sudo; as root, run: $*" >&2
    return 1
  fi
}

# Stops with the remedy unless a Rust toolchain of at least 1.88 is there.
need_rust() {
  local have
  have=$(cargo --version 2>/dev/null | cut -d' ' -f2 || true)
  if [ -z "$have" ] || [ "$(printf '%s\n' 1.88 "$have" | sort -V | head -n 1)" != 1.88 ]; then
    echo "Rust 1.88 or newer is needed, ${have:-none} is installed; get it from https://rustup.rs, or: rustup update stable" >&2
    return 1
  fi
}
