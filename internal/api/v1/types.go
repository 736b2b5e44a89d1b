// Package v1 holds the JSON of Sandpit's HTTP API, for both of its ends.
//
// Sizes are in bytes, times in RFC 3339, durations in seconds as a decimal
// number. Fields that are left out have their default. Fields that are unknown, given
// twice or written in another case are refused, so that nothing asked for is dropped.
//
// Strings are text. Where they may be other bytes, the object has the field "encoding": see Base64.
package v1

import "time"

// Sandbox describes a sandbox.
type Sandbox struct {
	ID          string            `json:"id" doc:"Unique identifier, never reused"`
	Name        string            `json:"name" doc:"Unique in the caller's namespace, or in the nested one"`
	Namespace   string            `json:"namespace,omitempty" doc:"The namespace nested in the caller's that it is in; absent: none"`
	State       string            `json:"state" enum:"created,creating,running,paused,stopped,failed" doc:"State of the sandbox"`
	Reason      string            `json:"reason,omitempty" doc:"Why it is stopped or failed, or what its creation waits for"`
	Image       string            `json:"image" doc:"The resolved image, with its digest"`
	Driver      string            `json:"driver" doc:"The driver that runs it"`
	Policy      string            `json:"policy,omitempty" doc:"The policy that it was made under"`
	Labels      map[string]string `json:"labels,omitempty" doc:"Labels that the caller set"`
	CreatedAt   time.Time         `json:"created_at"`
	ExpiresAt   *time.Time        `json:"expires_at,omitempty" doc:"End of its lifetime"`
	Idle        float64           `json:"idle,omitempty" doc:"Idle time in seconds after which it expires; absent: unlimited"`
	OnExpiry    string            `json:"on_expiry" enum:"remove,stop,pause"`
	Limits      Limits            `json:"limits" doc:"The limits that are enforced"`
	Rlimits     []Rlimit          `json:"rlimits,omitempty" doc:"Resource limits of every command, as it was created with them"`
	NotEnforced []Gap             `json:"not_enforced,omitempty" doc:"Defaults that this machine can't enforce"`
	Secrets     []UsedSecret      `json:"secrets,omitempty" doc:"The secrets that it uses. Lists do not have them"`
}

// UsedSecret is a secret that a sandbox uses.
type UsedSecret struct {
	Name  string   `json:"name"`
	Hosts []string `json:"hosts,omitempty" doc:"The hosts to which its value goes now, as rules of egress. Absent: the stored secret was removed, or env is set"`
	Env   bool     `json:"env,omitempty" doc:"The sandbox has the value itself"`
}

// Gap is something that a machine can't enforce.
type Gap struct {
	What string `json:"what"`
	Why  string `json:"why"`
	Fix  string `json:"fix"`
}

// Limits bound the usage of a sandbox. 0 or missing: the default.
type Limits struct {
	Memory int64   `json:"memory,omitempty" doc:"Bytes, including tmpfs files and page cache"`
	CPUs   float64 `json:"cpus,omitempty" doc:"Processors, for example 0.5"`
	Pids   int64   `json:"pids,omitempty" doc:"Processes and threads"`
	Disk   int64   `json:"disk,omitempty" doc:"Bytes written to the sandbox's own file system"`
	Files  int64   `json:"files,omitempty" doc:"Inodes in the sandbox's own file system"`
	NoFile int64   `json:"nofile,omitempty" doc:"Open file descriptors per process"`
	Output int64   `json:"output,omitempty" doc:"Bytes of output per process; the rest is counted and dropped"`
	Life   float64 `json:"life,omitempty" doc:"Maximum lifetime of the sandbox in seconds"`
}

