#!/bin/bash
# Puts Drowse to work on this machine.
#
#   ./install.sh [--domain NAME] [--listen HOST:PORT]      the gateway of a fleet, with Caddy, and a node
#   ./install.sh --role node --gateway URL                 a node of a fleet
#   ./install.sh                                           again: upgrade, and repair what the machine needs
#   ./install.sh --uninstall [--purge]                     take it off; --purge takes spaces, ledgers and token too
#   ./install.sh --local [--once] [--state DIR]            a fleet of two nodes in this directory, to try it
#
#   --from DIR|TARBALL     use built binaries instead of building from source
#   --gateway URL          where a node finds its gateway, such as http://10.0.0.1:4677
#   --node-id ID           what the node is called (default: the machine's name)
#   --node-endpoint URL    where the gateway reaches the node (default: http://ADDRESS:4676)
#   --region NAME          a label of the node
#   --domain NAME          serve spaces under this domain over TLS, by Caddy on ports 80 and 443
#   --tls acme|internal    certificates of Let's Encrypt (default), or of an authority of Caddy's own
#   --listen HOST:PORT     where the gateway listens for nodes (default: this machine's private address, port 4677)
#   --new-fleet            found a fleet although the token was given; said once, at the first gateway of a new fleet
#   --swap SIZE            keep a swap file of SIZE, such as 8GiB, for the memory of spaces that sleep
#   --zram SIZE            keep compressed memory of SIZE for the same
#   --status-dir DIR       write how far it is to DIR/status.json, for the node whose turn it is to be upgraded
#
# The token is taken from DROWSE_TOKEN or the file DROWSE_TOKEN_FILE, or made on the gateway's machine; it is kept in
# /etc/drowse/token and never changed. What was said once need not be said again: it is in /etc/drowse/*.env.
# Runs as root on Debian. A role needs systemd; building needs cargo.
set -euo pipefail

say() { printf '  %-13s %-56s %s\n' "$1" "$2" "${3:-}" | sed 's/ *$//'; }
fail() { failed=$*; echo "error: $*" >&2; exit 1; }
usage() { echo "error: $*" >&2; exit 64; }
# What is refused before anything was touched.
refuse() { failed="$* Nothing was changed."; echo "error: $failed" >&2; exit 1; }
misuse() { echo "error: $* Nothing was changed." >&2; exit 64; }

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

# Installs the packages whose tools are missing; each is given as tool:package.
packages() {
  local missing=() pair
  for pair in "$@"; do
    # A program: one is called like a function of this script.
    type -P "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
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
  # A package may be there without what was in it.
  for pair in "$@"; do
    type -P "${pair%%:*}" >/dev/null || fail "${pair#*:} is installed and its ${pair%%:*} is not there; apt-get install --reinstall ${pair#*:}"
  done
  local names="${missing[*]}"
  say packages "${names// /, } installed" "$(clock $((SECONDS - began)))"
}

build() {
  local began=$SECONDS
  mkdir -p "$target"
  quietly build "compiling, some minutes the first time" "$target/install-build.log" \
    cargo build --release --locked --workspace --bins
  say build "$("$bin/drowse" --version) (release)" "$(clock $((SECONDS - began)))"
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
  local began=$SECONDS
  trap 'echo; stop; exit 130' INT
  trap 'stop; exit 143' TERM HUP
  trap 'stop' EXIT
  # In a session of its own, so that Ctrl-C reaches it through the trap alone, once.
  # Its first line comes when every node takes spaces; without one it has said why on standard error.
  exec {told}< <(DROWSE_TEMPLATES=$templates exec setsid "$bin/drowse" up --nodes 2 --state "$state" </dev/null)
  fleet=$!
  read -r -t 90 _ <&"$told" || { stop >/dev/null; exit 1; }
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

# What the machine knows already: what is said in a settings file, empty when nothing.
setting() { [ ! -f "$1" ] || unquoted "$(sed -n "s/^$2=//p" "$1" | tail -n 1)"; }

# As systemd reads a value.
unquoted() {
  local value=${1%"${1##*[![:space:]]}"}
  case $value in \"*\" | \'*\') value=${value:1:-1} ;; esac
  printf '%s\n' "$value"
}

# The parts of URLs and of host:port.
host_of() {
  local rest=${1#*://}
  rest=${rest%%/*}
  case $rest in *']') echo "$rest" ;; *) echo "${rest%:*}" ;; esac
}
port_of() { echo "${1##*:}"; }
is_loopback() { case $1 in localhost | 127.* | '[::1]' | ::1 | 0.0.0.0 | '[::]') return 0 ;; *) return 1 ;; esac; }
is_origin() { [[ $1 =~ ^http://([a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}/?$ ]]; }
# An address and no name: systemd listens there.
is_listen() { [[ $1 =~ ^(([0-9]{1,3}\.){3}[0-9]{1,3}|\[[0-9a-fA-F:]+\]):([0-9]{1,5})$ ]] && [ "${BASH_REMATCH[3]}" -ge 1 ] && [ "${BASH_REMATCH[3]}" -le 65535 ]; }
is_domain() { [[ $1 =~ ^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$ ]] && [ ${#1} -le 189 ]; }

# The address this machine is reached at: towards $1, or by default.
own_address() {
  local found=
  found=$(ip -o route get "${1:-192.0.2.1}" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p' | head -n 1) || true
  [ -n "$found" ] || found=$(ip -4 -o address show scope global 2>/dev/null | sed -n 's/.* inet \([0-9.]*\).*/\1/p' | head -n 1) || true
  echo "$found"
}
is_private() {
  case $1 in
    10.* | 192.168.* | 172.1[6-9].* | 172.2[0-9].* | 172.3[01].*) return 0 ;;
    100.6[4-9].* | 100.[789][0-9].* | 100.1[01][0-9].* | 100.12[0-7].*) return 0 ;;
    *) return 1 ;;
  esac
}

# SIZE in bytes, such as 8GiB.
bytes() {
  [[ $1 =~ ^([0-9]{1,6})(MiB|GiB)$ ]] || return 1
  case ${BASH_REMATCH[2]} in MiB) echo $((BASH_REMATCH[1] << 20)) ;; GiB) echo $((BASH_REMATCH[1] << 30)) ;; esac
}

# Flags that name something: their value must be well formed, whatever the machine is.
judge_flags() {
  [ -z "$role" ] || [ "$role" = node ] || [ "$role" = gateway ] || misuse "--role is $role; it is gateway or node."
  [ -z "$gateway" ] || is_origin "$gateway" ||
    misuse "--gateway is $gateway; write it like http://10.0.0.1:4677, with its port, without TLS and credentials, on a network you trust."
  [ -z "$endpoint" ] || is_origin "$endpoint" || misuse "--node-endpoint is $endpoint; write it like http://10.0.0.7:4676, with its port."
  [ -z "$node_id" ] || [[ $node_id =~ ^[a-z0-9][a-z0-9-]{0,62}$ ]] ||
    misuse "--node-id is $node_id; it is lower-case letters, digits and hyphens, at most 63."
  [ -z "$region" ] || [[ $region =~ ^[a-zA-Z0-9._-]{1,63}$ ]] || misuse "--region is $region; it is letters, digits, '.', '_' and '-'."
  [ -z "$domain" ] || is_domain "$domain" || misuse "--domain is $domain; write a lower-case domain name without port."
  [ -z "$tls" ] || [ "$tls" = acme ] || [ "$tls" = internal ] || misuse "--tls is $tls; it is acme or internal."
  [ -z "$listen" ] || is_listen "$listen" || misuse "--listen is $listen; write it like 10.0.0.1:4677."
  [ -z "$swap" ] || bytes "$swap" >/dev/null || misuse "--swap is $swap; write it like 8GiB."
  [ -z "$zram" ] || bytes "$zram" >/dev/null || misuse "--zram is $zram; write it like 4GiB."
  [ -z "$purge" ] || [ -n "$uninstall" ] || misuse "--purge goes with --uninstall."
}

# A flag that says other than the settings file: the file is the operator's, and no flag overrules it.
agrees() {
  local flag=$1 said=$2 file=$3 variable=$4 kept
  kept=$(setting "$file" "$variable")
  [ -z "$said" ] || [ ! -f "$file" ] || [ "$said" = "$kept" ] ||
    misuse "$flag says $said and $file says ${kept:-nothing}; to change it, edit $variable there and run me again."
}

