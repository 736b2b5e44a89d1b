// Package policy has the defaults and maxima of requests, and checks whether a request is valid and
// allowed. Rules are checked at each create, which takes 8 µs, so that a changed policy applies at once.
package policy

import (
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Policy is what the platform gives by default and allows at most.
type Policy struct {
	Name string // the name that keys use; empty for the command line

	// Default has the limits of a Spec that does not set them; every field is set.
	Default sandpit.Limits

	// Max is the maximum that may be requested; 0 means no maximum except the kernel's.
	Max sandpit.Limits

	// Rules say what else may be requested. nil: everything.
	Rules *Rules
}

// Default returns the policy of the command line, where the caller is the
// owner of the machine: the built-in defaults, and no maximum.
func Default() Policy {
	return Policy{Default: sandpit.DefaultLimits()}
}

// A Limit is one row of the policy: a field of sandpit.Limits with its bounds.
type Limit struct {
	Name    string // of its feature: "memory", "cpus", …
	Flag    string // the flag that sets it: "--memory"
	Meaning string // one line
	Default string // for people: "2 GiB"
	Min     string
	Max     string // "" for none
}

// Limits returns the policy's rows, in the order in which they are shown.
func (p Policy) Limits() []Limit {
	var rows []Limit
	for _, l := range limits() {
		row := Limit{Name: string(l.feature), Flag: l.flag, Meaning: l.meaning, Default: l.format(l.get(&p.Default)), Min: l.format(l.min())}
		if allowed := l.get(&p.Max); allowed > 0 {
			row.Max = l.format(allowed)
		}
		rows = append(rows, row)
	}
	return rows
}

// limit is a field of sandpit.Limits. Values are handled as float64, which is
// exact for every size below 8 PiB; set is only given values that get returned,
// or none of it is reached.
type limit struct {
	feature feature.Feature
	noun    string // in messages: "memory limit"
	flag    string
	meaning string
	max     float64 // what the kernel can express or a sandbox could ever use
	format  func(float64) string
	get     func(*sandpit.Limits) float64
	take    func(into, from *sandpit.Limits)
}

// Kernel limits. PID_MAX_LIMIT is 4 Mi on 64-bit machines (linux/threads.h);
// fs.nr_open, the most RLIMIT_NOFILE may be, is 1 Mi unless raised (fs/file.c);
// CONFIG_NR_CPUS goes to 8192. A size of 4 PiB is beyond any machine.
const (
	maxPids   = 4 << 20
	maxNoFile = 1 << 20
	maxCPUs   = 8192
	maxSize   = 4 << 50
	maxFiles  = 1 << 40
	maxLife   = 10 * 365 * 24 * time.Hour

	minOutput = 1
	minLife   = time.Millisecond
)

// min returns the field of Minimum.
func (l limit) min() float64 {
	m := Minimum()
	return l.get(&m)
}

// one is the noun with its article: "an output limit".
func (l limit) one() string {
	if l.noun[0] == 'o' {
		return "an " + l.noun
	}
	return "a " + l.noun
}

func limits() [8]limit {
	size := func(f float64) string { return notation.FormatSize(int64(f)) }
	count := func(f float64) string { return strconv.FormatInt(int64(f), 10) }
	return [8]limit{
		{
			feature.Memory, "memory limit", "--memory", "memory of all processes, including swap, /tmp files and page cache",
			maxSize, size,
			func(l *sandpit.Limits) float64 { return float64(l.Memory) },
			func(into, from *sandpit.Limits) { into.Memory = from.Memory },
		},
		{
			feature.CPUs, "cpu limit", "--cpus", "CPUs",
			maxCPUs, func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) },
			func(l *sandpit.Limits) float64 { return l.CPUs },
			func(into, from *sandpit.Limits) { into.CPUs = from.CPUs },
		},
		{
			feature.Pids, "process limit", "--pids", "processes and threads",
			maxPids, count,
			func(l *sandpit.Limits) float64 { return float64(l.Pids) },
			func(into, from *sandpit.Limits) { into.Pids = from.Pids },
		},
		{
			feature.Disk, "disk limit", "--disk", "bytes written to the sandbox's own files, including /tmp",
			maxSize, size,
			func(l *sandpit.Limits) float64 { return float64(l.Disk) },
			func(into, from *sandpit.Limits) { into.Disk = from.Disk },
		},
		{
			feature.Files, "file limit", "--files", "files and directories (inodes) created in the sandbox",
			maxFiles, count,
			func(l *sandpit.Limits) float64 { return float64(l.Files) },
			func(into, from *sandpit.Limits) { into.Files = from.Files },
		},
		{
			feature.NoFile, "open file limit", "--nofile", "open files per process",
			maxNoFile, count,
			func(l *sandpit.Limits) float64 { return float64(l.NoFile) },
			func(into, from *sandpit.Limits) { into.NoFile = from.NoFile },
		},
		{
			feature.Output, "output limit", "--output-limit", "output of a command; the rest is counted and dropped",
			maxSize, size,
			func(l *sandpit.Limits) float64 { return float64(l.Output) },
			func(into, from *sandpit.Limits) { into.Output = from.Output },
		},
		{
			feature.Life, "lifetime", "--timeout", "lifetime of a sandbox, and so of its commands",
			float64(maxLife), func(f float64) string { return notation.FormatDuration(time.Duration(f)) },
			func(l *sandpit.Limits) float64 { return float64(l.Life) },
			func(into, from *sandpit.Limits) { into.Life = from.Life },
		},
	}
}

