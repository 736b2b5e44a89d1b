package api

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// pageParams are the parameters of every list, behind its own.
func pageParams(own ...Param) []Param {
	return append(own,
		Param{Name: "limit", Type: "integer", Most: sandpit.MaxPage, Doc: "Default 100, at most 1,000; a page may have fewer entries"},
		Param{Name: "after", Type: "string", Doc: "The value of next in the previous page"})
}

// timeParams are the parameters of every list that is filtered by time.
func timeParams(own ...Param) []Param {
	return append(own,
		Param{Name: "since", Type: "date-time", Doc: "At this time or later"},
		Param{Name: "until", Type: "date-time", Doc: "Before this time"})
}

// page is the part of a list that a request asks for.
type page struct {
	limit int
	after string // the next of the previous page; empty: from the beginning
}

func (q *query) page() page {
	return page{cmp.Or(int(q.number("limit", sandpit.MaxPage)), sandpit.DefaultPage), q.text("after")}
}

// sealed makes a position in a list recognizable as one that this server has returned.
func sealed(position string) string {
	return fmt.Sprintf("%s.%08x", position, crc32.ChecksumIEEE([]byte(position)))
}

// cutPage is page for a list that cut cuts.
func (q *query) cutPage() page {
	p := q.page()
	position := p.after[:max(0, strings.LastIndexByte(p.after, '.'))]
	if p.after != "" && sealed(position) != p.after {
		q.fail("after", "is not the next of a page")
	}
	p.after = position
	return p
}

// cut sorts a whole list by the position of its entries, which is different for each, and
// returns a page of it with the position of the next page.
func cut[T any](p page, all []T, position func(T) string) (part []T, next string) {
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(position(a), position(b)) })
	from := 0
	for p.after != "" && from < len(all) && position(all[from]) <= p.after {
		from++
	}
	part = all[from:]
	if len(part) > p.limit {
		part = part[:p.limit]
		next = sealed(position(part[p.limit-1]))
	}
	return list(part), next
}

// byTime is the position of an entry in a list that is sorted by time: the time in
// nanoseconds, of which every one until 2286 has 19 digits, and what else tells entries apart.
func byTime(t time.Time, id string) string { return fmt.Sprintf("%019d%s", max(0, t.UnixNano()), id) }

// listOf makes a handler of a function that returns a whole list, which is short.
func listOf[T, Out any](all func(*call) ([]T, error), position func(T) string, out func(part []T, next string) Out) func(*call) error {
	return asJSON(func(c *call) (none Out, err error) {
		q := c.query()
		p := q.cutPage()
		if q.err != nil {
			return none, q.err
		}
		found, err := all(c)
		if err != nil {
			return none, err
		}
		return out(cut(p, found, position)), nil
	})
}

// between reports whether a time is in the range of a query with timeParams.
func between(t, since, until time.Time) bool {
	return !t.Before(since) && (until.IsZero() || t.Before(until))
}

// labelParam is the filter of sandboxes by label.
func labelParam() Param {
	return Param{Name: "label", Type: "string", Many: true, Doc: "KEY=VALUE, or KEY for any value; if repeated, all must match"}
}

// labels returns the filter by label.
func (q *query) labels() (want map[string]string, has []string) {
	for _, label := range q.values["label"] {
		key, value, ok := strings.Cut(label, "=")
		switch {
		case key == "":
			q.fail("label", "must be KEY=VALUE or KEY")
		case !ok:
			has = append(has, key)
		case want == nil:
			want = map[string]string{key: value}
		default:
			if was, ok := want[key]; ok && was != value {
				q.fail("label", "has two values for one key")
			}
			want[key] = value
		}
	}
	return want, has
}

// texts returns the values of a parameter that may be repeated.
func texts[T ~string](q *query, name string) []T {
	var all []T
	for _, v := range q.values[name] {
		all = append(all, T(v))
	}
	return all
}

// stateParam is the filter of sandboxes by state.
func stateParam() Param {
	return Param{Name: "state", Type: "string", Many: true, Enum: []string{
		string(sandpit.StateCreated), string(sandpit.StateCreating), string(sandpit.StateRunning), string(sandpit.StatePaused), string(sandpit.StateStopped), string(sandpit.StateFailed),
	}, Doc: "If repeated, one must match"}
}

const (
	orderAsc  = "asc"
	orderDesc = "desc"
)

// orderParam is the order of a list of sandboxes. A position of one order is none of the other.
func orderParam() Param {
	return Param{Name: "order", Type: "string", Enum: []string{orderAsc, orderDesc}, Doc: "asc (default): the oldest first, desc: the newest first; the same for every page"}
}
