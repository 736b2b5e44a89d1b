package commands

import "syscall"

// mountFlags returns the flags of a mount: ST_* of statvfs(3).
func mountFlags(st syscall.Statfs_t) int64 { return st.Flags }
