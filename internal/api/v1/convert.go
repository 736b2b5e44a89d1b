package v1

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Seconds is a duration in the form of the API.
func Seconds(d time.Duration) float64 { return d.Seconds() }

// Duration converts seconds, to the nearest nanosecond, within the range of a Duration.
// Values that are not numbers count as 0.
func Duration(seconds float64) time.Duration {
	ns := math.Round(seconds * 1e9)
	switch {
	case math.IsNaN(ns):
		return 0
	case ns >= math.MaxInt64:
		return math.MaxInt64
	case ns <= math.MinInt64:
		return math.MinInt64
	}
	return time.Duration(ns)
}

// idle is an idle time, of which -1 means never, and has to stay that.
func idle(d time.Duration) float64 {
	if d == sandpit.NoIdle {
		return -1
	}
	return Seconds(d)
}

func idleTime(seconds float64) time.Duration {
	if seconds == -1 {
		return sandpit.NoIdle
	}
	return Duration(seconds)
}

// FromLimits converts limits to the form of the API.
func FromLimits(l sandpit.Limits) Limits {
	return Limits{l.Memory, l.CPUs, l.Pids, l.Disk, l.Files, l.NoFile, l.Output, Seconds(l.Life)}
}

// Sandpit returns the limits in Go.
func (l Limits) Sandpit() sandpit.Limits {
	return sandpit.Limits{Memory: l.Memory, CPUs: l.CPUs, Pids: l.Pids, Disk: l.Disk, Files: l.Files, NoFile: l.NoFile, Output: l.Output, Life: Duration(l.Life)}
}

// FromInfo converts the description of a sandbox to the form of the API.
func FromInfo(i sandpit.Info) Sandbox {
	s := Sandbox{
		ID: i.ID, Name: i.Name, Namespace: i.Namespace, State: string(i.State), Reason: i.Reason, Image: i.Image, Driver: i.Driver, Policy: i.Policy, Labels: i.Labels,
		CreatedAt: i.CreatedAt, Idle: idle(i.Idle), OnExpiry: string(i.OnExpiry), Limits: FromLimits(i.Limits), Rlimits: fromRlimits(i.Rlimits),
	}
	if s.OnExpiry == "" {
		s.OnExpiry = string(sandpit.ExpiryRemove)
	}
	if !i.ExpiresAt.IsZero() {
		s.ExpiresAt = &i.ExpiresAt
	}
	for _, g := range i.NotEnforced {
		s.NotEnforced = append(s.NotEnforced, Gap(g))
	}
	for _, u := range i.Secrets {
		s.Secrets = append(s.Secrets, UsedSecret(u))
	}
	return s
}

// Sandpit returns the description in Go.
func (s Sandbox) Sandpit() sandpit.Info {
	i := sandpit.Info{
		ID: s.ID, Name: s.Name, Namespace: s.Namespace, State: sandpit.State(s.State), Reason: s.Reason, Image: s.Image, Driver: s.Driver, Policy: s.Policy, Labels: s.Labels,
		CreatedAt: s.CreatedAt, Idle: idleTime(s.Idle), OnExpiry: sandpit.Expiry(s.OnExpiry), Limits: s.Limits.Sandpit(), Rlimits: toRlimits(s.Rlimits),
	}
	if s.ExpiresAt != nil {
		i.ExpiresAt = *s.ExpiresAt
	}
	for _, g := range s.NotEnforced {
		i.NotEnforced = append(i.NotEnforced, sandpit.Gap(g))
	}
	for _, u := range s.Secrets {
		i.Secrets = append(i.Secrets, sandpit.SecretUse(u))
	}
	return i
}

