#!/usr/bin/env bash
# Runs real work in a sandbox, and tries what a sandbox must prevent. Each step says
# what it proves and checks it: the demo fails if a check fails.
#
# The image is this machine's own toolchain, read-only; nothing is downloaded.
set -uo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/bin:$PATH"

bold= dim= green= red= off=
if [ -t 1 ]; then
  bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' off=$'\e[0m'
fi
failed=0 refused=0 step=0

# step TITLE: begins a step.
step() {
  step=$((step + 1))
  printf '\n%s%d. %s%s\n' "$bold" "$step" "$1" "$off"
}

# run COMMAND...: shows the command, runs it, keeps its output and exit code.
run() {
  local word line=
  for word; do
    case $word in
      *\'*[\"\$\`\\!]* | *[\"\$\`\\!]*\'*) word="'${word//\'/\'\\\'\'}'" ;; # as one would have to type it
      *\'*) word="\"$word\"" ;;
      '' | *[!A-Za-z0-9_./=:,@%+-]*) word="'$word'" ;;
    esac
    line+=" $word"
  done
  sed "1s/^/$dim\$/; 2,\$s/^/   /; \$s/\$/$off/" <<<"$line"
  out=$("$@" 2>&1)
  code=$?
  if [ -n "$out" ]; then
    printf '%s\n' "$out" | tail -n 8 | cut -c1-150 | sed 's/^/  /'
  fi
}

# proves CONDITION TEXT: the step's claim, and whether it held.
proves() {
  if eval "$1"; then
    printf '  %s✓ %s%s\n' "$green" "$2" "$off"
  elif [ $code = 125 ]; then
    # The request can't be enforced here: it is refused, not run without it.
    printf '  %s– not possible on this machine, so it was refused%s\n' "$bold" "$off"
    refused=1
  else
    printf '  %s✗ %s (exit code %s)%s\n' "$red" "$2" "$code" "$off"
    failed=1
  fi
}

secret=$(mktemp "${HOME:-/root}/sandpit-demo-secret.XXXXXX")
trap 'rm -f "$secret"' EXIT
echo "the host's secret" >"$secret"

step "Real work, with the machine's own Python"
run sandpit run -- python3 -c '
import hashlib, multiprocessing, sqlite3
def count(n):
    sieve = bytearray([1]) * n
    for i in range(2, int(n ** .5) + 1):
        if sieve[i]: sieve[i*i::i] = bytes(len(range(i*i, n, i)))
    return sum(sieve[2:])
with multiprocessing.Pool(2) as pool:
    primes = pool.map(count, [10**5, 10**6])
db = sqlite3.connect("/tmp/primes.db")
db.execute("create table primes (below, number)")
db.executemany("insert into primes values (?, ?)", zip([10**5, 10**6], primes))
for below, number in db.execute("select * from primes"): print(number, "primes below", below)
print("sha256", hashlib.sha256(str(primes).encode()).hexdigest()[:16])'
proves '[ $code = 0 ] && [[ $out == *"78498 primes below 1000000"* ]]' \
  "processes, a database file and arithmetic work as outside"

step "Streams and exit codes pass through"
run sh -c 'printf "b\na\n" | sandpit run -- sort; sandpit shell "exit 7"; echo "exit code $?"'
proves '[ "$out" = "a
b
exit code 7" ]' "standard input, output and exit code are the program's own"

step "The network is closed"
run sandpit run -- python3 -c '
import socket
print("interfaces:", [name for _, name in socket.if_nameindex()])
try: socket.create_connection(("192.0.2.1", 80), 5)
except OSError as e: print("connect:", e)'
proves '[[ $out == *"interfaces: ['"'lo'"']"* && $out == *"unreachable"* ]]' \
  "there is only a loopback"

step "The host's files are out of reach"
run sandpit shell "cat '$secret'; ls -A /root /home; cat /etc/shadow; touch /usr/bin/x; ls -l /dev/sda /dev/vda /run/docker.sock"
proves '[[ $out != *"the host'"'"'s secret"* && $out == *"No such file"* ]]' \
  "no home, no password hashes, no disks, no sockets of the host"
proves '[ ! -e /usr/bin/x ]' "writes inside stay inside"

step "The memory limit holds"
run sandpit run --memory 64M -- python3 -c 'bytearray(1 << 30)'
proves '[ $code = 137 ] && [[ $out == *memory* ]]' \
  "a gigabyte in a sandbox of 64 MiB kills only that program, and is reported"

step "A fork bomb stays inside"
run sandpit run --pids 64 --timeout 5s -- python3 -c '
import os, signal
children = 0
try:
    while True:
        if os.fork() == 0: signal.pause()
        children += 1
except OSError as e: print("after", children, "children:", e.strerror)'
proves '[[ $out == *"Resource temporarily unavailable"* ]]' "the kernel refuses the next process at the limit"

step "The disk limit holds"
run sandpit run --disk 16M -- sh -c 'head -c 100M /dev/zero >/tmp/fill; ls -s --block-size=1M /tmp/fill'
proves '[[ $out == *"No space left"* ]]' "100 MB do not fit on a disk of 16 MiB"

step "A timeout kills everything, even if it tries to hide"
mark=86399.$$
run sandpit run --timeout 1s -- sh -c "setsid sleep $mark & (trap '' TERM INT; sleep $mark)"
left=$(ps -eo args | grep -c "[s]leep $mark")
proves '[ $code = 124 ] && [ '"$left"' = 0 ]' "exit code 124 as with timeout(1), and no process is left on the host"

step "No privileges inside"
run sandpit run -- python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, got): print(what + ":", os.strerror(ctypes.get_errno()) if got else "ALLOWED")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("uid", os.getuid(), "capabilities", status["CapEff"].strip(), "no_new_privs", status["NoNewPrivs"].strip())
attempt("mount", libc.mount(b"none", b"/mnt", b"tmpfs", 0, None))
attempt("new user namespace", libc.unshare(0x10000000))'
proves '[[ $out == *"capabilities 0000000000000000 no_new_privs 1"* && $out != *ALLOWED* ]]' \
  "no capability, and the system calls that could give one are refused"

step "Fast enough not to notice"
run sandpit run --init-time -- true
proves '[ $code = 0 ]' "a sandbox is created, used and destroyed in the time of a few programs"

echo
if [ $failed = 0 ] && [ $refused = 1 ]; then
  printf '%sAll checks that this machine supports passed.%s sandpit doctor says what it lacks\n' "$bold" "$off"
elif [ $failed = 0 ]; then
  printf '%sAll checks passed.%s Next: %ssandpit run -- bash%s, sandpit doctor, sandpit help\n' "$bold" "$off" "$bold" "$off"
else
  printf '%sSome checks failed.%s sandpit doctor says what this machine lacks\n' "$red" "$off"
fi
exit $failed
