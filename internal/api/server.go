package api

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

func serverRoutes() []Route {
	const tag = "Server"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/capabilities", ID: "getCapabilities", Tag: tag, Summary: "Get the capabilities of this machine", Status: http.StatusOK, Out: v1.Capabilities{}, handle: asJSON(getCapabilities)},
		{Method: http.MethodGet, Path: "/v1/version", ID: "getVersion", Tag: tag, Summary: "Get the version of the server", Status: http.StatusOK, Out: v1.Version{}, handle: asJSON(getVersion)},
		{Method: http.MethodGet, Path: "/healthz", ID: "getHealth", Tag: tag, Summary: "Check the health of the server", Status: http.StatusOK, Out: v1.Health{}, Also: []int{http.StatusServiceUnavailable}, Open: true, handle: getHealth},
		{Method: http.MethodGet, Path: "/metrics", ID: "getServerMetrics", Tag: tag, Summary: "Metrics for Prometheus", Status: http.StatusOK, Other: []string{plainText}, Admin: true, handle: showMetrics},
	}
}

func getCapabilities(c *call) (v1.Capabilities, error) {
	caps, err := c.api.opts.Backend.Capabilities(c.Ctx)
	caps.Features = list(caps.Features)
	return caps, err
}

func getVersion(c *call) (v1.Version, error) {
	return v1.Version{Version: c.api.opts.Version, API: "v1", OS: runtime.GOOS, Arch: runtime.GOARCH}, nil
}

// getHealth answers 200 while sandboxes can be made, as far as is known. A server
// that drains refuses the request.
func getHealth(c *call) error {
	n, blocked := c.api.opts.Backend.Stuck()
	switch {
	case blocked:
		return codec.Answer(c.Call, http.StatusServiceUnavailable, v1.Health{Status: "unavailable", Stuck: n})
	case n > 0:
		return codec.Answer(c.Call, http.StatusOK, v1.Health{Status: "degraded", Stuck: n})
	}
	return codec.Answer(c.Call, http.StatusOK, v1.Health{Status: "ok"})
}

// statsTime is the time that /metrics waits for the metrics of sandboxes.
const statsTime = 5 * time.Second

func showMetrics(c *call) error {
	ctx, cancel := context.WithTimeout(c.Ctx, statsTime)
	defer cancel()
	stats, err := c.api.opts.Backend.Stats(ctx, maxSeries)
	if err != nil {
		return err
	}
	c.W.Header().Set("Content-Type", metricsType)
	_, err = c.W.Write(c.api.metricsPage(stats))
	return err
}
