// Package openapi writes what there is to read about the API from the table of
// its routes: an OpenAPI 3.1 document, and a page of reference. They are kept
// beside this file and embedded by package api; TestUpToDate holds them, and
// writes them anew with -update.
package openapi

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// Document returns the OpenAPI document of the routes.
func Document() *huma.OpenAPI {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Sandpit", Version: "v1", License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
			Description: "Safe computers for AI agents. Integers have no fraction or exponent. Sizes are in bytes, times in RFC 3339, durations in seconds. Strings are text; an object whose strings may be other bytes has the field encoding, which says base64 if they are in base64. Paths in parameters are percent-encoded bytes. Unknown fields and parameters of requests are refused. Later versions may send more fields, events and frames; clients must ignore those that they do not know. A field that is null counts as absent; a PATCH refuses it. Elements of lists and maps can't be null, except labels in a PATCH. A request that changes something by POST or PATCH, and one that writes a file, may have an Idempotency-Key; then the request can be repeated for 24 hours. It is carried out once, also if its client leaves meanwhile, and repetitions get the first response with the header Idempotent-Replayed, without secrets. While the first is in progress they get 409 with Retry-After. A key with another path, query or JSON, whose bytes are compared, gets 422 idempotency_mismatch. Other bodies, such as standard input and files, are not compared: a repeated request with other content is not carried out. A request that failed gives its key back. If the server ended during a request that it can not find again, repetitions get 409 outcome_unknown. A request without a key gets that if the server shut down while it carried the request out. Requests by other methods ignore the header: to repeat them changes nothing more. Every response has the header X-Request-Id; every error is an Error with a stable code. The exceptions are responses to what is not a valid HTTP request (400, 417, 431, 501, 505), which are plain text without that header.",
		},
		Servers: []*huma.Server{{URL: "/"}},
		Components: &huma.Components{
			Schemas: schemas,
			Headers: headers(),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"ticket": {Type: "apiKey", In: "query", Name: "ticket", Description: "A ticket of POST /v1/tickets, for web pages."},
				"key":    {Type: "http", Scheme: "bearer", Description: "A key. The server's unix socket needs none: there the kernel identifies the caller."},
			},
		},
		Security: []map[string][]string{{"key": {}}},
	}
	failed := schemas.Schema(reflect.TypeFor[v1.Error](), true, "Error")
	codes := &huma.Schema{Type: "string", Description: "Stable. Each code has one status. Later versions may have more."}
	for _, code := range errcode.All() {
		codes.Enum = append(codes.Enum, code)
	}
	schemas.Map()["ErrorCode"] = codes
	schemas.Map()["Error"].Properties["code"] = &huma.Schema{Ref: "#/components/schemas/ErrorCode"}
	tags := []string{}
	for _, r := range api.Routes() {
		if !slices.Contains(tags, r.Tag) {
			tags = append(tags, r.Tag)
			doc.Tags = append(doc.Tags, &huma.Tag{Name: r.Tag, Description: tagDoc(r.Tag)})
		}
		doc.AddOperation(operation(r, schemas, failed))
	}
	text := &huma.Schema{Type: huma.TypeString}
	*schemas.Map()["Env"] = huma.Schema{
		Description: "Environment variables: a list of NAME=VALUE, in which a later one replaces an earlier one, or an object of names and values. A name must not be empty, nor contain = or NUL",
		OneOf:       []*huma.Schema{{Ref: "#/components/schemas/EnvList"}, {Ref: "#/components/schemas/EnvMap"}},
	}
	schemas.Map()["EnvList"] = &huma.Schema{Type: huma.TypeArray, Items: text}
	schemas.Map()["EnvMap"] = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: text}
	schemas.Map()["NamedPolicy"].Properties["policy"] = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
	for name, all := range map[string][]feature.Feature{"enforced": feature.All(), "changeable": feature.Changeable()} {
		set := schemas.Map()["Capabilities"].Properties[name]
		set.Properties = map[string]*huma.Schema{}
		for _, f := range all {
			set.Properties[string(f)] = &huma.Schema{Type: "boolean"}
		}
	}
	for _, s := range schemas.Map() {
		walk(s, exact)
	}
	open(doc)
	nameEnums(doc)
	return doc
}

