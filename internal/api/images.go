package api

import (
	"fmt"
	"net/http"
	"strings"

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
		{Method: http.MethodPost, Path: "/v1/images/tag", ID: "tagImage", Tag: tag, Summary: "Give a saved image more names", Text: "Names are of the caller's namespace, like those of a commit. An image that has lost its last name is removed once nobody uses it.", In: v1.ImageTag{}, Status: http.StatusOK, Out: v1.TaggedImage{}, Guarded: true, Fails: []string{errcode.NotFound, errcode.QuotaExceeded}, handle: fromJSON(tagImage)},
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

// maxTags is how many names a request may have.
const maxTags = 32

func tagImage(c *call, in *v1.ImageTag) (v1.TaggedImage, error) {
	name, saved := strings.CutPrefix(in.Image, sandpit.SavedImages)
	switch {
	case !saved:
		return v1.TaggedImage{}, gate.Invalid(fmt.Sprintf("%.80q is not an image that was saved from a sandbox", in.Image), "write saved:NAME or saved:NAME:TAG")
	case len(in.Names) == 0 || len(in.Names) > maxTags:
		return v1.TaggedImage{}, gate.Invalid(fmt.Sprintf("a request must have 1 to %d names", maxTags), "")
	}
	for _, n := range in.Names {
		if strings.HasPrefix(n, sandpit.SavedImages) {
			return v1.TaggedImage{}, gate.Invalid(fmt.Sprintf("the name %.80q begins with %s", n, sandpit.SavedImages), "write NAME or NAME:TAG")
		}
	}
	digest, err := c.api.opts.Backend.TagImage(c.Ctx, c.Caller, name, in.Names)
	out := v1.TaggedImage{Digest: digest}
	for _, n := range in.Names {
		out.References = append(out.References, sandpit.SavedImages+strings.TrimPrefix(n, c.Caller.Namespace+"/"))
	}
	return out, err
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
