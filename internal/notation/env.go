package notation

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Lookup looks up an environment variable, like os.LookupEnv.
type Lookup func(name string) (value string, ok bool)

// ParseEnv reads KEY=VALUE, or KEY alone, whose value lookup finds. As in Docker, ok is
// false if lookup does not find it.
func ParseEnv(s string, lookup Lookup) (entry string, ok bool, err error) {
	key, _, hasValue := strings.Cut(s, "=")
	if key == "" {
		return "", false, sandpit.WithHint(fmt.Errorf("%q has no variable name", s), "write it as KEY=VALUE, or KEY to pass on its value from here")
	}
	if strings.ContainsRune(s, 0) {
		return "", false, fmt.Errorf("%q has a NUL in it", s)
	}
	if hasValue {
		return s, true, nil
	}
	value, ok := lookup(key)
	if !ok {
		return "", false, nil
	}
	return key + "=" + value, true, nil
}

// maxEnvFile bounds an environment file, in bytes: more can't be given to a
// program anyway (ARG_MAX is 2 MiB with the usual stack limit).
const maxEnvFile = 1 << 20

// ReadEnvFile reads a file of KEY=VALUE and KEY lines in Docker's form: leading white space
// is dropped, empty lines and those that start with # are skipped, and quotes have no
// meaning. Errors have the line number, but not the name of the file.
func ReadEnvFile(r io.Reader, lookup Lookup) ([]string, error) {
	var entries []string
	limited := &io.LimitedReader{R: r, N: maxEnvFile + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4096), maxEnvFile+1)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if n == 1 {
			line = strings.TrimPrefix(line, "\uFEFF") // as editors on Windows write
		}
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		if key, _, _ := strings.Cut(line, "="); strings.ContainsAny(key, " \t") {
			return nil, sandpit.WithHint(fmt.Errorf("line %d: the name %q has a space in it", n, key), "write lines as KEY=VALUE, without export")
		}
		entry, ok, err := ParseEnv(line, lookup)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if ok {
			entries = append(entries, entry)
		}
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("the file is larger than %s", FormatSize(maxEnvFile))
	}
	return entries, lines.Err()
}

// ParseLabel reads KEY=VALUE; KEY alone has an empty value.
func ParseLabel(s string) (key, value string, err error) {
	key, value, _ = strings.Cut(s, "=")
	if key == "" {
		return "", "", sandpit.WithHint(fmt.Errorf("%q has no key", s), "write KEY=VALUE")
	}
	return key, value, nil
}
