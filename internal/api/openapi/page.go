package openapi

import (
	"bytes"
	"html/template"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit/internal/api"
)

// chapter is a tag with its routes.
type chapter struct {
	Name   string
	Routes []entry
}

// entry is a route on the page.
type entry struct {
	api.Route
	In, Out string // names of schemas
	Errors  string
	Events  []shownEvent
}

// kind is a schema on the page. One without fields has a description, a type or values, and
// the names of its variants.
type kind struct {
	Name, Doc string
	Variants  []string
	Fields    []field
}

type field struct {
	Name, Type, Ref, Doc string
	Required             bool
}

// Page returns the reference for people.
func Page() ([]byte, error) {
	doc := Document()
	var chapters []chapter
	for _, r := range api.Routes() {
		i := slices.IndexFunc(chapters, func(c chapter) bool { return c.Name == r.Tag })
		if i < 0 {
			i, chapters = len(chapters), append(chapters, chapter{Name: r.Tag})
		}
		e := entry{Route: r, Errors: strings.Join(r.Codes(), ", "), Events: shown(r.Feed)}
		op := doc.Paths[r.Path]
		for _, o := range []*huma.Operation{op.Get, op.Put, op.Post, op.Delete, op.Patch} {
			if o == nil || o.OperationID != r.ID {
				continue
			}
			if o.RequestBody != nil && r.In != nil {
				e.In = refName(o.RequestBody.Content["application/json"].Schema.Ref)
			}
			for _, resp := range o.Responses {
				if m := resp.Content["application/json"]; m != nil && m.Schema.Ref != "" && r.Out != nil && refName(m.Schema.Ref) != "Error" {
					e.Out = refName(m.Schema.Ref)
				}
			}
		}
		chapters[i].Routes = append(chapters[i].Routes, e)
	}
	var kinds []kind
	for name, s := range doc.Components.Schemas.Map() {
		k := kind{Name: name, Fields: fields(s)}
		if len(k.Fields) == 0 {
			k.Doc = describe(s)
			for _, v := range s.OneOf {
				k.Variants = append(k.Variants, refName(v.Ref))
			}
		}
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b kind) int { return strings.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	err := template.Must(template.New("page").Parse(page)).Execute(&out, map[string]any{"Chapters": chapters, "Kinds": kinds, "About": doc.Info.Description})
	return out.Bytes(), err
}

func refName(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

func fields(s *huma.Schema) []field {
	var out []field
	for name, p := range s.Properties {
		f := field{Name: name, Doc: p.Description, Required: slices.Contains(s.Required, name)}
		f.Type, f.Ref = typeOf(p)
		if len(p.Enum) > 0 {
			f.Doc = describe(p)
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b field) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// describe returns the values of a schema, or what a list or map has, and its description.
func describe(s *huma.Schema) string {
	var all []string
	for _, e := range s.Enum {
		all = append(all, e.(string))
	}
	what := strings.Join(all, " | ")
	if what == "" && s.Type != "" {
		what, _ = typeOf(s)
	}
	if what != "" && s.Description != "" {
		what += ". "
	}
	return what + s.Description
}

func typeOf(s *huma.Schema) (name, ref string) {
	switch {
	case s.Ref != "":
		return refName(s.Ref), refName(s.Ref)
	case s.Type == "array" && s.Items != nil:
		name, ref = typeOf(s.Items)
		return "list of " + name, ref
	case s.Type == "object":
		if more, ok := s.AdditionalProperties.(*huma.Schema); ok {
			name, ref = typeOf(more)
			return "map to " + name, ref
		}
	case s.ContentEncoding != "":
		return s.ContentEncoding, ""
	case s.Format == "date-time":
		return "time", ""
	}
	return s.Type, ""
}

const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sandpit API</title>
<link rel="stylesheet" href="/docs/style.css">
</head>
<body>
<nav>
<strong>Sandpit API</strong>
{{range .Chapters}}<h2>{{.Name}}</h2>
<ul>{{range .Routes}}<li><a href="#{{.ID}}">{{.Summary}}</a></li>
{{end}}</ul>
{{end}}<h2>Types</h2>
<ul>{{range .Kinds}}<li><a href="#type-{{.Name}}">{{.Name}}</a></li>
{{end}}</ul>
</nav>
<main>
<h1>Sandpit API</h1>
<p>{{.About}} For programs:  <a href="/v1/openapi.json">openapi.json</a>.</p>
<p>Send a key as <code>Authorization: Bearer KEY</code>. The server's unix socket needs none. It is in the data
directory, which is /var/lib/sandpit for root:</p>
<pre>curl --unix-socket ~/.local/share/sandpit/server.sock http://sandpit/v1/sandboxes
curl -H "Authorization: Bearer $SANDPIT_KEY" -H 'Content-Type: application/json' \
  -d '{"script":"echo hello"}' https://HOST:PORT/v1/sandboxes/NAME/exec</pre>
<p>Generators make a client of openapi.json in many languages. Those for Python (openapi-python-client), TypeScript
(openapi-typescript) and Go (oapi-codegen) are tested: <code>tools/clients</code> in Sandpit's repository has their
configuration and an example for each.</p>
{{range .Chapters}}<h2>{{.Name}}</h2>
{{range .Routes}}<section id="{{.ID}}">
<h3>{{.Summary}}</h3>
<p class="route"><b>{{.Method}}</b> <code>{{.Path}}</code>{{if .Admin}} <i>administrators</i>{{end}}{{if .Open}} <i>no key</i>{{end}}</p>
{{if .Text}}<p>{{.Text}}</p>
{{end}}{{if or .Query .Headers}}<table>
{{range .Query}}<tr><td><code>{{.Name}}</code></td><td>{{.Type}}{{if .Required}}, required{{end}}</td><td>{{range .Enum}}<code>{{.}}</code> {{end}}{{.Doc}}</td></tr>
{{end}}{{range .Headers}}<tr><td><code>{{.Name}}:</code></td><td>header</td><td>{{.Doc}}</td></tr>
{{end}}</table>
{{end}}{{if .Events}}<p>Events: {{range $i, $e := .Events}}{{if $i}}; {{end}}{{.Names}} (<a href="#type-{{.Type}}">{{.Type}}</a>){{end}}.</p>
{{end}}<p>{{if .In}}Takes <a href="#type-{{.In}}">{{.In}}</a>{{if .Form}}, or <code>multipart/form-data</code> with the parts command and stdin{{end}}. {{end}}{{if .Raw}}Takes <code>{{.Raw}}</code>. {{end}}Responds {{.Status}}{{if .Out}} with <a href="#type-{{.Out}}">{{.Out}}</a>{{end}}{{range $i, $o := .Other}}{{if or $i $.Out}} or{{else}} with{{end}} <code>{{$o}}</code>{{end}}. Errors: {{.Errors}}.</p>
</section>
{{end}}{{end}}<h2>Types</h2>
{{range .Kinds}}<section id="type-{{.Name}}">
<h3>{{.Name}}</h3>
{{if .Doc}}<p>{{.Doc}}</p>
{{end}}{{if .Variants}}<p>One of {{range $i, $v := .Variants}}{{if $i}}, {{end}}<a href="#type-{{$v}}">{{$v}}</a>{{end}}</p>
{{end}}<table>
{{range .Fields}}<tr><td><code>{{.Name}}</code></td><td>{{if .Ref}}<a href="#type-{{.Ref}}">{{.Type}}</a>{{else}}{{.Type}}{{end}}{{if .Required}}, required{{end}}</td><td>{{.Doc}}</td></tr>
{{end}}</table>
</section>
{{end}}</main>
</body>
</html>
`
