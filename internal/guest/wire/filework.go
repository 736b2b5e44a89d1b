package wire

// Find requests the files below a directory, in the order of their path elements. The
// answer is Entries, whose names are paths relative to Root.
type Find struct {
	Root  string
	Glob  string // of the relative path; ** is any number of elements, at the end at least one; empty: all
	After string // entries behind this relative path
	Depth uint64 // levels below Root; 0: any
	Limit uint64 // 1 to MaxEntries
	Attrs bool   // asks for File.Attrs
}

// Append appends the encoded message.
func (m *Find) Append(b []byte) []byte {
	b = appendString(b, m.Root)
	b = appendString(b, m.Glob)
	b = appendString(b, m.After)
	b = appendUint(b, m.Depth)
	return appendBool(appendUint(b, m.Limit), m.Attrs)
}

// Decode decodes a message.
func (m *Find) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Find{d.string(), d.string(), d.string(), d.uint(), d.uint(), d.bool()}
	return d.err()
}

// The operations of Inst.
const (
	InstFail  = 0 // no match this way
	InstMatch = 1 // the line matches
	InstGo    = 2 // on to Out
	InstAlt   = 3 // on to Out and to Arg
	InstEmpty = 4 // on to Out where the assertions Arg hold
	InstRune  = 5 // a character of one of the ranges, then Out
	InstAny   = 6 // any character, then Out
)

// The assertions of InstEmpty.
const (
	EmptyBegin  = 1 << iota // of the line
	EmptyEnd                // of the line
	EmptyWord               // between a word character and none (ASCII)
	EmptyNoWord             // not so
)

// An Inst is an instruction of a compiled regular expression. The host compiles it, so that
// the guest need not know the syntax.
type Inst struct {
	Op, Out, Arg uint64
	Ranges       []int32 // pairs of first and last, ascending
}

// Bounds of a Grep.
const (
	MaxInsts  = 1 << 14
	MaxRanges = 1 << 14 // of one instruction
)

// Grep requests lines of the regular files below a directory, or of a file.
type Grep struct {
	Root    string
	Glob    string // as Find.Glob
	Depth   uint64
	Context uint64 // lines before and after
	Limit   uint64 // matching lines
	Literal string // what a match begins with, or all of it when there is no program
	Prog    []Inst // begins at Start
	Start   uint64
}

// Append appends the encoded message.
func (m *Grep) Append(b []byte) []byte {
	b = appendString(b, m.Root)
	b = appendString(b, m.Glob)
	b = appendUint(b, m.Depth)
	b = appendUint(b, m.Context)
	b = appendUint(b, m.Limit)
	b = appendString(b, m.Literal)
	b = appendUint(b, uint64(len(m.Prog)))
	for i := range m.Prog {
		in := &m.Prog[i]
		b = appendUint(b, in.Op)
		b = appendUint(b, in.Out)
		b = appendUint(b, in.Arg)
		b = appendUint(b, uint64(len(in.Ranges)))
		for _, r := range in.Ranges {
			b = appendInt(b, int64(r))
		}
	}
	return appendUint(b, m.Start)
}

// Decode decodes a message. The program it gives leads nowhere outside of itself.
func (m *Grep) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Grep{Root: d.string(), Glob: d.string(), Depth: d.uint(), Context: d.uint(), Limit: d.uint(), Literal: d.string()}
	if n := d.count(MaxInsts, 4); n > 0 {
		m.Prog = make([]Inst, n)
	}
	for i := range m.Prog {
		in := &m.Prog[i]
		in.Op, in.Out, in.Arg = d.uint(), d.uint(), d.uint()
		if n := d.count(MaxRanges, 1); n > 0 {
			in.Ranges = make([]int32, n)
		}
		for j := range in.Ranges {
			in.Ranges[j] = int32(d.int())
		}
		n := uint64(len(m.Prog))
		if in.Op > InstAny || in.Out >= n || in.Op == InstAlt && in.Arg >= n || len(in.Ranges)%2 != 0 {
			d.bad = true
		}
	}
	m.Start = d.uint()
	if m.Start > 0 && m.Start >= uint64(len(m.Prog)) {
		d.bad = true
	}
	return d.err()
}

// The kinds of GrepLine.
const (
	GrepContext = 0 // a line beside one that matches
	GrepMatch   = 1
	GrepMore    = 2 // no line: there was more than is given
)

