package server

import "slices"

// Bounds of the renewals that run at once. A provider that does not answer takes up the places of its own service
// alone, and a namespace at most a part of them.
const (
	turnsService   = 8 // at one service
	turnsNamespace = 4 // of these, of one namespace
)

// turns decides which renewals run.
type turns struct {
	waiting []turn         // in the order in which they came
	at      map[string]int // that run, by service
	of      map[share]int  // that run
}

// share is what a namespace has of the places of a service.
type share struct{ service, namespace string }

// turn is a renewal, which start begins.
type turn struct {
	share
	start func()
}

func newTurns() turns { return turns{at: map[string]int{}, of: map[share]int{}} }

// add starts a renewal, now or in its turn. The caller calls end when it has ended.
func (t *turns) add(next turn) {
	t.waiting = append(t.waiting, next)
	t.begin()
}

// end gives back the place of a renewal, and starts another.
func (t *turns) end(s share) {
	if t.at[s.service]--; t.at[s.service] == 0 {
		delete(t.at, s.service)
	}
	if t.of[s]--; t.of[s] == 0 {
		delete(t.of, s)
	}
	t.begin()
}

// begin starts those that may run: of each service the first of the namespace that has fewest.
func (t *turns) begin() {
	for {
		best := -1
		for i := range t.waiting {
			s := t.waiting[i].share
			if t.at[s.service] < turnsService && t.of[s] < turnsNamespace && (best < 0 || t.of[s] < t.of[t.waiting[best].share]) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		next := t.waiting[best]
		t.waiting = slices.Delete(t.waiting, best, best+1)
		t.at[next.service]++
		t.of[next.share]++
		next.start()
	}
}
