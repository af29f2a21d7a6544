#!/bin/bash
# Puts Drowse to work on this machine.
#
#   ./install.sh --local [--once] [--state DIR]
#
#   --local      build it, start a fleet of two nodes on loopback, and show what a space does
#   --once       end after the demonstration
#   --state DIR  where the fleet keeps its state (default ./.drowse)
#
# Runs as root on Debian with cargo. Packages that are missing are installed with apt-get; the base image of spaces is
# kept in /var/lib/drowse/templates (DROWSE_TEMPLATES).
set -euo pipefail

say() { printf '  %-13s %-56s %s\n' "$1" "$2" "${3:-}" | sed 's/ *$//'; }
fail() { echo "error: $*" >&2; exit 1; }
usage() { echo "error: $*" >&2; exit 64; }

# 42s, or 2m 41s.
clock() { if [ "$1" -lt 60 ]; then echo "$1s"; else echo "$(($1 / 60))m $(($1 % 60))s"; fi; }

# Runs a long command into a log; a person sees the seconds pass, and the end of the log if it fails.
quietly() {
  local label=$1 what=$2 log=$3 began=$SECONDS child
  shift 3
  "$@" >"$log" 2>&1 </dev/null &
  child=$!
  # A child in the background does not hear Ctrl-C.
  trap 'kill "$child" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$child" 2>/dev/null; do
    [ ! -t 1 ] || printf '\r  %-13s %-56s %s ' "$label" "$what" "$(clock $((SECONDS - began)))"
    sleep 0.2
  done
  [ ! -t 1 ] || printf '\r\033[K'
  wait "$child" || { tail -n 30 "$log" >&2; fail "$label failed; the whole log is $log"; }
  trap - INT TERM
}

# Installs the packages whose tools are missing.
packages() {
  local missing=() pair
  for pair in runc:runc mkfs.ext4:e2fsprogs losetup:mount mmdebstrap:mmdebstrap b3sum:b3sum curl:curl cc:build-essential; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
  if [ ${#missing[@]} = 0 ]; then
    say packages "nothing is missing"
    return
  fi
  command -v apt-get >/dev/null || fail "${missing[*]} are missing and this machine has no apt-get; install them and try again."
  local began=$SECONDS log
  log=$(mktemp /tmp/drowse-packages-XXXXXX)
  # The lists of a fresh machine are empty or old: a second try brings them.
  if ! DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null; then
    quietly packages "updating the lists of packages" "$log" apt-get update
    quietly packages "installing ${missing[*]}" "$log" \
      env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
  fi
  rm -f "$log"
  local names="${missing[*]}"
  say packages "${names// /, } installed" "$(clock $((SECONDS - began)))"
}

build() {
  local began=$SECONDS
  mkdir -p "$target"
  quietly build "compiling, some minutes the first time" "$target/install-build.log" \
    cargo build --release --locked --workspace --bins
  say build "$("$bin/drowse" --version) (release)" "$(clock $((SECONDS - began)))"
  # A shell finds the command where the README says it is.
  ln -sfn "$bin/drowse" drowse
}

image() {
  local began=$SECONDS size
  quietly "base image" "debian 12, about 40 s the first time" "$target/install-image.log" \
    deploy/base/build --templates "$templates"
  size=$(grep -o '"sizeBytes":[0-9]*' "$templates/base/manifest.json" | cut -d: -f2)
  say "base image" "debian 12, $((size / 1000000)) MB" "$(clock $((SECONDS - began)))"
}

# Ends the fleet, which ends its spaces. Safe to call twice.
stop() {
  [ -n "${fleet:-}" ] || return 0
  kill -TERM "$fleet" 2>/dev/null || true
  wait "$fleet" 2>/dev/null || true
  fleet=
  say stopped "spaces stay in $shown"
}

start() {
  local began=$SECONDS line
  trap 'echo; stop; exit 130' INT
  trap 'stop; exit 143' TERM HUP
  trap 'stop' EXIT
  # In a session of its own, so that Ctrl-C reaches it through the trap alone, once.
  # Its first line comes when every node takes spaces; without one it has said why on standard error.
  exec {told}< <(DROWSE_TEMPLATES=$templates exec setsid "$bin/drowse" up --nodes 2 --state "$state" </dev/null)
  fleet=$!
  read -r -t 90 line <&"$told" || { stop >/dev/null; exit 1; }
  say fleet "gateway $(cat "$state/endpoint"), 2 nodes, state in $shown" "$(clock $((SECONDS - began)))"
}

next_steps() {
  local with=
  [ "$shown" = ./.drowse ] || with=" --state $shown"
  cat <<END

Your fleet is up. In another terminal, in this directory:
  ./drowse space exec hello$with -- uname -a     run something inside
  ./drowse space ls$with                         what runs, and why
  curl -sH @$shown/auth -d '{"name":"hello"}' $(cat "$state/endpoint")/acquireSpace
Ctrl-C stops it. Spaces stay in $shown.
END
}

main() {
  local mode='' once='' state=''
  # Read by the functions above, and by the trap that runs after this one has returned.
  fleet='' shown='' target='' bin='' templates=''
  while [ $# -gt 0 ]; do
    case $1 in
      --local) mode=local ;;
      --once) once=yes ;;
      --state) [ -n "${2:-}" ] || usage "--state needs a directory."; state=$2; shift ;;
      --role | --role=*) usage "--role is not built yet; docs/operate.md says how to run a gateway and nodes by hand. Nothing was changed." ;;
      -h | --help) sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; exit 0 ;;
      *) usage "unknown argument $1; ./install.sh --help lists what there is. Nothing was changed." ;;
    esac
    shift
  done
  [ -n "$mode" ] || usage "say --local to start a fleet on this machine; ./install.sh --help says more. Nothing was changed."
  [ "$(uname -s)" = Linux ] || fail "Drowse runs on Linux, this is $(uname -s). Nothing was changed."
  [ "$(id -u)" = 0 ] || fail "spaces need root on this machine; run it as root. Nothing was changed."
  [ -n "${BASH_SOURCE[0]:-}" ] || fail "run it from a clone of the repository: ./install.sh --local. Nothing was changed."
  command -v cargo >/dev/null || fail "cargo is not installed; https://rustup.rs installs it. Nothing was changed."

  # A directory that is named is meant from where the caller stands.
  [ -z "$state" ] || state=$(realpath -m -- "$state")
  cd "$(dirname "${BASH_SOURCE[0]}")"
  [ -f Cargo.lock ] || fail "$PWD is no clone of the repository. Nothing was changed."
  if [ -z "$state" ] || [ "$state" = "$PWD/.drowse" ]; then
    state=$PWD/.drowse shown=./.drowse
  else
    shown=$state
  fi
  target=${CARGO_TARGET_DIR:-$PWD/target}
  case $target in /*) ;; *) target=$PWD/$target ;; esac
  bin=$target/release
  templates=${DROWSE_TEMPLATES:-/var/lib/drowse/templates}

  packages
  build
  image
  start
  echo
  "$bin/drowse" demo --state "$state"
  if [ -n "$once" ]; then
    echo
    stop
    return
  fi
  next_steps
  # Ends when a signal comes, or when the fleet ends by itself.
  wait "$fleet" || { fleet=; fail "the fleet ended by itself."; }
}

main "$@"
