package mcp

import (
	"context"
	"io"
	"math"
	"net/url"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Media types.
const (
	plainText = "text/plain"
	octets    = "application/octet-stream"
)

// scheme is that of the URIs of resources:
//
//	sandpit://SANDBOX/files/PATH                  a file, by its absolute path
//	sandpit://SANDBOX/processes/PROCESS/output    the output of a process
const scheme = "sandpit://"

// outputURI returns the URI of the output of a process.
func outputURI(sandbox, process string) string {
	return scheme + url.PathEscape(sandbox) + "/processes/" + url.PathEscape(process) + "/output"
}

// fileURI returns the URI of a file.
func fileURI(sandbox, name string) string {
	if !strings.HasPrefix(name, "/") {
		name = "/./" + name // relative to the working directory
	}
	return scheme + url.PathEscape(sandbox) + "/files" + (&url.URL{Path: name}).EscapedPath()
}

// splitURI returns the sandbox of the URI of a resource, and its path in that. ok is false if it has none.
func splitURI(uri string) (sandbox, rest string, ok bool) {
	name, rest, ok := strings.Cut(strings.TrimPrefix(uri, scheme), "/")
	sandbox, err := url.PathUnescape(name)
	if err != nil {
		return "", "", false
	}
	rest, err = url.PathUnescape(rest)
	return sandbox, rest, ok && err == nil
}

// maxResource bounds a resource, in bytes. Clients and not models decide what becomes of them.
const maxResource = 1 << 20

// addResources adds the resources of the groups that are offered.
func (r *registry) addResources() {
	if r.has("read_file") {
		r.server.AddResourceTemplate(&sdk.ResourceTemplate{
			Name: "file", Title: "File of a sandbox", URITemplate: scheme + "{sandbox}/files{+path}",
			Description: "A file of a sandbox, of at most 1 MiB, by its absolute path.",
		}, r.resource(readFileResource))
	}
	if r.has("read_output") {
		r.server.AddResourceTemplate(&sdk.ResourceTemplate{
			Name: "output", Title: "Output of a process", URITemplate: scheme + "{sandbox}/processes/{process}/output", MIMEType: plainText,
			Description: "The output of a process of a sandbox that is still stored: its last 1 MiB.",
		}, r.resource(readOutputResource))
	}
}

// resource returns the handler of resources that read reads. rest is the path of the URI, without the sandbox.
func (r *registry) resource(read func(ctx context.Context, sb sandpit.Sandbox, rest string) (*sdk.ResourceContents, error)) sdk.ResourceHandler {
	return func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		uri := req.Params.URI
		sandbox, rest, ok := splitURI(uri)
		if !ok || strings.ContainsRune(sandbox+rest, 0) {
			return nil, sdk.ResourceNotFoundError(uri)
		}
		client, err := hostOf(ctx).Open(ctx)
		if err != nil {
			return nil, r.resourceError(err)
		}
		defer client.Close()
		sb, err := client.Get(ctx, sandbox)
		if err != nil {
			return nil, r.resourceError(err)
		}
		content, err := read(ctx, sb, rest)
		if err != nil {
			return nil, r.resourceError(err)
		}
		content.URI = uri
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{content}}, nil
	}
}

// readFileResource returns a file.
func readFileResource(ctx context.Context, sb sandpit.Sandbox, rest string) (*sdk.ResourceContents, error) {
	name := strings.TrimPrefix(rest, "files")
	if relative, ok := strings.CutPrefix(name, "/./"); ok {
		name = relative
	}
	f, err := open(ctx, sb, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxResource+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxResource {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "the file %s has more than %s", fault.Clip(name), notation.FormatSize(maxResource)), "call read_file with line")
	}
	if isBinary(data) || clean(string(data)) != string(data) {
		return &sdk.ResourceContents{MIMEType: octets, Blob: data}, nil
	}
	return textResource(string(data)), nil
}

// textResource returns a text as a resource. The SDK leaves an empty text out, which clients refuse, but not an empty blob.
func textResource(text string) *sdk.ResourceContents {
	if text == "" {
		return &sdk.ResourceContents{MIMEType: plainText, Blob: []byte{}}
	}
	return &sdk.ResourceContents{MIMEType: plainText, Text: text}
}

// readOutputResource returns the output of a process.
func readOutputResource(ctx context.Context, sb sandpit.Sandbox, rest string) (*sdk.ResourceContents, error) {
	id := strings.TrimSuffix(strings.TrimPrefix(rest, "processes/"), "/output")
	if _, err := find(ctx, sb, id); err != nil {
		return nil, err
	}
	var data []byte
	left := 0
	at, _ := parsePosition("")
	for e, err := range sb.Logs(ctx, sandpit.LogQuery{Process: id}) {
		if err != nil {
			return nil, err
		}
		text, _ := at.take(e, math.MaxInt, false)
		data = append(data, text...)
		if more := len(data) - maxResource; more > maxResource {
			left += more
			data = append(data[:0], data[more:]...)
		}
	}
	data = append(data, at.rest()...)
	end := last(data, maxResource)
	left += len(data) - end
	text := string(data[len(data)-end:])
	if left > 0 {
		text = "[" + notation.FormatSize(int64(left)) + " of earlier output are left out: call read_output]\n" + text
	}
	return textResource(text), nil
}