// MaxGrepLine is the maximum number of bytes of a line in an answer.
const MaxGrepLine = 2000

// GrepLine is a line of the answer.
type GrepLine struct {
	Kind uint64
	Path string // relative to Grep.Root
	Line uint64 // from 1
	Text string // at most MaxGrepLine bytes
}

// Append appends the encoded message.
func (m *GrepLine) Append(b []byte) []byte {
	b = appendUint(b, m.Kind)
	b = appendString(b, m.Path)
	b = appendUint(b, m.Line)
	return appendString(b, m.Text)
}

// Decode decodes a message.
func (m *GrepLine) Decode(b []byte) error {
	d := newDecoder(b)
	*m = GrepLine{d.uint(), d.string(), d.uint(), d.string()}
	if m.Kind > GrepMore || len(m.Text) > MaxGrepLine {
		d.bad = true
	}
	return d.err()
}

// Edit is a replacement of exact text.
type Edit struct {
	Old, New string
	All      bool // every occurrence; else there must be just one
}

// Edits requests changes of a file.
type Edits struct {
	Path string
	List []Edit
}

// Append appends the encoded message.
func (m *Edits) Append(b []byte) []byte {
	b = appendUint(appendString(b, m.Path), uint64(len(m.List)))
	for _, e := range m.List {
		b = appendBool(appendString(appendString(b, e.Old), e.New), e.All)
	}
	return b
}

// Decode decodes a message.
func (m *Edits) Decode(b []byte) error {
	d := newDecoder(b)
	m.Path = d.string()
	m.List = make([]Edit, d.count(maxStrings, 3))
	for i := range m.List {
		m.List[i] = Edit{d.string(), d.string(), d.bool()}
	}
	return d.err()
}

// Watch requests events of changes.
type Watch struct {
	Path      string
	Recursive bool
}

// Append appends the encoded message.
func (m *Watch) Append(b []byte) []byte { return appendBool(appendString(b, m.Path), m.Recursive) }

// Decode decodes a message.
func (m *Watch) Decode(b []byte) error {
	d := newDecoder(b)
	*m = Watch{d.string(), d.bool()}
	return d.err()
}

// The kinds of WatchEvent.
const (
	WatchCreate   = 1
	WatchWrite    = 2
	WatchRemove   = 3
	WatchRename   = 4 // From is the old path
	WatchChmod    = 5
	WatchOverflow = 6 // changes were lost, or are not seen from now on
)

// WatchEvent is a change. Its paths are relative to Watch.Path, which is the empty path.
type WatchEvent struct {
	Kind       uint64
	Path, From string
}

// Append appends the encoded message.
func (m *WatchEvent) Append(b []byte) []byte {
	return appendString(appendString(appendUint(b, m.Kind), m.Path), m.From)
}

// Decode decodes a message.
func (m *WatchEvent) Decode(b []byte) error {
	d := newDecoder(b)
	*m = WatchEvent{d.uint(), d.string(), d.string()}
	if m.Kind < WatchCreate || m.Kind > WatchOverflow {
		d.bad = true
	}
	return d.err()
}

// The kinds of TreeEntry.
const (
	TreeFile     = 1 // Size bytes of content follow
	TreeDir      = 2
	TreeSymlink  = 3
	TreeHardlink = 4 // to a file that came before; never from a guest
	TreeSkipped  = 5 // a socket, pipe or device; only from a guest
)

// TreeEntry is a file of a tree: the content of OpPack and OpUnpack is entries
// as records, each followed by its content.
type TreeEntry struct {
	Kind    uint64
	Path    string // relative; empty for the root of the tree
	Mode    uint64 // permission bits
	ModTime int64  // nanoseconds since 1970
	Size    int64  // of a TreeFile
	Target  string // of a link
}

// Append appends the encoded message.
func (m *TreeEntry) Append(b []byte) []byte {
	b = appendUint(b, m.Kind)
	b = appendString(b, m.Path)
	b = appendUint(b, m.Mode)
	b = appendInt(b, m.ModTime)
	b = appendInt(b, m.Size)
	return appendString(b, m.Target)
}

// Decode decodes a message.
func (m *TreeEntry) Decode(b []byte) error {
	d := newDecoder(b)
	*m = TreeEntry{d.uint(), d.string(), d.uint(), d.int(), d.int(), d.string()}
	if m.Kind < TreeFile || m.Kind > TreeSkipped || m.Size < 0 {
		d.bad = true
	}
	return d.err()
}
