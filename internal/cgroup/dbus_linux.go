package cgroup

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// As much of D-Bus as one call needs: EXTERNAL authentication, messages of
// strings and numbers, both byte orders on the way in. The D-Bus libraries add
// more to the program than the rest of this package does. The format is
// https://dbus.freedesktop.org/doc/dbus-specification.html, version 0.43.

// The types of a message.
const (
	busCall   = 1
	busReturn = 2
	busError  = 3
	busSignal = 4
)

// The header fields that are used.
const (
	busPath        = 1
	busInterface   = 2
	busMember      = 3
	busErrorName   = 4
	busReplySerial = 5
	busDestination = 6
	busSender      = 7
	busSignature   = 8
)

// maxMessage is the largest message that is accepted; the specification allows
// 128 MiB, and the bus sends us a few hundred bytes.
const maxMessage = 1 << 20

// message is a D-Bus message. Fields without a value are empty.
type message struct {
	typ                                       byte
	serial, replySerial                       uint32
	path, iface, member, errorName, signature string
	dest, sender                              string // sender is set by the bus
	body                                      []byte
	order                                     binary.ByteOrder
}

// wire writes values in the D-Bus format, little-endian. The position counts
// from where the alignment does.
type wire struct{ buf []byte }

func (w *wire) align(n int) {
	for len(w.buf)%n != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *wire) u32(v uint32) {
	w.align(4)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, v)
}

func (w *wire) str(s string) {
	w.u32(uint32(len(s)))
	w.buf = append(append(w.buf, s...), 0)
}

func (w *wire) sig(s string) {
	w.buf = append(append(append(w.buf, byte(len(s))), s...), 0)
}

// array writes an array whose elements are aligned to n.
func (w *wire) array(n int, elements func()) {
	w.u32(0)
	at := len(w.buf) - 4
	w.align(n)
	start := len(w.buf)
	elements()
	binary.LittleEndian.PutUint32(w.buf[at:], uint32(len(w.buf)-start))
}

// encode returns the bytes of m.
func (m *message) encode() []byte {
	w := wire{buf: []byte{'l', m.typ, 0, 1}}
	w.u32(uint32(len(m.body)))
	w.u32(m.serial)
	w.array(8, func() {
		for _, f := range [...]struct {
			code  byte
			sig   string
			value string
		}{
			{busPath, "o", m.path},
			{busInterface, "s", m.iface},
			{busMember, "s", m.member},
			{busErrorName, "s", m.errorName},
			{busDestination, "s", m.dest},
			{busSignature, "g", m.signature},
		} {
			if f.value == "" {
				continue
			}
			w.align(8)
			w.buf = append(w.buf, f.code)
			w.sig(f.sig)
			if f.sig == "g" {
				w.sig(f.value)
			} else {
				w.str(f.value)
			}
		}
		if m.replySerial != 0 {
			w.align(8)
			w.buf = append(w.buf, busReplySerial)
			w.sig("u")
			w.u32(m.replySerial)
		}
	})
	w.align(8)
	return append(w.buf, m.body...)
}

var errWire = errors.New("malformed d-bus message")

// unwire reads values; after a mistake in the input all are zero and bad is set.
type unwire struct {
	buf   []byte
	pos   int
	order binary.ByteOrder
	bad   bool
}

func (r *unwire) take(n, align int) []byte {
	pos := (r.pos + align - 1) &^ (align - 1)
	if r.bad || n < 0 || pos > len(r.buf) || n > len(r.buf)-pos {
		r.bad = true
		return nil
	}
	r.pos = pos + n
	return r.buf[pos:r.pos]
}

func (r *unwire) byte() byte {
	if b := r.take(1, 1); b != nil {
		return b[0]
	}
	return 0
}

func (r *unwire) u32() uint32 {
	if b := r.take(4, 4); b != nil {
		return r.order.Uint32(b)
	}
	return 0
}

func (r *unwire) text(n int) string {
	b := r.take(n+1, 1)
	if b == nil || b[n] != 0 {
		r.bad = true
		return ""
	}
	return string(b[:n])
}

func (r *unwire) str() string {
	n := r.u32()
	if n > maxMessage {
		r.bad = true
		return ""
	}
	return r.text(int(n))
}

