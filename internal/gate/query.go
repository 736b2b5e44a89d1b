package gate

import (
	"net/http"
	"net/url"
	"strings"
)

// TakeQuery takes the values of a parameter out of the URL of a request. The rest of the query
// stays as it is. Values that are malformed are empty.
func TakeQuery(r *http.Request, name string) (values []string) {
	rest, values := cutQuery(r.URL.RawQuery, name)
	if values != nil {
		r.URL.RawQuery = rest
		r.RequestURI = r.URL.RequestURI()
	}
	return values
}

// cutQuery is TakeQuery for a query alone.
func cutQuery(query, name string) (rest string, values []string) {
	if !strings.Contains(query, name) && !strings.Contains(query, "%") {
		return query, nil
	}
	var others []string
	for part := range strings.SplitSeq(query, "&") {
		escaped, value, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(escaped); err != nil || plain != name {
			others = append(others, part)
			continue
		}
		value, _ = url.QueryUnescape(value)
		values = append(values, value)
	}
	return strings.Join(others, "&"), values
}
