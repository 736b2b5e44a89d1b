package mcp

import "net/url"

// Media types.
const plainText = "text/plain"

// scheme is that of the URIs of resources.
const scheme = "sandpit://"

// outputURI returns the URI of the output of a process.
func outputURI(sandbox, process string) string {
	return scheme + url.PathEscape(sandbox) + "/processes/" + url.PathEscape(process) + "/output"
}

func (r *registry) addResources() {}