func (r *unwire) sig() string { return r.text(int(r.byte())) }

// value reads a variant and returns what is in it if it is text, or a u32.
func (r *unwire) value() (text string, n uint32) {
	switch r.sig() {
	case "s", "o":
		return r.str(), 0
	case "g":
		return r.sig(), 0
	case "u", "b", "i", "h":
		return "", r.u32()
	case "y":
		r.byte()
	case "n", "q":
		r.take(2, 2)
	case "x", "t", "d":
		r.take(8, 8)
	default:
		r.bad = true
	}
	return "", 0
}

// readMessage reads one message.
func readMessage(in io.Reader) (*message, error) {
	var fixed [16]byte
	if _, err := io.ReadFull(in, fixed[:]); err != nil {
		return nil, err
	}
	m := &message{typ: fixed[1], order: binary.LittleEndian}
	if fixed[0] == 'B' {
		m.order = binary.BigEndian
	} else if fixed[0] != 'l' {
		return nil, errWire
	}
	body, fields := m.order.Uint32(fixed[4:]), m.order.Uint32(fixed[12:])
	m.serial = m.order.Uint32(fixed[8:])
	if fixed[3] != 1 || body > maxMessage || fields > maxMessage {
		return nil, errWire
	}
	// The fields begin at byte 16 of the message and are padded to 8.
	padded := (fields + 7) &^ 7
	rest := make([]byte, padded+body)
	if _, err := io.ReadFull(in, rest); err != nil {
		return nil, err
	}
	r := unwire{buf: rest[:fields], order: m.order}
	for r.pos < len(r.buf) && !r.bad {
		r.take(0, 8)
		code := r.byte()
		text, n := r.value()
		switch code {
		case busPath:
			m.path = text
		case busInterface:
			m.iface = text
		case busMember:
			m.member = text
		case busErrorName:
			m.errorName = text
		case busReplySerial:
			m.replySerial = n
		case busDestination:
			m.dest = text
		case busSender:
			m.sender = text
		case busSignature:
			m.signature = text
		}
	}
	if r.bad {
		return nil, errWire
	}
	m.body = rest[padded:]
	return m, nil
}

// strings reads a body that begins with the types of want: 'u', 's' and 'o'.
// Numbers are "".
func (m *message) strings(want string) ([]string, error) {
	if !strings.HasPrefix(m.signature, want) {
		return nil, errWire
	}
	r := unwire{buf: m.body, order: m.order}
	var out []string
	for _, t := range want {
		if t == 'u' {
			r.u32()
			out = append(out, "")
		} else {
			out = append(out, r.str())
		}
	}
	if r.bad {
		return nil, errWire
	}
	return out, nil
}

// busConn is a connection to a message bus.
type busConn struct {
	net.Conn
	in     *bufio.Reader
	serial uint32
}

// dialBus connects and authenticates as uid. Everything on the connection
// ends at deadline.
func dialBus(socket string, uid int, deadline time.Time) (*busConn, error) {
	conn, err := (&net.Dialer{Deadline: deadline}).Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	c := &busConn{Conn: conn, in: bufio.NewReader(conn)}
	if err := c.authenticate(uid, deadline); err != nil {
		conn.Close()
		return nil, fmt.Errorf("authenticating to %s: %w", socket, err)
	}
	return c, nil
}

func (c *busConn) authenticate(uid int, deadline time.Time) error {
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	id := hex.EncodeToString([]byte(strconv.Itoa(uid)))
	if _, err := io.WriteString(c, "\x00AUTH EXTERNAL "+id+"\r\n"); err != nil {
		return err
	}
	// ReadSlice bounds the line by the reader's buffer.
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(line), "OK ") {
		return fmt.Errorf("refused: %q", line)
	}
	if _, err := io.WriteString(c, "BEGIN\r\n"); err != nil {
		return err
	}
	hello := message{
		typ: busCall, dest: "org.freedesktop.DBus", path: "/org/freedesktop/DBus",
		iface: "org.freedesktop.DBus", member: "Hello",
	}
	_, err = c.send(&hello)
	return err
}

// send writes a message and returns the serial that it got.
func (c *busConn) send(m *message) (uint32, error) {
	c.serial++
	m.serial = c.serial
	_, err := c.Write(m.encode())
	return c.serial, err
}
