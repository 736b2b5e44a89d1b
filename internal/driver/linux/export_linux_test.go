package linux

import (
	"io/fs"

	"github.com/sandpit-dev/sandpit/internal/driver"
)

// LosePidFD makes the signal by which Destroy kills fail.
func LosePidFD(inst driver.Instance) { inst.(*instance).child.PidFD = -1 }

// BlankPID is the process id of a blank's guest.
func BlankPID(b driver.Blank) int { return b.(*blank).made.child.PID }

// HoldEnding takes all places that its driver has for sandboxes to end in. release gives one back, and rest the others.
func HoldEnding(inst driver.Instance) (release, rest func(), waiting func() int64) {
	ending := inst.(*instance).driver.ending
	for range maxEnding {
		ending.places <- struct{}{}
	}
	release = func() { <-ending.places }
	rest = func() {
		for range maxEnding - 1 {
			release()
		}
	}
	return release, rest, ending.waiting.Load
}

// Overlays is whether a directory can be shown through an overlay.
var Overlays = overlays

// MountBelow is where something is mounted below a directory.
var MountBelow = mountBelow

// GuestMode is the mode of the guest's file.
func GuestMode() fs.FileMode { return fs.FileMode(guestMode()) }

// Of ranges of ids.
const Ranges = ranges

var (
	ChooseRange = chooseRange
	RangeNumber = rangeNumber
)
