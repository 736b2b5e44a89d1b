// Package notation parses and formats values in the form that people write: sizes, durations,
// mounts, environment files. Flags, variables and configuration files share it.
//
// Errors are short and name the value; the caller adds the flag or key. Errors that the user can
// correct have a hint.
package notation

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// ErrNotPositive matches errors of values that must be greater than zero.
var ErrNotPositive = errors.New("must be more than 0")

const sizeHint = "write a size as 512m, 1g or 1.5GiB: b, k, m, g and t are powers of 1024"

// ParseSize reads a number of bytes: "100k", "512m", "1g", "1GiB", "1.5G", or
// a plain number of bytes. Units are powers of 1024 whether written k, kb or
// kib, in either case, as Docker has them. The size is more than zero.
func ParseSize(s string) (int64, error) {
	text := strings.TrimSpace(s)
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := strings.ToLower(text[len(number):])
	number = strings.TrimSuffix(number, " ")

	shift, ok := unitShift(unit)
	if !ok || !isDecimal(strings.TrimPrefix(number, "-")) {
		return 0, sandpit.WithHint(fmt.Errorf("%q is not a size", s), sizeHint)
	}
	if strings.HasPrefix(number, "-") {
		return 0, ErrNotPositive
	}
	whole, fraction, hasFraction := strings.Cut(number, ".")
	if hasFraction && shift == 0 {
		return 0, sandpit.WithHint(fmt.Errorf("%q is not a whole number of bytes", s), sizeHint)
	}
	var n int64
	if whole != "" {
		var err error
		n, err = strconv.ParseInt(whole, 10, 64)
		if err != nil || n > math.MaxInt64>>shift {
			return 0, fmt.Errorf("%q is too large", s)
		}
	}
	n <<= shift
	if fraction != "" {
		// Less than one unit, so that a float is exact enough and can't overflow.
		f, err := strconv.ParseFloat("0."+fraction, 64)
		if err != nil {
			return 0, sandpit.WithHint(fmt.Errorf("%q is not a size", s), sizeHint)
		}
		part := int64(f * float64(int64(1)<<shift))
		if n > math.MaxInt64-part {
			return 0, fmt.Errorf("%q is too large", s)
		}
		n += part
	}
	if n == 0 {
		return 0, ErrNotPositive
	}
	return n, nil
}

func unitShift(unit string) (uint, bool) {
	switch unit {
	case "", "b":
		return 0, true
	case "k", "kb", "kib":
		return 10, true
	case "m", "mb", "mib":
		return 20, true
	case "g", "gb", "gib":
		return 30, true
	case "t", "tb", "tib":
		return 40, true
	}
	return 0, false
}

// isDecimal reports whether s is digits with at most one point among them:
// none of the exponents, signs, underscores and bases that strconv knows.
func isDecimal(s string) bool {
	digits, points := 0, 0
	for _, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case c == '.':
			points++
		default:
			return false
		}
	}
	return digits > 0 && points <= 1
}

// FormatSize writes a number of bytes for a person: "64 MiB", "1.5 GiB",
// "1000 B". What it writes, ParseSize reads, to within a hundredth of the unit.
func FormatSize(n int64) string {
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	units := [...]string{"KiB", "MiB", "GiB", "TiB"}
	i := 0
	for i < len(units)-1 && n>>(10*(i+2)) > 0 {
		i++
	}
	f := float64(n) / float64(int64(1)<<(10*(i+1)))
	text := strconv.FormatFloat(f, 'f', 2, 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".") + " " + units[i]
}

// ParseDuration reads "30s", "5m", "1h30m", "250ms", "7d", "1d12h", or a plain number of
// seconds, whole or decimal. A day is 24 hours. The duration is more than zero.
func ParseDuration(s string) (time.Duration, error) {
	text := strings.TrimSpace(s)
	if isDecimal(strings.TrimPrefix(text, "-")) {
		text += "s"
	}
	d, err := parseDays(text)
	if err != nil {
		return 0, sandpit.WithHint(fmt.Errorf("%q is not a duration", s), "write a duration as 30s, 5m, 1h30m or 7d; a plain number is seconds")
	}
	if d <= 0 {
		return 0, ErrNotPositive
	}
	return d, nil
}

