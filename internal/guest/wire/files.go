package wire

// As requests a file operation with the rights of another user than the sandbox's. It is an
// operation of its own, and not a field of the others, so that a guest that does not know it
// refuses instead of acting as the sandbox's user.
type As struct {
	User    string // as Start.User
	Op      uint64 // 9 to 18, 21 to 27, 32
	Message string // of Op
	Root    bool   // with the capabilities of root, too; what is created, or replaced by OpWrite, belongs to User all the same
}

// Append appends the encoded message.
func (m *As) Append(b []byte) []byte {
	return appendBool(appendString(appendUint(appendString(b, m.User), m.Op), m.Message), m.Root)
}

// Decode decodes a message.
func (m *As) Decode(b []byte) error {
	d := newDecoder(b)
	*m = As{d.string(), d.uint(), d.string(), d.bool()}
	return d.err()
}

// Stat requests the description of a file.
type Stat struct {
	Path   string
	Follow bool // the last symbolic link
	Attrs  bool // asks for File.Attrs
}

// Append appends the encoded message.
func (m *Stat) Append(b []byte) []byte {
	return appendBool(appendBool(appendString(b, m.Path), m.Follow), m.Attrs)
}

// Decode decodes a message.
func (m *Stat) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Stat{d.string(), d.bool(), d.bool()}
	return d.err()
}

// File describes a file.
type File struct {
	Name     string
	Size     int64
	Mode     uint64 // st_mode of stat(2)
	ModTime  int64  // nanoseconds since 1970
	UID, GID uint64
	Target   string // of a symbolic link
	Attrs    []Attr // extended attributes user.*; in Described and Entries only, if they were asked for
}

// Append appends the encoded message.
func (m *File) Append(b []byte) []byte {
	b = appendString(b, m.Name)
	b = appendInt(b, m.Size)
	b = appendUint(b, m.Mode)
	b = appendInt(b, m.ModTime)
	b = appendUint(b, m.UID)
	b = appendUint(b, m.GID)
	return appendString(b, m.Target)
}

func (d *decoder) file() File {
	return File{d.string(), d.int(), d.uint(), d.int(), d.uint(), d.uint(), d.string(), nil}
}

// Decode decodes a message.
func (m *File) Decode(b []byte) error {
	d := newDecoder(b)
	*m = d.file()
	return d.err()
}

// Described is the answer to Stat: a File with its Attrs.
type Described struct{ File }

// Append appends the encoded message.
func (m *Described) Append(b []byte) []byte { return appendAttrs(m.File.Append(b), m.Attrs) }

// Decode decodes a message.
func (m *Described) Decode(b []byte) error {
	d := newDecoder(b)
	m.File = d.file()
	m.Attrs = d.attrs()
	return d.err()
}

// Attr is an extended attribute of a file.
type Attr struct {
	Name  string // without "user."
	Value string
}

// Bounds of the Attrs of a file.
const (
	MaxAttrs     = 64
	MaxAttrBytes = 4096 // of names, with "user.", and values
	MaxAttrName  = 255 - len("user.")
)

// AttrBytes returns what counts for MaxAttrBytes.
func AttrBytes(attrs []Attr) int {
	n := 0
	for _, a := range attrs {
		n += len("user.") + len(a.Name) + len(a.Value)
	}
	return n
}

func appendAttrs(b []byte, attrs []Attr) []byte {
	b = appendUint(b, uint64(len(attrs)))
	for _, a := range attrs {
		b = appendString(appendString(b, a.Name), a.Value)
	}
	return b
}

func (d *decoder) attrs() []Attr {
	n := d.count(MaxAttrs, 2)
	if n == 0 {
		return nil
	}
	attrs := make([]Attr, n)
	for i := range attrs {
		attrs[i] = Attr{d.string(), d.string()}
	}
	if AttrBytes(attrs) > MaxAttrBytes {
		d.bad = true
	}
	return attrs
}

// ReadDir requests entries of a directory, sorted by name.
type ReadDir struct {
	Path, After string
	Limit       uint64 // 1 to MaxEntries
}

// MaxEntries is the maximum number of entries in an answer.
const MaxEntries = 10_000

// Append appends the encoded message.
func (m *ReadDir) Append(b []byte) []byte {
	return appendUint(appendString(appendString(b, m.Path), m.After), m.Limit)
}

// Decode decodes a message.
func (m *ReadDir) Decode(b []byte) error {
	d := newDecoder(b)
	*m = ReadDir{d.string(), d.string(), d.uint()}
	return d.err()
}

// Entries is a page of a directory. It may have fewer entries than requested although there
// are more, because the size of a reply is bounded.
type Entries struct {
	More bool
	List []File
}

