//go:build !linux

package server

func totalMemory() int64 { return 0 }
