package commands

import (
	"regexp"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// unfinished reports whether code that is typed at a prompt goes on in the next line: a bracket or a text is
// open, a line ends with a backslash, or a block has begun, which an empty line ends. Code of a language without state is
// a program, which an empty line ends, too. It knows only as much
// of a language as that needs: code that it takes for finished by mistake is a syntax error, and ^C discards
// code that it takes for unfinished.
func unfinished(language, code string) bool {
	python, bash, r := language == sandpit.Python, language == sandpit.Bash, language == sandpit.R
	program := slices.Contains(sandpit.StatelessLanguages(), language)
	if program && !slices.Contains([]string{"deno", "bun", "go", "java"}, language) { // whose brackets are not known
		return strings.TrimSpace(code[strings.LastIndexByte(code, '\n')+1:]) != ""
	}
	quotes, comments := []string{`"`, `'`, "`"}, []string{"//"}
	switch {
	case python:
		quotes, comments = []string{`"""`, `'''`, `"`, `'`}, []string{"#"}
	case bash:
		comments = nil // see below
	case r:
		comments = []string{"#"}
	}
	several := bash || r // texts may have several lines
	depth, block, bare := 0, false, ""
	last := "" // the end of the last line, without comments
	for rest := code; rest != ""; {
		if quote := prefixOf(rest, quotes); quote != "" {
			last = quote
			text := rest[len(quote):]
			end := endOfText(text, quote, several, bash && quote == "'")
			if end < 0 {
				return true
			}
			rest, bare = text[end:], bare+quote
			continue
		}
		if prefixOf(rest, comments) != "" || bash && rest[0] == '#' && (bare == "" || strings.ContainsAny(bare[len(bare)-1:], " \t\n;")) {
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			rest = rest[end:]
			continue
		}
		switch c := rest[0]; {
		case bash && c == '\\' && len(rest) > 1 && rest[1] != '\n':
			bare, rest, last = bare+rest[:1], rest[1:], "" // what follows means nothing
		case strings.ContainsRune("([{", rune(c)):
			depth++
			last = rest[:1]
		case strings.ContainsRune(")]}", rune(c)):
			depth--
			last = rest[:1]
		case c == '\n':
			block = block || python && depth == 0 && last == ":"
			if rest != "\n" {
				last = ""
			}
		case c != ' ' && c != '\t' && c != '\r':
			last = rest[:1]
		}
		bare, rest = bare+rest[:1], rest[1:]
	}
	lines := strings.Split(code, "\n")
	line := strings.TrimLeft(lines[len(lines)-1], " \t")
	switch {
	case bash:
		return openWords(bare) > 0 || strings.Count(bare, "{") > strings.Count(bare, "}") || strings.Count(bare, "(") > closings(bare) || last == `\` || openDocument(code)
	case depth > 0:
		return true
	case strings.TrimSpace(line) == "":
		return false
	case program:
		return true
	case r:
		return last != "" && strings.Contains("+-*/^,=<>&|~%", last) // an operator is at the end
	}
	return last == `\` || python && (block || last == ":" || strings.HasPrefix(line, "@"))
}

// closings returns the closing brackets of bash, without those that end a pattern of case.
func closings(bare string) int {
	n := strings.Count(bare, ")")
	if strings.Contains(bare, "case ") {
		return max(n, strings.Count(bare, "("))
	}
	return n
}

// openDocument reports whether a here-document has begun and not ended.
func openDocument(code string) bool {
	lines := strings.Split(code, "\n")
	for i := 0; i < len(lines); i++ {
		m := hereDocument().FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		for i++; ; i++ {
			if i >= len(lines) {
				return true
			}
			if strings.TrimLeft(lines[i], "\t") == m[2] {
				break
			}
		}
	}
	return false
}

// hereDocument matches the start of a here-document. The second group is the word that ends it.
func hereDocument() *regexp.Regexp { return regexp.MustCompile(`(?:^|[^<])<<-?\s*(["']?)(\w+)`) }

// openWords returns how many compound commands of bash have begun and not ended.
func openWords(code string) (n int) {
	for _, word := range strings.FieldsFunc(code, func(r rune) bool { return strings.ContainsRune(" \t\n;&|()", r) }) {
		switch word {
		case "if", "case", "for", "while", "until", "select":
			n++
		case "fi", "esac", "done":
			n--
		}
	}
	return n
}

// prefixOf returns the first of some texts that s begins with, or "".
func prefixOf(s string, all []string) string {
	for _, p := range all {
		if strings.HasPrefix(s, p) {
			return p
		}
	}
	return ""
}

// endOfText returns the length of a quoted text with its end, or -1 if it has none. A text in quotes of one character ends
// with its line, unless that ends with a backslash or texts have several lines. A raw one has no escapes.
func endOfText(s, quote string, several, raw bool) int {
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && !raw:
			if i++; i >= len(s) {
				return -1 // the line goes on
			}
		case strings.HasPrefix(s[i:], quote):
			return i + len(quote)
		case s[i] == '\n' && len(quote) == 1 && quote != "`" && !several:
			return i
		}
	}
	if len(quote) == 1 && quote != "`" && !several {
		return len(s)
	}
	return -1
}