// parseDays is time.ParseDuration, which also reads days if they come first.
func parseDays(text string) (time.Duration, error) {
	number, rest, found := strings.Cut(text, "d")
	digits := strings.TrimPrefix(number, "-")
	if !found || !isDecimal(digits) {
		return time.ParseDuration(text)
	}
	days, err := time.ParseDuration(digits + "h")
	if err != nil || days > math.MaxInt64/24 {
		return 0, errors.New("too many days")
	}
	d := 24 * days
	if rest != "" {
		more, err := time.ParseDuration(rest)
		if err != nil || strings.ContainsAny(rest[:1], "+-") || more > math.MaxInt64-d {
			return 0, errors.New("the text after the days is not a duration")
		}
		d += more
	}
	if digits != number {
		d = -d
	}
	return d, nil
}

// ParseDurationOrNever is ParseDuration, which also reads "never" as 0.
func ParseDurationOrNever(s string) (time.Duration, error) {
	if s == "never" {
		return 0, nil
	}
	return ParseDuration(s)
}

// FormatDuration writes a duration without the zero units that
// time.Duration.String has: "24h", "1h30m", "90s" as "1m30s".
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-len("0s")]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-len("0m")]
	}
	return s
}

// ParseCPUs reads a number of processors, such as "2" or "0.5", more than zero.
func ParseCPUs(s string) (float64, error) {
	text := strings.TrimSpace(s)
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !isDecimal(strings.TrimPrefix(text, "-")) {
		return 0, sandpit.WithHint(fmt.Errorf("%q is not a number of processors", s), "write it as 2 or 0.5")
	}
	if f <= 0 {
		return 0, ErrNotPositive
	}
	return f, nil
}

// ParseCount reads a whole number, more than zero.
func ParseCount(s string) (int64, error) {
	text := strings.TrimSpace(s)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			return 0, fmt.Errorf("%q is too large", s)
		}
		return 0, fmt.Errorf("%q is not a whole number", s)
	}
	if n <= 0 {
		return 0, ErrNotPositive
	}
	return n, nil
}

// ParseEgress reads a preset of egress.
func ParseEgress(s string) (sandpit.EgressPreset, error) {
	switch p := sandpit.EgressPreset(s); p {
	case sandpit.EgressNone, sandpit.EgressRegistries, sandpit.EgressPublic, sandpit.EgressAll, sandpit.EgressLearn:
		return p, nil
	}
	return "", fmt.Errorf("%q is not none, registries, public, all or learn", s)
}

// ParseSecret reads the use of a secret: NAME[=VARIABLE][@HOST[,HOST...]].
func ParseSecret(s string) (sandpit.Secret, error) {
	rest, hosts, bound := strings.Cut(s, "@")
	u, err := ParseSecretEnv(rest)
	if u.Env = false; err != nil || !bound {
		return u, err
	}
	u.Hosts = strings.Split(hosts, ",")
	if slices.Contains(u.Hosts, "") {
		return u, fmt.Errorf("%q names an empty host", s)
	}
	return u, nil
}

// ParseSecretEnv reads the use of a secret whose value the sandbox gets: NAME[=VARIABLE].
func ParseSecretEnv(s string) (sandpit.Secret, error) {
	name, variable, named := strings.Cut(s, "=")
	if err := CheckSecretName(name); err != nil {
		return sandpit.Secret{}, err
	}
	if named && variable == "" {
		return sandpit.Secret{}, fmt.Errorf("%q names an empty variable", s)
	}
	return sandpit.Secret{Name: name, Variable: variable, Env: true}, nil
}

// ParsePull reads a pull policy: "missing", "always" or "never".
func ParsePull(s string) (sandpit.PullPolicy, error) {
	switch p := sandpit.PullPolicy(s); p {
	case sandpit.PullMissing, sandpit.PullAlways, sandpit.PullNever:
		return p, nil
	}
	return "", fmt.Errorf("%q is not missing, always or never", s)
}
