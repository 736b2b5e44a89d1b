#!/bin/sh
# run.sh JOBS: becomes each host that the file JOBS names, and runs its suites.
#
#   host NAME BECOME EXPECT TRAITS...
#   suite NAME PATTERN
#
# Prints "@@host NAME", then per suite "@@begin SUITE", the test binary's
# output, "@@end SUITE STATUS"; at the very end "@@done". A host that can't be
# become prints "@@none REASON".
#
# The script is its own helper: `run.sh -suites JOBS HOST` runs the suites of
# one host as whoever calls it.
set -u
base=$(cd "$(dirname "$0")" && pwd)
self=$base/run.sh
account=${HOSTTEST_ACCOUNT:-tester}
guard=${HOSTTEST_GUARD:-3600}

suites() { # jobs host
  inside=
  while read -r word name one two traits; do
    if [ "$word" = host ]; then
      inside=
      [ "$name" = "$2" ] || continue
      inside=1
      export SANDPIT_TEST_HOST="$name" SANDPIT_TEST_EXPECT="$two" SANDPIT_TEST_TRAITS="$traits"
      export SANDPIT_TEST_BINARY="$base/bin/sandpit"
    elif [ -n "$inside" ]; then
      scratch=$(mktemp -d) || exit 1
      printf '\n@@begin %s\n' "$name"
      (
        cd "$base/$name" || exit 1
        export TMPDIR="$scratch" PATH="$base/bin:$PATH"
        # The guard is for a suite that hangs: it is ended with the stacks of
        # all goroutines, and what follows still gets its turn.
        exec timeout -k 30 $((guard + 30)) ./suite.test -test.v=test2json -test.count=1 \
          ${HOSTTEST_SHORT:+-test.short} -test.timeout "${guard}s" -test.run "$one" </dev/null 2>&1
      )
      printf '\n@@end %s %d\n' "$name" $?
      rm -rf "$scratch"
    fi
  done <"$1"
}

if [ "${1-}" = -suites ]; then
  suites "$2" "$3"
  exit 0
fi

none() { printf '\n@@none %s\n' "$*"; }

# What every ordinary account starts with: nothing of root's environment.
keep="HOSTTEST_GUARD=$guard HOSTTEST_SHORT=${HOSTTEST_SHORT-}"

# As whoever runs this script: root on a machine, or whatever Docker gives.
become_self() { "$self" -suites "$jobs" "$1"; }

# An ordinary account without a login: no user manager, no bus, no cgroup of
# its own. What cron, ssh without PAM, or another daemon gives.
become_plain() {
  setpriv --reuid "$account" --regid "$account" --init-groups --reset-env \
    env $keep "$self" -suites "$jobs" "$1"
}

# An ordinary account in a unit of its user manager, with the controllers that
# systemd delegates.
become_delegated() {
  linger || return
  as_user systemd-run --user --quiet --collect --pipe --wait -p Delegate=yes \
    env $keep "$self" -suites "$jobs" "$1"
}

# An ordinary account that has just logged in. Its session scope belongs to
# root; a scope of its own must be asked for over the bus.
become_session() {
  linger || return
  su -l "$account" -c "$keep exec $self -suites $jobs $1"
}

# The same, on a machine whose administrator has closed user namespaces.
become_nouserns() {
  if ! sysctl -q -w kernel.unprivileged_userns_clone=0; then
    none "this kernel has no kernel.unprivileged_userns_clone"
    return
  fi
  become_session "$1"
  sysctl -q -w kernel.unprivileged_userns_clone=1
}

# The same, closed by the limit that every kernel has.
become_nousernsmax() {
  was=$(sysctl -n user.max_user_namespaces)
  sysctl -q -w user.max_user_namespaces=0
  become_session "$1"
  sysctl -q -w user.max_user_namespaces="$was"
}

linger() {
  uid=$(id -u "$account")
  loginctl enable-linger "$account" || { none "loginctl enable-linger refused"; return 1; }
  # The user manager is ready when its bus is; it is slow on an emulated
  # machine. The bound is there for a bus that never comes.
  n=0
  until [ -S "/run/user/$uid/bus" ]; do
    n=$((n + 1))
    [ $n -lt 600 ] || { none "the user manager gave no bus"; return 1; }
    sleep 0.2
  done
}

as_user() {
  setpriv --reuid "$account" --regid "$account" --init-groups --reset-env \
    env XDG_RUNTIME_DIR="/run/user/$uid" DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$uid/bus" "$@"
}

jobs=$1
while read -r word name become _; do
  [ "$word" = host ] || continue
  printf '\n@@host %s\n' "$name"
  "become_$become" "$name" </dev/null
done <"$jobs"
printf '\n@@done\n'
