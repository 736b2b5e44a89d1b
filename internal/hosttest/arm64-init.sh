#!/usr/bin/busybox sh
/usr/bin/busybox mkdir /root.new
/usr/bin/busybox mount -t tmpfs -o size=80%,mode=755 root /root.new
/usr/bin/busybox cp -a /bin /sbin /lib /usr /etc /root /home /var /suites /machine /overlay.ko /tun.ko /root.new/
cd /root.new && /usr/bin/busybox mkdir -m 755 proc sys dev run && /usr/bin/busybox mkdir -m 1777 tmp
exec /usr/bin/busybox switch_root /root.new /machine