// FromSpec converts a Spec to the form of the API.
func FromSpec(s sandpit.Spec) Spec {
	v := Spec{
		Name: s.Name, Image: s.Image, Pull: string(s.Pull), Hostname: s.Hostname, WorkDir: s.WorkDir, User: s.User,
		RootInside: s.RootInside, NoStart: s.NoStart, ReadOnly: s.ReadOnly, Labels: s.Labels, Idle: idle(s.Idle), OnExpiry: string(s.OnExpiry),
		Rlimits: fromRlimits(s.Rlimits),
	}
	v.Encoding = encodingFor(s.Env)
	v.Env.List = encodeAll(v.Encoding, s.Env)
	if s.Limits != (sandpit.Limits{}) {
		l := FromLimits(s.Limits)
		v.Limits = &l
	}
	if s.Write != nil {
		v.Write = &s.Write
	}
	v.Egress = FromEgress(s.Egress)
	for _, u := range s.Secrets {
		v.Secrets = append(v.Secrets, SecretUse(u))
	}
	for _, m := range s.Mounts {
		v.Mounts = append(v.Mounts, Mount(m))
	}
	for _, t := range s.Tmpfs {
		v.Tmpfs = append(v.Tmpfs, Tmpfs(t))
	}
	return v
}

// Sandpit returns the Spec in Go. It returns ErrInvalid if its strings can't be decoded.
func (s Spec) Sandpit() (sandpit.Spec, error) {
	d := newDecoder(s.Encoding)
	v := sandpit.Spec{
		Name: s.Name, Image: s.Image, Pull: sandpit.PullPolicy(s.Pull), Hostname: s.Hostname, WorkDir: s.WorkDir, User: s.User,
		RootInside: s.RootInside, NoStart: s.NoStart, ReadOnly: s.ReadOnly, Labels: s.Labels, Idle: idleTime(s.Idle), OnExpiry: sandpit.Expiry(s.OnExpiry),
		Env: d.env(s.Env), Rlimits: toRlimits(s.Rlimits),
	}
	if s.Limits != nil {
		v.Limits = s.Limits.Sandpit()
	}
	if s.Write != nil {
		v.Write = append([]string{}, *s.Write...)
	}
	v.Egress = s.Egress.Sandpit()
	for _, u := range s.Secrets {
		v.Secrets = append(v.Secrets, sandpit.Secret(u))
	}
	for _, m := range s.Mounts {
		v.Mounts = append(v.Mounts, sandpit.Mount(m))
	}
	for _, t := range s.Tmpfs {
		v.Tmpfs = append(v.Tmpfs, sandpit.Tmpfs(t))
	}
	return v, d.err
}

// FromEgress converts an Egress to the form of the API; nil if it asks for nothing.
func FromEgress(e sandpit.Egress) *Egress {
	if e.IsZero() {
		return nil
	}
	v := &Egress{Preset: string(e.Preset), Allow: e.Allow, Deny: e.Deny, Resolve: e.Resolve, DNS: e.DNS}
	if e.Bounds != (sandpit.EgressBounds{}) {
		v.Bounds = new(EgressBounds(e.Bounds))
	}
	return v
}

// Sandpit returns the Egress in Go.
func (e *Egress) Sandpit() sandpit.Egress {
	if e == nil {
		return sandpit.Egress{}
	}
	v := sandpit.Egress{Preset: sandpit.EgressPreset(e.Preset), Allow: e.Allow, Deny: e.Deny, Resolve: e.Resolve, DNS: e.DNS}
	if e.Bounds != nil {
		v.Bounds = sandpit.EgressBounds(*e.Bounds)
	}
	return v
}

// FromEgressChange converts an EgressChange to the form of the API.
func FromEgressChange(c sandpit.EgressChange) EgressChange {
	return EgressChange{Preset: string(c.Preset), Remove: new(EgressRules(c.Remove)), Add: new(EgressRules(c.Add))}
}

// Sandpit returns the EgressChange in Go.
func (c *EgressChange) Sandpit() sandpit.EgressChange {
	v := sandpit.EgressChange{Preset: sandpit.EgressPreset(c.Preset)}
	if c.Remove != nil {
		v.Remove = sandpit.EgressRules(*c.Remove)
	}
	if c.Add != nil {
		v.Add = sandpit.EgressRules(*c.Add)
	}
	return v
}