// Append appends the encoded message. It leaves out the entries that would
// make it longer than MaxReply, and sets More then.
func (m *Entries) Append(b []byte) []byte {
	const countSize = 3 // a varint of three bytes holds MaxEntries
	start := len(b)
	b = appendBool(b, m.More)
	count := len(b)
	b = append(b, make([]byte, countSize)...)
	n := 0
	var attrs []byte // of entries that have some: the number of the entry, and its attributes
	with := uint64(0)
	for i := range m.List {
		before, attrsBefore := len(b), len(attrs)
		b = m.List[i].Append(b)
		if len(m.List[i].Attrs) > 0 {
			attrs = appendAttrs(appendUint(attrs, uint64(i)), m.List[i].Attrs)
		}
		if len(b)-start+countSize+len(attrs) > MaxReply {
			b, attrs = b[:before], attrs[:attrsBefore]
			b[start] = 1
			break
		}
		if len(attrs) > attrsBefore {
			with++
		}
		n++
	}
	b[count], b[count+1], b[count+2] = byte(n)|0x80, byte(n>>7)|0x80, byte(n>>14)
	return append(appendUint(b, with), attrs...)
}

// Decode decodes a message.
func (m *Entries) Decode(b []byte) error {
	d := newDecoder(b)
	m.More = d.bool()
	n := d.count(MaxEntries, 7)
	m.List = make([]File, n)
	for i := range m.List {
		m.List[i] = d.file()
	}
	next := uint64(0)
	for range d.count(n, 2) {
		i := d.uint()
		if i < next || i >= uint64(n) {
			d.bad = true
			break
		}
		m.List[i].Attrs = d.attrs()
		next = i + 1
	}
	return d.err()
}

// Read requests content of a regular file.
type Read struct {
	Path           string
	Offset, Length int64 // a Length of -1 is all
}

// Append appends the encoded message.
func (m *Read) Append(b []byte) []byte {
	return appendInt(appendInt(appendString(b, m.Path), m.Offset), m.Length)
}

// Decode decodes a message.
func (m *Read) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Read{d.string(), d.int(), d.int()}
	return d.err()
}

// Write requests to make or replace a file with the content that follows.
type Write struct {
	Path    string
	Mode    uint64 // permission bits of a new file, before the umask 022
	AtEnd   bool   // add to the file instead of replacing it
	Parents bool   // make missing directories above it
	InPlace bool   // write into the file from Offset on instead of replacing it
	Offset  int64
	Attrs   []Attr // of a file that is made or replaced
}

// Append appends the encoded message.
func (m *Write) Append(b []byte) []byte {
	b = appendString(b, m.Path)
	b = appendUint(b, m.Mode)
	b = appendBool(b, m.AtEnd)
	b = appendBool(b, m.Parents)
	return appendAttrs(appendInt(appendBool(b, m.InPlace), m.Offset), m.Attrs)
}

// Decode decodes a message.
func (m *Write) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Write{d.string(), d.uint(), d.bool(), d.bool(), d.bool(), d.int(), d.attrs()}
	return d.err()
}

// Written is the number of bytes of content that were written.
type Written struct {
	Bytes int64
}

// Append appends the encoded message.
func (m *Written) Append(b []byte) []byte { return appendInt(b, m.Bytes) }

// Decode decodes a message.
func (m *Written) Decode(b []byte) error {
	d := newDecoder(b)
	m.Bytes = d.int()
	if m.Bytes < 0 {
		d.bad = true
	}
	return d.err()
}

// Path is the message of the simple file operations.
type Path struct {
	Path, Other string
	Mode        uint64 // permission bits, and set-id and sticky, as chmod(2) takes them
	Flag        bool
}

// Append appends the encoded message.
func (m *Path) Append(b []byte) []byte {
	b = appendString(b, m.Path)
	b = appendString(b, m.Other)
	b = appendUint(b, m.Mode)
	return appendBool(b, m.Flag)
}

// Decode decodes a message.
func (m *Path) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Path{d.string(), d.string(), d.uint(), d.bool()}
	return d.err()
}

// Attributes that SetAttr changes.
const (
	AttrSize = 1 << iota
	AttrMode
	AttrUID
	AttrGID
	AttrModTime
	AttrAccessTime
)

// SetAttr requests to change attributes of a file.
type SetAttr struct {
	Path                string
	Follow              bool   // the last symbolic link
	Attrs               uint64 // which: bits; other attributes keep their values
	Size                int64
	Mode                uint64 // as Path.Mode
	UID, GID            uint64
	ModTime, AccessTime int64 // nanoseconds since 1970
}

// Append appends the encoded message.
func (m *SetAttr) Append(b []byte) []byte {
	b = appendBool(appendString(b, m.Path), m.Follow)
	b = appendInt(appendUint(b, m.Attrs), m.Size)
	b = appendUint(appendUint(appendUint(b, m.Mode), m.UID), m.GID)
	return appendInt(appendInt(b, m.ModTime), m.AccessTime)
}

// Decode decodes a message.
func (m *SetAttr) Decode(b []byte) error {
	d := newDecoder(b)
	*m = SetAttr{d.string(), d.bool(), d.uint(), d.int(), d.uint(), d.uint(), d.uint(), d.int(), d.int()}
	return d.err()
}
