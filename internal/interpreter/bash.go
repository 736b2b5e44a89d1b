package interpreter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A bash reads the lines of its runs from standard input, as an interactive shell does, because only that
// goes on with the next line after an interrupt. The descriptors 198 and 199 are its outputs, also if the
// code redirects its own. Children inherit them, as they do the outputs.

// bashOrEnd ends a bash that can't print a mark, because code has closed these descriptors: no run would end.
// Neither stopped jobs nor traps prevent it.
const bashOrEnd = ` || \builtin kill -KILL $$`

func bashLines() *lines {
	return &lines{start: bashStart, greet: bashGreeting, run: bashRun, check: checkBash, done: (*run).doneBash}
}

// bashStart returns what a bash is told at its start.
func bashStart(s setup) (string, error) {
	greeting, err := json.Marshal(map[string]any{"hello": 1, "dir": s.Dir, "env": s.Env})
	if err != nil {
		return "", err
	}
	return "exec 198>&1 199>&2; unset PS1 PS2 HISTFILE PROMPT_COMMAND; set +H +o history; set --; __sandpit_run=0 __sandpit_greeting=" + quoted(string(greeting)) +
		"; " + bashMark(198, s.Nonce) + "; " + bashMark(199, s.Nonce) + "\n", nil
}

// bashGreeting returns the line that has a bash greet with a mark.
func bashGreeting(nonce string) string {
	return fmt.Sprintf("PROMPT_COMMAND=; \\builtin printf '\\036%s\\037{\"runs\":%%d,%%s\\036' \"$__sandpit_run\" \"${__sandpit_greeting#?}\" >&198"+bashOrEnd+"\n", nonce)
}

// bashRun returns the line that has a bash run code. The end is that of the line, or PROMPT_COMMAND after
// an interrupt or another end of the line. It resets the options -e and -x, with which
// the lines of later runs could end the shell or be printed. No alias and no function of the code takes part: those named
// builtin and eval are removed when their run ends, unless builtin is read-only or unset is a function, too.
func bashRun(begin, nonce string, code sandpit.Code) string {
	var end, line strings.Builder
	end.WriteString("{ __sandpit_status=$?; ! \\unset -f builtin >&2; \\builtin set +ex; \\builtin unset -f eval")
	for _, fd := range []int{199, 198} { // the run has ended with the mark of 198
		fmt.Fprintf(&end, "; \\builtin printf '\\036%s\\037%%d %%d\\036' \"$__sandpit_status\" \"$__sandpit_run\" >&%d"+bashOrEnd, nonce, fd)
	}
	end.WriteString("; } 2>/dev/null")
	fmt.Fprintf(&line, "PROMPT_COMMAND=%s; __sandpit_run=$((__sandpit_run + 1)); %s; %s; ", quoted(end.String()), bashMark(198, begin), bashMark(199, begin))
	for _, entry := range code.Env {
		name, value, _ := strings.Cut(entry, "=")
		line.WriteString(name + "=" + quoted(value) + " ")
	}
	line.WriteString("\\eval " + quoted(code.Source) + " </dev/null; " + end.String() + "; PROMPT_COMMAND=\n")
	return line.String()
}

func bashMark(fd int, nonce string) string {
	return fmt.Sprintf("\\builtin printf '\\036%s\\036' >&%d"+bashOrEnd, nonce, fd)
}

// quoted quotes a text for bash, in one line.
func quoted(text string) string {
	return "$'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, "\r", `\r`).Replace(text) + "'"
}

// checkBash checks what a line for bash can't have.
func checkBash(code sandpit.Code) error {
	if strings.Contains(code.Source, "\x00") {
		return fault.Errorf(sandpit.ErrInvalid, "code for bash can't have null bytes")
	}
	for _, entry := range code.Env {
		name, _, _ := strings.Cut(entry, "=")
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" || strings.ContainsAny(name[:1], "0123456789") {
			return fault.Errorf(sandpit.ErrInvalid, "bash can't have a variable of the name %.80q", name)
		}
	}
	return nil
}

// doneBash reads how a run of bash has ended.
func (r *run) doneBash(_ context.Context, text []byte) error {
	status, count := 0, 0
	if _, err := fmt.Fscan(bytes.NewReader(text), &status, &count); err != nil {
		return errForged
	}
	r.done = &message{Done: r.nonce, Count: count, Marked: 3, exitCode: status & 0xff}
	return nil
}
