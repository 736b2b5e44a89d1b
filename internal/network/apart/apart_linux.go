package apart

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// version changes with the protocol. The two ends differ only if the wrong program was started.
const version = 5

// maxMessage bounds a message in bytes: more than the largest terms. Answers are made to fit.
const maxMessage = 16 << 20

// maxTexts bounds the flows and denials of an answer, as sizeOf counts them.
const maxTexts = maxMessage / 2

// sizeOf returns the most bytes that a flow or denial with these texts takes in JSON, which escapes a byte as
// \u0026 at worst.
func sizeOf(texts ...string) int {
	size := 300 // names of fields, numbers and times
	for _, t := range texts {
		size += 6 * len(t)
	}
	return size
}

func sizeOfDenials(all []sandpit.EgressDenial) (size int) {
	for _, d := range all {
		size += sizeOf(d.Destination, d.Rule, d.Why)
	}
	return size
}

// fit returns as many of the newest flows as fit into an answer. The others count as lost.
func fit(l sandpit.EgressLog) sandpit.EgressLog {
	left, first := maxTexts-sizeOfDenials(l.Denials), len(l.Flows)
	for ; first > 0; first-- {
		f := &l.Flows[first-1]
		if left -= sizeOf(f.Protocol, f.Host, f.Address, f.Rule, f.Why, f.Error); left < 0 {
			break
		}
	}
	l.Lost += int64(first)
	l.Flows = l.Flows[first:]
	return l
}

// op says what a message asks for.
type op string

const (
	opHello  op = "hello"
	opJoin   op = "join"
	opSet    op = "set"
	opLog    op = "log"
	opCounts op = "counts"
	opLeave  op = "leave"
	opRenew  op = "renew" // of the process
	opEcho   op = "echo"  // of the process: with the answer comes a socket
	opNames  op = "names" // of the process: with the answer comes resolv.conf
)

// ofProcess reports whether it is the process that asks.
func (o op) ofProcess() bool { return o == opRenew || o == opEcho || o == opNames }

// message is a request of the host or, with the same ID, an answer. Requests of the process have IDs of their
// own, and so do their answers.
type message struct {
	ID      uint64
	Op      op
	Version int    `json:",omitempty"` // of hello, and of its answer
	Sandbox uint64 `json:",omitempty"`

	Upstream *upstream.Settings `json:",omitempty"` // of hello

	Terms *engine.Terms   `json:",omitempty"` // of join and set
	Same  *same           `json:",omitempty"` // of set: what Terms lacks
	Used  *engine.Traffic `json:",omitempty"` // of join: see network.Resume
	Name  string          `json:",omitempty"` // of renew: the secret
	IPv6  bool            `json:",omitempty"` // of echo

	Failed *failure           `json:",omitempty"`
	Gaps   []string           `json:",omitempty"` // of the answer to hello: rights that could not be dropped
	Log    *sandpit.EgressLog `json:",omitempty"`
	Counts []counts           `json:",omitempty"` // of all sandboxes
}

// counts are the traffic of a sandbox so far, and its denials since they were last asked for.
type counts struct {
	Sandbox uint64
	Traffic engine.Traffic
	Denials []sandpit.EgressDenial `json:",omitempty"`
}

// failure is an error.
type failure struct{ Code, Text, Hint string }

func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	return &failure{Code: errcode.Of(err), Text: err.Error(), Hint: sandpit.Hint(err)}
}

func (f *failure) err() error {
	if f == nil {
		return nil
	}
	err := errors.New(f.Text)
	if kind := errcode.Kind(f.Code); kind != nil {
		err = fault.Kind{Err: err, Kind: kind}
	}
	if f.Hint != "" {
		err = sandpit.WithHint(err, f.Hint)
	}
	return err
}

// encode returns a message as it is sent: its length in 4 bytes, and its body.
func encode(m *message) ([]byte, error) {
	body, err := json.Marshal(m)
	if err == nil && len(body) > maxMessage {
		err = fault.Errorf(sandpit.ErrQuota, "a message of %d bytes exceeds the limit of %d", len(body), maxMessage)
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...), err
}

// send writes an encoded message, and with it the descriptor fd unless that is negative. Only one
// caller may send at a time.
func send(c *net.UnixConn, encoded []byte, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = syscall.UnixRights(fd)
	}
	n, _, err := c.WriteMsgUnix(encoded, rights, nil) // in one piece, which wakes the other end once
	if err == nil && n < len(encoded) {
		_, err = c.Write(encoded[n:])
	}
	return err
}

// receive reads the body of a message. The file that came with it is the caller's, or nil.
func receive(c *net.UnixConn) (body []byte, file *os.File, err error) {
	defer func() {
		if err != nil && file != nil {
			file.Close()
			file = nil
		}
	}()
	head, rights := make([]byte, 4), make([]byte, syscall.CmsgSpace(4))
	n, size, _, _, err := c.ReadMsgUnix(head, rights)
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		return nil, nil, io.EOF
	}
	if file, err = received(rights[:size]); err != nil {
		return nil, nil, err
	}
	if _, err = io.ReadFull(c, head[n:]); err != nil {
		return nil, file, err
	}
	length := binary.BigEndian.Uint32(head)
	if length > maxMessage {
		return nil, file, fmt.Errorf("a message of %d bytes exceeds the limit of %d", length, maxMessage)
	}
	body = make([]byte, length)
	_, err = io.ReadFull(c, body)
	return body, file, err
}

// decode returns the message of a body.
func decode(body []byte) (*message, error) {
	m := new(message)
	if json.Unmarshal(body, m) != nil {
		return nil, errors.New("a message is not valid JSON") // whose text may have a secret
	}
	return m, nil
}

// received returns the descriptor of a control message, or nil.
func received(rights []byte) (*os.File, error) {
	all, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for i := range all {
		fds, err := syscall.ParseUnixRights(&all[i])
		if err != nil || len(fds) == 0 {
			continue
		}
		return os.NewFile(uintptr(fds[0]), "received"), nil // rights have room for one
	}
	return nil, nil
}
