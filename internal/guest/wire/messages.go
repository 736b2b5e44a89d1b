package wire

// Version is the protocol version of this program, and MinVersion the oldest one that it
// still speaks. They change only if appended fields and new operations can't express a
// change.
const (
	Version    = 1
	MinVersion = 1
)

// Magic begins every HELLO.
const Magic = "SPG\x01"

// HelloMessage is the payload of HELLO, behind Magic.
type HelloMessage struct {
	Version    uint64
	MinVersion uint64
	Window     uint64 // initial credit of the peer, in bytes, for every stream
	Features   uint64 // bits that a peer may rely on
	Build      string // for people
}

// What a guest may know.
const (
	FeatureWindows = 1 << iota // StartWindows
	FeaturePassAll             // PassAll
	FeatureAs                  // OpAs
	FeatureInPlace             // Write.InPlace and OpSetAttr
	FeatureAttrs               // Write.Attrs
	FeatureRlimits             // Start.Rlimits
	FeatureAsRoot              // As.Root
)

// Append appends the encoded message, Magic included.
func (m *HelloMessage) Append(b []byte) []byte {
	b = append(b, Magic...)
	b = appendUint(b, m.Version)
	b = appendUint(b, m.MinVersion)
	b = appendUint(b, m.Window)
	b = appendUint(b, m.Features)
	return appendString(b, m.Build)
}

// Decode decodes a message.
func (m *HelloMessage) Decode(b []byte) error {
	if len(b) < len(Magic) || string(b[:len(Magic)]) != Magic {
		return ErrMessage
	}
	d := newDecoder(b[len(Magic):])
	*m = HelloMessage{d.uint(), d.uint(), d.uint(), d.uint(), d.string()}
	if m.Window < MinWindow || m.Window > MaxWindow {
		d.bad = true
	}
	return d.err()
}

// An Op is an operation that the host requests, the first byte of OPEN.
type Op uint8

// The operations. A call is answered by REPLY or ERROR, which end its stream;
// a stream goes on after REPLY, until the frame named here.
const (
	OpConfigure Op = 1  // call: Config → nothing
	OpInfo      Op = 2  // call: nothing → Info
	OpStart     Op = 3  // stream: Start → Started, content, EVENT Exit
	OpAttach    Op = 4  // stream: Attach → Started, content, EVENT Exit
	OpList      Op = 5  // call: After → Processes
	OpSignal    Op = 6  // call: Signal → nothing
	OpResize    Op = 7  // call: Resize → nothing
	OpKill      Op = 8  // call: Target → nothing
	OpStat      Op = 9  // call: Stat → Described
	OpReadDir   Op = 10 // call: ReadDir → Entries
	OpRead      Op = 11 // stream: Read → File, content, EOF
	OpWrite     Op = 12 // stream: Write; content, EOF → Written
	OpMkdir     Op = 13 // call: Path with Mode and Flag (parents) → nothing
	OpRemove    Op = 14 // call: Path with Flag (recursive) → nothing
	OpRename    Op = 15 // call: Path with Other (the new path) → nothing
	OpSymlink   Op = 16 // call: Path with Other (the target) → nothing
	OpReadlink  Op = 17 // call: Path → Path
	OpChmod     Op = 18 // call: Path with Mode → nothing
	OpLifetime  Op = 19 // call: Lifetime → LifetimeState
	OpExpiry    Op = 20 // call: nothing → Expired, when the time is over
	OpCopy      Op = 21 // call: Path with Other (the copy) and Flag (recursive) → nothing
	OpFind      Op = 22 // call: Find → Entries
	OpGrep      Op = 23 // stream: Grep → nothing, records GrepLine, EOF
	OpEdit      Op = 24 // call: Edits → nothing
	OpWatch     Op = 25 // stream: Watch → nothing, records WatchEvent, until CLOSE
	OpUnpack    Op = 26 // stream: Path; tree, EOF → nothing
	OpPack      Op = 27 // stream: Path → nothing, tree, EOF
	OpDial      Op = 28 // stream: Dial → nothing, content both ways, EOF both ways, EVENT Closed
	OpPorts     Op = 29 // call: nothing → Ports
	OpAnnounced Op = 30 // call: Refs → nothing
	OpAs        Op = 31 // As: a file operation by another user, with that operation's stream
	OpSetAttr   Op = 32 // call: SetAttr → nothing
	OpKillAll   Op = 33 // call: nothing → nothing
)

