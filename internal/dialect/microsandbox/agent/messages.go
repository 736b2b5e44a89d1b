package agent

import "github.com/fxamacker/cbor/v2"

// Types of messages.
const (
	kindReady       = "core.ready"
	kindPing        = "core.ping"
	kindPong        = "core.pong"
	kindTouch       = "core.touch"
	kindTouched     = "core.touched"
	kindShutdown    = "core.shutdown"
	kindError       = "core.error"
	kindExec        = "core.exec.request"
	kindStarted     = "core.exec.started"
	kindStdin       = "core.exec.stdin"
	kindStdinError  = "core.exec.stdin.error"
	kindStdout      = "core.exec.stdout"
	kindStderr      = "core.exec.stderr"
	kindExited      = "core.exec.exited"
	kindFailed      = "core.exec.failed"
	kindResize      = "core.exec.resize"
	kindSignal      = "core.exec.signal"
	kindFiles       = "core.fs.request"
	kindAnswer      = "core.fs.response"
	kindContent     = "core.fs.data"
	kindConnect     = "core.tcp.connect"
	kindConnected   = "core.tcp.connected"
	kindBytes       = "core.tcp.data"
	kindEOF         = "core.tcp.eof"
	kindClose       = "core.tcp.close"
	kindClosed      = "core.tcp.closed"
	kindUnconnected = "core.tcp.failed"

	kindBulkAccepted = "core.bulk.accepted"
	kindBulkCredit   = "core.bulk.credit"
	kindBulkFinish   = "core.bulk.finish"
	kindBulkCancel   = "core.bulk.cancel"
)

type (
	// readyMessage is the first message. The times are those of a virtual machine.
	readyMessage struct {
		BootTime  uint64 `cbor:"boot_time_ns"`
		InitTime  uint64 `cbor:"init_time_ns"`
		ReadyTime uint64 `cbor:"ready_time_ns"`
		Version   string `cbor:"agent_version"`
	}

	touchedMessage struct {
		Activity uint64 `cbor:"activity_seq"`
	}

	// errorMessage is about a message that can't be understood.
	errorMessage struct {
		Kind    string `cbor:"kind"`
		Message string `cbor:"message"`
		Type    string `cbor:"offending_type,omitempty"`
	}

	// nothing is an empty payload.
	nothing struct{}

	dataMessage struct {
		Data []byte `cbor:"data"`
	}
)

// Kinds of errorMessage.
const (
	errMalformed   = "malformed_message"
	errUnsupported = "unsupported_message_type"
	errPayload     = "invalid_payload"
	errSession     = "invalid_session"
)

type (
	execRequest struct {
		Cmd     string   `cbor:"cmd"`
		Args    []string `cbor:"args"`
		Env     []string `cbor:"env"`
		Cwd     *string  `cbor:"cwd"`
		User    *string  `cbor:"user"`
		TTY     bool     `cbor:"tty"`
		Rows    *uint16  `cbor:"rows"`
		Cols    *uint16  `cbor:"cols"`
		Rlimits []rlimit `cbor:"rlimits"`
	}

	rlimit struct {
		Resource string `cbor:"resource" json:"resource"`
		Soft     uint64 `cbor:"soft" json:"soft"`
		Hard     uint64 `cbor:"hard" json:"hard"`
	}

	startedMessage struct {
		PID uint32 `cbor:"pid"`
	}

	exitedMessage struct {
		Code int32 `cbor:"code"`
	}

	// failedMessage says why a program was not started.
	failedMessage struct {
		Kind    string `cbor:"kind"`
		Errno   *int32 `cbor:"errno"`
		Name    string `cbor:"errno_name,omitempty"`
		Message string `cbor:"message"`
		Stage   string `cbor:"stage,omitempty"`
	}

	stdinErrorMessage struct {
		Errno   int32  `cbor:"errno"`
		Name    string `cbor:"errno_name"`
		Message string `cbor:"message"`
	}

	resizeMessage struct {
		Rows uint16 `cbor:"rows"`
		Cols uint16 `cbor:"cols"`
	}

	signalMessage struct {
		Signal int32 `cbor:"signal"`
	}
)

type (
	// filesRequest has one operation: a map from its name to its arguments.
	filesRequest struct {
		Op   map[string]cbor.RawMessage `cbor:"op"`
		Bulk *bulkOffer                 `cbor:"bulk"` // of Read and Write
	}

	// filesArgs are the arguments of all operations on files; each has some of them.
	filesArgs struct {
		Path      string      `cbor:"path"`
		Follow    bool        `cbor:"follow_symlink"`
		Attrs     attributes  `cbor:"attrs"`
		Target    string      `cbor:"target"`
		LinkPath  string      `cbor:"link_path"`
		Mode      *uint32     `cbor:"mode"`
		User      *string     `cbor:"user"`
		Recursive bool        `cbor:"recursive"`
		Src       string      `cbor:"src"`
		Dst       string      `cbor:"dst"`
		Options   openOptions `cbor:"options"`
		Handle    uint64      `cbor:"handle"`
		Offset    uint64      `cbor:"offset"`
		Len       *uint64     `cbor:"len"`
		Limit     *uint32     `cbor:"limit"`

		bulk *bulkOffer
	}

	attributes struct {
		Mode  *uint32 `cbor:"mode"`
		UID   *uint32 `cbor:"uid"`
		GID   *uint32 `cbor:"gid"`
		Size  *uint64 `cbor:"size"`
		Atime *int64  `cbor:"atime"`
		Mtime *int64  `cbor:"mtime"`
	}

	openOptions struct {
		Read      bool    `cbor:"read"`
		Write     bool    `cbor:"write"`
		Append    bool    `cbor:"append"`
		Create    bool    `cbor:"create"`
		Truncate  bool    `cbor:"truncate"`
		CreateNew bool    `cbor:"create_new"`
		Mode      *uint32 `cbor:"mode"`
		User      *string `cbor:"user"`
	}

	answerMessage struct {
		OK    bool           `cbor:"ok"`
		Error *string        `cbor:"error"`
		Data  map[string]any `cbor:"data"` // one of: Stat: entry, List: []entry, Handle: uint64, Path: string
	}

	entry struct {
		Path     string `cbor:"path"`
		Kind     string `cbor:"kind"`
		Size     uint64 `cbor:"size"`
		Mode     uint32 `cbor:"mode"`
		Modified int64  `cbor:"modified"`
		UID      uint32 `cbor:"uid"`
		GID      uint32 `cbor:"gid"`
		Mtime    int64  `cbor:"mtime"`
	}
)

type (
	connectRequest struct {
		Host string     `cbor:"host"`
		Port uint16     `cbor:"port"`
		Bulk *bulkOffer `cbor:"bulk"`
	}

	unconnectedMessage struct {
		Error string `cbor:"error"`
	}
)
