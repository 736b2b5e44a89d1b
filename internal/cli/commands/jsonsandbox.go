package commands

import (
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// jsonInfo is a sandbox in the output of --json and inspect. Fields are only
// ever added.
type jsonInfo struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"`
	State       string            `json:"state"`
	Reason      string            `json:"reason,omitempty"`
	Image       string            `json:"image"`
	Driver      string            `json:"driver"`
	Policy      string            `json:"policy,omitempty"`
	Labels      map[string]string `json:"labels"`
	CreatedAt   time.Time         `json:"created_at"`
	ExpiresAt   *time.Time        `json:"expires_at,omitempty"`
	IdleSeconds float64           `json:"idle_seconds,omitempty"`
	OnExpiry    string            `json:"on_expiry"`
	Limits      cli.JSONLimits    `json:"limits"`
	Rlimits     []v1.Rlimit       `json:"rlimits,omitempty"`
	NotEnforced []sandpit.Gap     `json:"not_enforced"`
	Egress      *v1.Egress        `json:"egress,omitempty"`  // inspect: what it may reach, if it asked for anything
	Secrets     []v1.UsedSecret   `json:"secrets,omitempty"` // inspect
	Processes   []jsonProcess     `json:"processes,omitempty"`
}

func jsonOfInfo(i sandpit.Info) jsonInfo {
	object := jsonInfo{
		ID: i.ID, Name: i.Name, Namespace: i.Namespace, State: string(i.State), Reason: i.Reason, Image: i.Image, Driver: i.Driver, Policy: i.Policy,
		Labels: i.Labels, CreatedAt: i.CreatedAt, OnExpiry: string(i.OnExpiry), Limits: cli.JSONOfLimits(i.Limits), NotEnforced: i.NotEnforced,
	}
	if object.Labels == nil {
		object.Labels = map[string]string{}
	}
	if object.NotEnforced == nil {
		object.NotEnforced = []sandpit.Gap{}
	}
	if !i.ExpiresAt.IsZero() {
		object.ExpiresAt = &i.ExpiresAt
	}
	described := v1.FromInfo(i)
	object.Rlimits, object.Secrets = described.Rlimits, described.Secrets
	if i.Idle > 0 {
		object.IdleSeconds = i.Idle.Seconds()
	}
	return object
}

// jsonProcess is a process in the output of --json and inspect.
type jsonProcess struct {
	ID         string    `json:"id"`
	PID        int       `json:"pid"`
	Argv       []string  `json:"argv"`
	ArgvCut    bool      `json:"argv_cut,omitempty"`
	User       string    `json:"user"`
	Dir        string    `json:"dir,omitempty"` // as the command names it
	Tag        string    `json:"tag,omitempty"`
	Background bool      `json:"background"`
	Terminal   bool      `json:"terminal"`
	StartedAt  time.Time `json:"started_at"`
	Running    bool      `json:"running"`
	ExitCode   *int      `json:"exit_code,omitempty"`
	Signal     int       `json:"signal,omitempty"`
	TimedOut   bool      `json:"timed_out,omitempty"`
	OOMKilled  bool      `json:"oom_killed,omitempty"`

	PidsRefused bool `json:"pids_refused,omitempty"`
	DiskFull    bool `json:"disk_full,omitempty"`
	FilesFull   bool `json:"files_full,omitempty"`
	CPUExceeded bool `json:"cpu_exceeded,omitempty"`
}

func jsonOfProcess(p sandpit.ProcessInfo) jsonProcess {
	object := jsonProcess{
		ID: p.ID, PID: p.PID, Argv: p.Argv, ArgvCut: p.ArgvCut, User: p.User, Dir: p.Dir, Tag: p.Tag, Background: p.Background, Terminal: p.Terminal,
		StartedAt: p.StartedAt, Running: p.Result == nil,
	}
	if r := p.Result; r != nil {
		object.ExitCode, object.Signal, object.TimedOut, object.OOMKilled = &r.ExitCode, r.Signal, r.TimedOut, r.OOMKilled
		object.PidsRefused, object.DiskFull, object.FilesFull, object.CPUExceeded = r.PidsRefused, r.DiskFull, r.FilesFull, r.CPUExceeded
	}
	return object
}

// jsonMetrics is a sandbox of stats --json.
type jsonMetrics struct {
	Name       string  `json:"name"`
	CPUSeconds float64 `json:"cpu_seconds"`
	CPUPercent float64 `json:"cpu_percent"` // of one processor, since the line before; -1 where it is not known
	Memory     int64   `json:"memory"`
	MemoryPeak int64   `json:"memory_peak"`
	Pids       int64   `json:"pids"`
	OOMKills   int64   `json:"oom_kills"`
	Disk       int64   `json:"disk"` // bytes in use of its own file system
	DiskLimit  int64   `json:"disk_limit"`
	Files      int64   `json:"files"` // inodes in use of the same
	FilesLimit int64   `json:"files_limit"`
	RxBytes    int64   `json:"rx_bytes"` // received, but for the loopback
	RxPackets  int64   `json:"rx_packets"`
	TxBytes    int64   `json:"tx_bytes"` // sent
	TxPackets  int64   `json:"tx_packets"`
}

func jsonOfUse(r use) jsonMetrics {
	return jsonMetrics{
		Name: r.sb.Name(), CPUSeconds: r.CPU.Seconds(), CPUPercent: r.percent, Memory: r.Memory, MemoryPeak: r.MemoryPeak, Pids: r.Pids, OOMKills: r.OOMKills,
		Disk: r.Disk, DiskLimit: r.limits.Disk, Files: r.Files, FilesLimit: r.limits.Files,
		RxBytes: r.RxBytes, RxPackets: r.RxPackets, TxBytes: r.TxBytes, TxPackets: r.TxPackets,
	}
}
