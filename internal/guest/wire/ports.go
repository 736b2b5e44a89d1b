package wire

// Dial requests a connection to a listener in the sandbox.
type Dial struct {
	Address string // an IP address, or the path of a unix socket
	Port    uint64 // TCP; 0 for a unix socket
}

// Append appends the encoded message.
func (m *Dial) Append(b []byte) []byte { return appendUint(appendString(b, m.Address), m.Port) }

// Decode decodes a message.
func (m *Dial) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Dial{d.string(), d.uint()}
	return d.err()
}

// Closed is the end of a connection.
type Closed struct {
	Errno uint64 // why it broke, Linux's number; 0: it ended
}

// Append appends the encoded message.
func (m *Closed) Append(b []byte) []byte { return appendUint(b, m.Errno) }

// Decode decodes a message.
func (m *Closed) Decode(b []byte) error {
	d := newDecoder(b)
	m.Errno = d.uint()
	return d.err()
}

// Port is a listening TCP port.
type Port struct {
	Address string // 4 or 16 bytes
	Port    uint64
	UID     uint64 // of who made the socket
}

// MaxPorts bounds Ports.
const MaxPorts = 1 << 12

// Ports are the listening ports, each address and port once.
type Ports struct {
	List []Port
}

// Append appends the encoded message.
func (m *Ports) Append(b []byte) []byte {
	b = appendUint(b, uint64(len(m.List)))
	for _, p := range m.List {
		b = appendUint(appendUint(appendString(b, p.Address), p.Port), p.UID)
	}
	return b
}

// Decode decodes a message.
func (m *Ports) Decode(b []byte) error {
	d := newDecoder(b)
	m.List = make([]Port, d.count(MaxPorts, 3))
	for i := range m.List {
		m.List[i] = Port{d.string(), d.uint(), d.uint()}
		if n := len(m.List[i].Address); n != 4 && n != 16 || m.List[i].Port > 65535 {
			d.bad = true
		}
	}
	return d.err()
}
