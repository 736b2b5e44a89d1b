package server

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// runs makes the sandboxes of sandpit run, for this server's own user: an engine without a
// store, whose sandboxes have no records and end with it, as they would end with the
// command. Its pool starts with the first of them.
type runs struct {
	engine *engine.Engine
	place  string // "": there are none
}

func newRuns(opt *Options, pool int, book *ledger.Ledger) runs {
	place, err := fastrun.Place()
	if err != nil {
		opt.Log.Info("'sandpit run' can't use this server", "error", err)
	}
	return runs{place: place, engine: engine.New(engine.Options{
		Driver: opt.Driver, Images: opt.Images, Acquire: opt.Acquire, Policy: policy.Default(),
		Pool: engine.Pool{Size: pool}, Memory: book, Patience: opt.Patience, Hangs: opt.logStuck, Network: opt.Network,
	})}
}

// Runs is for api.Runner.
func (r runs) Runs() sandpit.Client { return r.engine }

// Place is for api.Runner.
func (r runs) Place() string { return r.place }