# Which role this machine has or gets, and whether the flags fit it.
judge_role() {
  local kept=''
  if [ -f "$etc/gateway.env" ]; then kept=gateway; elif [ -f "$etc/node.env" ]; then kept=node; fi
  [ -z "$kept" ] || [ -z "$role" ] || [ "$role" = "$kept" ] ||
    misuse "--role is $role and this machine has the role $kept; --uninstall comes first."
  role=${kept:-${role:-gateway}}
  if [ "$role" = gateway ]; then
    [ -z "$gateway" ] || misuse "--gateway is for --role node; this machine is the gateway."
    [ -z "$endpoint" ] || misuse "--node-endpoint is for --role node; the node of the gateway's machine is reached where the gateway is."
  else
    [ -z "$domain" ] || misuse "--domain is for the gateway's machine."
    [ -z "$tls" ] || misuse "--tls is for the gateway's machine."
    [ -z "$listen" ] || misuse "--listen is for the gateway's machine."
    [ -z "$new_fleet" ] || misuse "--new-fleet is for the gateway's machine."
    gateway=${gateway%/} endpoint=${endpoint%/}
    if [ -z "$kept" ]; then
      [ -n "$gateway" ] || misuse "--role node needs --gateway URL."
      ! is_loopback "$(host_of "$gateway")" ||
        misuse "--gateway $gateway is this machine itself; give the address at which other machines reach the gateway."
    else
      [ -n "$(setting "$etc/node.env" DROWSE_GATEWAY)" ] || refuse "DROWSE_GATEWAY is not set in $etc/node.env; a node needs it."
    fi
    [ -z "$endpoint" ] || ! is_loopback "$(host_of "$endpoint")" || misuse "--node-endpoint $endpoint is loopback; the gateway could not reach it."
  fi
  [ -n "$domain" ] || [ -z "$tls" ] || [ -n "$kept" ] || misuse "--tls goes with --domain."
  agrees --gateway "$gateway" "$etc/node.env" DROWSE_GATEWAY
  agrees --node-id "$node_id" "$etc/node.env" DROWSE_NODE_ID
  agrees --node-endpoint "$endpoint" "$etc/node.env" DROWSE_NODE_ENDPOINT
  agrees --region "$region" "$etc/node.env" DROWSE_NODE_REGION
  agrees --domain "$domain" "$etc/gateway.env" DROWSE_DOMAIN
  agrees --listen "$listen" "$etc/gateway.env" DROWSE_GATEWAY_LISTEN
  agrees --tls "$tls" "$etc/host.env" TLS
  agrees --swap "$swap" "$etc/host.env" SWAP
  agrees --zram "$zram" "$etc/host.env" ZRAM
  [ -z "$new_fleet" ] || ! holds_fleet ||
    misuse "--new-fleet is for the first start of a first gateway, and $data/gateway holds a fleet."
}

# Whether the gateway of this machine has founded or found its fleet. Its database is there before.
holds_fleet() {
  [ -e "$data/gateway/gateway.db" ] || return 1
  command -v sqlite3 >/dev/null || return 0
  local found
  found=$(sqlite3 "file:$data/gateway/gateway.db?mode=ro" 'select count(*) from fleet' 2>/dev/null) || true
  [ "${found:-0}" != 0 ]
}