// open lets the schemas of responses have other fields than those of this version: clients that are
// generated from them must not fail when a later server sends more. Those of requests alone stay closed.
func open(doc *huma.OpenAPI) {
	all, seen := doc.Components.Schemas.Map(), map[*huma.Schema]bool{}
	var visit func(s *huma.Schema)
	visit = func(s *huma.Schema) {
		if seen[s] {
			return
		}
		seen[s] = true
		if s.AdditionalProperties == false {
			s.AdditionalProperties = nil
		}
		if s.Ref != "" {
			walk(all[refName(s.Ref)], visit)
		}
		if part, ok := s.Extensions["contentSchema"].(*huma.Schema); ok {
			walk(part, visit)
		}
	}
	for _, path := range doc.Paths {
		for _, op := range []*huma.Operation{path.Get, path.Put, path.Post, path.Delete, path.Patch} {
			if op == nil {
				continue
			}
			for _, resp := range op.Responses {
				for _, media := range resp.Content {
					walk(media.Schema, visit)
				}
			}
		}
	}
}

// JSON returns the document as it is served.
func JSON() ([]byte, error) {
	text, err := json.MarshalIndent(Document(), "", " ")
	return append(text, '\n'), err
}

func operation(r api.Route, schemas huma.Registry, failed *huma.Schema) *huma.Operation {
	text := r.Text
	if r.Admin {
		text = strings.TrimSpace(text + " For administrators.")
	}
	op := &huma.Operation{Method: r.Method, Path: r.Path, OperationID: r.ID, Tags: []string{r.Tag}, Summary: r.Summary, Description: text}
	switch {
	case r.Open:
		op.Security = []map[string][]string{{}}
	case r.Ticket:
		op.Security = []map[string][]string{{"key": {}}, {"ticket": {}}}
	}
	for _, name := range PathParams(r.Path) {
		op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "path", Required: true, Schema: pathSchema(name), Description: pathDoc(name)})
	}
	for _, p := range r.Query {
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.Name, In: "query", Required: p.Required, Description: p.Doc, Schema: paramSchema(p)})
	}
	for _, p := range r.Headers {
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.Name, In: "header", Required: p.Required, Description: p.Doc, Schema: paramSchema(p)})
	}
	switch {
	case r.In != nil:
		op.RequestBody = &huma.RequestBody{Required: r.Method == http.MethodPut, Content: map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(reflect.TypeOf(r.In), true, "")}}}
		if r.Form {
			command := op.RequestBody.Content["application/json"].Schema
			form := reflect.TypeOf(r.In).Name() + "Form"
			schemas.Map()[form] = &huma.Schema{
				Type: huma.TypeObject, Required: []string{"command"},
				Properties: map[string]*huma.Schema{"command": command, "stdin": {Type: huma.TypeString, Format: "binary", Description: "Standard input: any bytes, of any size"}},
			}
			op.RequestBody.Content["multipart/form-data"] = &huma.MediaType{
				Schema:   &huma.Schema{Ref: "#/components/schemas/" + form},
				Encoding: map[string]*huma.Encoding{"command": {ContentType: "application/json"}},
			}
		}
	case r.Raw != "":
		op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{r.Raw: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}}
	}
	ok := &huma.Response{Description: r.Summary}
	if r.Out != nil {
		ok.Content = map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(reflect.TypeOf(r.Out), true, "")}}
	}
	for _, kind := range r.Other {
		if ok.Content == nil {
			ok.Content = map[string]*huma.MediaType{}
		}
		media := &huma.Schema{Type: "string"}
		switch {
		case kind == v1.StreamType || !strings.HasPrefix(kind, "text/") && !strings.HasSuffix(kind, "json"):
			media.Format = "binary"
		case r.Feed != nil:
			media = feedContent(kind, r.Feed, schemas)
		case strings.HasSuffix(kind, "+json"):
			media = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
		}
		ok.Content[kind] = &huma.MediaType{Schema: media}
	}
	op.Responses = map[string]*huma.Response{strconv.Itoa(r.Status): ok}
	for status, codes := range r.Answers() {
		op.Responses[strconv.Itoa(status)] = failure(status, codes, failed)
	}
	for status, resp := range op.Responses {
		resp.Headers = sent(&r, status)
	}
	for _, status := range r.Also {
		also := op.Responses[strconv.Itoa(status)]
		if also == nil {
			op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: ok.Content, Headers: sent(&r, strconv.Itoa(status))}
			continue
		}
		also.Content["application/json"].Schema = &huma.Schema{OneOf: []*huma.Schema{ok.Content["application/json"].Schema, failed}}
	}
	return op
}

// failure returns the response with a status for errors of the given codes.
func failure(status int, codes []string, failed *huma.Schema) *huma.Response {
	return &huma.Response{
		Description: http.StatusText(status) + ": " + strings.Join(codes, ", "),
		Content:     map[string]*huma.MediaType{"application/json": {Schema: failed}},
	}
}

