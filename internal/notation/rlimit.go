package notation

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// RlimitResources returns the names that Rlimit.Resource may have, sorted.
func RlimitResources() []string {
	return []string{
		"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue",
		"nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack",
	}
}

// ParseRlimit reads NAME=SOFT[:HARD], as Docker has it. A value is a number, "unlimited" or -1, or for a
// resource in bytes a size ("8m"). Without HARD it is SOFT.
func ParseRlimit(text string) (sandpit.Rlimit, error) {
	name, values, found := strings.Cut(text, "=")
	soft, hard, both := strings.Cut(values, ":")
	if !both {
		hard = soft
	}
	l := sandpit.Rlimit{Resource: name}
	var softOK, hardOK bool
	l.Soft, softOK = parseRlimitValue(name, soft)
	l.Hard, hardOK = parseRlimitValue(name, hard)
	if !found || !softOK || !hardOK {
		hint := "write it as NAME=SOFT or NAME=SOFT:HARD, with whole numbers, sizes such as 8m for bytes, or unlimited"
		if len(strings.Fields(text)) > 1 {
			hint += "; give each limit a flag of its own, or a line of its own in SANDPIT_ULIMIT"
		}
		return l, sandpit.WithHint(fmt.Errorf("%q is not a resource limit", text), hint)
	}
	return l, CheckRlimits([]sandpit.Rlimit{l})
}

func parseRlimitValue(name, text string) (uint64, bool) {
	if text == "unlimited" || text == "-1" {
		return sandpit.RlimitUnlimited, true
	}
	if n, err := strconv.ParseUint(text, 10, 63); err == nil {
		return n, true
	}
	switch name {
	case "as", "core", "data", "fsize", "memlock", "msgqueue", "rss", "stack":
		n, err := ParseSize(text)
		return uint64(n), err == nil
	}
	return 0, false
}

// CheckRlimits returns ErrInvalid, with the reason, for limits that no sandbox allows.
func CheckRlimits(limits []sandpit.Rlimit) error {
	seen := make([]string, 0, len(limits))
	for _, l := range limits {
		switch {
		case !slices.Contains(RlimitResources(), l.Resource):
			return sandpit.WithHint(fault.Invalidf("the rlimit %.40q is not known", l.Resource), "use one of "+strings.Join(RlimitResources(), ", "))
		case slices.Contains(seen, l.Resource):
			return sandpit.WithHint(fault.Invalidf("the rlimit %s is given twice", l.Resource), "give it once")
		case isBeyond(l.Soft), isBeyond(l.Hard):
			return sandpit.WithHint(fault.Invalidf("the rlimit %s is out of range", l.Resource), "give at most 2^63-1, or -1 for no limit")
		case l.Soft > l.Hard:
			return sandpit.WithHint(fault.Invalidf("the soft rlimit %s is above the hard one", l.Resource), "give a soft limit of at most the hard one")
		}
		seen = append(seen, l.Resource)
	}
	return nil
}

func isBeyond(value uint64) bool { return value > math.MaxInt64 && value != sandpit.RlimitUnlimited }
