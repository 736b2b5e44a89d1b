package e2b

import (
	"net/http"

	"github.com/sandpit-dev/sandpit/internal/dialect"
)

// lackingRoutes returns the routes of what Sandpit does not have. Without them, SDKs would take the
// answer for that of a sandbox that does not exist.
func lackingRoutes() []route {
	all := []route{}
	add := func(what, id, path string, methods ...string) {
		for _, method := range methods {
			all = append(all, route{
				method: method, path: path, id: id + "." + method,
				handle: func(c *call) error { return c.Untouched(dialect.Unsupported(what)) },
			})
		}
	}
	const (
		get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

		snapshots, volumes, templates = "snapshots are", "volumes are", "this way of building templates is"
	)
	add("forking a sandbox is", "fork", "/sandboxes/{id}/fork", post)
	add(snapshots, "snapshot", "/sandboxes/{id}/snapshots", post)
	add(snapshots, "snapshots", "/snapshots", get)
	add(volumes, "volumes", "/volumes", get, post)
	add(volumes, "volume", "/volumes/{volume}", get, del)
	add(volumes, "volumeContent", "/volumecontent/{volume}/{what}", get, post, put, patch, del)
	add("stored secrets are", "secrets", "/secrets", get, post)
	add("stored secrets are", "secret", "/secrets/{secret}", get, post, put, patch, del)
	add(templates, "templates", "/templates", post)
	add(templates, "templatesV2", "/v2/templates", get, post)
	add(templates, "templatesV3", "/v3/templates", get)
	add(templates, "template", "/templates/{template}", get, post, patch)
	add(templates, "templatePart", "/templates/{template}/{part...}", get, post, patch, del)
	add(templates, "templateBuild", "/v2/templates/{template}/{part...}", get, post, patch, del)
	return all
}
