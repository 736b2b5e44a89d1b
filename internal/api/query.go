package api

import (
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// query reads the parameters of a request. The first that can't be read is the
// error; until it is looked at, the others have their zero values.
type query struct {
	values url.Values
	err    error
}

// query returns the parameters. One that the route does not have is refused, and so is an
// empty one that would count as absent: a filter is never dropped.
func (c *call) query() *query {
	q := new(query)
	q.values, q.err = url.ParseQuery(c.R.URL.RawQuery)
	if q.err != nil {
		q.err = gate.Invalid("the query string is malformed", "percent-encode special characters")
		return q
	}
	for name, values := range q.values {
		i := slices.IndexFunc(c.route.Query, func(p Param) bool { return p.Name == name })
		switch {
		case i < 0:
			q.fail(name, "is unknown")
		case len(values) > 1 && !c.route.Query[i].Many:
			q.fail(name, "is given more than once")
		case c.route.Query[i].filled() && slices.Contains(values, ""):
			q.fail(name, "is empty")
		case len(values) > maxValues:
			q.fail(name, fmt.Sprintf("is given more than %d times", maxValues))
		case c.route.Query[i].Enum != nil && slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(c.route.Query[i].Enum, v) }):
			q.fail(name, "must be one of "+strings.Join(c.route.Query[i].Enum, ", "))
		}
	}
	for _, p := range c.route.Query {
		if p.Required && !q.values.Has(p.Name) {
			q.fail(p.Name, "is missing")
		}
	}
	return q
}

// maxValues bounds the values of a parameter: as many as a sandbox may have labels.
const maxValues = 64

func (q *query) fail(name, why string) {
	if q.err == nil {
		q.err = gate.Invalid(fmt.Sprintf("the parameter %.100q %s", name, why), "see /docs")
	}
}

// text returns a string.
func (q *query) text(name string) string { return q.values.Get(name) }

// flag returns a boolean.
func (q *query) flag(name string, otherwise bool) bool {
	switch q.values.Get(name) {
	case "":
		return otherwise
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	q.fail(name, "must be true or false")
	return false
}

// after returns the position after which a stream starts: the parameter "after", or that
// of Last-Event-ID if it is greater. A browser that reconnects sends that with the URL of
// its first request. resumed reports whether the client did.
func (c *call) after(q *query) (after uint64, resumed bool) {
	last, err := stream.ResumeAfter(c.R)
	if err != nil || last > maxSeq {
		q.fail("Last-Event-ID", "must be a number from 0 to "+strconv.FormatUint(maxSeq, 10))
	}
	return max(q.number("after", maxSeq), last), last > 0
}

// number returns a number that is not negative.
func (q *query) number(name string, limit uint64) uint64 {
	text := q.values.Get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > limit {
		q.fail(name, "must be a number from 0 to "+strconv.FormatUint(limit, 10))
		return 0
	}
	return n
}

// seconds returns a time in seconds.
func (q *query) seconds(name string, otherwise, limit time.Duration) time.Duration {
	text := q.values.Get(name)
	if text == "" {
		return otherwise
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 0 && f <= limit.Seconds()) {
		q.fail(name, "must be a number of seconds, at most "+strconv.FormatFloat(limit.Seconds(), 'f', -1, 64))
		return 0
	}
	return v1.Duration(f)
}

// time returns a point in time.
func (q *query) time(name string) time.Time {
	text := q.values.Get(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	switch {
	case err != nil:
		q.fail(name, "must be a time in RFC 3339 format")
	case t.Year() < firstYear || t.Year() > lastYear:
		q.fail(name, fmt.Sprintf("must be in the years %d to %d", firstYear, lastYear))
	}
	return t
}

// Years of which every time is so many nanoseconds from 1970 as an int64 holds.
const (
	firstYear = 1678
	lastYear  = 2261
)

// mode returns permission bits.
func (q *query) mode(name string, otherwise fs.FileMode) fs.FileMode {
	text := q.values.Get(name)
	if text == "" {
		return otherwise
	}
	m, err := v1.ParseMode(text)
	if err != nil {
		q.fail(name, "must be an octal mode")
	}
	return m
}
