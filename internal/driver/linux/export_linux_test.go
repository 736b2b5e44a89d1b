package linux

import "github.com/sandpit-dev/sandpit/internal/driver"

// LosePidFD makes the signal by which Destroy kills fail.
func LosePidFD(inst driver.Instance) { inst.(*instance).child.PidFD = -1 }

// BlankPID is the process id of a blank's guest.
func BlankPID(b driver.Blank) int { return b.(*blank).made.child.PID }
