#!/bin/sh
# The whole of an arm64 test machine after its kernel: what systemd would mount,
# then the suites, then off. Results go to the only serial line.
export PATH=/usr/local/bin:/usr/bin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t securityfs security /sys/kernel/security
busybox insmod /overlay.ko
busybox insmod /tun.ko
busybox ip link set lo up
stty -F /dev/ttyAMA0 raw -echo
exec >/dev/ttyAMA0 2>&1 </dev/null
. /suites/env
sh /suites/run.sh /suites/jobs
busybox poweroff -f