// FromFlow converts a Flow to the form of the API.
func FromFlow(f sandpit.Flow) Flow {
	return Flow{
		Started: f.Started, Seconds: Seconds(f.Took), Open: f.Open, Protocol: f.Protocol, Host: f.Host, Address: f.Address, Port: f.Port,
		EgressDecision: EgressDecision(f.EgressDecision), Error: f.Error, Sent: f.Sent, Received: f.Received,
	}
}

// Sandpit returns the Flow in Go.
func (f Flow) Sandpit() sandpit.Flow {
	return sandpit.Flow{
		Started: f.Started, Took: Duration(f.Seconds), Open: f.Open, Protocol: f.Protocol, Host: f.Host, Address: f.Address, Port: f.Port,
		EgressDecision: sandpit.EgressDecision(f.EgressDecision), Error: f.Error, Sent: f.Sent, Received: f.Received,
	}
}

// FromEgressLog converts an EgressLog to the form of the API.
func FromEgressLog(l sandpit.EgressLog) EgressLog {
	v := EgressLog{Flows: []Flow{}, Lost: l.Lost, Denials: []EgressDenial{}, Learns: l.Learns}
	for _, f := range l.Flows {
		v.Flows = append(v.Flows, FromFlow(f))
	}
	for _, d := range l.Denials {
		v.Denials = append(v.Denials, EgressDenial(d))
	}
	return v
}

// HostOf returns the address of a Flow without its port.
func HostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

func fromRlimits(all []sandpit.Rlimit) (v []Rlimit) {
	for _, l := range all {
		v = append(v, Rlimit{l.Resource, int64(l.Soft), int64(l.Hard)}) // RlimitUnlimited is -1
	}
	return v
}

func toRlimits(all []Rlimit) (v []sandpit.Rlimit) {
	for _, l := range all {
		v = append(v, sandpit.Rlimit{Resource: l.Resource, Soft: uint64(l.Soft), Hard: uint64(l.Hard)})
	}
	return v
}

// FromCommand converts a Command to the form of the API, without its writers. The route
// says whether it is in the background.
func FromCommand(c sandpit.Command) Command {
	e := encodingFor(c.Argv, c.Entrypoint, c.Env, []string{c.Script, c.Dir})
	v := Command{
		Argv: encodeAll(e, c.Argv), Script: encode(e, c.Script), FromImage: c.FromImage, Env: Env{List: encodeAll(e, c.Env)}, Dir: encode(e, c.Dir), Encoding: e,
		User: c.User, Stdin: c.Stdin, Timeout: Seconds(c.Timeout), OutputLimit: c.OutputLimit, NoFile: c.NoFile, Tag: c.Tag,
		Rlimits: fromRlimits(c.Rlimits),
	}
	if c.Entrypoint != nil {
		v.Entrypoint = new(encodeAll(e, c.Entrypoint))
	}
	if c.Terminal != nil {
		v.Terminal = &Size{c.Terminal.Rows, c.Terminal.Cols}
	}
	return v
}

// timeout returns the timeout of a command. One that is less than a nanosecond is one, because 0 is none.
func timeout(seconds float64) time.Duration {
	if d := Duration(seconds); d != 0 || seconds <= 0 {
		return d
	}
	return 1
}

// Sandpit returns the Command in Go. It returns ErrInvalid if its strings can't be decoded.
func (c Command) Sandpit() (sandpit.Command, error) {
	d := newDecoder(c.Encoding)
	v := sandpit.Command{
		Argv: d.list("argv", c.Argv), Script: d.text("script", c.Script), FromImage: c.FromImage, Env: d.env(c.Env), Dir: d.text("dir", c.Dir),
		User: c.User, Stdin: c.Stdin, Timeout: timeout(c.Timeout), OutputLimit: c.OutputLimit, NoFile: c.NoFile, Tag: c.Tag,
		Rlimits: toRlimits(c.Rlimits),
	}
	if c.Entrypoint != nil {
		v.Entrypoint = append([]string{}, d.list("entrypoint", *c.Entrypoint)...)
	}
	if c.Terminal != nil {
		v.Terminal = &sandpit.TerminalSize{Rows: c.Terminal.Rows, Cols: c.Terminal.Cols}
	}
	return v, d.err
}

