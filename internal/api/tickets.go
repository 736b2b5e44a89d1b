package api

import (
	"net/http"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

func ticketRoutes() []Route {
	return []Route{{
		Method: http.MethodPost, Path: "/v1/tickets", ID: "createTicket", IgnoresIdempotency: true, Tag: "Keys", Summary: "Create a ticket",
		Text: "A ticket lets a web page, which can send no header with a WebSocket or an EventSource, open one stream: add it to the query as ticket. It can be used once, within 30 seconds, for the path and query that it was made for, in place of a key. The stream belongs to the key that made the ticket, and ends with it.",
		In:   v1.NewTicket{}, Status: http.StatusCreated, Out: v1.Ticket{}, Guarded: true, handle: fromJSON(createTicket),
	}}
}

func createTicket(c *call, in *v1.NewTicket) (v1.Ticket, error) {
	secret, until, err := c.NewTicket(in.Path)
	if err != nil {
		return v1.Ticket{}, c.Untouched(err)
	}
	c.W.Header().Set("Cache-Control", "no-store")
	return v1.Ticket{Ticket: secret, ExpiresAt: until}, nil
}
