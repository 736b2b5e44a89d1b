package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

func namespaceRoutes() []Route {
	const tag = "Sandboxes"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/namespaces", ID: "listNamespaces", Tag: tag, Summary: "List the namespaces that have sandboxes", Query: pageParams(), Status: http.StatusOK, Out: v1.NamespaceList{}, Admin: true, handle: listOf(listNamespaces, namespacePosition, func(part []v1.Namespace, next string) v1.NamespaceList {
			return v1.NamespaceList{Namespaces: part, Next: next}
		})},
		{
			Method: http.MethodGet, Path: "/v1/namespaces/{namespace}/sandboxes", ID: "listSandboxesOfNamespace", Tag: tag, Summary: "List the sandboxes of a namespace and of those nested in it",
			Query: pageParams(timeParams(labelParam(), stateParam(), orderParam())...), Status: http.StatusOK, Out: v1.SandboxList{}, Admin: true, handle: asJSON(listSandboxesOfNamespace),
		},
	}
}

func listNamespaces(c *call) ([]v1.Namespace, error) {
	all := []v1.Namespace{}
	for name, n := range c.api.opts.Backend.Namespaces() {
		all = append(all, v1.Namespace{Name: name, Sandboxes: n})
	}
	slices.SortFunc(all, func(a, b v1.Namespace) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func namespacePosition(n v1.Namespace) string { return n.Name }

func listSandboxesOfNamespace(c *call) (v1.SandboxList, error) {
	who := c.Caller
	who.Namespace, who.Nested = c.R.PathValue("namespace"), sandpit.AllNamespaces
	return c.sandboxesOf(who)
}