// Spec is a request for a new sandbox.
type Spec struct {
	Name       string            `json:"name,omitempty" maxLength:"63" doc:"Default: the ID"`
	Image      string            `json:"image,omitempty" doc:"host (default), an OCI reference, oci-archive:FILE, docker-archive:FILE, dir:DIRECTORY, or saved:NAME of this namespace"`
	Pull       string            `json:"pull,omitempty" enum:"missing,always,never"`
	Hostname   string            `json:"hostname,omitempty"`
	Env        Env               `json:"env,omitzero"`
	Encoding   string            `json:"encoding,omitempty" enum:"base64" doc:"base64: the variables in env are in base64; of an object, the values. Absent: text"`
	WorkDir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
	RootInside bool              `json:"root_inside,omitempty" doc:"Root and other users exist inside, beside user, who may use sudo"`
	Limits     *Limits           `json:"limits,omitempty"`
	Rlimits    []Rlimit          `json:"rlimits,omitempty" doc:"Resource limits of every command, and of the interpreters of code. A command replaces those of the same resource by its own"`
	Mounts     []Mount           `json:"mounts,omitempty"`
	Tmpfs      []Tmpfs           `json:"tmpfs,omitempty"`
	NoStart    bool              `json:"no_start,omitempty" doc:"Leave it in the state created until it is started"`
	ReadOnly   bool              `json:"read_only,omitempty"`
	Write      *[]string         `json:"write,omitempty" doc:"The only writable paths"`
	Egress     *Egress           `json:"egress,omitempty" doc:"What the sandbox may reach outside. Default: nothing"`
	Secrets    []SecretUse       `json:"secrets,omitempty" doc:"Credentials that the sandbox may use"`
	Labels     map[string]string `json:"labels,omitempty"`
	Idle       float64           `json:"idle,omitempty" doc:"Seconds; -1: never"`
	OnExpiry   string            `json:"on_expiry,omitempty" enum:"remove,stop,pause"`
}

// Egress says what a sandbox may reach outside of itself.
type Egress struct {
	Preset  string        `json:"preset,omitempty" enum:"none,registries,public,all,learn" doc:"Default: none"`
	Allow   []string      `json:"allow,omitempty" doc:"HOST, HOST:PORT, *.HOST, ADDRESS, CIDR or a set (package-registries, git-hosts, llm-apis), optionally after udp: or ping:, or METHOD:https://HOST/PATH*"`
	Deny    []string      `json:"deny,omitempty" doc:"Rules that win over allow and preset"`
	Resolve []string      `json:"resolve,omitempty" doc:"HOST:ADDRESS; allows nothing by itself"`
	DNS     []string      `json:"dns,omitempty" doc:"Name servers of Sandpit's side, ADDRESS or ADDRESS:PORT. Default: the machine's"`
	Bounds  *EgressBounds `json:"bounds,omitempty"`
}

// EgressChange changes a part of an Egress. What is absent stays.
type EgressChange struct {
	Preset string       `json:"preset,omitempty" enum:"none,registries,public,all,learn"`
	Remove *EgressRules `json:"remove,omitempty" doc:"Are removed first. Those that are not there are ignored"`
	Add    *EgressRules `json:"add,omitempty" doc:"Those that are there already are ignored"`
}

// EgressRules are the lists of an Egress.
type EgressRules struct {
	Allow   []string `json:"allow,omitempty"`
	Deny    []string `json:"deny,omitempty"`
	Resolve []string `json:"resolve,omitempty"`
}

// EgressBounds bound the traffic of a sandbox.
type EgressBounds struct {
	Connections    int64 `json:"connections,omitempty" doc:"Open at once; default 512"`
	NewConnections int64 `json:"new_connections,omitempty" doc:"Per second; default 100"`
	Sent           int64 `json:"sent,omitempty" doc:"Bytes in all; default unlimited"`
	Received       int64 `json:"received,omitempty" doc:"Bytes in all; default unlimited"`
	Bandwidth      int64 `json:"bandwidth,omitempty" doc:"Bytes per second each way; default unlimited"`
}

