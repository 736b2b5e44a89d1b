package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// A list is read to its end, or ends with an error: also if the server returns one page again and again.
func TestListsAreWhole(t *testing.T) {
	const perPage, last = 100, 2
	stuck := false
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		page, _ := strconv.Atoi(r.URL.Query().Get("after"))
		next := strconv.Itoa(page + 1)
		if stuck {
			next = "1"
		} else if page == last {
			next = ""
		}
		var list any
		switch what := r.URL.Path[strings.LastIndex(r.URL.Path, "/"):]; what {
		case "/ports":
			list = v1.PortList{Ports: make([]sandpit.Port, perPage), Next: next}
		case "/previews":
			list = v1.PreviewList{Previews: make([]v1.Preview, perPage), Next: next}
		case "/processes":
			list = v1.ProcessList{Processes: make([]v1.Process, perPage), Next: next}
		case "/history":
			list = v1.MetricsHistory{Samples: make([]v1.Metrics, perPage), Next: next}
		}
		_ = json.NewEncoder(w).Encode(list)
	})
	sb := c.sandbox("id", "name")
	for what, list := range map[string]func(context.Context) (int, error){
		"ports":     func(ctx context.Context) (int, error) { all, err := sb.Ports(ctx); return len(all), err },
		"previews":  func(ctx context.Context) (int, error) { all, err := sb.Previews(ctx); return len(all), err },
		"processes": func(ctx context.Context) (int, error) { all, err := sb.Processes(ctx); return len(all), err },
		"samples": func(ctx context.Context) (int, error) {
			all, err := sb.History(ctx, time.Time{})
			return len(all), err
		},
	} {
		stuck = false
		if n, err := list(t.Context()); n != (last+1)*perPage || err != nil {
			t.Errorf("%s: got %d, %v", what, n, err)
		}
		stuck = true
		if n, err := list(t.Context()); n != 0 || !errors.Is(err, sandpit.ErrUnavailable) {
			t.Errorf("%s of a server that does not go on: got %d, %v", what, n, err)
		}
	}
}
