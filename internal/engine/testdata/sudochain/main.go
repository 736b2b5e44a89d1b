// Command sudochain asks sudo for the next one of its kind and waits for ever. The request is in /tmp/request.
package main

import (
	"os"
	"syscall"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	log, err := os.OpenFile("/tmp/log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	check(err)
	_, err = log.WriteString("x")
	check(err)
	request, err := os.ReadFile("/tmp/request")
	check(err)
	null, err := syscall.Open("/dev/null", syscall.O_RDWR, 0)
	check(err)
	s, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	check(err)
	check(syscall.Connect(s, &syscall.SockaddrUnix{Name: "@sandpit-sudo"}))
	check(syscall.Sendmsg(s, request, syscall.UnixRights(null, null, null), nil, 0))
	// In small pages, so that it takes a while to end.
	memory, err := syscall.Mmap(-1, 0, 90<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	check(err)
	check(syscall.Madvise(memory, syscall.MADV_NOHUGEPAGE))
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	for {
		_ = syscall.Pause()
	}
}
