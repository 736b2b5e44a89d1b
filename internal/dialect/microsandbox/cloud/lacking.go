package cloud

import (
	"net/http"

	"github.com/sandpit-dev/sandpit/internal/dialect"
)

// lackingRoutes returns the routes of what Sandpit does not have. Without them, clients would take the answer for that
// of a volume or sandbox that does not exist.
func lackingRoutes() []route {
	var all []route
	add := func(what, id, path string, methods ...string) {
		for _, method := range methods {
			all = append(all, route{method: method, path: path, id: id + "." + method, handle: func(c *call) error {
				return c.Untouched(dialect.Unsupported(what))
			}})
		}
	}
	const (
		get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

		volumes, snapshots = "volumes are", "snapshots are"
	)
	// A path that has others below it has their methods, too: the multiplexer would answer with a redirect to the path
	// with a slash, without a key.
	add(volumes, "volumes", "/v1/volumes", get, post)
	add(volumes, "volume", "/v1/volumes/{volume}", get, post, put, patch, del)
	add(volumes, "volumeFiles", "/v1/volumes/{volume}/{part...}", get, post, put, del)
	add(snapshots, "snapshots", "/v1/snapshots", get, post, del)
	add(snapshots, "snapshot", "/v1/snapshots/{part...}", get, post, del)
	add(snapshots, "snapshotOperation", "/v1/snapshot-operations/{operation}", get)
	add("changing a sandbox is", "modifySandbox", onePath, patch)
	return all
}