// SecretUse is a secret that a sandbox may use: a stored one, or with a value one of its own. The sandbox has a placeholder, which its value
// replaces in requests to its hosts.
type SecretUse struct {
	Name     string   `json:"name" maxLength:"63"`
	Variable string   `json:"variable,omitempty" doc:"Environment variable with the placeholder. Default: those of the secret or of its service, or its name in capital letters"`
	Hosts    []string `json:"hosts,omitempty" doc:"Some of the hosts of the secret, or any if it has none: HOST, HOST:PORT or *.HOST"`
	Env      bool     `json:"env,omitempty" doc:"Give the sandbox the value itself in place of a placeholder"`
	Value    string   `json:"value,omitempty" maxLength:"65536" doc:"The value of a secret that is the sandbox's own, and goes with it. Without hosts, its name must be that of a service. No response contains it. Absent: the secret is a stored one"`
}

// Mount shows a host path in the sandbox.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`

	NoSockets bool `json:"no_sockets,omitempty" doc:"Hide unix sockets and named pipes of the host in a read-only mount"`
}

// Tmpfs is an empty in-memory directory.
type Tmpfs struct {
	Target string `json:"target"`
	Size   int64  `json:"size,omitempty"`
}

// Command is a program to start.
type Command struct {
	Argv        []string  `json:"argv,omitempty" doc:"Program and arguments; set either argv or script"`
	Script      string    `json:"script,omitempty" doc:"Script for /bin/sh -c"`
	FromImage   bool      `json:"from_image,omitempty" doc:"Complete argv with the image's entrypoint and command"`
	Entrypoint  *[]string `json:"entrypoint,omitempty" doc:"Replaces the entrypoint of the image"`
	Env         Env       `json:"env,omitzero"`
	Dir         string    `json:"dir,omitempty"`
	Encoding    string    `json:"encoding,omitempty" enum:"base64" doc:"base64: argv, script, entrypoint, env (of an object, its values) and dir are in base64. Absent: they are text"`
	User        string    `json:"user,omitempty"`
	Stdin       bool      `json:"stdin,omitempty" doc:"Keep standard input open"`
	Terminal    *Size     `json:"terminal,omitempty" doc:"Give it a terminal of this size"`
	Timeout     float64   `json:"timeout,omitempty" doc:"Seconds after which the process and its descendants are killed"`
	OutputLimit int64     `json:"output_limit,omitempty" doc:"Bytes of output after which the rest is dropped, if that is less than the limit of the sandbox; 0 or less: that limit"`
	NoFile      int64     `json:"nofile,omitempty" doc:"Open file descriptors of each process, if that is less than the limit of the sandbox; 0: that limit. Excludes the rlimit nofile"`
	Rlimits     []Rlimit  `json:"rlimits,omitempty" doc:"Resource limits of the program, and of what it starts. Resources that are not named have those of the sandbox, which can't be exceeded"`
	Tag         string    `json:"tag,omitempty" maxLength:"256" doc:"A name for the process, of printable characters, which lists of processes have"`
}

// Rlimit is a resource limit.
type Rlimit struct {
	Resource string `json:"resource" enum:"as,core,cpu,data,fsize,locks,memlock,msgqueue,nice,nofile,nproc,rss,rtprio,rttime,sigpending,stack" doc:"As in setrlimit(2). core can only be 0 or 1: no core files are written"`
	Soft     int64  `json:"soft" minimum:"-1" doc:"The limit, in bytes (as, core, data, fsize, memlock, msgqueue, rss, stack), seconds (cpu), microseconds (rttime) or numbers. -1: unlimited"`
	Hard     int64  `json:"hard" minimum:"-1" doc:"What the program may raise soft to. -1: unlimited"`
}

// Size of a terminal, in character cells.
type Size struct {
	Rows uint16 `json:"rows" maximum:"65535"`
	Cols uint16 `json:"cols" maximum:"65535"`
}