// FromProcess converts the description of a process to the form of the API.
func FromProcess(p sandpit.ProcessInfo) Process {
	e := encodingFor(p.Argv, []string{p.Dir})
	v := Process{ID: p.ID, PID: p.PID, Argv: encodeAll(e, p.Argv), Encoding: e, ArgvCut: p.ArgvCut, User: p.User, Dir: encode(e, p.Dir), Tag: p.Tag, Background: p.Background, Terminal: p.Terminal, Stdin: p.Stdin, StartedAt: p.StartedAt, Timeout: Seconds(p.Timeout)}
	if v.Argv == nil {
		v.Argv = []string{}
	}
	if p.Result != nil {
		r := FromResult(*p.Result)
		v.Result = &r
	}
	return v
}

// Sandpit returns the description in Go. It returns ErrInvalid if its strings can't be decoded.
func (p Process) Sandpit() (sandpit.ProcessInfo, error) {
	d := newDecoder(p.Encoding)
	v := sandpit.ProcessInfo{ID: p.ID, PID: p.PID, Argv: d.list("argv", p.Argv), ArgvCut: p.ArgvCut, User: p.User, Dir: d.text("dir", p.Dir), Tag: p.Tag, Background: p.Background, Terminal: p.Terminal, Stdin: p.Stdin, StartedAt: p.StartedAt, Timeout: Duration(p.Timeout)}
	if p.Result != nil {
		r := p.Result.Sandpit()
		v.Result = &r
	}
	return v, d.err
}

// FromResult converts a Result to the form of the API.
func FromResult(r sandpit.Result) Result {
	return Result{
		ExitCode: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut, OOMKilled: r.OOMKilled, Truncated: r.Truncated,
		PidsRefused: r.PidsRefused, DiskFull: r.DiskFull, FilesFull: r.FilesFull, CPUExceeded: r.CPUExceeded,
		StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, DroppedBytes: r.DroppedBytes,
		Wall: Seconds(r.Wall), UserCPU: Seconds(r.UserCPU), SystemCPU: Seconds(r.SystemCPU), PeakMemory: r.PeakMemory,
	}
}

// Sandpit returns the Result in Go.
func (r Result) Sandpit() sandpit.Result {
	return sandpit.Result{
		ExitCode: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut, OOMKilled: r.OOMKilled, Truncated: r.Truncated,
		PidsRefused: r.PidsRefused, DiskFull: r.DiskFull, FilesFull: r.FilesFull, CPUExceeded: r.CPUExceeded,
		StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, DroppedBytes: r.DroppedBytes,
		Wall: Duration(r.Wall), UserCPU: Duration(r.UserCPU), SystemCPU: Duration(r.SystemCPU), PeakMemory: r.PeakMemory,
	}
}

// FromMetrics converts a sample of a sandbox's usage to the form of the API.
func FromMetrics(m sandpit.Metrics, at time.Time) Metrics {
	cpu := Seconds(m.CPU)
	if m.CPU < 0 {
		cpu = -1
	}
	return Metrics{
		Time: at, CPU: cpu, Memory: m.Memory, MemoryPeak: m.MemoryPeak, Pids: m.Pids, OOMKills: m.OOMKills, Refused: m.PidsRefused,
		Disk: m.Disk, Files: m.Files, RxBytes: m.RxBytes, RxPackets: m.RxPackets, TxBytes: m.TxBytes, TxPackets: m.TxPackets,
	}
}

