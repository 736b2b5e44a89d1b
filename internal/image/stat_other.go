//go:build unix && !linux

package image

import "syscall"

func changeTime(*syscall.Stat_t) int64 { return 0 }