// Process describes a process.
type Process struct {
	ID         string    `json:"id" doc:"Unique in its sandbox, never reused; empty if the process was killed while it was being started"`
	PID        int       `json:"pid"`
	Argv       []string  `json:"argv" doc:"The command line, or its beginning if it is long"`
	Encoding   string    `json:"encoding,omitempty" enum:"base64" doc:"base64: argv and dir are in base64. Absent: text"`
	ArgvCut    bool      `json:"argv_cut,omitempty" doc:"True if argv is truncated: at most 8 KiB are kept, and each argument counts 16 bytes in addition to its length"`
	User       string    `json:"user,omitempty" doc:"The user of the command; by default the name or id of the sandbox's"`
	Dir        string    `json:"dir,omitempty" doc:"The working directory as the command names it; absent: that of the sandbox"`
	Tag        string    `json:"tag,omitempty" doc:"The tag of the command"`
	Background bool      `json:"background,omitempty"`
	Terminal   bool      `json:"terminal,omitempty"`
	Stdin      bool      `json:"stdin,omitempty" doc:"True if it was started with a standard input or a terminal, so that attach can write to it"`
	StartedAt  time.Time `json:"started_at"`
	Timeout    float64   `json:"timeout,omitempty" doc:"Seconds after the start at which it is killed; absent if there is none, or if the server was restarted since"`
	Result     *Result   `json:"result,omitempty" doc:"How it ended; absent while it is running"`
}

// Result describes how a process ended.
type Result struct {
	ExitCode     int     `json:"exit_code" doc:"124 if it timed out; 128+n if signal n killed it"`
	Signal       int     `json:"signal,omitempty"`
	TimedOut     bool    `json:"timed_out,omitempty"`
	OOMKilled    bool    `json:"oom_killed,omitempty"`
	Truncated    bool    `json:"truncated,omitempty"`
	PidsRefused  bool    `json:"pids_refused,omitempty" doc:"It failed, and since its start the sandbox was refused a process or thread because of limits.pids"`
	DiskFull     bool    `json:"disk_full,omitempty" doc:"It failed, and the sandbox's own file system then held as many bytes as limits.disk allows"`
	FilesFull    bool    `json:"files_full,omitempty" doc:"It failed, and the sandbox's own file system then held as many files as limits.files allows"`
	CPUExceeded  bool    `json:"cpu_exceeded,omitempty" doc:"It failed, because it or a process that it waited for used as much CPU time as its rlimit cpu allows"`
	StdoutBytes  int64   `json:"stdout_bytes"`
	StderrBytes  int64   `json:"stderr_bytes"`
	DroppedBytes int64   `json:"dropped_bytes,omitempty"`
	Wall         float64 `json:"wall_seconds"`
	UserCPU      float64 `json:"user_cpu_seconds"`
	SystemCPU    float64 `json:"system_cpu_seconds"`
	PeakMemory   int64   `json:"peak_memory"`
}

// Metrics is the usage of a sandbox. -1: this machine can't tell.
type Metrics struct {
	Time       time.Time `json:"time"`
	CPU        float64   `json:"cpu_seconds"`
	Memory     int64     `json:"memory"`
	MemoryPeak int64     `json:"memory_peak"`
	Pids       int64     `json:"pids"`
	OOMKills   int64     `json:"oom_kills"`
	Refused    int64     `json:"pids_refused" doc:"Processes and threads that were refused because of limits.pids"`
	Disk       int64     `json:"disk" doc:"Bytes used in the sandbox's own file system, limited by limits.disk"`
	Files      int64     `json:"files" doc:"Inodes used in the sandbox's own file system, limited by limits.files"`
	RxBytes    int64     `json:"rx_bytes" doc:"Received over interfaces other than the loopback"`
	RxPackets  int64     `json:"rx_packets"`
	TxBytes    int64     `json:"tx_bytes" doc:"Sent over interfaces other than the loopback"`
	TxPackets  int64     `json:"tx_packets"`
}