// Sandpit returns the sample in Go.
func (m Metrics) Sandpit() sandpit.Sample {
	cpu := Duration(m.CPU)
	if m.CPU < 0 {
		cpu = -1
	}
	return sandpit.Sample{Time: m.Time, Metrics: sandpit.Metrics{
		CPU: cpu, Memory: m.Memory, MemoryPeak: m.MemoryPeak, Pids: m.Pids, OOMKills: m.OOMKills, PidsRefused: m.Refused,
		Disk: m.Disk, Files: m.Files, RxBytes: m.RxBytes, RxPackets: m.RxPackets, TxBytes: m.TxBytes, TxPackets: m.TxPackets,
	}}
}

// FromChange converts a change. It fails if a limit can't be changed.
func FromChange(c sandpit.Change) (Change, error) {
	fixed := c.Limits
	fixed.Memory, fixed.CPUs, fixed.Pids = 0, 0, 0
	if fixed != (sandpit.Limits{}) {
		return Change{}, fault.Invalidf("of a sandbox's limits only memory, cpus and pids can be changed, not disk, files, nofile, output and life")
	}
	out := Change{Name: unlessZero(c.Name)}
	if len(c.Labels)+len(c.RemoveLabels) > 0 {
		out.Labels = map[string]*string{}
	}
	for _, k := range c.RemoveLabels {
		out.Labels[k] = nil
	}
	for k, v := range c.Labels {
		out.Labels[k] = &v
	}
	if l := c.Limits; l != (sandpit.Limits{}) {
		out.Limits = &NewLimits{unlessZero(l.Memory), unlessZero(l.CPUs), unlessZero(l.Pids)}
	}
	return out, nil
}

// unlessZero returns a pointer to v, or nil if it is zero.
func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// orZero returns what p points to, or zero if it is nil.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

const hintKeep = "leave it out to keep the present one"

func empty(name string) error {
	return sandpit.WithHint(fault.Invalidf("the field %q must not be empty", name), hintKeep)
}

func tooSmall(name string) error {
	return sandpit.WithHint(fault.Invalidf("the field %q must be more than 0", name), hintKeep)
}

// Sandpit converts the change back. An error says what can't be a change: no value is a request
// for a default.
func (c Change) Sandpit() (sandpit.Change, error) {
	limits := orZero(c.Limits)
	switch {
	case c.Name != nil && *c.Name == "":
		return sandpit.Change{}, empty("name")
	case limits.Memory != nil && *limits.Memory <= 0:
		return sandpit.Change{}, tooSmall("limits.memory")
	case limits.CPUs != nil && !(*limits.CPUs > 0):
		return sandpit.Change{}, tooSmall("limits.cpus")
	case limits.Pids != nil && *limits.Pids <= 0:
		return sandpit.Change{}, tooSmall("limits.pids")
	}
	out := sandpit.Change{Name: orZero(c.Name), Limits: sandpit.Limits{Memory: orZero(limits.Memory), CPUs: orZero(limits.CPUs), Pids: orZero(limits.Pids)}}
	for k, v := range c.Labels {
		if v == nil {
			out.RemoveLabels = append(out.RemoveLabels, k)
			continue
		}
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[k] = *v
	}
	return out, nil
}

// FromLifetime converts a change of a lifetime to the form of the API.
func FromLifetime(l sandpit.Lifetime) Lifetime {
	return Lifetime{Life: unlessZero(Seconds(l.Life)), Idle: unlessZero(idle(l.Idle)), OnExpiry: unlessZero(string(l.OnExpiry))}
}

// Sandpit returns the change in Go. An error says what can't be a change, as for Change.
func (l Lifetime) Sandpit() (sandpit.Lifetime, error) {
	out := sandpit.Lifetime{Life: Duration(orZero(l.Life)), Idle: idleTime(orZero(l.Idle)), OnExpiry: sandpit.Expiry(orZero(l.OnExpiry))}
	switch {
	case l.Life != nil && out.Life <= 0:
		return out, tooSmall("life")
	case l.Idle != nil && out.Idle <= 0 && out.Idle != sandpit.NoIdle:
		return out, sandpit.WithHint(tooSmall("idle"), hintKeep+"; -1 is never")
	case l.OnExpiry != nil && out.OnExpiry == "":
		return out, empty("on_expiry")
	}
	return out, nil
}

