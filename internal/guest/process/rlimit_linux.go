package process

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// resourceNumber returns the number of a resource of setrlimit(2), or false.
func resourceNumber(name string) (int, bool) {
	switch name {
	case "as":
		return unix.RLIMIT_AS, true
	case "core":
		return unix.RLIMIT_CORE, true
	case "cpu":
		return unix.RLIMIT_CPU, true
	case "data":
		return unix.RLIMIT_DATA, true
	case "fsize":
		return unix.RLIMIT_FSIZE, true
	case "locks":
		return unix.RLIMIT_LOCKS, true
	case "memlock":
		return unix.RLIMIT_MEMLOCK, true
	case "msgqueue":
		return unix.RLIMIT_MSGQUEUE, true
	case "nice":
		return unix.RLIMIT_NICE, true
	case "nofile":
		return unix.RLIMIT_NOFILE, true
	case "nproc":
		return unix.RLIMIT_NPROC, true
	case "rss":
		return unix.RLIMIT_RSS, true
	case "rtprio":
		return unix.RLIMIT_RTPRIO, true
	case "rttime":
		return unix.RLIMIT_RTTIME, true
	case "sigpending":
		return unix.RLIMIT_SIGPENDING, true
	case "stack":
		return unix.RLIMIT_STACK, true
	}
	return 0, false
}

// leastCore is the smallest limit of core files that is set. It is too little for a file. With 0 the
// kernel still starts the program to which core files may be piped (core_pattern of core(5)).
const leastCore = 1

// rlimits returns the limits of a process: those that are asked for, which may not exceed the guest's own, and the
// sandbox's of open files, which noFile lowers unless it is 0.
func rlimits(conf *settings.Config, noFile uint64, asked []wire.Rlimit) ([]spawn.Rlimit, error) {
	limits := make([]spawn.Rlimit, 0, len(asked)+1)
	has := func(resource int) bool {
		return slices.ContainsFunc(limits, func(l spawn.Rlimit) bool { return l.Resource == resource })
	}
	for _, l := range asked {
		resource, ok := resourceNumber(l.Resource)
		if !ok {
			return nil, wire.Invalid("the rlimit " + wire.Quote(l.Resource) + " is not known")
		}
		if has(resource) {
			return nil, wire.Invalid("the rlimit " + l.Resource + " is given twice")
		}
		var own unix.Rlimit
		if err := unix.Getrlimit(resource, &own); err != nil {
			return nil, wire.Fail(wire.CodeInternal, "reading the rlimit "+l.Resource+": "+err.Error())
		}
		if resource == unix.RLIMIT_NOFILE && conf.NoFile > 0 {
			own.Max = min(own.Max, conf.NoFile)
		}
		if l.Soft > l.Hard {
			return nil, wire.Invalid("the soft rlimit " + l.Resource + " is above the hard one")
		}
		if l.Hard > own.Max {
			return nil, wire.Invalid("the rlimit " + l.Resource + " is too high: this sandbox allows at most " + strconv.FormatUint(own.Max, 10))
		}
		if resource == unix.RLIMIT_CORE {
			l.Soft, l.Hard = min(max(l.Soft, leastCore), own.Max), min(max(l.Hard, leastCore), own.Max)
		}
		limits = append(limits, spawn.Rlimit{Name: l.Resource, Resource: resource, Soft: l.Soft, Hard: l.Hard})
	}
	if has(unix.RLIMIT_NOFILE) {
		if noFile > 0 {
			return nil, wire.Invalid("nofile and the rlimit nofile can't be combined")
		}
		return limits, nil
	}
	if noFile == 0 || conf.NoFile > 0 && conf.NoFile < noFile {
		noFile = conf.NoFile
	}
	if noFile > 0 {
		limits = append(limits, spawn.Rlimit{Name: "nofile", Resource: unix.RLIMIT_NOFILE, Soft: noFile, Hard: noFile})
	}
	return limits, nil
}

// limitColumn is where the soft limits begin in /proc/PID/limits, behind the names of the resources.
const limitColumn = 26

// limitsOf returns the resource limits of a process, for another one that is started for it. prlimit(2) would take a
// capability that the guest does not have.
func limitsOf(pid int) ([]spawn.Rlimit, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return nil, err
	}
	var limits []spawn.Rlimit
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "Limit ") { // the names of the columns. The resources follow in the order of their numbers
			continue
		}
		l := spawn.Rlimit{Resource: len(limits)}
		if len(line) < limitColumn {
			return nil, errLimits
		}
		l.Name = strings.TrimSpace(line[:limitColumn])
		fields := strings.Fields(line[limitColumn:])
		var own unix.Rlimit
		if len(fields) < 2 || unix.Getrlimit(l.Resource, &own) != nil {
			return nil, errLimits
		}
		for i, value := range []*uint64{&l.Soft, &l.Hard} {
			if *value, err = strconv.ParseUint(fields[i], 10, 64); fields[i] == "unlimited" {
				*value, err = unix.RLIM_INFINITY, nil
			}
			if err != nil {
				return nil, errLimits
			}
			if l.Resource == unix.RLIMIT_CORE {
				*value = max(*value, leastCore)
			}
			*value = min(*value, own.Max)
		}
		limits = append(limits, l)
	}
	if len(limits) == 0 { // it is a zombie
		return nil, errLimits
	}
	return limits, nil
}

var errLimits = errors.New("its resource limits can't be read")