// headers are those of responses that are not the same everywhere in HTTP.
func headers() map[string]*huma.Header {
	text := &huma.Schema{Type: huma.TypeString}
	return map[string]*huma.Header{
		"X-Request-Id":        {Description: "Names the request in the audit and the log", Schema: text},
		"Retry-After":         {Description: "Seconds after which to try again", Schema: &huma.Schema{Type: huma.TypeInteger}},
		"Idempotent-Replayed": {Description: "true: this is the response to an earlier request with the same Idempotency-Key", Schema: text},
		"Location":            {Description: "The path of the new sandbox", Schema: text},
		"X-Sandpit-Mode":      {Description: "The permission bits of the file, in octal", Schema: text},
		"Content-Range":       {Description: "The range of the file, as bytes FROM-TO/SIZE", Schema: text},
	}
}

// sent returns the headers of the responses of a route with a status.
func sent(r *api.Route, status string) map[string]*huma.Param {
	names := []string{"X-Request-Id"}
	repeatable := slices.ContainsFunc(r.Headers, func(h api.Param) bool { return h.Name == "Idempotency-Key" })
	switch {
	case status == "429", status == "503", status == "409" && repeatable:
		names = append(names, "Retry-After")
	case status == "206":
		names = append(names, "X-Sandpit-Mode", "Content-Range")
	case r.ID == "readFile" && status == "200":
		names = append(names, "X-Sandpit-Mode")
	case r.ID == "createSandbox" && status == "201":
		names = append(names, "Location")
	}
	if status[0] == '2' && repeatable {
		names = append(names, "Idempotent-Replayed")
	}
	all := map[string]*huma.Param{}
	for _, name := range names {
		all[name] = &huma.Param{Ref: "#/components/headers/" + name}
	}
	return all
}

// PathParams returns the names of the parameters in a path.
func PathParams(path string) []string {
	var names []string
	for part := range strings.SplitSeq(path, "{") {
		if name, _, ok := strings.Cut(part, "}"); ok {
			names = append(names, name)
		}
	}
	return names
}

func pathDoc(name string) string {
	switch name {
	case "sb":
		return "The sandbox's id or name"
	case "p":
		return "The process's id, or its pid"
	case "context":
		return "The context's ID"
	case "secret":
		return "The secret's name"
	}
	return ""
}

func tagDoc(tag string) string {
	switch tag {
	case "Sandboxes":
		return "Create, list, change and remove sandboxes"
	case "Previews":
		return "Open ports of a sandbox in a browser, by URLs that end"
	case "Processes":
		return "Run commands, and follow and control processes"
	case "Code":
		return "Run code in interpreters that keep their state"
	case "Files":
		return "Read, write and search the files of a sandbox"
	case "Events":
		return "Follow what happens to sandboxes and processes, and have it sent to webhooks"
	case "Secrets":
		return "Store credentials that sandboxes use and never see"
	case "Images":
		return "List, pull, import and remove images"
	case "Keys":
		return "Create and revoke keys, and create tickets for web pages"
	case "Server":
		return "Version, capabilities, health, metrics, policy, audit and this reference"
	}
	return ""
}

func pathSchema(name string) *huma.Schema {
	if name == "port" {
		return &huma.Schema{Type: huma.TypeInteger, Minimum: new(1.0), Maximum: new(65535.0)}
	}
	return &huma.Schema{Type: "string"}
}

func paramSchema(p api.Param) *huma.Schema {
	s := &huma.Schema{Type: p.Type}
	if p.Type == "date-time" {
		s.Type, s.Format = "string", "date-time"
	}
	for _, e := range p.Enum {
		s.Enum = append(s.Enum, e)
	}
	switch {
	case p.Most > 0:
		s.Minimum, s.Maximum = new(0.0), new(float64(p.Most))
	case p.Type == "integer":
		s.Format, s.Minimum = "int64", new(0.0)
	case p.Type == "number":
		s.Minimum = new(0.0)
	}
	if p.Many {
		return &huma.Schema{Type: "array", Items: s} // repeated: the default of OpenAPI
	}
	return s
}

// walk calls a function for a schema and all that it contains, except references.
func walk(s *huma.Schema, do func(*huma.Schema)) {
	do(s)
	if s.Items != nil {
		walk(s.Items, do)
	}
	for _, p := range s.Properties {
		walk(p, do)
	}
	for _, p := range s.OneOf {
		walk(p, do)
	}
	if more, ok := s.AdditionalProperties.(*huma.Schema); ok {
		walk(more, do)
	}
}

// exact makes a schema say what the server does: lists are never null.
func exact(s *huma.Schema) {
	if s.Type == huma.TypeArray {
		s.Nullable = false
	}
}
