package interpreter

import (
	"bytes"
	"context"
	_ "embed" // the program
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// R can't listen on a unix socket. It reads the lines of its runs from a pipe that is not its standard
// input, so that code gets the end of that. What a run displays is in a file, which is named as its socket
// would be; the text after the mark of its end says whether there is one.

//go:embed kernel.R
var rProgram string

// rCommand returns the command of R. The shell gives it the pipes that it opens again: 3 has its lines, 4 and 5
// are its outputs, also if the code redirects its own. The text of its first line is the program.
func rCommand() []string {
	const first = `{if(!l10n_info()[[2]])Sys.setlocale("LC_CTYPE","C.UTF-8");eval(parse(text=readLines(.sandpit<-fifo("/proc/self/fd/3","r",blocking=TRUE),1)))}`
	return []string{"sh", "-c", `exec Rscript --no-save --no-restore --no-init-file -e "$0" "$@" 3<&0 4>&1 5>&2 </dev/null`, first}
}

func rLines() *lines {
	return &lines{start: rStart, greet: rGreet, run: rRun, check: rCheck, done: (*run).doneR}
}

// rStart returns the line that R is told at its start.
func rStart(s setup) (string, error) {
	greeting, err := json.Marshal(map[string]any{"hello": 1, "dir": s.Dir, "env": s.Env})
	if err != nil {
		return "", err
	}
	stale := make([]string, len(s.Stale))
	for i, name := range s.Stale {
		stale[i] = rString(name)
	}
	told := fmt.Sprintf("setup <- list(socket = %s, nonce = %s, stale = c(%s), max = %d, greeting = %s)\n", rString(s.Socket), rString(s.Nonce), strings.Join(stale, ", "), maxFile, rString(string(greeting)))
	return "local(eval(parse(text = " + rString(told+rProgram) + ", keep.source = FALSE)), new.env(parent = baseenv()))\n", nil
}

// rGreet returns the line that has R greet with a mark.
func rGreet(nonce string) string { return "list(nonce = " + rString(nonce) + ")\n" }

// rRun returns the line that has R run code.
func rRun(begin, nonce string, code sandpit.Code) string {
	env := make([]string, len(code.Env))
	for i, entry := range code.Env {
		name, value, _ := strings.Cut(entry, "=")
		env[i] = rString(name) + " = " + rString(value)
	}
	return fmt.Sprintf("list(begin = %s, nonce = %s, code = %s, env = c(%s))\n", rString(begin), rString(nonce), rString(code.Source), strings.Join(env, ", "))
}

// rString quotes a text for R, in one line.
func rString(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`).Replace(text) + `"`
}

// rCheck checks what a text of R can't have.
func rCheck(code sandpit.Code) error {
	if strings.Contains(code.Source, "\x00") {
		return fault.Errorf(sandpit.ErrInvalid, "code for R can't have null bytes")
	}
	return nil
}

// doneR reads how a run of R has ended.
func (r *run) doneR(ctx context.Context, text []byte) error {
	var told struct {
		Count     int        `json:"count"`
		Truncated bool       `json:"truncated"`
		Outputs   int64      `json:"outputs"` // bytes of the file of them
		Error     *codeError `json:"error"`
	}
	if json.Unmarshal(text, &told) != nil {
		return errForged
	}
	r.truncated = told.Truncated
	if told.Outputs > 0 {
		if err := r.showFile(ctx, r.is.socket+".out", told.Outputs); err != nil {
			return err
		}
	}
	r.done = &message{Done: r.nonce, Count: told.Count, Marked: 3, Error: told.Error}
	return nil
}

// maxFile bounds the file of outputs, in bytes.
const maxFile = maxLine / 2

// showFile passes the outputs in a file of a size on. Code may have changed the file: then its valid beginning counts.
func (r *run) showFile(ctx context.Context, path string, size int64) error {
	cost := 8 * min(size, maxFile) // as of a long line of a channel
	if r.c.m.place.Charge(cost) != nil {
		r.truncated = true
		return nil
	}
	defer func() { _ = r.c.m.place.Charge(-cost) }()
	content, err := r.c.m.place.ReadFile(ctx, path, min(size, maxFile))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil || !r.showList(content) {
		r.truncated = true
	}
	return nil
}

// showList passes the outputs of a list in JSON on. It reads them one by one: small ones could be very many. It reports
// whether these are all.
func (r *run) showList(list []byte) bool {
	in := json.NewDecoder(bytes.NewReader(list))
	if first, err := in.Token(); err != nil || first != json.Delim('[') {
		return false
	}
	for n := 0; in.More(); n++ {
		var one output
		if n == sandpit.MaxCodeOutputs || in.Decode(&one) != nil {
			return false
		}
		if r.code.Output != nil && !r.silenced.Load() {
			r.code.Output(one.sandpit())
		}
	}
	_, err := in.Token()
	return err == nil
}