// OfFiles reports whether As can carry the operation.
func (op Op) OfFiles() bool {
	return op >= OpStat && op <= OpChmod || op >= OpCopy && op <= OpPack || op == OpSetAttr
}

// A Code is the kind of an error in the guest's answer.
type Code uint8

// The codes of ERROR.
const (
	CodeInternal    Code = 0 // the guest could not do its part: errno says why
	CodeInvalid     Code = 1 // the request makes no sense
	CodeNotFound    Code = 2 // no such process
	CodeState       Code = 3 // not now
	CodeUnsupported Code = 4 // this guest can't
	CodeExhausted   Code = 5 // too many of something
	CodeFile        Code = 6 // a file operation failed: errno says why
	CodeVersion     Code = 7 // on stream 0: no common protocol version
	CodeProtocol    Code = 8 // on stream 0: the peer broke the protocol
	CodeExpired     Code = 9 // on stream 0: the lifetime is over, and the guest ends
)

// ErrorMessage is the payload of ERROR.
type ErrorMessage struct {
	Code  Code
	Errno uint64 // Linux, generic numbers (asm-generic/errno.h); 0 none
	Text  string
	Stage Stage
}

// A Stage is the step at which a start, or the look-up of a user, has failed.
type Stage uint64

// The stages of ERROR and Exit.
const (
	StageNone      Stage = 0 // another one; guests of earlier versions tell none
	StageUser      Stage = 1 // finding the user or group
	StageLimits    Stage = 2 // checking the resource limits
	StageDirectory Stage = 3 // entering the working directory
	StageProgram   Stage = 4 // executing the program
)

// TooManyStreams is the text of the CodeExhausted of a stream that has no room on its connection.
const TooManyStreams = "too many streams on one connection"

// maxText is how long a text of an error may be; it must fit MaxSmall.
const maxText = 2 << 10

// Append appends the encoded message.
func (m *ErrorMessage) Append(b []byte) []byte {
	b = appendUint(b, uint64(m.Code))
	b = appendUint(b, m.Errno)
	b = appendString(b, m.Text[:min(len(m.Text), maxText)])
	return appendUint(b, uint64(m.Stage))
}

// Decode decodes a message.
func (m *ErrorMessage) Decode(b []byte) error {
	d := newDecoder(b)
	code := d.uint()
	*m = ErrorMessage{Code(code), d.uint(), d.string(), Stage(d.uint())}
	if code > 255 {
		d.bad = true
	}
	return d.err()
}

// Config configures all processes and file work of a sandbox. The host sends it once,
// before anything else that starts a process or touches a file. So a guest can be started
// before its plan is known.
type Config struct {
	User        string   // of processes and of file work: "name", "uid", "name:group", "uid:gid"; empty: the guest's own
	Dir         string   // where processes start and relative paths begin; empty: the user's home
	Env         []string // of every process, "KEY=VALUE"
	Output      int64    // bytes of output that a process may have; 0: no limit
	NoFile      uint64   // RLIMIT_NOFILE of processes; 0: the guest's own
	Life        int64    // 0: guests of earlier versions end processes after so many nanoseconds, others ignore it
	RootCaps    uint64   // capabilities that processes of uid 0 keep, a bit each
	OOMScoreAdj int64    // of processes
	Sudo        bool     // serve SudoSocket
}

// SudoSocket is the name of the abstract socket, of type SEQPACKET, on which the program sudo
// asks the guest for a command: a Start with Argv, Env, Dir and User, and three descriptors.
// The guest answers Exit. Bytes that are sent in between are signals.
const SudoSocket = "@sandpit-sudo"

// MaxSudo is the maximum size of a request on SudoSocket, in bytes.
const MaxSudo = 128 << 10

// Append appends the encoded message.
func (m *Config) Append(b []byte) []byte {
	b = appendString(b, m.User)
	b = appendString(b, m.Dir)
	b = appendStrings(b, m.Env)
	b = appendInt(b, m.Output)
	b = appendUint(b, m.NoFile)
	b = appendInt(b, m.Life)
	b = appendUint(b, m.RootCaps)
	b = appendInt(b, m.OOMScoreAdj)
	return appendBool(b, m.Sudo)
}

