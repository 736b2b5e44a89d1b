#!/usr/bin/env bash
# Installs the system packages that the tests, the demo and the benchmark use:
# only those whose program is missing, only as root on Debian or a relative of
# it. Elsewhere it says what is missing and goes on: each test skips by name
# what it can't run.
set -euo pipefail

# program:package. The first column is what is looked for, so a program that
# came from elsewhere counts.
wanted='
bwrap:bubblewrap
runc:runc
newuidmap:uidmap
ps:procps
ip:iproute2
setpriv:util-linux
setfattr:attr
strace:strace
skopeo:skopeo
mmdebstrap:mmdebstrap
mke2fs:e2fsprogs
mkfs.xfs:xfsprogs
mkfs.btrfs:btrfs-progs
qemu-system-x86_64:qemu-system-x86
qemu-system-aarch64:qemu-system-arm
cpio:cpio
xz:xz-utils
docker:docker.io
dockerd:docker.io
rootlesskit:rootlesskit
hyperfine:hyperfine
sqlite3:sqlite3
openssl:openssl
iodine:iodine
slirp4netns:slirp4netns
pasta:passt
vi:vim-tiny
Rscript:r-base-core
jshell:default-jdk-headless
ruby:ruby
php:php-cli
lua:lua5.4
tmux:tmux
dbus-daemon:dbus
gnome-keyring-daemon:gnome-keyring
chromium-headless-shell:chromium-headless-shell
'
# The administrator's programs are not on everyone's PATH.
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin

missing=()
for pair in $wanted; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
# Debian's Python lacks the part that makes virtual environments.
if command -v python3 >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then
  missing+=(python3-venv)
fi
[ ${#missing[@]} -gt 0 ] || exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if [ "$(uname -s)" != Linux ]; then
  echo "setup: sandboxes are made on Linux only; here the client and the tests that need no sandbox run" >&2
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: tests that need these Debian packages will be skipped: ${missing[*]}" >&2
  echo "setup: to have them: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 0
fi

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Daemons that come with a package are not started: the tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
install() {
  apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1
}
log=$(mktemp)
if ! install "${missing[@]}"; then
  # Lists that are missing or old are the usual cause.
  apt-get update -qq >"$log" 2>&1 || true
  if ! install "${missing[@]}"; then
    # One name that this release doesn't have must not cost the others.
    for package in "${missing[@]}"; do
      install "$package" || echo "setup: no package $package here; what needs it will be skipped" >&2
    done
  fi
fi
rm -f "$log"
