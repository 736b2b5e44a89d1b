package api

import (
	"mime"
	"strconv"
	"strings"
)

const jsonType = "application/json"

// prefers returns the media type of the response (RFC 9110, 12.5.1): the one of others that Accept rates
// highest, if Accept names it and rates it higher than usual. One that it rates as usual counts only if it does
// not name usual. The earlier of others come first.
func (c *call) prefers(usual string, others ...string) string {
	rates := map[string]float64{}
	for r := range strings.SplitSeq(strings.Join(c.R.Header.Values("Accept"), ","), ",") {
		kind, params, err := mime.ParseMediaType(r)
		q := 1.0
		if weight, ok := params["q"]; ok && err == nil {
			q, err = strconv.ParseFloat(weight, 64)
		}
		if err == nil {
			rates[kind] = q
		}
	}
	most, named := rates[usual]
	if group, _, _ := strings.Cut(usual, "/"); !named {
		var ok bool
		if most, ok = rates[group+"/*"]; !ok {
			most = rates["*/*"]
		}
	}
	best := usual
	for _, kind := range others {
		if q := rates[kind]; q > most || q == most && q > 0 && !named {
			best, most, named = kind, q, true
		}
	}
	return best
}
