package sandpittest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var eventProperties = []property{
	{"events tell a life in its order, and again to who comes later", testEvents},
	{"events are selected by kind, sandbox and label", testEventQueries},
	{"events after the Seq of a list miss no change", testListThenWatch},
	{"List picks by label, state and time, a page after the other", testListQueries},
}

// listener collects events.
type listener struct {
	mu   sync.Mutex
	seen []sandpit.Event // guarded by mu
	err  error           // guarded by mu
}

// listen begins to collect, and returns when nothing more is missed.
func (e *env) listen(t *testing.T) *listener {
	t.Helper()
	l := &listener{}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev, err := range e.client.Events(ctx, sandpit.EventQuery{}) {
			l.mu.Lock()
			if err != nil {
				l.err = err
			} else {
				l.seen = append(l.seen, ev)
			}
			l.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if l.err != nil && !errors.Is(l.err, context.Canceled) {
			t.Errorf("listening: %v", l.err)
		}
	})
	// Only what happens after it has begun is told: until then, something is made to happen.
	for end := time.Now().Add(guard); len(l.events()) == 0; {
		if time.Now().After(end) {
			t.Fatal("no event comes")
		}
		must(t, e.sandbox(t, sandpit.Spec{}).Remove(t.Context()))
	}
	return l
}

func (l *listener) events() []sandpit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// of returns the events of a sandbox.
func (l *listener) of(id string) []sandpit.Event {
	return slices.DeleteFunc(l.events(), func(ev sandpit.Event) bool { return ev.Sandbox != id })
}

func testEvents(t *testing.T, e *env) {
	l := e.listen(t)
	name := uniqueName(t)
	sb := e.sandbox(t, sandpit.Spec{Name: name, Labels: map[string]string{"k": "v"}})
	p := start(t, sb, sandpit.Command{Script: "exit 3"})
	wait(t, p)
	eventually(t, "the end of the process is told", func() bool {
		return slices.ContainsFunc(l.of(sb.ID()), func(ev sandpit.Event) bool { return ev.Kind == sandpit.EventExit })
	})
	want := []sandpit.EventKind{sandpit.EventCreated, sandpit.EventProcess, sandpit.EventExit}
	if err := sb.Pause(guarded(t)); err == nil {
		must(t, sb.Resume(guarded(t)))
		want = append(want, sandpit.EventPaused, sandpit.EventResumed)
	} else if !errors.Is(err, sandpit.ErrUnsupported) {
		t.Fatal(err)
	}
	must(t, sb.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Hour}))
	must(t, sb.Stop(guarded(t), 0))
	must(t, sb.Restart(guarded(t)))
	must(t, sb.Remove(guarded(t)))
	want = append(want, sandpit.EventExtended, sandpit.EventStopped, sandpit.EventStarted, sandpit.EventRemoved)
	eventually(t, "the removal is told", func() bool {
		all := l.of(sb.ID())
		return len(all) > 0 && all[len(all)-1].Kind == sandpit.EventRemoved
	})
	got := l.of(sb.ID())
	var kinds []sandpit.EventKind
	for i, ev := range got {
		kinds = append(kinds, ev.Kind)
		if i > 0 && ev.Seq <= got[i-1].Seq || ev.Name != name || ev.Labels["k"] != "v" || ev.Time.IsZero() {
			t.Errorf("got %+v", ev)
		}
		switch ev.Kind {
		case sandpit.EventExit:
			if ev.Process != p.ID() || ev.PID != p.PID() || ev.Exit == nil || *ev.Exit != 3 {
				t.Errorf("got %+v", ev)
			}
		case sandpit.EventStopped:
			if ev.State != sandpit.StateStopped || ev.Reason == "" {
				t.Errorf("got %+v", ev)
			}
		case sandpit.EventStarted:
			if ev.State != sandpit.StateRunning {
				t.Errorf("got %+v", ev)
			}
		}
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("got  %q\nwant %q", kinds, want)
	}
	// The same, to who comes later.
	again := collect(t, func(ctx context.Context) func(func(sandpit.Event, error) bool) {
		return e.client.Events(ctx, sandpit.EventQuery{After: got[0].Seq})
	}, func(all []sandpit.Event) bool { return all[len(all)-1].Seq >= got[len(got)-1].Seq })
	again = slices.DeleteFunc(again, func(ev sandpit.Event) bool { return ev.Sandbox != sb.ID() })
	kinds = nil
	for _, ev := range again {
		kinds = append(kinds, ev.Kind)
	}
	if !slices.Equal(kinds, want[1:]) {
		t.Errorf("later: got %q\nwant %q", kinds, want[1:])
	}
}