judge_machine() {
  local kernel arch
  [ "$(uname -s)" = Linux ] || refuse "Drowse runs on Linux, this is $(uname -s)."
  [ "$(id -u)" = 0 ] || refuse "it changes the machine; run it as root."
  arch=$(uname -m)
  case $arch in x86_64 | aarch64) ;; *) refuse "Drowse runs on x86_64 and aarch64, this machine is $arch." ;; esac
  [ -d /run/systemd/system ] || refuse "a role needs systemd as pid 1; without it there is ./install.sh --local."
  kernel=$(uname -r)
  [[ $kernel =~ ^([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 1000 + BASH_REMATCH[2] >= 6001)) ||
    refuse "spaces need Linux 6.1 or newer, this is $kernel."
  has_file_system overlay || refuse "the kernel has no overlay file system (CONFIG_OVERLAY_FS)."
  [ -e /dev/loop-control ] || modprobe -n loop 2>/dev/null || refuse "the kernel has no loop devices (CONFIG_BLK_DEV_LOOP)."
  [ -e /proc/self/ns/user ] || refuse "the kernel has no user namespaces (CONFIG_USER_NS)."
  local controller
  for controller in cpu memory pids; do
    has_controller $controller || refuse "no cgroup tree has the controller $controller; see cgroup_enable= of the kernel's command line."
  done
}
has_file_system() { grep -qwF "$1" /proc/filesystems || modprobe -n "$1" 2>/dev/null; }
has_controller() {
  ! grep -qw "$1" /sys/fs/cgroup/cgroup.controllers 2>/dev/null || return 0
  awk -v name="$1" '$3 == "cgroup" && ("," $4 ",") ~ ("," name ",") { found = 1 } END { exit !found }' /proc/mounts
}

# The token that is given must be the one that is here, and strong; a node cannot make one up.
judge_token() {
  local given=${DROWSE_TOKEN:-}
  if [ -n "${DROWSE_TOKEN_FILE+set}" ]; then
    [ -z "${DROWSE_TOKEN+set}" ] || misuse "DROWSE_TOKEN and DROWSE_TOKEN_FILE are both set; keep one of them."
    [ -r "$DROWSE_TOKEN_FILE" ] || refuse "the token file $DROWSE_TOKEN_FILE cannot be read."
    given=$(<"$DROWSE_TOKEN_FILE")
  fi
  # Whoever names a token means a fleet that has it: an empty one must not found another.
  [ -z "${DROWSE_TOKEN+set}${DROWSE_TOKEN_FILE+set}" ] || [ -n "$given" ] ||
    refuse "the token that is given is empty; without one, leave DROWSE_TOKEN and DROWSE_TOKEN_FILE unset."
  token=
  [ ! -f "$etc/token" ] || token=$(<"$etc/token")
  if [ -n "$token" ]; then
    [ -z "$given" ] || [ "$given" = "$token" ] || refuse "the token that is given is not the one in $etc/token, which is never changed."
    made_token=''
  elif [ -n "$given" ]; then
    token=$given made_token=''
  elif [ "$role" = node ]; then
    refuse "a node needs the fleet's token: set DROWSE_TOKEN, or DROWSE_TOKEN_FILE to a file that holds it."
  elif [ -f "$data/gateway/gateway.db" ] || [ -f "$data/node/ledger.db" ]; then
    refuse "there are spaces or a fleet in $data, and $etc/token is gone or empty; put the fleet's token there, or say where it is with DROWSE_TOKEN_FILE."
  else
    made_token=yes
    return
  fi
  # No program that is started from here on has a use for it.
  unset DROWSE_TOKEN DROWSE_TOKEN_FILE
  [[ $token =~ ^[[:graph:]]+$ ]] && [ ${#token} -ge 32 ] ||
    refuse "the token has ${#token} characters; it needs at least 32 printable ones without spaces."
}

# Port $1 is nobody's, or held by one of the programs that come after what listens there.
free_or_ours() {
  local port=$1 what=$2 held holder program
  shift 2
  held=$(ss -Hltnp "sport = :$port" 2>/dev/null) || true
  [ -n "$held" ] || return 0
  holder=$(sed -n 's/.*users:(("\([^"]*\)".*/\1/p' <<<"$held" | head -n 1)
  for program in "$@"; do [ "$holder" != "$program" ] || return 0; done
  refuse "port $port is taken by ${holder:-another program}, and $what listens there."
}
judge_ports() {
  if [ "$role" = gateway ]; then
    free_or_ours "$(port_of "$listen")" "the gateway" drowse-gateway systemd
    if [ -n "$domain" ]; then
      free_or_ours 80 Caddy caddy
      free_or_ours 443 Caddy caddy
    fi
  fi
  free_or_ours "$(port_of "$node_listen")" "the node" drowse-node
}

# Caddy's configuration is ours, the one its package brings, or somebody's: then it is not touched.
judge_caddy() {
  local file=/etc/caddy/Caddyfile packaged
  [ -n "$domain" ] && [ -f "$file" ] || return 0
  ! is_our_caddyfile || return 0
  packaged=$(dpkg-query -W -f '${Conffiles}\n' caddy 2>/dev/null | awk -v file="$file" '$1 == file { print $2 }')
  [ -n "$packaged" ] && [ "$(md5sum <"$file" | cut -d' ' -f1)" = "$packaged" ] ||
    refuse "$file is configured by somebody; move its sites to /etc/caddy/conf.d/*.caddy and delete it, they are included."
}

# Every setting as it will be: what is in the files, else what was said, else the default.
settle() {
  local kept address name
  if [ "$role" = gateway ]; then
    kept=$(setting "$etc/gateway.env" DROWSE_GATEWAY_LISTEN)
    address=$(own_address)
    is_private "$address" || address=127.0.0.1
    listen=${kept:-${listen:-$address:4677}}
    domain=$(if [ -f "$etc/gateway.env" ]; then setting "$etc/gateway.env" DROWSE_DOMAIN; else echo "$domain"; fi)
    is_listen "$listen" || refuse "DROWSE_GATEWAY_LISTEN in $etc/gateway.env is $listen; write it like 10.0.0.1:4677."
    [ -z "$domain" ] || is_domain "$domain" || refuse "DROWSE_DOMAIN in $etc/gateway.env is $domain; write a lower-case domain name without port."
    # A name for "every address" is none to connect to.
    near=$listen
    case $(host_of "$near") in 0.0.0.0 | '[::]') near=$address:$(port_of "$near") ;; esac
    # Where it listened until now, if that was elsewhere.
    moved_from=$(sed -n 's/^ListenStream=//p' "$listens" 2>/dev/null || true)
    [ "$moved_from" != "$listen" ] || moved_from=
    # Not on loopback where that can be: another gateway may have to find this node one day.
    node_listen=$(host_of "$near"):4676
    endpoint=http://$node_listen gateway=http://$near
  else
    kept=$(setting "$etc/node.env" DROWSE_GATEWAY)
    # There may be several; the first is who this machine's commands ask.
    gateway=${kept:-$gateway} near=
    address=$(own_address "$(getent ahosts "$(host_of "${gateway%%,*}")" 2>/dev/null | awk 'NR == 1 { print $1 }')")
    if [ -z "$endpoint" ] && [ ! -f "$etc/node.env" ]; then
      [ -n "$address" ] || refuse "this machine's address is not known; say --node-endpoint URL."
      endpoint=http://$address:4676
    fi
    # Where the endpoint is an address of this machine it listens there, and everywhere else where it is a name or a way around.
    address=$(host_of "${endpoint:-http://0.0.0.0}")
    ip -o address show 2>/dev/null | grep -wF "$(tr -d '[]' <<<"$address")" >/dev/null || address=0.0.0.0
    node_listen=$address:4676
    ! [[ ${endpoint#*://} =~ :([0-9]+)$ ]] || node_listen=$address:${BASH_REMATCH[1]}
  fi
  kept=$(setting "$etc/node.env" DROWSE_NODE_LISTEN)
  node_listen=${kept:-$node_listen}
  if [ -z "$node_id" ]; then
    node_id=$(hostname -s 2>/dev/null || cat /proc/sys/kernel/hostname)
    node_id=$(tr 'A-Z_.' 'a-z--' <<<"$node_id" | tr -cd 'a-z0-9-')
  fi
  if [ ! -f "$etc/node.env" ]; then
    [[ $node_id =~ ^[a-z0-9][a-z0-9-]{0,62}$ ]] || refuse "the machine's name makes no node id; say --node-id ID."
    [ "$node_id" != node-1 ] || { [ "$role" = gateway ] && is_loopback "$(host_of "$gateway")"; } || misuse "node-1 is what every node is called by default; say --node-id ID."
  fi
  for name in gateway node; do
    kept=$(setting "$etc/$name.env" DROWSE_STATE)
    # What it copies, judges and takes off is there, and nowhere else.
    [ -z "$kept" ] || [ "${kept%/}" = "$data/$name" ] || refuse "DROWSE_STATE in $etc/$name.env is $kept; on this machine it is $data/$name: mount a disk there instead."
  done
  tls=$(if [ -f "$etc/host.env" ]; then setting "$etc/host.env" TLS; else echo "${tls:-acme}"; fi)
  swap=$(if [ -f "$etc/host.env" ]; then setting "$etc/host.env" SWAP; else echo "$swap"; fi)
  zram=$(if [ -f "$etc/host.env" ]; then setting "$etc/host.env" ZRAM; else echo "$zram"; fi)
  [ "$tls" = acme ] || [ "$tls" = internal ] || refuse "TLS in $etc/host.env is $tls; it is acme or internal."
  [ -z "$swap" ] || bytes "$swap" >/dev/null || refuse "SWAP in $etc/host.env is $swap; write it like 8GiB."
  [ -z "$zram" ] || bytes "$zram" >/dev/null || refuse "ZRAM in $etc/host.env is $zram; write it like 4GiB."
}

# Brings what is to be installed into a directory of its own, and reads what it is.
stage() {
  local from=$1 base='' log
  mkdir -p "$lib"
  staged=$(mktemp -d "$lib/.staged-XXXXXX")
  if [ -d "$from" ]; then
    base=$from
  else
    base=$staged/unpacked
    mkdir "$base"
    tar -xf "$from" -C "$base" --no-same-owner 2>/dev/null || refuse "--from $from is no archive that tar can read."
    # An archive may hold one directory that holds everything.
    [ -e "$base/drowse-node" ] || base=$(find "$base" -mindepth 2 -maxdepth 2 -name drowse-node -printf '%h\n' -quit)
  fi
  local name
  for name in "${programs[@]}"; do
    [ -f "$base/$name" ] || refuse "--from $from has no $name."
    install -m 755 "$base/$name" "$staged/$name"
  done
  local own=$base
  [ -d "$own/deploy" ] || own=$clone
  [ -n "$own" ] && [ -f "$own/deploy/Caddyfile" ] || refuse "--from $from has no deploy directory, and I am not run from a clone."
  cp -r --no-preserve=ownership "$own/deploy" "$own/install.sh" "$staged/"
  mkdir "$staged/docs"
  cp "$own/docs/operate.md" "$own/docs/SECURITY.md" "$staged/docs/"
  # What it says of itself; a clone can tell for programs that were built in it.
  if [ -f "$base/release.json" ]; then
    cp "$base/release.json" "$staged/"
  elif [ "$own" = "$clone" ] && command -v git >/dev/null; then
    "$own/deploy/stamp" "$("$staged/drowse" --version | awk '{ print $2 }')" >"$staged/release.json" 2>/dev/null || rm -f "$staged/release.json"
  fi
  rm -rf "$staged/unpacked"
  chmod -R go-w,a+rX "$staged"
  "$staged/drowse-node" --version >/dev/null 2>&1 ||
    refuse "the programs of --from $from do not run on this machine ($(uname -m)): $("$staged/drowse-node" --version 2>&1 | head -n 1)."
  version=$("$staged/drowse" --version | awk '{ print $2 }')
  stamp=$version-$(cd "$staged" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-12)
}

# A person may want an older build back. Nobody should get one without being told.
warn_of_older() {
  local its theirs
  its=$(committed "$staged") theirs=$(committed "$lib/current")
  [ -z "$its" ] || [ -z "$theirs" ] || [[ ! $its < $theirs ]] ||
    echo "warning: this build is of $its, and the one that runs is of $theirs; it goes back." >&2
}
committed() { sed -n 's/.*"committedAt": *"\([^"]*\)".*/\1/p' "$1/release.json" 2>/dev/null || true; }

# A ledger of a newer version would be refused by its daemon when the old one is gone already: ask now.
judge_schema() {
  local daemon=$1 file=$2 known has
  [ -f "$file" ] || return 0
  known=$("$staged/$daemon" --schema 2>/dev/null) || refuse "this $daemon is older than what runs here: it cannot say which database it writes."
  if command -v sqlite3 >/dev/null; then
    has=$(sqlite3 "file:$file?mode=ro" 'pragma user_version' 2>/dev/null) || refuse "$file cannot be read as a database."
  else
    has=$((16#$(od -An -tx1 -j60 -N4 "$file" | tr -d ' \n')))
  fi
  [ "$has" -le "$known" ] ||
    refuse "$file was written by a newer version (its shape is $has, Drowse $version knows $known); install that version or restore a backup."
}

# Writes standard input to a file if it says something else, atomically. Answers whether it did.
put() {
  local file=$1 mode=$2 fresh
  # Callers ask what it answers, so that nothing in here ends the script by itself. What is there already takes no room.
  fresh=$(mktemp /run/drowse-put-XXXXXX) || fail "$file cannot be written."
  { cat >"$fresh" && [ -s "$fresh" ]; } || { rm -f "$fresh"; fail "$file cannot be written."; }
  if cmp -s "$fresh" "$file" && [ "$(stat -c %a "$file")" = "$mode" ]; then
    rm -f "$fresh"
    return 1
  fi
  if ! { mkdir -p "$(dirname "$file")" && install -m "$mode" "$fresh" "$file.part" && mv -f "$file.part" "$file"; }; then
    rm -f "$fresh" "$file.part"
    fail "$file cannot be written."
  fi
  rm -f "$fresh"
}

users_and_places() {
  getent passwd drowse >/dev/null ||
    useradd --system --user-group --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin drowse
  install -d -m 700 "$etc"
  install -d -m 755 "$data" "$lib"
  install -d -m 700 "$data/backups"
}

# Tells this token from others, and nothing of it.
of_token() { sha256sum <<<"$token" | cut -c1-16; }

# The token and the settings, written once.
settings() {
  # Said of one token, and until there is a fleet.
  if holds_fleet || [ "$(cat "$etc/new-fleet" 2>/dev/null)" != "$(of_token)" ]; then rm -f "$etc/new-fleet"; fi
  if [ ! -s "$etc/token" ]; then
    local fresh=$etc/.token
    [ -z "$made_token" ] || token=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
    # Told to found until it was done: a fleet is founded at the first start of its first gateway, and never again.
    if [ "$role" = gateway ] && { [ -n "$made_token" ] || [ -n "$new_fleet" ]; }; then of_token >"$etc/new-fleet"; fi
    (umask 077 && printf '%s\n' "$token" >"$fresh")
    sync "$fresh"
    mv -f "$fresh" "$etc/token"
    say token "$etc/token, for root alone"
  elif [ "$role" = gateway ] && [ -n "$new_fleet" ]; then
    of_token >"$etc/new-fleet"
  fi
  if [ ! -f "$etc/host.env" ]; then
    put "$etc/host.env" 600 <<END || true
# What install.sh was told about the machine. Edit it and run $lib/current/install.sh.
TLS=$tls
SWAP=$swap
ZRAM=$zram
END
  fi
  if [ "$role" = gateway ] && [ ! -f "$etc/gateway.env" ]; then
    put "$etc/gateway.env" 600 <<END || true
# Settings of the gateway, written once by install.sh and yours since then; docs/operate.md lists them.
# After a change: systemctl restart drowse-gateway, or $lib/current/install.sh for DROWSE_GATEWAY_LISTEN and DROWSE_DOMAIN.
DROWSE_GATEWAY_LISTEN=$listen
DROWSE_STATE=$data/gateway
${domain:+DROWSE_DOMAIN=$domain}
END
  fi
  if [ ! -f "$etc/node.env" ]; then
    put "$etc/node.env" 600 <<END || true
# Settings of the node, written once by install.sh and yours since then; docs/operate.md lists them.
# After a change: systemctl restart drowse-node. Spaces go on running.
DROWSE_TOKEN_FILE=$etc/token
DROWSE_GATEWAY=$gateway
DROWSE_NODE_ID=$node_id
DROWSE_NODE_LISTEN=$node_listen
DROWSE_NODE_ENDPOINT=$endpoint
DROWSE_NODE_REGION=$region
DROWSE_STATE=$data/node
DROWSE_CGROUP_PARENT=drowse.slice/drowse-spaces.service
END
  fi
  put "$etc/endpoint" 600 <<<"${gateway%%,*}" || true
  # The node of the gateway's machine goes where the gateway went; any other gateway was written there by a person.
  if [ "$role" = gateway ] && [ -n "$moved_from" ] && is_where_it_was "$(setting "$etc/node.env" DROWSE_GATEWAY)"; then
    local was now
    was=$(host_of "$(setting "$etc/node.env" DROWSE_GATEWAY)") now=$(host_of "$near")
    put "$etc/node.env" 600 < <(sed -e "s|^DROWSE_GATEWAY=.*|DROWSE_GATEWAY=$gateway|" \
      -e "s|^\(DROWSE_NODE_LISTEN=\)${was//./\\.}:|\1$now:|; s|^\(DROWSE_NODE_ENDPOINT=http://\)${was//./\\.}:|\1$now:|" "$etc/node.env") || true
    node_listen=$(setting "$etc/node.env" DROWSE_NODE_LISTEN)
  fi
}

# Whether that is the gateway of this machine, as it was reached until now.
is_where_it_was() {
  # Several are a person's choice.
  case $1 in *,*) return 1 ;; esac
  [ "$1" != "http://$moved_from" ] || return 0
  case $(host_of "$moved_from") in 0.0.0.0 | '[::]') ;; *) return 1 ;; esac
  [ "$(port_of "$1")" = "$(port_of "$moved_from")" ] || return 1
  # Without -q: who stops reading early makes the other one fail.
  is_loopback "$(host_of "$1")" || ip -o address show 2>/dev/null | grep -wF "$(host_of "$1" | tr -d '[]')" >/dev/null
}

# What spaces need of the machine: now, and after every boot.
host() {
  local changed=''
  if put /etc/modules-load.d/drowse.conf 644 <"$staged/deploy/host/modules.conf"; then changed=yes; fi
  if put /etc/sysctl.d/60-drowse.conf 644 <"$staged/deploy/host/sysctl.conf"; then changed=yes; fi
  local module
  for module in overlay loop nf_tables; do modprobe -q "$module" 2>/dev/null || true; done
  local key value now
  while IFS=' =' read -r key value; do
    case $key in '' | '#'*) continue ;; esac
    now=$(sysctl -n "$key" 2>/dev/null) || continue
    # More than we need is somebody's wish.
    if [ "$now" -lt "$value" ]; then
      if sysctl -qw "$key=$value" 2>/dev/null; then changed=yes; else say host "warning: $key stays $now, $value is advised"; fi
    fi
  done <"$staged/deploy/host/sysctl.conf"
  swap_file && changed=yes
  zram_device && changed=yes
  say host "${changed:+repaired: }limits, modules${swap:+, swap file $swap}${zram:+, zram $zram}"
}

swap_file() {
  local file=$data/swapfile size changed=1
  if [ -z "$swap" ]; then
    less_memory drowse-swap.service "$file" || return 1
    rm -f "$file"
    return 0
  fi
  size=$(bytes "$swap")
  if [ "$(stat -c %s "$file" 2>/dev/null || echo 0)" != "$size" ]; then
    systemctl -q stop drowse-swap.service 2>/dev/null || true
    is_swap "$file" && fail "$file cannot be taken out of use: what is in it does not fit into memory"
    rm -f "$file"
    # Not copied on write, where a file system would: nothing can be swapped to such a file.
    (umask 077 && : >"$file.part" && { chattr +C "$file.part" 2>/dev/null || true; } && fallocate -l "$size" "$file.part") || { rm -f "$file.part"; fail "there is no room for a swap file of $swap in $data"; }
    mkswap "$file.part" >/dev/null
    mv -f "$file.part" "$file"
    changed=0
  fi
  # A unit of systemd's kind for swap does not work on machines that are containers.
  more_memory drowse-swap.service "$file" "swapon $file" "swapoff $file" && changed=0
  return $changed
}

zram_device() {
  local size
  if [ -z "$zram" ]; then
    less_memory drowse-zram.service /dev/zram0
    return
  fi
  size=$(bytes "$zram")
  more_memory drowse-zram.service /dev/zram0 \
    "[ -e /sys/block/zram0 ] || modprobe zram num_devices=1; echo 1 >/sys/block/zram0/reset; echo $size >/sys/block/zram0/disksize; mkswap /dev/zram0; swapon --priority 100 /dev/zram0" \
    "swapoff /dev/zram0; echo 1 >/sys/block/zram0/reset"
}

is_swap() { swapon --show=NAME --noheadings | grep -qxF "$1"; }

# Takes such a unit away where it is not asked for any more. Answers whether there was one.
less_memory() {
  local unit=$1 where=$2
  [ -f "/etc/systemd/system/$unit" ] || return 1
  systemctl -q disable "$unit" 2>/dev/null || true
  systemctl -q stop "$unit" 2>/dev/null || true
  is_swap "$where" && fail "$where cannot be taken out of use: what is in it does not fit into memory"
  rm -f "/etc/systemd/system/$unit"
  systemctl daemon-reload
}

# A unit that brings memory for what sleeps, and is brought back if the memory is gone. Answers whether anything changed.
more_memory() {
  local unit=$1 where=$2 start=$3 stop=$4 changed=1
  if put "/etc/systemd/system/$unit" 644 <<END
[Unit]
Description=Drowse: memory for spaces that sleep
RequiresMountsFor=$data
# Taken away after those who are in it.
Before=drowse-spaces.service

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStopSec=10min
ExecStart=/bin/sh -ec '$start'
ExecStop=/bin/sh -c '$stop'

[Install]
WantedBy=multi-user.target
END
  then changed=0; systemctl daemon-reload; fi
  systemctl -q enable "$unit" 2>/dev/null
  if [ $changed = 0 ] || ! systemctl -q is-active "$unit" || ! is_swap "$where"; then
    systemctl restart "$unit" || fail "$where cannot be used; journalctl -u $unit says why"
    changed=0
  fi
  return $changed
}

# The units of a release; what changed is read again by systemd.
units() {
  local from=$1 unit changed=''
  for unit in "${role_units[@]}"; do
    if put "/etc/systemd/system/$unit" 644 <"$from/deploy/systemd/$unit"; then changed=yes; fi
  done
  if [ "$role" = gateway ]; then
    # Where it listens is the one setting that the socket needs as well.
    if put "$listens" 644 < <(printf '[Socket]\nListenStream=%s\n' "$listen"); then
      changed=yes
      systemctl stop drowse-gateway.socket drowse-gateway.service 2>/dev/null || true
    fi
  fi
  [ -z "$changed" ] || systemctl daemon-reload
}

# What is not writable, or full, is found before anything is stopped: half of the units of a release are none.
rehearse() {
  local where=/etc/systemd/system/.drowse-rehearsal
  mkdir -p "$where" && cp -r "$staged/deploy/systemd/." "$where/" && rm -rf "$where" ||
    { rm -rf "$where" 2>/dev/null || true; fail "/etc/systemd/system cannot be written; nothing was stopped${running:+, and drowse ${running%-*} runs on}."; }
}

caddy() {
  local streams='' global='' issuer='' on_demand='' caddy_version fresh=$lib/.Caddyfile loaded=$lib/.caddy-loaded
  if [ -z "$domain" ]; then
    ! is_our_caddyfile || caddy_without_us
    return 0
  fi
  caddy_version=$(command caddy version | sed 's/^v//; s/ .*//')
  # Older ones close streams when they reload; nothing here reloads but an upgrade that brings another Caddyfile.
  if [[ $caddy_version =~ ^[0-9] ]] && [ "$(printf '%s\n2.7.0\n' "$caddy_version" | sort -V | head -n 1)" = 2.7.0 ]; then
    streams='stream_close_delay 5m'
  else
    caddy_version+=" (before 2.7: a reload ends websockets)"
  fi
  if [ "$tls" = internal ]; then global=skip_install_trust issuer=internal on_demand='issuer internal'; fi
  install -d -m 755 /etc/caddy/conf.d
  sed -e "s|@GATEWAY@|$near|; s|@DOMAIN@|$domain|g; s|@GLOBAL@|$global|; s|@STREAMS@|$streams|" \
    -e "s|tls @ISSUER@|${issuer:+tls $issuer}|; s|@ON_DEMAND@|$on_demand|" "$staged/deploy/Caddyfile" >"$fresh"
  # With the operator's own sites, and before the one that is there is replaced.
  command caddy validate --config "$fresh" --adapter caddyfile >/dev/null 2>"$lib/.caddy-says" ||
    { tail -n 3 "$lib/.caddy-says" >&2; fail "the daemons run, but Caddy does not take its configuration, with the sites of /etc/caddy/conf.d; its last words are above"; }
  put /etc/caddy/Caddyfile 644 <"$fresh" || true
  rm -f "$lib/.caddy-says" "$fresh"
  systemctl -q enable caddy.service 2>/dev/null
  if ! systemctl -q is-active caddy.service; then
    systemctl start caddy.service || fail "the daemons run, but Caddy does not start; journalctl -u caddy says why"
    touch "$loaded"
  elif [ ! -e "$loaded" ] || [ /etc/caddy/Caddyfile -nt "$loaded" ]; then
    systemctl reload caddy.service || fail "the daemons run, but Caddy does not reload; journalctl -u caddy says why"
    touch "$loaded"
  fi
  say caddy "$caddy_version, https://$domain and the hosts of spaces${tls:+, $tls certificates}"
}

is_our_caddyfile() { grep -qs "^# Managed by Drowse" /etc/caddy/Caddyfile; }

# Sites of the operator's own go on; without any there is nothing to serve.
caddy_without_us() {
  if ls /etc/caddy/conf.d/*.caddy >/dev/null 2>&1; then
    # Some may lead to the gateway, as our Caddyfile offers.
    ! put /etc/caddy/Caddyfile 644 < <(printf '# Managed by Drowse, which has no domain here.\n(gateway) {\n\trespond 503\n}\n\nimport /etc/caddy/conf.d/*.caddy\n') ||
      systemctl reload caddy.service || echo "warning: Caddy does not reload; journalctl -u caddy says why" >&2
  else
    systemctl stop caddy.service 2>/dev/null || true
    systemctl -q disable caddy.service 2>/dev/null || true
    rm -f /etc/caddy/Caddyfile
  fi
}

template() {
  local began=$SECONDS log size
  log=$(mktemp /tmp/drowse-image-XXXXXX)
  quietly "base image" "debian 12, about 40 s the first time" "$log" "$staged/deploy/base/build" --templates "$data/templates"
  rm -f "$log"
  size=$(grep -o '"sizeBytes":[0-9]*' "$data/templates/base/manifest.json" | cut -d: -f2)
  say "base image" "debian 12, $((size / 1000000)) MB" "$(clock $((SECONDS - began)))"
}

# A copy of a database as it is at this moment, while its daemon writes; the newest three are kept.
backup() {
  local name=$1 file=$2 copy
  [ -f "$file" ] || return 0
  # Of a run that was killed.
  rm -f "$data/backups/$name"-*.part
  copy=$data/backups/$name-$(date -u +%Y%m%dT%H%M%SZ)-${running:-unknown}.db
  if ! (umask 077 && sqlite3 "$file" '.timeout 10000' ".backup '$copy.part'" && sync "$copy.part"); then
    rm -f "$copy.part"
    return 1
  fi
  mv -f "$copy.part" "$copy"
  eval "${name}_backup=\$copy"
  find "$data/backups" -name "$name-*.db" | sort -r | tail -n +4 | xargs -r rm -f --
}

# The program a unit runs, none when it does not run.
runs() {
  local pid
  pid=$(systemctl show -p MainPID --value "$1" 2>/dev/null || echo 0)
  [ "${pid:-0}" = 0 ] || readlink "/proc/$pid/exe" || true
}

answers() { curl -fsS --noproxy '*' -m 5 -o /dev/null "$1/healthz" 2>/dev/null; }

# Which life of a unit this is.
invocation() { systemctl show -p InvocationID --value "$1" 2>/dev/null || true; }

# What a node says while no gateway has told it what the fleet is like: it serves once one does.
waits_for_gateway() { [[ $(systemctl show -p StatusText --value drowse-node.service 2>/dev/null) == "waiting for a gateway"* ]]; }

# Waits until a daemon of this very release answers and all of it moves; another life than `before`.
healthy() {
  local unit=$1 address=$2 program=$3 rows=$4 before=$5 deadline
  # The old one may take its time to end, and a ledger is walked at the start: the more is in it, the longer that takes.
  deadline=$((SECONDS + 60 + rows / 50))
  while [ $SECONDS -lt $deadline ]; do
    if [ "$(invocation "$unit")" != "$before" ] && [ "$(runs "$unit")" = "$program" ] && answers "http://$address"; then return 0; fi
    [ "$(systemctl show -p ActiveState --value "$unit")" != failed ] || return 1
    # Its first gateway may come later, or may have to be told another address or token; a gateway that was given its token
    # may wait for a node that knows the fleet: no fault of the build.
    if { [ "$role" = node ] || ! holds_fleet; } && [ "$unit" = drowse-node.service ] && waits_for_gateway; then
      waited=$((${waited:-0} + 1))
      [ "$waited" -lt 25 ] || return 0
    fi
    # It dies again and again: waiting longer makes no difference.
    [ "$(systemctl show -p NRestarts --value "$unit")" -lt 4 ] || return 1
    sleep 0.2
  done
  return 1
}

# Whether a daemon runs with the settings that are in its file now, and with its unit's where the file has none.
runs_with() {
  local unit=$1 file=$2 pid has says name
  pid=$(systemctl show -p MainPID --value "$unit" 2>/dev/null || echo 0)
  [ "${pid:-0}" != 0 ] || return 1
  has=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep '^DROWSE_') || true
  says=$({ systemctl show -p Environment --value "$unit" | tr ' ' '\n'; cat "$file"; } | grep '^DROWSE_[A-Z_]*=') || true
  while IFS= read -r name; do
    [ "$(sed -n "s/^$name=//p" <<<"$has" | tail -n 1)" = "$(unquoted "$(sed -n "s/^$name=//p" <<<"$says" | tail -n 1)")" ] || return 1
  done < <(printf '%s\n' "$has" "$says" | cut -d= -f1 | sort -u | grep -vx -e DROWSE_NEW_FLEET -e '')
}

rows() { [ -f "$1" ] && sqlite3 "file:$1?mode=ro" 'select count(*) from spaces' 2>/dev/null || echo 0; }

point() { ln -sfn "$2" "$lib/.$1" && mv -fT "$lib/.$1" "$lib/$1"; }

# Where a release writes another shape of a database than the one that is there, the copy is made again with the daemon
# stopped: to go back to it then takes back nothing that anybody was told.
fresh_copy() {
  local name=$1 release=$2 file=$3 has known
  [ "$release" = "$stamp" ] && [ -n "$running" ] && [ -f "$file" ] || return 0
  has=$(sqlite3 "file:$file?mode=ro" 'pragma user_version' 2>/dev/null) && known=$("$lib/$release/drowse-$name" --schema 2>/dev/null) || return 0
  [ "$known" -gt "$has" ] || return 0
  stopped=yes
  # Its socket would start it again at the first caller.
  [ "$name" = node ] || systemctl stop drowse-gateway.socket 2>/dev/null || true
  systemctl stop "drowse-$name.service" 2>/dev/null || true
  backup "$name" "$file"
}

# Puts a release to work: the gateway changes, and then the node, which is waited for by those who ask it. Spaces run on.
switch() {
  local release=$1 before
  point current "$release"
  units "$lib/$release"
  if [ "$role" = gateway ]; then
    if [ -e "$etc/new-fleet" ]; then
      # Where no reboot finds it, and no restart after this one.
      put /run/systemd/system/drowse-gateway.service.d/new-fleet.conf 644 < <(printf '[Service]\nEnvironment=DROWSE_NEW_FLEET=true\n') || true
      systemctl daemon-reload
    fi
    systemctl reset-failed drowse-gateway.service 2>/dev/null || true
    blame=drowse-gateway
    fresh_copy gateway "$release" "$data/gateway/gateway.db" || return 1
    local fine=yes
    before=$(invocation drowse-gateway.service)
    # Not waited for: what counts is what it answers. Its socket stays open meanwhile.
    systemctl start drowse-gateway.socket && systemctl --no-block restart drowse-gateway.service && healthy drowse-gateway.service "$near" "$lib/$release/drowse-gateway" 0 "$before" || fine=
    if [ -e /run/systemd/system/drowse-gateway.service.d/new-fleet.conf ]; then
      rm -rf /run/systemd/system/drowse-gateway.service.d
      systemctl daemon-reload
      [ -z "$fine" ] || rm -f "$etc/new-fleet"
    fi
    [ -n "$fine" ] || { blame=drowse-gateway; return 1; }
  fi
  # On the way back from a gateway that failed: the node was never touched.
  [ "${broken:-}" != drowse-gateway ] || return 0
  systemctl reset-failed drowse-node.service 2>/dev/null || true
  blame=drowse-node
  fresh_copy node "$release" "$data/node/ledger.db" || return 1
  before=$(invocation drowse-node.service)
  systemctl --no-block restart drowse-node.service &&
    healthy drowse-node.service "$node_listen" "$lib/$release/drowse-node" "$(rows "$data/node/ledger.db")" "$before" ||
    { blame=drowse-node; return 1; }
}

# Gives a database back that the newer release has changed beyond what the older one reads.
restore() {
  local daemon=$1 file=$2 copy=$3 has known
  [ -n "$copy" ] && [ -f "$file" ] || return 0
  has=$(sqlite3 "file:$file?mode=ro" 'pragma user_version' 2>/dev/null || echo 0)
  known=$("$lib/$running/$daemon" --schema 2>/dev/null || sqlite3 "file:$copy?mode=ro" 'pragma user_version')
  [ "$has" -gt "$known" ] || return 0
  # Moved and not copied: the disk may be full.
  chown --reference="$file" "$copy" && chmod --reference="$file" "$copy" && rm -f "$file-wal" "$file-shm" && mv -f "$copy" "$file" ||
    echo "warning: $file stays as drowse $version left it; its copy is $copy" >&2
}

# What the gateway hands out to nodes whose turn comes: this very release.
pack() {
  [ "$role" = gateway ] && [ ! -f "$staged/release.tar.gz" ] || return 0
  tar -C "$staged" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -czf "$lib/.release.part" .
  # The gateway, which is not root, hands it out.
  chmod 644 "$lib/.release.part"
  mv -f "$lib/.release.part" "$staged/release.tar.gz"
}

# Where it is read by the node that waits for it: how far this run is, written whole or not at all.
status() {
  local state=$1 error=${2:-}
  [ -n "$status_dir" ] || return 0
  error=${error//\\/\\\\} error=${error//\"/\\\"} error=${error//[[:cntrl:]]/ }
  printf '{"state":"%s"%s}\n' "$state" "${error:+,\"error\":\"$error\"}" >"$status_dir/status.json.part"
  mv -f "$status_dir/status.json.part" "$status_dir/status.json"
}

# However it ends.
leave() {
  local code=$?
  # Whatever ended it: what this run stopped is not left stopped.
  if [ -z "$finished" ] && [ -n "$stopped" ]; then systemctl --no-block start "${role_enabled[@]}" 2>/dev/null || true; fi
  case $staged in
    */.staged-*) rm -rf "$staged" || true; rmdir "$lib" 2>/dev/null || true ;;
    # It takes room that may be what was missing.
    "$lib"/*) [ -n "$finished" ] || is_kept "$stamp" || rm -rf "$staged" "$lib/.release.part" || true ;;
  esac
  if [ -n "$finished" ]; then status succeeded; else status "${outcome:-failed}" "${failed:-it ended with $code}"; fi
}

# Whether a release is what runs, or a way back.
is_kept() {
  local name
  for name in current previous trying; do [ "$(readlink "$lib/$name" 2>/dev/null)" != "$1" ] || return 0; done
  return 1
}

# Whether every daemon of this machine is up, from this release.
is_up() {
  local unit
  for unit in drowse-node drowse-gateway; do
    [[ " ${role_units[*]} " == *" $unit.service "* ]] || continue
    [ "$(runs "$unit.service")" = "$lib/$1/$unit" ] && systemctl -q is-active "$unit.service" || return 1
  done
}

services() {
  local began=$SECONDS gateway_backup='' node_backup='' unit blame='' ours=yes
  running=$(readlink "$lib/current" 2>/dev/null || true)
  # A run that was cut between two builds has left what ran before it. If the later one is up since then, that is what runs.
  if [ -d "$lib/trying/" ]; then
    if is_up "$running"; then rm -f "$lib/trying"; else running=$(readlink "$lib/trying"); fi
  fi
  sync -f "$staged"
  # What is there already may have been cut short by a loss of power; what runs is whole.
  if [ "$stamp" = "$running" ] && [ -d "$lib/$stamp" ]; then
    rm -rf "$staged"
  else
    rm -rf "${lib:?}/$stamp"
    mv -T "$staged" "$lib/$stamp"
  fi
  staged=$lib/$stamp
  pack

  for unit in drowse-node drowse-gateway; do
    [[ " ${role_units[*]} " == *" $unit.service "* ]] || continue
    [ "$(runs "$unit.service")" = "$lib/$stamp/$unit" ] || ours=
    runs_with "$unit.service" "$etc/${unit#drowse-}.env" || ours=
    cmp -s "$staged/deploy/systemd/$unit.service" "/etc/systemd/system/$unit.service" || ours=
  done
  if [ "$role" = gateway ]; then
    [ "$(sed -n 's/^ListenStream=//p' "$listens" 2>/dev/null)" = "$listen" ] || ours=
  fi
  if [ -n "$ours" ] && [ "$running" = "$stamp" ] && [ ! -e "$etc/new-fleet" ]; then
    units "$staged"
    enable
    say services "drowse $version runs already"
    return
  fi

  # While both daemons serve: what cannot be kept is no reason to stop anything.
  local full="cannot be backed up; nothing was stopped${running:+, and drowse ${running%-*} runs on}. Is $data full?"
  [ "$role" = node ] || backup gateway "$data/gateway/gateway.db" || fail "$data/gateway/gateway.db $full"
  backup node "$data/node/ledger.db" || fail "$data/node/ledger.db $full"
  rehearse
  [ -z "$status_dir" ] || [ $SECONDS -lt 600 ] || fail "it took more than ten minutes until the release was here; nothing was stopped"
  # What is current after a power cut is whole.
  sync -f "$lib"
  # From here to the end every wait is short, and a terminal that is gone must not leave the machine between two builds.
  trap '' HUP INT TERM
  [ -z "$running" ] || [ "$running" = "$stamp" ] || point trying "$running"
  if switch "$stamp"; then
    rm -f "$lib/trying"
    enable
    if [ -n "$running" ] && [ "$running" != "$stamp" ]; then
      point previous "$running"
      find "$lib" -mindepth 1 -maxdepth 1 -type d ! -name "$stamp" ! -name "$running" -exec rm -rf {} +
      say services "drowse $version, was ${running%-*}; $lib/previous keeps that" "$(clock $((SECONDS - began)))"
    else
      say services "drowse $version" "$(clock $((SECONDS - began)))"
    fi
    return
  fi
  journalctl -q --no-pager -u "$blame" -n 15 -o cat >&2 2>/dev/null || true
  if [ -z "$running" ] || [ "$running" = "$stamp" ]; then
    # A first install that failed leaves nothing behind that tries for ever.
    [ -n "$running" ] || { systemctl stop drowse-node.service drowse-gateway.socket drowse-gateway.service 2>/dev/null || true; rm -rf "$lib/current" "${lib:?}/$stamp"; }
    fail "$blame does not come up; its last words are above, journalctl -u $blame has the rest."
  fi
  stopped=yes
  if [ "$role" = gateway ]; then
    systemctl stop drowse-gateway.socket drowse-gateway.service 2>/dev/null || true
    restore drowse-gateway "$data/gateway/gateway.db" "$gateway_backup"
  fi
  if [ "$blame" = drowse-node ]; then
    # It must not write while its ledger is put back. Where the gateway failed, it was never touched.
    systemctl stop drowse-node.service 2>/dev/null || true
    restore drowse-node "$data/node/ledger.db" "$node_backup"
  fi
  local broken=$blame
  if switch "$running"; then
    rm -f "$lib/trying"
    rm -rf "${lib:?}/$stamp"
    outcome=rolled-back
    fail "$broken of drowse $version does not come up, its last words are above; drowse ${running%-*} is back and runs."
  fi
  fail "$broken of drowse $version does not come up, and $blame of ${running%-*} neither; journalctl -u $blame says why."
}

# After every boot, too.
enable() {
  systemctl -q enable "${role_enabled[@]}" 2>/dev/null
  local unit
  # A node that no gateway has taken yet is up and not ready: it is not waited for.
  for unit in "${role_enabled[@]}"; do systemctl -q is-active "$unit" || systemctl --no-block start "$unit"; done
  # A table that somebody dropped is put back.
  nft list table inet drowse >/dev/null 2>&1 || systemctl restart drowse-firewall.service ||
    fail "the daemons run, but what keeps spaces from the metadata address does not start; journalctl -u drowse-firewall says why"
}

uninstall() {
  [ "$(id -u)" = 0 ] || refuse "it changes the machine; run it as root."
  [ -d "$lib" ] || [ -f /etc/systemd/system/drowse-node.service ] || [ -d "$etc" ] || refuse "Drowse is not installed here."
  alone
  local unit
  for unit in drowse-node.service drowse-gateway.socket drowse-gateway.service drowse-spaces.service drowse.slice \
    drowse-firewall.service drowse-zram.service drowse-swap.service; do
    [ -f "/etc/systemd/system/$unit" ] || continue
    systemctl -q disable "$unit" 2>/dev/null || true
    systemctl stop "$unit" 2>/dev/null || true
    rm -rf "/etc/systemd/system/$unit" "/etc/systemd/system/$unit.d"
  done
  rm -rf /etc/systemd/system/.drowse-rehearsal
  rm -f "$data/swapfile"
  # Their processes are gone; what is mounted for spaces goes with them, the newest first.
  awk '$2 ~ "^/run/drowse/" { print $2 }' /proc/mounts | tac | while read -r mount; do umount "$(printf '%b' "$mount")" 2>/dev/null || true; done
  systemctl daemon-reload
  systemctl reset-failed 'drowse*' 2>/dev/null || true
  ! is_our_caddyfile || caddy_without_us
  rm -f /etc/sysctl.d/60-drowse.conf /etc/modules-load.d/drowse.conf
  local name
  for name in "${programs[@]}"; do
    [[ $(readlink "/usr/local/bin/$name" 2>/dev/null) != "$lib"/* ]] || rm -f "/usr/local/bin/$name"
  done
  rm -rf "${lib:?}"
  if [ -n "$purge" ]; then
    ! grep -q ' /run/drowse/' /proc/mounts || fail "disks of spaces are still mounted below /run/drowse; end what uses them and try again."
    rm -rf "${etc:?}" /run/drowse
    # It may be a mount point of its own.
    find "$data" -mindepth 1 -delete 2>/dev/null || true
    rmdir "$data" 2>/dev/null || true
    ! getent passwd drowse >/dev/null || userdel drowse
    say uninstalled "spaces, ledgers, settings and token are gone"
  else
    say uninstalled "spaces and ledgers stay in $data, settings and token in $etc"
  fi
}

# One at a time on a machine.
alone() {
  exec 9>/run/drowse-install.lock
  flock -n 9 || refuse "another install.sh is at work."
}

# Where it lies among the programs of a release, it installs that.
own_release() {
  local here
  [ -n "${BASH_SOURCE[0]:-}" ] && here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P) && [ -f "$here/drowse-node" ] || return 0
  echo "$here"
}

role() {
  trap leave EXIT
  status running
  [ "$(id -u)" = 0 ] || refuse "it changes the machine; run it as root."
  judge_flags
  judge_role
  judge_machine
  judge_token
  settle
  judge_ports
  judge_caddy
  [ -n "$from$clone" ] || from=$(own_release)
  if [ -n "$from" ]; then
    [ -e "$from" ] || misuse "--from $from does not exist."
  else
    [ -n "$clone" ] || refuse "run it from a clone of the repository, or give it built programs with --from."
    command -v cargo >/dev/null || refuse "cargo is not installed, and building needs it (https://rustup.rs); or give built programs with --from."
  fi
  alone

  if [ -z "$from" ]; then
    packages cc:build-essential
    cd "$clone"
    build
    from=$bin
  fi
  stage "$from"
  judge_schema drowse-gateway "$data/gateway/gateway.db"
  judge_schema drowse-node "$data/node/ledger.db"
  warn_of_older

  role_units=(drowse.slice drowse-spaces.service drowse-firewall.service drowse-node.service)
  role_enabled=(drowse-firewall.service drowse-node.service)
  if [ "$role" = gateway ]; then
    role_units+=(drowse-gateway.socket drowse-gateway.service)
    role_enabled+=(drowse-gateway.socket drowse-gateway.service)
  fi
  local needed=(runc:runc mkfs.ext4:e2fsprogs losetup:mount mmdebstrap:mmdebstrap b3sum:b3sum curl:curl sqlite3:sqlite3 nft:nftables ip:iproute2)
  [ -z "$domain" ] || needed+=(caddy:caddy)
  packages "${needed[@]}"
  users_and_places
  settings
  host
  template
  services
  local name
  for name in drowse drowse-node drowse-gateway; do
    [ "$(readlink "/usr/local/bin/$name" 2>/dev/null)" = "$lib/current/$name" ] || ln -sfn "$lib/current/$name" "/usr/local/bin/$name"
  done
  caddy
  finished=yes
  welcome
}

welcome() {
  echo
  if [ "$role" = node ]; then
    echo "This machine runs spaces for $gateway as $(setting "$etc/node.env" DROWSE_NODE_ID)."
    if waits_for_gateway; then
      echo "No gateway has taken it yet, and it goes on trying. Its last words:"
      journalctl -q --no-pager -u drowse-node -n 1 -o cat 2>/dev/null | sed 's/^/  /' || true
      echo "The address is DROWSE_GATEWAY in $etc/node.env, the token is $etc/token; after a change: systemctl restart drowse-node"
      return
    fi
    echo "  drowse node ls     shows it within seconds"
    return
  fi
  echo "The gateway listens on $listen${domain:+, and https://$domain is its door}."
  if waits_for_gateway && ! holds_fleet; then
    echo "It waits for a node that knows the fleet of this token, and takes no spaces before. If it takes the place of a gateway,"
    echo "its nodes come by themselves where it has the address of the one before; else set DROWSE_GATEWAY in their $etc/node.env"
    echo "and restart them. If the fleet is new:"
    echo "  ./install.sh --new-fleet"
    return
  fi
  echo "  drowse node ls                     the machines of the fleet"
  echo "  drowse space acquire NAME          a space"
  if is_loopback "$(host_of "$listen")" && [ "$(host_of "$listen")" != 0.0.0.0 ] && [ "$(host_of "$listen")" != '[::]' ]; then
    echo "No other machine reaches it: set DROWSE_GATEWAY_LISTEN in $etc/gateway.env to a private address before nodes join."
  else
    echo "Another machine joins with the token of $etc/token:"
    echo "  DROWSE_TOKEN_FILE=FILE ./install.sh --role node --gateway http://$listen"
  fi
}

try_locally() {
  [ "$(uname -s)" = Linux ] || refuse "Drowse runs on Linux, this is $(uname -s)."
  [ "$(id -u)" = 0 ] || refuse "spaces need root on this machine; run it as root."
  [ -n "$clone" ] || refuse "run it from a clone of the repository: ./install.sh --local."
  command -v cargo >/dev/null || refuse "cargo is not installed; https://rustup.rs installs it."

  # A directory that is named is meant from where the caller stands.
  [ -z "$state" ] || state=$(realpath -m -- "$state")
  cd "$clone"
  if [ -z "$state" ] || [ "$state" = "$PWD/.drowse" ]; then
    state=$PWD/.drowse shown=./.drowse
  else
    shown=$state
  fi
  packages runc:runc mkfs.ext4:e2fsprogs losetup:mount mmdebstrap:mmdebstrap b3sum:b3sum curl:curl cc:build-essential
  build
  # A shell finds the command where the README says it is.
  ln -sfn "$bin/drowse" drowse
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

# Reads the command line into the variables of main.
read_flags() {
  local flag value
  while [ $# -gt 0 ]; do
    flag=$1 value=''
    case $flag in
      --*=*) value=${flag#*=} flag=${flag%%=*} ;;
      --state | --from | --role | --gateway | --node-id | --node-endpoint | --region | --domain | --tls | --listen | --swap | --zram | --status-dir)
        value=${2:-}
        [ $# -lt 2 ] || shift
        ;;
    esac
    case $flag in
      --local | --once | --new-fleet | --uninstall | --purge) [[ $1 != *=* ]] || misuse "$flag takes no value." ;;
      --state) [ -n "$value" ] || misuse "--state needs a directory." ;;
      --from) [ -n "$value" ] || misuse "--from needs a directory or an archive." ;;
      --status-dir) [ -n "$value" ] && [ -d "$value" ] || misuse "--status-dir needs a directory." ;;
      --role | --gateway | --node-id | --node-endpoint | --region | --domain | --tls | --listen | --swap | --zram)
        [ -n "$value" ] || misuse "$flag needs a value."
        ;;
    esac
    case $flag in
      --local) mode=local ;;
      --once) once=yes ;;
      --state) state=$value ;;
      --from) from=$(realpath -m -- "$value") ;;
      --role) role=$value ;;
      --gateway) gateway=$value ;;
      --node-id) node_id=$value ;;
      --node-endpoint) endpoint=$value ;;
      --region) region=$value ;;
      --domain) domain=$value ;;
      --tls) tls=$value ;;
      --listen) listen=$value ;;
      --swap) swap=$value ;;
      --zram) zram=$value ;;
      --status-dir) status_dir=$(realpath -- "$value") ;;
      --new-fleet) new_fleet=yes ;;
      --uninstall) uninstall=yes ;;
      --purge) purge=yes ;;
      -h | --help) help ;;
      *) misuse "unknown argument $1; ./install.sh --help lists what there is." ;;
    esac
    shift
  done
  local told="$role$gateway$node_id$endpoint$region$domain$tls$listen$swap$zram$new_fleet"
  if [ -n "$mode" ]; then
    [ -z "$told$from$uninstall$purge$status_dir" ] || misuse "--local goes with --once and --state alone."
  else
    [ -z "$once$state" ] || misuse "--once and --state go with --local."
    [ -z "$uninstall" ] || [ -z "$told$from$status_dir" ] || misuse "--uninstall goes with --purge alone."
    [ -n "$uninstall" ] || [ -z "$purge" ] || misuse "--purge goes with --uninstall."
  fi
}

help() {
  [ -f "${BASH_SOURCE[0]:-}" ] || { echo "see docs/operate.md"; exit 0; }
  sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'
  exit 0
}

main() {
  # What was said.
  local mode='' once='' state='' from='' role='' gateway='' node_id='' endpoint='' region='' domain='' tls='' listen=''
  local swap='' zram='' new_fleet='' uninstall='' purge=''
  # What was found, read by the functions above and by traps that run after this one has returned.
  fleet='' shown='' target='' bin='' templates='' clone='' staged='' stamp='' version='' token='' made_token='' near='' moved_from='' waited='' stopped='' finished=''
  running='' status_dir='' failed='' outcome='' node_listen='' role_units=() role_enabled=()
  etc=/etc/drowse lib=/usr/local/lib/drowse data=/var/lib/drowse listens=/etc/systemd/system/drowse-gateway.socket.d/listen.conf
  programs=(drowse drowse-node drowse-gateway drowse-agent)
  read_flags "$@"

  # Piped into a shell, this script has no clone around it.
  if [ -n "${BASH_SOURCE[0]:-}" ] && [ -f "$(dirname "${BASH_SOURCE[0]}")/Cargo.lock" ]; then
    clone=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    target=${CARGO_TARGET_DIR:-$clone/target}
    case $target in /*) ;; *) target=$clone/$target ;; esac
    bin=$target/release
  fi
  templates=${DROWSE_TEMPLATES:-$data/templates}
  if [ "$mode" = local ]; then try_locally; elif [ -n "$uninstall" ]; then uninstall; else role; fi
}

# In braces, so that a script that was cut anywhere is none.
{ main "$@"; exit; }