// FromPreviewTime requests a preview that lasts so long; 0: as long as usual.
func FromPreviewTime(life time.Duration) NewPreview {
	return NewPreview{Expires: unlessZero(Seconds(life))}
}

// Sandpit returns how long the preview is to last; 0: as long as usual.
func (p NewPreview) Sandpit() (time.Duration, error) {
	life := Duration(orZero(p.Expires))
	if p.Expires != nil && life <= 0 {
		return 0, sandpit.WithHint(fault.Invalidf("the field %q must be more than 0", "expires"), "leave it out for the default")
	}
	return life, nil
}

// fileType names a type of files.
type fileType struct {
	name string
	mode fs.FileMode
}

func fileTypes() []fileType {
	return []fileType{
		{"file", 0},
		{"directory", fs.ModeDir},
		{"symlink", fs.ModeSymlink},
		{"pipe", fs.ModeNamedPipe},
		{"socket", fs.ModeSocket},
		{"device", fs.ModeDevice},
		{"char_device", fs.ModeDevice | fs.ModeCharDevice},
		{"other", fs.ModeIrregular},
	}
}

// FromFile converts the description of a file to the form of the API.
func FromFile(f sandpit.FileInfo) FileInfo {
	e := encodingFor([]string{f.Name, f.Target}, slices.Collect(maps.Keys(f.Xattrs)), slices.Collect(maps.Values(f.Xattrs)))
	v := FileInfo{Name: encode(e, f.Name), Size: f.Size, Type: "other", Mode: ModeText(f.Mode), ModTime: f.ModTime, UID: f.UID, GID: f.GID, Target: encode(e, f.Target), Encoding: e}
	for _, t := range fileTypes() {
		if f.Mode.Type() == t.mode {
			v.Type = t.name
		}
	}
	if len(f.Xattrs) > 0 {
		v.Xattrs = map[string]string{}
	}
	for name, value := range f.Xattrs {
		v.Xattrs[encode(e, name)] = encode(e, value)
	}
	return v
}

// Sandpit returns the description in Go. It returns ErrInvalid if the mode or a string can't be
// read.
func (f FileInfo) Sandpit() (sandpit.FileInfo, error) {
	mode, err := ParseMode(f.Mode)
	if err != nil {
		return sandpit.FileInfo{}, err
	}
	i := slices.IndexFunc(fileTypes(), func(t fileType) bool { return t.name == f.Type })
	if i < 0 {
		mode |= fs.ModeIrregular
	} else {
		mode |= fileTypes()[i].mode
	}
	d := newDecoder(f.Encoding)
	v := sandpit.FileInfo{Name: d.text("name", f.Name), Size: f.Size, Mode: mode, ModTime: f.ModTime, UID: f.UID, GID: f.GID, Target: d.text("target", f.Target)}
	if len(f.Xattrs) > 0 {
		v.Xattrs = map[string]string{}
	}
	for name, value := range f.Xattrs {
		v.Xattrs[d.text("xattrs", name)] = d.text("xattrs", value)
	}
	return v, d.err
}

// ModeText returns the permission bits of a mode in octal, with setuid, setgid and sticky
// as chmod(1) has them: "0755", "4711".
func ModeText(m fs.FileMode) string {
	return fmt.Sprintf("%04o", notation.ModeBits(m))
}

// ParseMode parses the form of ModeText. It returns ErrInvalid for anything else.
func ParseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o7777 {
		return 0, fmt.Errorf("reading the mode %q: %w", text, sandpit.ErrInvalid)
	}
	return notation.ParseModeBits(n), nil
}
