package api

import (
	"net/http"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func imageRoutes() []Route {
	const tag = "Images"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/images", ID: "listImages", Tag: tag, Summary: "List the images that the caller may use", Text: "The host image, and the stored images that the policy names. Images that only a pattern with a star for the registry allows are shown to administrators alone. Images that were saved from sandboxes are shown as saved:NAME in their own namespace, and as saved:NAMESPACE/NAME to administrators of others.", Query: pageParams(), Status: http.StatusOK, Out: v1.ImageList{}, handle: listOf(listImages, imagePosition, func(part []v1.Image, next string) v1.ImageList { return v1.ImageList{Images: part, Next: next} })},
		{Method: http.MethodPost, Path: "/v1/images/pull", ID: "pullImage", Tag: tag, Summary: "Fetch an image", In: v1.ImagePull{}, Status: http.StatusOK, Out: v1.Image{}, Guarded: true, Fails: []string{errcode.NotFound, errcode.Integrity, errcode.Unsupported, errcode.Timeout, errcode.QuotaExceeded}, handle: fromJSON(pullImage)},
		{Method: http.MethodDelete, Path: "/v1/images", ID: "removeImage", Tag: tag, Summary: "Remove an image", Query: []Param{{Name: "image", Type: "string", Required: true, Doc: "Its reference"}}, Text: "Administrators may remove any image, others those that were saved from sandboxes of their namespace.", Status: http.StatusNoContent, Guarded: true, selfAudited: true, Fails: []string{errcode.NotFound, errcode.State}, handle: only(removeImage)},
	}
}

func listImages(c *call) ([]v1.Image, error) { return c.api.opts.Backend.Images(c.Ctx, c.Caller) }

func imagePosition(i v1.Image) string { return i.Reference + " " + i.Digest }

func pullImage(c *call, in *v1.ImagePull) (v1.Image, error) {
	if in.Image == "" {
		return v1.Image{}, gate.Invalid("the image is missing", "set image")
	}
	pull := sandpit.PullPolicy(in.Pull)
	switch pull {
	case "":
		pull = sandpit.PullAlways
	case sandpit.PullAlways, sandpit.PullMissing:
	default:
		return v1.Image{}, gate.Invalid("pull must be missing or always", "")
	}
	if err := c.OpenStream(); err != nil {
		return v1.Image{}, err
	}
	return c.api.opts.Backend.PullImage(c.Ctx, c.Caller, in.Image, pull)
}

func removeImage(c *call) error {
	q := c.query()
	if q.err != nil {
		return q.err
	}
	if err := c.Intend("image " + q.text("image")); err != nil {
		return err
	}
	return c.api.opts.Backend.RemoveImage(c.Ctx, c.Caller, q.text("image"))
}
