package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMessagesOfEachVersion holds what makes an older guest understood: a message
// begins as it always did, and fields are only ever appended. testdata has, for
// each version that is spoken, what messages were when it was new, which
// is never changed; what was made since is added.
func TestMessagesOfEachVersion(t *testing.T) {
	for v := MinVersion; v <= Version; v++ {
		name := filepath.Join("testdata", fmt.Sprintf("messages-%d.txt", v))
		data, err := os.ReadFile(name)
		if err != nil {
			t.Errorf("messages of version %d, which is spoken, are not known: %v", v, err)
			continue
		}
		was := map[string]string{}
		for line := range strings.Lines(string(data)) {
			what, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			was[what] = text
		}
		scratch := messages()
		for i, pair := range messages() {
			for j, m := range pair {
				what := strings.TrimPrefix(fmt.Sprintf("%T", m), "*wire.") + [...]string{"", "-empty"}[j]
				now := m.Append(nil)
				old, err := hex.DecodeString(was[what])
				if err != nil || len(old) == 0 && len(now) > 0 {
					t.Errorf("%s is not in %s, where it belongs if it is new: %x", what, name, now)
					continue
				}
				if !bytes.HasPrefix(now, old) {
					t.Errorf("%s was %x in version %d, and is %x: a field was changed, moved or removed", what, old, v, now)
				}
				got := scratch[i][1]
				if err := got.Decode(old); err != nil {
					t.Errorf("%s of version %d: %v", what, v, err)
				} else if len(old) == len(now) {
					if diff := cmp.Diff(m, got); diff != "" {
						t.Errorf("%s of version %d: %s", what, v, diff)
					}
				}
				delete(was, what)
			}
		}
		for what := range was {
			t.Errorf("%s of version %d is not known any more", what, v)
		}
	}
}

// TestNumbers compares the numbers of frames, operations and errors with those of
// the protocol's page: an older guest has the same.
func TestNumbers(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guest-protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	section := func(from, to string) map[string]int {
		_, text, ok := strings.Cut(string(page), from)
		text, _, end := strings.Cut(text, to)
		if !ok || !end {
			t.Fatalf("the page has no section from %q to %q", from, to)
		}
		found := map[string]int{}
		for _, m := range regexp.MustCompile(`\| (\d+) \| ([A-Za-z0-9]+) \|`).FindAllStringSubmatch(text, -1) {
			found[strings.ToLower(m[2])], _ = strconv.Atoi(m[1])
		}
		return found
	}
	frames := map[string]int{}
	for _, f := range []Type{Hello, Open, Reply, Error, Data, Data2, EOF, Credit, Event, Close, Ping, Pong, Passed} {
		frames[strings.ToLower(f.String())] = int(f)
	}
	if diff := cmp.Diff(section("| type | name | from |", "Violations are"), frames); diff != "" {
		t.Errorf("frames, on the page and in the code: %s", diff)
	}
	ops := map[string]int{}
	for name, op := range map[string]Op{
		"configure": OpConfigure, "info": OpInfo, "start": OpStart, "attach": OpAttach, "list": OpList, "signal": OpSignal,
		"resize": OpResize, "kill": OpKill, "stat": OpStat, "readdir": OpReadDir, "read": OpRead, "write": OpWrite,
		"mkdir": OpMkdir, "remove": OpRemove, "rename": OpRename, "symlink": OpSymlink, "readlink": OpReadlink,
		"chmod": OpChmod, "lifetime": OpLifetime, "expiry": OpExpiry, "copy": OpCopy, "find": OpFind, "grep": OpGrep,
		"edit": OpEdit, "watch": OpWatch, "unpack": OpUnpack, "pack": OpPack, "dial": OpDial, "ports": OpPorts,
		"announced": OpAnnounced, "as": OpAs, "setattr": OpSetAttr, "killall": OpKillAll,
	} {
		ops[name] = int(op)
	}
	if diff := cmp.Diff(section("## Operations", "**Records**"), ops); diff != "" {
		t.Errorf("operations, on the page and in the code: %s", diff)
	}
}
