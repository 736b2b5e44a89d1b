package rpc

import (
	"context"
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// metricsParams are those of metrics.
type metricsParams struct {
	Namespace string `json:"namespace"` // "*": all
	Sandbox   string `json:"sandbox"`   // "": all
}

func (p *metricsParams) check() error {
	if p.Sandbox != "" {
		if err := checkName("Sandbox", p.Sandbox); err != nil {
			return err
		}
	}
	if p.Namespace == sandpit.AllNamespaces {
		return nil
	}
	return checkName("Namespace", p.Namespace)
}

func (p *metricsParams) where() (namespace, sandbox string) { return p.Namespace, p.Sandbox }

func (*metricsParams) about() string { return "" }

// metrics are the use of resources by a sandbox: null if it does not run.
type metrics struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Running   bool     `json:"running"`
	CPU       *float64 `json:"cpu_usage"`    // percent of one CPU
	Memory    *int64   `json:"memory_usage"` // MiB
	Disk      *int64   `json:"disk_usage"`   // bytes
}

// getMetrics lists sandboxes with their use of resources.
func getMetrics(c *call, in *metricsParams) (any, error) {
	list := []metrics{}
	tenant := c.tenant()
	if in.Sandbox != "" && in.Namespace != sandpit.AllNamespaces {
		sb, err := c.find()
		if err != nil {
			return nil, err
		}
		info, err := sb.Info(c.Ctx)
		if err != nil {
			return nil, err
		}
		return answerMetrics(append(list, measure(c.Ctx, sb, info))), nil
	}
	q := sandpit.ListQuery{Limit: sandpit.MaxPage}
	for {
		page, err := tenant.List(c.Ctx, q)
		if err != nil {
			return nil, err
		}
		for _, info := range page.Sandboxes {
			if info.Namespace == "" || in.Sandbox != "" && info.Name != in.Sandbox {
				continue // the API can't name the namespace of the key itself
			}
			if sb, err := tenant.Box(info.ID); err == nil { // otherwise it has just gone
				list = append(list, measure(c.Ctx, sb, info))
			}
		}
		if err := c.Hold(gate.InMemory, heldMetrics*int64(len(list))); err != nil {
			return nil, err
		}
		if q.After = page.Next; q.After == "" {
			return answerMetrics(list), nil
		}
	}
}

// heldMetrics is the memory of the metrics of a sandbox, in bytes.
const heldMetrics = 1 << 10

func answerMetrics(list []metrics) any { return map[string]any{"sandboxes": list} }

// measure returns the metrics of a sandbox.
func measure(ctx context.Context, sb engine.Box, info sandpit.Info) metrics {
	m := metrics{Namespace: info.Namespace, Name: info.Name}
	if info.State != sandpit.StateRunning && info.State != sandpit.StatePaused {
		return m
	}
	m.Running = true
	now, err := sb.Metrics(ctx)
	if err != nil {
		m.Running = !errors.Is(err, sandpit.ErrState) && !errors.Is(err, sandpit.ErrClosed)
		return m
	}
	was := sandpit.Sample{Time: info.CreatedAt}
	if all, err := sb.History(ctx, time.Time{}); err == nil && len(all) > 0 {
		was = all[len(all)-1]
	}
	cpu := dialect.CPUPercent(was, sandpit.Sample{Time: time.Now(), Metrics: now})
	memory, disk := max(now.Memory, 0)>>20, max(now.Disk, 0)
	m.CPU, m.Memory, m.Disk = &cpu, &memory, &disk
	return m
}