// Decode decodes a message.
func (m *Config) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Config{d.string(), d.string(), d.strings(), d.int(), d.uint(), d.int(), d.uint(), d.int(), d.bool()}
	return d.err()
}

// Info describes a guest.
type Info struct {
	Build     string
	Version   uint64
	PID       uint64
	UID       uint64
	Uptime    int64 // nanoseconds
	Processes uint64
	Streams   uint64
}

// Append appends the encoded message.
func (m *Info) Append(b []byte) []byte {
	b = appendString(b, m.Build)
	b = appendUint(b, m.Version)
	b = appendUint(b, m.PID)
	b = appendUint(b, m.UID)
	b = appendInt(b, m.Uptime)
	b = appendUint(b, m.Processes)
	return appendUint(b, m.Streams)
}

// Decode decodes a message.
func (m *Info) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Info{d.string(), d.uint(), d.uint(), d.uint(), d.int(), d.uint(), d.uint()}
	return d.err()
}

// The flags of Start.
const (
	StartStdin    = 1 << iota // standard input is the content that the host sends; else it is empty
	StartTerminal             // with a new terminal of Rows and Cols
	StartDetached             // lives on without its stream; its output is kept
	StartHold                 // with StartDetached: it waits for its stream, as long as that is there
	StartWindows              // each output has a window: the host tells by PASSED what it has passed on
	StartZygote               // with StartDetached: processes can be forked from it
	StartFork                 // with StartDetached: it is forked from a zygote, if there is one that fits
)

// Start requests a process.
type Start struct {
	Flags      uint64
	Argv       []string
	Script     string // for /bin/sh -c, when Argv is empty
	Env        []string
	Dir, User  string
	Rows, Cols uint64
	Timeout    int64  // nanoseconds; 0: none
	Output     int64  // replaces Config.Output when positive and smaller
	Keep       uint64 // bytes of the latest output kept for those who attach later
	NoFile     uint64 // replaces Config.NoFile when positive and smaller
	Rlimits    []Rlimit
	Tag        string // a name that the caller gives it, at most MaxTag bytes
}

// Rlimit is a resource limit of a process.
type Rlimit struct {
	Resource   string // the kernel's name, in lower case and without RLIMIT_
	Soft, Hard uint64 // RLIM_INFINITY is 2^64-1
}

// MaxRlimits bounds Start.Rlimits.
const MaxRlimits = 64

// MaxTag bounds Start.Tag, and MaxDir the Dir of a Process, in bytes. A longer directory can't be entered.
const (
	MaxTag = 256
	MaxDir = 4096
)

// Append appends the encoded message.
func (m *Start) Append(b []byte) []byte {
	b = appendUint(b, m.Flags)
	b = appendStrings(b, m.Argv)
	b = appendString(b, m.Script)
	b = appendStrings(b, m.Env)
	b = appendString(b, m.Dir)
	b = appendString(b, m.User)
	b = appendUint(b, m.Rows)
	b = appendUint(b, m.Cols)
	b = appendInt(b, m.Timeout)
	b = appendInt(b, m.Output)
	b = appendUint(b, m.Keep)
	b = appendUint(b, m.NoFile)
	b = appendUint(b, uint64(len(m.Rlimits)))
	for _, l := range m.Rlimits {
		b = appendUint(appendUint(appendString(b, l.Resource), l.Soft), l.Hard)
	}
	return appendString(b, m.Tag)
}

// Decode decodes a message.
func (m *Start) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Start{
		d.uint(), d.strings(), d.string(), d.strings(), d.string(), d.string(),
		d.uint(), d.uint(), d.int(), d.int(), d.uint(), d.uint(), d.rlimits(), d.string(),
	}
	return d.err()
}

func (d *decoder) rlimits() []Rlimit {
	n := d.count(MaxRlimits, 3)
	if n == 0 {
		return nil
	}
	limits := make([]Rlimit, n)
	for i := range limits {
		limits[i] = Rlimit{d.string(), d.uint(), d.uint()}
	}
	return limits
}

// Started identifies a process.
type Started struct {
	Ref uint64 // never used again while the guest lives; 0 when the program could not be started
	PID uint64
}

