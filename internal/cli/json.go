package cli

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// report is the object of --json.
type report struct {
	result         sandpit.Result
	metrics        sandpit.Metrics
	info           sandpit.Info
	code           int
	stdout, stderr []byte
	traffic        *traffic // nil: it has no network
	startError     string   // why the command could not be started; empty: it was
}

// jsonResult is the object of --json. Fields are only ever added.
type jsonResult struct {
	ExitCode     int           `json:"exit_code"` // that of sandpit itself: 124 for a timeout
	Signal       int           `json:"signal"`    // the signal that killed the command, else 0
	StartError   string        `json:"start_error,omitempty"`
	TimedOut     bool          `json:"timed_out"`
	OOMKilled    bool          `json:"oom_killed"` // the command or one of its processes
	Truncated    bool          `json:"truncated"`
	PidsRefused  bool          `json:"pids_refused"` // it failed, and a process was refused because of the limit
	DiskFull     bool          `json:"disk_full"`    // it failed, and the sandbox's disk was then full
	FilesFull    bool          `json:"files_full"`   // likewise, of files
	CPUExceeded  bool          `json:"cpu_exceeded"` // it failed, and a process has reached its limit of CPU time
	StdoutBytes  int64         `json:"stdout_bytes"` // dropped ones included
	StderrBytes  int64         `json:"stderr_bytes"`
	DroppedBytes int64         `json:"dropped_bytes"`
	WallSeconds  float64       `json:"wall_seconds"`
	UserSeconds  float64       `json:"user_cpu_seconds"`
	SysSeconds   float64       `json:"system_cpu_seconds"`
	PeakMemory   int64         `json:"peak_memory"` // bytes: of the sandbox where it is known, else of the largest process
	Stdout       *string       `json:"stdout,omitempty"`
	Stderr       *string       `json:"stderr,omitempty"`
	Stdout64     *string       `json:"stdout_base64,omitempty"` // instead of stdout when that is not UTF-8
	Stderr64     *string       `json:"stderr_base64,omitempty"`
	Sandbox      jsonSandbox   `json:"sandbox"`
	NotEnforced  []sandpit.Gap `json:"not_enforced"`
	Network      *traffic      `json:"network,omitempty"` // if it was asked for
}

type jsonSandbox struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	Image  string            `json:"image"`
	Driver string            `json:"driver"`
	Labels map[string]string `json:"labels,omitempty"`
	Limits JSONLimits        `json:"limits"`
}

// JSONLimits is the JSON form of limits. Fields are only ever added.
type JSONLimits struct {
	Memory      int64   `json:"memory"` // bytes
	CPUs        float64 `json:"cpus"`
	Pids        int64   `json:"pids"`
	Disk        int64   `json:"disk"` // bytes
	Files       int64   `json:"files"`
	NoFile      int64   `json:"nofile"`
	Output      int64   `json:"output"` // bytes
	LifeSeconds float64 `json:"life_seconds"`
}

// JSONOfLimits returns the JSON form of limits.
func JSONOfLimits(l sandpit.Limits) JSONLimits {
	return JSONLimits{l.Memory, l.CPUs, l.Pids, l.Disk, l.Files, l.NoFile, l.Output, l.Life.Seconds()}
}

// printResult writes the object of --json to stdout.
func (a *App) printResult(r report) error {
	object := jsonResult{
		ExitCode:     r.code,
		Signal:       r.result.Signal,
		StartError:   r.startError,
		TimedOut:     r.result.TimedOut,
		OOMKilled:    r.result.OOMKilled,
		Truncated:    r.result.Truncated,
		PidsRefused:  r.result.PidsRefused,
		DiskFull:     r.result.DiskFull,
		FilesFull:    r.result.FilesFull,
		CPUExceeded:  r.result.CPUExceeded,
		StdoutBytes:  r.result.StdoutBytes,
		StderrBytes:  r.result.StderrBytes,
		DroppedBytes: r.result.DroppedBytes,
		WallSeconds:  seconds(r.result.Wall),
		UserSeconds:  seconds(r.result.UserCPU),
		SysSeconds:   seconds(r.result.SystemCPU),
		PeakMemory:   max(r.metrics.MemoryPeak, r.result.PeakMemory),
		Sandbox: jsonSandbox{
			ID: r.info.ID, Name: r.info.Name, Image: r.info.Image, Driver: r.info.Driver, Labels: r.info.Labels,
			Limits: JSONOfLimits(r.info.Limits),
		},
		NotEnforced: r.info.NotEnforced,
		Network:     r.traffic,
	}
	if object.NotEnforced == nil {
		object.NotEnforced = []sandpit.Gap{}
	}
	object.Stdout, object.Stdout64 = textOrBase64(r.stdout)
	object.Stderr, object.Stderr64 = textOrBase64(r.stderr)
	return a.PrintJSON(object)
}

func textOrBase64(p []byte) (text, encoded *string) {
	var s string
	if utf8.Valid(p) {
		s = string(p)
		return &s, nil
	}
	s = base64.StdEncoding.EncodeToString(p)
	return nil, &s
}

// seconds is rounded to microseconds.
func seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// printJSONError writes an error as an object to stdout, and as a message to stderr.
func (a *App) printJSONError(err error) error {
	var exit *ExitError
	if errors.As(err, &exit) {
		return err
	}
	printed := a.PrintJSON(struct {
		Error string `json:"error"`
		Kind  string `json:"kind"`
		Hint  string `json:"hint,omitempty"`
	}{err.Error(), kind(err), sandpit.Hint(err)})
	if printed != nil {
		return printed
	}
	return err
}

// PrintLine writes v to stdout as JSON on a line of its own.
func (a *App) PrintLine(v any) error {
	encoder := json.NewEncoder(a.Stdout)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// PrintJSON writes v to stdout, indented.
func (a *App) PrintJSON(v any) error {
	encoder := json.NewEncoder(a.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
