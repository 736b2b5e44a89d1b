package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/server"
)

// The answer with the longest command line that is shown is kept, however long it is in JSON.
func TestLongAnswerIsRepeated(t *testing.T) {
	srv := newServed(t).start()
	c := srv.unix()
	defer c.Close()
	createOf(t, c, sandpit.Spec{Name: "box"})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return server.DialHome(ctx, srv.home) }}
	defer transport.CloseIdleConnections()
	body, err := json.Marshal(v1.Command{Argv: []string{"true", strings.Repeat("<\x01", 20_000)}})
	if err != nil {
		t.Fatal(err)
	}
	var answers [2]string
	for i := range answers {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sandpit/v1/sandboxes/box/processes", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "k")
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if answers[i] = string(text); err != nil || resp.StatusCode != http.StatusCreated || len(text) < 40_000 {
			t.Fatalf("%s, %d bytes, %v: %.300s", resp.Status, len(text), err, text)
		}
	}
	if answers[0] != answers[1] {
		t.Errorf("it is repeated as %s", answers[1])
	}
}