// Append appends the encoded message.
func (m *Started) Append(b []byte) []byte {
	return appendUint(appendUint(b, m.Ref), m.PID)
}

// Decode decodes a message.
func (m *Started) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Started{d.uint(), d.uint()}
	return d.err()
}

// The flags of Exit.
const (
	ExitTimedOut = 1 << iota
	ExitTruncated
)

// Exit describes how a process ended.
type Exit struct {
	Flags          uint64
	Code           uint64
	Signal         uint64
	StartError     string
	Stdout, Stderr uint64 // bytes written, dropped ones included
	Dropped        uint64 // bytes over the limit
	Wall           uint64 // nanoseconds, as the two below
	User, System   uint64
	PeakMemory     uint64 // bytes
	Lost           uint64 // bytes of output that this stream was too slow for
	Stage          Stage  // of StartError
	Errno          uint64 // of StartError, as in ErrorMessage
}

// Append appends the encoded message.
func (m *Exit) Append(b []byte) []byte {
	return appendUint(appendUint(m.appendEnd(b), uint64(m.Stage)), m.Errno)
}

// appendEnd appends the message as lists of processes have it: without the last fields, since what was not started
// is not in lists.
func (m *Exit) appendEnd(b []byte) []byte {
	b = appendUint(b, m.Flags)
	b = appendUint(b, m.Code)
	b = appendUint(b, m.Signal)
	b = appendString(b, m.StartError[:min(len(m.StartError), maxText)])
	b = appendUint(b, m.Stdout)
	b = appendUint(b, m.Stderr)
	b = appendUint(b, m.Dropped)
	b = appendUint(b, m.Wall)
	b = appendUint(b, m.User)
	b = appendUint(b, m.System)
	b = appendUint(b, m.PeakMemory)
	return appendUint(b, m.Lost)
}

func (d *decoder) exit() Exit {
	return Exit{
		d.uint(), d.uint(), d.uint(), d.string(), d.uint(), d.uint(), d.uint(),
		d.uint(), d.uint(), d.uint(), d.uint(), d.uint(), Stage(d.uint()), d.uint(),
	}
}

// Decode decodes a message.
func (m *Exit) Decode(b []byte) error {
	d := newDecoder(b)
	*m = d.exit()
	if m.Code > 255 || m.Signal > 127 {
		d.bad = true
	}
	return d.err()
}

// Target identifies a process: by Ref, or if that is 0 by PID, which prefers a running one
// to the latest that has ended.
type Target struct {
	Ref, PID uint64
}

// Append appends the encoded message.
func (m *Target) Append(b []byte) []byte {
	return appendUint(appendUint(b, m.Ref), m.PID)
}

// Decode decodes a message.
func (m *Target) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Target{d.uint(), d.uint()}
	return d.err()
}

// The flags of Attach.
const (
	AttachRecords = 1 << iota // the content is records: Output
	AttachQuiet               // no output is wanted, only the end
	AttachHold                // the process waits for this stream, as one in the foreground does
	AttachPassive             // the stream does not count as activity
)

// Attach requests the output of a detached process: the kept output, then new output.
type Attach struct {
	Target
	Stdin bool // the content that the host sends is standard input
	Flags uint64
	From  int64 // position of the output at which to begin; -1: at its present end
}

// Append appends the encoded message.
func (m *Attach) Append(b []byte) []byte {
	return appendInt(appendUint(appendBool(m.Target.Append(b), m.Stdin), m.Flags), m.From)
}

// Decode decodes a message.
func (m *Attach) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Attach{Target{d.uint(), d.uint()}, d.bool(), d.uint(), d.int()}
	return d.err()
}

// Signal sends a signal to a process.
type Signal struct {
	Target
	Signal uint64 // Linux number, 1 to 64
	Group  bool   // to the process group that the program leads
}

// Append appends the encoded message.
func (m *Signal) Append(b []byte) []byte {
	return appendBool(appendUint(m.Target.Append(b), m.Signal), m.Group)
}

// Decode decodes a message.
func (m *Signal) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Signal{Target{d.uint(), d.uint()}, d.uint(), d.bool()}
	return d.err()
}

// Resize changes the size of a process's terminal.
type Resize struct {
	Target
	Rows, Cols uint64
}

