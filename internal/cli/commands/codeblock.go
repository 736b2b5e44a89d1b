package commands

import "strings"

// unfinished reports whether code that is typed at a prompt goes on in the next line: a bracket or
// a text is open, a line ends with a backslash, or a block has begun, which an empty line ends. It
// knows only as much of a language as that needs: code that it takes for finished by mistake is a
// syntax error, and an empty line always ends the code.
func unfinished(language, code string) bool {
	lines := strings.Split(code, "\n")
	if strings.TrimSpace(lines[len(lines)-1]) == "" {
		return false
	}
	python, bash, r := language == "python", language == "bash", language == "r"
	quotes := []string{`"`, `'`, "`"}
	comments := []string{"//"}
	if bash {
		comments = nil
	}
	if python {
		quotes, comments = []string{`"""`, `'''`, `"`, `'`}, []string{"#"}
	}
	if r {
		comments = []string{"#"}
	}
	depth, block := 0, false
	last := "" // the end of the last line, without comments
	for rest := code; rest != ""; {
		if quote := prefixOf(rest, quotes); quote != "" {
			last = quote
			end := endOfText(rest[len(quote):], quote)
			if end < 0 {
				return len(quote) == 3 || quote == "`" || bash || r
			}
			rest = rest[len(quote)+end:]
			continue
		}
		if prefixOf(rest, comments) != "" {
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			rest = rest[end:]
			continue
		}
		switch c := rest[0]; c {
		case '(', '[', '{':
			depth++
			last = rest[:1]
		case ')', ']', '}':
			depth--
			last = rest[:1]
		case '\n':
			block = block || python && depth == 0 && last == ":"
			last = ""
		case ' ', '\t', '\r':
		default:
			last = rest[:1]
		}
		rest = rest[1:]
	}
	if r && strings.Contains("+-*/^,=<>&|~%", last) && last != "" { // an operator is at the end
		return true
	}
	first := strings.TrimLeft(lines[len(lines)-1], " \t")
	return bash && openWords(code) > 0 || depth > 0 || last == `\` || python && (block || depth == 0 && last == ":" || strings.HasPrefix(first, "@"))
}

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

// endOfText returns the length of a quoted text with its end, or -1 if it has none. A text in single
// quotes of one character ends with its line, unless that ends with a backslash.
func endOfText(s, quote string) int {
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case strings.HasPrefix(s[i:], quote):
			return i + len(quote)
		case s[i] == '\n' && len(quote) == 1 && quote != "`":
			return i
		}
	}
	return -1
}
