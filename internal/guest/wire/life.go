package wire

// Lifetime sets how long a guest lives or, without Set, requests it.
type Lifetime struct {
	Set   bool
	Life  int64 // nanoseconds from now on; 0: for ever
	Idle  int64 // nanoseconds without activity; 0: for ever
	Grace int64 // nanoseconds between Expired and the end while a host is connected; 0: DefaultGrace
}

// DefaultGrace is the time, in nanoseconds, that a connected host has to react to the end
// of a sandbox's time before the guest ends it.
const DefaultGrace = 5_000_000_000

// Append appends the encoded message.
func (m *Lifetime) Append(b []byte) []byte {
	return appendInt(appendInt(appendInt(appendBool(b, m.Set), m.Life), m.Idle), m.Grace)
}

// Decode decodes a message.
func (m *Lifetime) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Lifetime{d.bool(), d.int(), d.int(), d.int()}
	return d.err()
}

// LifetimeState is the rest of a lifetime.
type LifetimeState struct {
	Life     int64 // nanoseconds left, at least 1; 0: for ever
	Idle     int64 // as set; 0: for ever
	IdleLeft int64 // nanoseconds left of it if nothing happens, at least 1; 0: for ever
}

// Append appends the encoded message.
func (m *LifetimeState) Append(b []byte) []byte {
	return appendInt(appendInt(appendInt(b, m.Life), m.Idle), m.IdleLeft)
}

// Decode decodes a message.
func (m *LifetimeState) Decode(b []byte) error {
	d := newDecoder(b)
	*m = LifetimeState{d.int(), d.int(), d.int()}
	if m.Life < 0 || m.Idle < 0 || m.IdleLeft < 0 {
		d.bad = true
	}
	return d.err()
}

// The reasons of Expired.
const (
	ExpiredLife = 1 // the lifetime is over
	ExpiredIdle = 2 // nothing has happened for the idle time
)

// Expired says that the time of a sandbox is over.
type Expired struct {
	Reason uint64
	Grace  int64 // nanoseconds until the guest ends everything
}

// Append appends the encoded message.
func (m *Expired) Append(b []byte) []byte { return appendInt(appendUint(b, m.Reason), m.Grace) }

// Decode decodes a message.
func (m *Expired) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Expired{d.uint(), d.int()}
	return d.err()
}