// Append appends the encoded message.
func (m *Resize) Append(b []byte) []byte {
	return appendUint(appendUint(m.Target.Append(b), m.Rows), m.Cols)
}

// Decode decodes a message.
func (m *Resize) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Resize{Target{d.uint(), d.uint()}, d.uint(), d.uint()}
	return d.err()
}

// After requests a page of processes: those with a greater Ref.
type After struct {
	Ref uint64
}

// Append appends the encoded message.
func (m *After) Append(b []byte) []byte { return appendUint(b, m.Ref) }

// Decode decodes a message.
func (m *After) Decode(b []byte) error {
	d := newDecoder(b)
	m.Ref = d.uint()
	return d.err()
}

// Process describes a process that the guest has started.
type Process struct {
	Started
	Command  []string // argv, cut when long
	User     string
	StartAt  int64 // nanoseconds since 1970
	Detached bool
	Exited   bool
	Exit     Exit   // when Exited
	Flags    uint64 // of its Start: StartStdin and StartTerminal; and those below
	Position uint64 // bytes of output of a detached process so far
	Dir, Tag string // of its Start
}

// More flags of a Process.
const (
	ProcessAnnounced = 1 << 16 // the host has said with OpAnnounced that its end was announced
	ProcessCut       = 1 << 17 // Command is only the beginning
)

// MaxRefs bounds Refs.
const MaxRefs = 1000

// Refs names processes.
type Refs struct {
	List []uint64
}

// Append appends the encoded message.
func (m *Refs) Append(b []byte) []byte {
	b = appendUint(b, uint64(len(m.List)))
	for _, ref := range m.List {
		b = appendUint(b, ref)
	}
	return b
}

// Decode decodes a message.
func (m *Refs) Decode(b []byte) error {
	d := newDecoder(b)
	m.List = make([]uint64, d.count(MaxRefs, 1))
	for i := range m.List {
		m.List[i] = d.uint()
	}
	return d.err()
}

// maxProcesses bounds Processes.
const maxProcesses = 1000

// Processes is a page of the processes, in the order of their Ref. It may have fewer than
// there are, because the size of a reply is bounded.
type Processes struct {
	List []Process
	More bool
}

// append appends the encoded process.
func (p *Process) append(b []byte) []byte {
	b = p.Started.Append(b)
	b = appendStrings(b, p.Command)
	b = appendString(b, p.User)
	b = appendInt(b, p.StartAt)
	b = appendBool(b, p.Detached)
	b = appendBool(b, p.Exited)
	b = appendString(b, string(p.Exit.appendEnd(nil)))
	b = appendUint(b, p.Flags)
	b = appendUint(b, p.Position)
	if p.Dir == "" && p.Tag == "" { // fields that are missing are zero
		return b
	}
	return appendString(appendString(b, p.Dir), p.Tag)
}

// Append appends the encoded message. It leaves out the processes that would
// make it longer than MaxReply, and sets More then.
func (m *Processes) Append(b []byte) []byte {
	var list []byte
	n, more := 0, m.More
	for i := range m.List {
		before := len(list)
		list = appendString(list, string(m.List[i].append(nil)))
		if len(list) > MaxReply-16 {
			list, more = list[:before], true
			break
		}
		n++
	}
	return append(appendUint(appendBool(b, more), uint64(n)), list...)
}

// Decode decodes a message.
func (m *Processes) Decode(b []byte) error {
	d := newDecoder(b)
	m.More = d.bool()
	n := d.count(maxProcesses, 1)
	m.List = make([]Process, n)
	for i := range m.List {
		e := decoder{s: d.string()}
		m.List[i] = e.process()
		d.bad = d.bad || e.bad
	}
	return d.err()
}

func (d *decoder) process() Process {
	p := Process{
		Started: Started{d.uint(), d.uint()}, Command: d.strings(), User: d.string(),
		StartAt: d.int(), Detached: d.bool(), Exited: d.bool(),
	}
	e := decoder{s: d.string()}
	p.Exit = e.exit()
	p.Flags, p.Position = d.uint(), d.uint()
	p.Dir, p.Tag = d.string(), d.string()
	d.bad = d.bad || e.bad
	return p
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func (d *decoder) bool() bool { return d.uint() != 0 }