// SetDefaults sets the defaults that are not 0 in own. One above its maximum is refused with an
// error that matches sandpit.ErrInvalid.
func (p *Policy) SetDefaults(own sandpit.Limits) error {
	for _, l := range limits() {
		value, allowed := l.get(&own), l.get(&p.Max)
		switch {
		case value == 0:
		case allowed > 0 && value > allowed:
			return invalid("lower the default, or raise the maximum", "the default %s of %s is more than the maximum of %s", l.noun, l.format(value), l.format(allowed))
		default:
			l.take(&p.Default, &own)
		}
	}
	return nil
}

// CapDefaults lowers the defaults to the maxima.
func (p *Policy) CapDefaults() {
	for _, l := range limits() {
		if allowed := l.get(&p.Max); allowed > 0 && l.get(&p.Default) > allowed {
			l.take(&p.Default, &p.Max)
		}
	}
}

// resolveLimits returns the limits with every field set.
func (p Policy) resolveLimits(spec sandpit.Spec) (sandpit.Limits, error) {
	p.CapDefaults()
	resolved := p.Default
	for _, l := range limits() {
		value := l.get(&spec.Limits)
		allowed := l.get(&p.Max)
		if value == 0 {
			continue
		}
		switch {
		case value < 0 || value != value:
			return resolved, invalid("request at least "+l.format(l.min()), "the %s must be more than 0", l.noun)
		case value < l.min():
			return resolved, invalid("request at least "+l.format(l.min()), "%s of %s is below the minimum of %s", l.one(), l.format(value), l.format(l.min()))
		case value > l.max:
			return resolved, invalid("request at most "+l.format(l.max), "%s of %s is more than any machine has", l.one(), l.format(value))
		case allowed > 0 && value > allowed:
			return resolved, p.refuse(string(l.feature), "maximum."+string(l.feature), "request at most "+l.format(allowed),
				"%s of %s is more than the maximum of %s", l.one(), l.format(value), l.format(allowed))
		}
		l.take(&resolved, &spec.Limits)
	}
	return resolved, nil
}

// invalid returns an error that matches sandpit.ErrInvalid, with a hint unless that is empty.
func invalid(hint, format string, args ...any) error {
	err := fault.Invalidf(format, args...)
	if hint == "" {
		return err
	}
	return sandpit.WithHint(err, hint)
}

// Minimum returns the minimum of every limit.
func Minimum() sandpit.Limits {
	return sandpit.Limits{
		Memory: sandpit.MinMemory,
		CPUs:   sandpit.MinCPUs,
		Pids:   sandpit.MinPids,
		Disk:   sandpit.MinDisk,
		Files:  sandpit.MinFiles,
		NoFile: sandpit.MinNoFile,
		Output: minOutput,
		Life:   minLife,
	}
}

// CheckDefaults checks the defaults and maxima of a user's policy: a sandbox must be able
// to have them. Errors match sandpit.ErrInvalid.
func (p Policy) CheckDefaults() error {
	for _, l := range limits() {
		for _, part := range [...]struct {
			name  string
			value float64
		}{{"default", l.get(&p.Default)}, {"maximum", l.get(&p.Max)}} {
			if part.value != 0 && (part.value < l.min() || part.value > l.max) {
				return invalid("use a value from "+l.format(l.min())+" to "+l.format(l.max), "the %s %s of %s is impossible", part.name, l.noun, l.format(part.value))
			}
		}
	}
	return nil
}
