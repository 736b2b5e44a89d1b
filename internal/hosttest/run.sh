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
inside= # what a container does before its suites

suites() { # jobs host
  mine=
  while read -r word name one two traits; do
    if [ "$word" = host ]; then
      mine=
      [ "$name" = "$2" ] || continue
      mine=1
      export SANDPIT_TEST_HOST="$name" SANDPIT_TEST_EXPECT="$two" SANDPIT_TEST_TRAITS="$traits"
      export SANDPIT_TEST_BINARY="$base/bin/sandpit"
    elif [ -n "$mine" ]; then
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

# In a copied-up /run, links to what the machine's own daemon left there are in
# the way.
if [ "${1-}" = -unlinked ]; then
  shift
  rm -f /run/docker /run/containerd /run/xtables.lock
  exec "$@"
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

# The same, for an account that was given no subordinate ids.
become_nosubuid() {
  for file in /etc/subuid /etc/subgid; do
    cp -p $file $file.was && sed -i "/^$account:/d" $file
  done
  become_delegated "$1"
  for file in /etc/subuid /etc/subgid; do
    mv $file.was $file
  done
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

# In a container, as Docker gives it to anyone.
become_docker() { docker_host "$1" root; }

# In a container that is trusted with the machine.
become_dockerprivileged() { docker_host "$1" root --privileged; }

# The same, after its owner has done what Sandpit advises there: on cgroup v2
# the processes of a group with limits below it must stand in a group beside.
become_dockernested() {
  inside='mkdir /sys/fs/cgroup/init && xargs -rn1 </sys/fs/cgroup/cgroup.procs >/sys/fs/cgroup/init/cgroup.procs'
  docker_host "$1" root --privileged
  inside=
}

# In a container of a daemon that is itself an ordinary account's.
become_dockerrootless() { docker_host "$1" account; }

# docker_host HOST DAEMON FLAG...: starts a Docker daemon for this host alone,
# runs its suites in a container, and takes everything away again. The image is
# a skeleton over which this machine's /usr is mounted: nothing is downloaded,
# and a Debian machine is what is inside.
docker_host() (
  host=$1 daemon=$2
  shift 2
  for program in dockerd docker; do
    PATH=$PATH:/usr/sbin command -v $program >/dev/null || { none "no $program here"; return; }
  done
  PATH=$PATH:/usr/sbin:/sbin
  at=$(mktemp -d /var/tmp/hosttest-docker-XXXXXX) || return
  before=$(docker_groups)
  as= wrap=
  if [ "$daemon" = account ]; then
    for program in rootlesskit newuidmap; do
      command -v $program >/dev/null || { none "no $program here"; rm -rf "$at"; return; }
    done
    chown "$account:" "$at"
    runtime="XDG_RUNTIME_DIR=$at"
    if [ -d /run/systemd/system ]; then
      # There the daemon's groups are made by the account's user manager.
      linger || { rm -rf "$at"; return; }
      runtime="XDG_RUNTIME_DIR=/run/user/$uid DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$uid/bus"
    fi
    as="setpriv --reuid $account --regid $account --init-groups --reset-env env $runtime HOME=$at PATH=$PATH"
    wrap="rootlesskit --net=host --copy-up=/etc --copy-up=/run --state-dir=$at/rootlesskit $self -unlinked"
    set -- --rootless "$@"
  fi
  rootless=
  if [ "${1-}" = --rootless ]; then
    rootless=--rootless
    shift
    # An ordinary account can't ask AppArmor for its profiles.
    set -- --security-opt=apparmor=unconfined "$@"
  fi

  # shellcheck disable=SC2086 # lists of words
  $as $wrap dockerd $rootless --data-root "$at/data" --exec-root "$at/exec" --pidfile "$at/pid" \
    -H "unix://$at/sock" --iptables=false --bridge=none </dev/null >"$at.log" 2>&1 &
  pid=$!
  n=0
  until $as docker -H "unix://$at/sock" info >/dev/null 2>&1; do
    n=$((n + 1))
    if [ $n -ge 600 ] || ! kill -0 $pid 2>/dev/null; then
      none "dockerd does not start here: $(grep -m 1 'failed to' "$at.log" || tail -n 1 "$at.log")"
      break
    fi
    sleep 0.2
  done
  if $as docker -H "unix://$at/sock" info >/dev/null 2>&1; then
    mkdir -p "$at/root/etc" "$at/root/usr" "$at/root/tmp" "$at/root/var/tmp" "$at/root/root" "$at/root/run"
    chmod 1777 "$at/root/tmp" "$at/root/var/tmp"
    for link in bin sbin lib lib32 lib64 libx32; do
      [ ! -L /$link ] || cp -P /$link "$at/root/"
    done
    for file in passwd group nsswitch.conf ld.so.cache ld.so.conf ld.so.conf.d alternatives; do
      [ ! -e /etc/$file ] || cp -a /etc/$file "$at/root/etc/"
    done
    tar -C "$at/root" -c . | $as docker -H "unix://$at/sock" import - hosttest >/dev/null
    set -- run --rm --network=none -v /usr:/usr:ro -v "$base:/suites:ro" -v "$jobs:/jobs:ro" \
      -e HOSTTEST_GUARD="$guard" -e HOSTTEST_SHORT="${HOSTTEST_SHORT-}" "$@" hosttest
    if why=$($as docker -H "unix://$at/sock" "$@" /bin/true 2>&1); then
      $as docker -H "unix://$at/sock" "$@" /bin/sh -c "${inside:-:}; exec /bin/sh /suites/run.sh -suites /jobs $host"
    else
      none "no such container here: $(printf %s "$why" | head -n 1)"
    fi
  fi
  kill $pid 2>/dev/null
  wait $pid 2>/dev/null
  rm -rf "$at" "$at.log"
  # The daemon leaves its own empty groups behind.
  docker_groups | while read -r group; do
    case "$before" in *"$group"*) ;; *) rmdir "$group" 2>/dev/null ;; esac
  done
)

docker_groups() { ls -d /sys/fs/cgroup/docker /sys/fs/cgroup/*/docker 2>/dev/null; }

jobs=$1
while read -r word name become _; do
  [ "$word" = host ] || continue
  printf '\n@@host %s\n' "$name"
  "become_$become" "$name" </dev/null
done <"$jobs"
printf '\n@@done\n'
