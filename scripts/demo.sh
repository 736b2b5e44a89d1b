#!/usr/bin/env bash
# Shows real work in a sandbox, and what holds it in. Every line says what it
# proves; the demo ends with an error if one of them does not hold. The image
# is this machine's own toolchain, so nothing is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
sandpit=$PWD/bin/sandpit

failed=0
step=0

# prove WHAT EXPECTED-EXIT PATTERN COMMAND...: runs a command and holds its
# exit code and output against what is expected.
prove() {
  local what=$1 want=$2 pattern=$3 out status=0
  shift 3
  step=$((step + 1))
  printf '\n%d. %s\n' "$step" "$what"
  printf '   $ sandpit %s\n' "$(printf '%q ' "${@:2}" | tr '\n' ' ' | cut -c1-150)"
  out=$("$@" 2>&1 </dev/null) || status=$?
  sed 's/^/   | /' <<<"$out" | cut -c1-140 | head -12
  if [ "$status" != "$want" ] || ! grep -qE "$pattern" <<<"$out"; then
    printf '   DOES NOT HOLD: exit %s, want %s and output like %s\n' "$status" "$want" "$pattern"
    failed=1
  fi
}

secret=$(mktemp "${HOME:-/tmp}/.sandpit-demo.XXXXXX")
echo "a secret of the host" >"$secret"
work=$(mktemp -d)
trap 'rm -rf "$secret" "$work"' EXIT

prove "It runs programs: the first 12 primes, by this machine's own Python" 0 '2 3 5 7 11 13 17 19 23 29 31 37' \
  "$sandpit" run -- python3 -c 'print(*[n for n in range(2, 40) if all(n % d for d in range(2, n))][:12])'

prove "It runs builds: C compiled and executed inside, nothing of it left outside" 0 'compiled and run inside' \
  "$sandpit" shell 'cd /tmp && printf "%s\n" "#include <stdio.h>" "int main(void){puts(\"compiled and run inside\");}" > a.c && cc -o a a.c && ./a'

prove "It is somebody else's computer: another host name, an ordinary user, no processes but its own" 0 'uid=1000' \
  "$sandpit" shell 'hostname; id; ps -e -o pid,user,comm'

prove "The network is closed: there is a loopback, and no way out" 0 'Network is unreachable' \
  "$sandpit" run -- python3 -c '
import socket
print("interfaces:", [n for _, n in socket.if_nameindex()])
try:
    socket.create_connection(("192.0.2.1", 443), 3)
except OSError as e:
    print("connecting out:", e.strerror)'

prove "The memory cap holds: 1 GiB is taken with 128 MiB allowed, and that is said" 137 'out of memory' \
  "$sandpit" run --memory 128m -- python3 -c 'x = bytearray(1 << 30)'

prove "The process cap holds: a fork bomb stops at 64" 0 'Resource temporarily unavailable' \
  "$sandpit" run --pids 64 -- python3 -c '
import os, time
n = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        n += 1
except OSError as e:
    print("after", n, "processes:", e.strerror, flush=True)
os._exit(0)'

prove "The disk cap holds: 64 MiB are written where 16 MiB may be" 1 'No space left on device' \
  "$sandpit" run --disk 16m -- dd if=/dev/zero of=/tmp/big bs=1M count=64 status=none

prove "The host's files are out of reach: a file in this home, and the host's shadow file" 2 'No such file' \
  "$sandpit" run -- ls "$secret" /etc/shadow

prove "Only what is mounted is shared, and what is mounted read-only stays so" 2 'Read-only file system' \
  "$sandpit" run --mount "$work:/workspace:ro" -- sh -c 'echo x > /workspace/x'

prove "Time is bounded: what ignores every signal is dead after a second" 124 'timed out|timeout' \
  "$sandpit" run --timeout 1s -- sh -c 'trap "" TERM INT HUP; (setsid sleep 1000 &); while :; do sleep 1; done'

echo
if [ "$failed" != 0 ]; then
  echo "Some of it does not hold here. \`bin/sandpit doctor\` says what this machine can enforce." >&2
  exit 1
fi
echo "All $step hold. Try: bin/sandpit run -it -- bash"