// Change changes a sandbox. Missing fields are not changed.
type Change struct {
	Name   *string            `json:"name,omitempty" null:"refused" minLength:"1" maxLength:"63" doc:"The new name; the old one is then free"`
	Labels map[string]*string `json:"labels,omitempty" null:"refused" doc:"Labels to add or replace; null removes a label"`
	Limits *NewLimits         `json:"limits,omitempty" null:"refused" doc:"New limits"`
}

// NewLimits are the limits of a sandbox that can be changed. Missing ones are not.
type NewLimits struct {
	Memory *int64   `json:"memory,omitempty" null:"refused" minimum:"1" doc:"Bytes, including tmpfs files and page cache"`
	CPUs   *float64 `json:"cpus,omitempty" null:"refused" exclusiveMinimum:"0" doc:"Processors, for example 0.5"`
	Pids   *int64   `json:"pids,omitempty" null:"refused" minimum:"1" doc:"Processes and threads"`
}

// Lifetime changes when a sandbox expires. Missing fields are not changed.
type Lifetime struct {
	Life     *float64 `json:"life,omitempty" null:"refused" exclusiveMinimum:"0" doc:"Seconds from now"`
	Idle     *float64 `json:"idle,omitempty" null:"refused" doc:"Seconds, more than 0; -1: never"`
	OnExpiry *string  `json:"on_expiry,omitempty" null:"refused" enum:"remove,stop,pause"`
}

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	Name     string    `json:"name"`
	Size     int64     `json:"size"`
	Type     string    `json:"type" enum:"file,directory,symlink,pipe,socket,device,char_device,other"`
	Mode     string    `json:"mode" doc:"Octal permission bits, with setuid, setgid and sticky: 0755"`
	ModTime  time.Time `json:"mod_time"`
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Target   string    `json:"target,omitempty" doc:"Target of a symbolic link"`
	Encoding string    `json:"encoding,omitempty" enum:"base64" doc:"base64: name, target and xattrs are in base64. Absent: text"`

	Xattrs map[string]string `json:"xattrs,omitempty" doc:"Extended attributes user.*, by their names without that"`
}

// End is the last event of every stream. A stream that ends without one was cut.
type End struct {
	Reason string `json:"reason" enum:"ended,drained,lost,error" doc:"ended: there is no more. drained: the server is shutting down; connect again. lost: events are missing, because they are no longer stored; read the present state, then resume. error: see error"`
	Seq    uint64 `json:"seq,omitempty" doc:"The position after which to resume (parameter after); absent: the stream has no positions"`
	Error  *Error `json:"error,omitempty" doc:"What failed; with error and drained"`
}

// Reasons for the end of a stream.
const (
	EndEnded   = "ended"
	EndDrained = "drained"
	EndLost    = "lost"
	EndError   = "error"
)

// LastLine is the last line of a stream of lines.
type LastLine struct {
	End End `json:"end"`
}

// Begin is the first event of a stream that follows events.
type Begin struct {
	Seq uint64 `json:"seq" doc:"The position at which the stream begins"`
}

// Output is a piece of output in an event.
type Output struct {
	Data []byte  `json:"data" doc:"The bytes"`
	Text *string `json:"text,omitempty" doc:"The same, if it is UTF-8"`
}

// Lost reports that output is missing at this place of a stream.
type Lost struct {
	Bytes uint64 `json:"bytes"`
}

// Error is the form of every error.
type Error struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Hint      string `json:"hint,omitempty" doc:"What to do"`
	RequestID string `json:"request_id"`
	Path      string `json:"path,omitempty" doc:"The path that a file error is about"`
	ExitCode  int    `json:"exit_code,omitempty" doc:"Of start_failed: what a shell exits with, 127 if the program does not exist, else 126"`
	Stage     string `json:"stage,omitempty" doc:"What the sandbox could not do for the command: user (find the user or group), limits (set the resource limits), directory (enter the working directory) or program (execute it)"`
	Errno     int    `json:"errno,omitempty" doc:"Of start_failed: Linux's number of the error"`
}