func testListQueries(t *testing.T, e *env) {
	mark := uniqueName(t)
	var ids []string
	var created []time.Time
	for i := range 5 {
		labels := map[string]string{"mark": mark, "empty": ""}
		if i%2 == 0 {
			labels["even"] = "yes"
		}
		sb := e.sandbox(t, sandpit.Spec{Labels: labels})
		info, err := sb.Info(t.Context())
		must(t, err)
		ids, created = append(ids, sb.ID()), append(created, info.CreatedAt)
	}
	stopped, err := e.client.Get(t.Context(), ids[1])
	must(t, err)
	must(t, stopped.Stop(guarded(t), 0))
	list := func(q sandpit.ListQuery) []string {
		t.Helper()
		var got []string
		for {
			page, err := e.client.List(t.Context(), q)
			must(t, err)
			if q.Limit > 0 && len(page.Sandboxes) > q.Limit {
				t.Errorf("a page of %d has %d", q.Limit, len(page.Sandboxes))
			}
			for _, i := range page.Sandboxes {
				got = append(got, i.ID)
			}
			if q.After = page.Next; q.After == "" {
				return got
			}
		}
	}
	all := map[string]string{"mark": mark}
	for name, c := range map[string]struct {
		q    sandpit.ListQuery
		want []string
	}{
		"label":         {sandpit.ListQuery{Labels: all}, ids},
		"pages of 1":    {sandpit.ListQuery{Labels: all, Limit: 1}, ids},
		"pages of 2":    {sandpit.ListQuery{Labels: all, Limit: 2}, ids},
		"two labels":    {sandpit.ListQuery{Labels: map[string]string{"mark": mark, "even": "yes"}}, []string{ids[0], ids[2], ids[4]}},
		"empty value":   {sandpit.ListQuery{Labels: map[string]string{"mark": mark, "empty": ""}}, ids},
		"other value":   {sandpit.ListQuery{Labels: map[string]string{"mark": mark, "even": ""}}, nil},
		"stopped":       {sandpit.ListQuery{Labels: all, States: []sandpit.State{sandpit.StateStopped}}, ids[1:2]},
		"running":       {sandpit.ListQuery{Labels: all, States: []sandpit.State{sandpit.StateRunning}, Limit: 2}, []string{ids[0], ids[2], ids[3], ids[4]}},
		"in a state":    {sandpit.ListQuery{Labels: all, States: []sandpit.State{sandpit.StateRunning, sandpit.StateStopped}}, ids},
		"a label's key": {sandpit.ListQuery{Labels: all, HasLabels: []string{"empty", "even"}}, []string{ids[0], ids[2], ids[4]}},
		"no such key":   {sandpit.ListQuery{Labels: all, HasLabels: []string{"odd"}}, nil},
		"since":         {sandpit.ListQuery{Labels: all, Since: created[2]}, ids[2:]},
		"until":         {sandpit.ListQuery{Labels: all, Until: created[2]}, ids[:2]},
		"since, until":  {sandpit.ListQuery{Labels: all, Since: created[1], Until: created[4], Limit: 2}, ids[1:4]},
		"newest first":  {sandpit.ListQuery{Labels: all, NewestFirst: true, Limit: 2}, []string{ids[4], ids[3], ids[2], ids[1], ids[0]}},
		"newest since":  {sandpit.ListQuery{Labels: all, NewestFirst: true, Since: created[1], Until: created[4], Limit: 1}, []string{ids[3], ids[2], ids[1]}},
		"no such label": {sandpit.ListQuery{Labels: map[string]string{"mark": mark + "x"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := list(c.q); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	for _, q := range []sandpit.ListQuery{{Limit: -1}, {States: []sandpit.State{"dreaming"}}} {
		if _, err := e.client.List(t.Context(), q); err != nil {
			wantKind(t, err, sandpit.ErrInvalid)
		}
	}
	// This is not the name of a label, but the text of one.
	page, err := e.client.List(t.Context(), sandpit.ListQuery{HasLabels: []string{"mark=" + mark}})
	if err != nil {
		wantKind(t, err, sandpit.ErrInvalid)
	} else if len(page.Sandboxes) != 0 {
		t.Errorf("a name with '=' selects %d sandboxes", len(page.Sandboxes))
	}
}

// until collects the events of a query up to the first that is last.
func (e *env) until(t *testing.T, q sandpit.EventQuery, last func(sandpit.Event) bool) []sandpit.Event {
	t.Helper()
	return collect(t, func(ctx context.Context) func(func(sandpit.Event, error) bool) { return e.client.Events(ctx, q) },
		func(all []sandpit.Event) bool { return last(all[len(all)-1]) })
}

func testEventQueries(t *testing.T, e *env) {
	before, err := e.client.List(t.Context(), sandpit.ListQuery{})
	must(t, err)
	mark := uniqueName(t)
	one := e.sandbox(t, sandpit.Spec{Name: mark, Labels: map[string]string{"mark": mark, "n": "1"}})
	two := e.sandbox(t, sandpit.Spec{Labels: map[string]string{"mark": mark}})
	must(t, one.Stop(guarded(t), 0))
	must(t, one.Remove(guarded(t)))
	must(t, two.Remove(guarded(t)))
	end := e.sandbox(t, sandpit.Spec{Name: mark, Labels: map[string]string{"mark": mark, "n": "2"}}) // each query selects its end
	must(t, end.Stop(guarded(t), 0))
	created, stopped, removed := sandpit.EventCreated, sandpit.EventStopped, sandpit.EventRemoved
	type told struct {
		id   string
		kind sandpit.EventKind
	}
	all := []told{{one.ID(), created}, {two.ID(), created}, {one.ID(), stopped}, {one.ID(), removed}, {two.ID(), removed}, {end.ID(), created}, {end.ID(), stopped}}
	pick := func(f func(told) bool) (some []told) {
		for _, e := range all {
			if f(e) {
				some = append(some, e)
			}
		}
		return some
	}
	labels := map[string]string{"mark": mark}
	for name, c := range map[string]struct {
		q    sandpit.EventQuery
		want []told
	}{
		"label":           {sandpit.EventQuery{Labels: labels}, all},
		"name":            {sandpit.EventQuery{Sandbox: mark}, pick(func(e told) bool { return e.id != two.ID() })},
		"kind":            {sandpit.EventQuery{Labels: labels, Kinds: []sandpit.EventKind{stopped}}, pick(func(e told) bool { return e.kind == stopped })},
		"kinds":           {sandpit.EventQuery{Labels: labels, Kinds: []sandpit.EventKind{stopped, removed}}, pick(func(e told) bool { return e.kind != created })},
		"key of a label":  {sandpit.EventQuery{Labels: labels, HasLabels: []string{"n"}}, pick(func(e told) bool { return e.id != two.ID() })},
		"kind of sandbox": {sandpit.EventQuery{Sandbox: mark, Kinds: []sandpit.EventKind{removed, stopped}}, pick(func(e told) bool { return e.kind != created && e.id != two.ID() })},
	} {
		c.q.After = before.Seq
		var got []told
		for _, ev := range e.until(t, c.q, func(ev sandpit.Event) bool { return ev.Sandbox == end.ID() && ev.Kind == stopped }) {
			got = append(got, told{ev.Sandbox, ev.Kind})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, c.want)
		}
	}
}

func testListThenWatch(t *testing.T, e *env) {
	mark := uniqueName(t)
	old := e.sandbox(t, sandpit.Spec{Labels: map[string]string{"mark": mark}})
	q := sandpit.ListQuery{Labels: map[string]string{"mark": mark}}
	page, err := e.client.List(t.Context(), q)
	must(t, err)
	if page.Seq == 0 || len(page.Sandboxes) != 1 {
		t.Fatalf("got %+v", page)
	}
	// What happens between the list and the watch is told.
	made := e.sandbox(t, sandpit.Spec{Labels: map[string]string{"mark": mark}})
	must(t, old.Remove(guarded(t)))
	got := e.until(t, sandpit.EventQuery{After: page.Seq, Labels: q.Labels}, func(ev sandpit.Event) bool { return ev.Kind == sandpit.EventRemoved })
	if len(got) != 2 || got[0].Sandbox != made.ID() || got[0].Kind != sandpit.EventCreated || got[1].Sandbox != old.ID() {
		t.Errorf("got %+v", got)
	}
	if later, err := e.client.List(t.Context(), q); err != nil || later.Seq < got[1].Seq {
		t.Errorf("a list after the event %d has the position %d, %v", got[1].Seq, later.Seq, err)
	}
}
