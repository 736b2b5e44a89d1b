// Program clients is the scenario of the client that oapi-codegen makes, see
// internal/server: TestGeneratedClients.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"

	"clients/client"
)

func main() {
	log.SetFlags(log.Lshortfile)
	ctx := context.Background()
	c, err := client.NewClientWithResponses(os.Getenv("SANDPIT_URL"), client.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("SANDPIT_KEY"))
		return nil
	}))
	check(err)

	var env client.Env
	check(env.FromEnvMap(client.EnvMap{"GREETING": "hello"}))
	var made []client.Sandbox
	for _, name := range []string{"go-one", "go-two"} {
		resp, err := c.CreateSandboxWithResponse(ctx, nil, client.Spec{Name: &name, Labels: &map[string]string{"client": "go"}, Env: &env})
		check(err)
		if resp.JSON201 == nil {
			log.Fatalf("creating %s: %s", name, resp.Body)
		}
		made = append(made, *resp.JSON201)
	}
	first := made[0]
	equal(first.State, client.SandboxStateRunning)

	// A process that is waited for, and a command with its output.
	started, err := c.StartProcessWithResponse(ctx, first.Id, nil, client.Command{Argv: &[]string{"sh", "-c", "exit 4"}})
	check(err)
	ended, err := c.WaitProcessWithResponse(ctx, first.Id, started.JSON201.Id, nil)
	check(err)
	equal(ended.JSON200.Result.ExitCode, 4)
	done, err := c.ExecWithResponse(ctx, first.Id, nil, client.Exec{Script: new(`echo "$GREETING"; echo oops >&2; exit 3`)})
	check(err)
	equal(done.JSON200.Stdout, "hello\n")
	equal(done.JSON200.Stderr, "oops\n")
	equal(done.JSON200.Result.ExitCode, 3)

	// Errors have a code of the enum.
	failed, err := c.ExecWithResponse(ctx, first.Id, nil, client.Exec{Argv: &[]string{"/no/such"}})
	check(err)
	equal(failed.JSON422.Code, client.ErrorCodeStartFailed)
	equal(*failed.JSON422.ExitCode, 127)

	// A file of any bytes.
	content := bytes.Repeat([]byte{0, 1, 127, 128, 254, 255}, 100)
	written, err := c.WriteFileWithBodyWithResponse(ctx, first.Id, &client.WriteFileParams{Path: "/tmp/bytes"}, "application/octet-stream", bytes.NewReader(content))
	check(err)
	equal(written.JSON200.Bytes, int64(len(content)))
	read, err := c.ReadFileWithResponse(ctx, first.Id, &client.ReadFileParams{Path: "/tmp/bytes"})
	check(err)
	equal(string(read.Body), string(content))

	// Pages of a list with a filter.
	query := client.ListSandboxesParams{Label: &[]string{"client=go"}, State: &[]client.SandboxState{client.SandboxStateRunning}, Limit: new(1)}
	page, err := c.ListSandboxesWithResponse(ctx, &query)
	check(err)
	query.After = page.JSON200.Next
	last, err := c.ListSandboxesWithResponse(ctx, &query)
	check(err)
	equal(last.JSON200.Next, nil)
	var names []string
	for _, s := range slices.Concat(page.JSON200.Sandboxes, last.JSON200.Sandboxes) {
		names = append(names, s.Name)
	}
	equal(strings.Join(names, " "), "go-one go-two")

	// Labels change, which is an event.
	changed, err := c.UpdateSandboxWithResponse(ctx, first.Id, nil, client.Change{Labels: &map[string]*string{"client": nil, "color": new("red")}})
	check(err)
	equal(fmt.Sprint(*changed.JSON200.Labels), "map[color:red]")
	resp, err := c.FollowEvents(ctx, &client.FollowEventsParams{Sandbox: &first.Id, After: &page.JSON200.Seq})
	check(err)
	event, err := updated(resp)
	check(err)
	equal(event.Kind, client.EventKindSandboxUpdated)
	equal((*event.Labels)["color"], "red")

	for _, s := range made {
		removed, err := c.RemoveSandboxWithResponse(ctx, s.Id)
		check(err)
		equal(removed.StatusCode(), http.StatusNoContent)
	}
	gone, err := c.GetSandboxWithResponse(ctx, first.Id)
	check(err)
	equal(gone.JSON404.Code, client.ErrorCodeNotFound)
}

// updated reads server-sent events up to the first about a changed sandbox.
func updated(resp *http.Response) (client.Event, error) {
	defer resp.Body.Close()
	name := ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			name = value
		case "data":
			var item client.EventStreamItem
			text, err := json.Marshal(map[string]any{"event": name, "data": json.RawMessage(value)})
			if err == nil {
				err = json.Unmarshal(text, &item)
			}
			if err != nil {
				return client.Event{}, err
			}
			variant, err := item.ValueByDiscriminator()
			if err != nil {
				return client.Event{}, err
			}
			switch v := variant.(type) {
			case client.EventStreamEvent:
				if v.Data.Kind == client.EventKindSandboxUpdated {
					return v.Data, nil
				}
			case client.EventStreamEnd:
				return client.Event{}, fmt.Errorf("the stream has ended: %s", v.Data.Reason)
			}
		}
	}
	return client.Event{}, errors.New("the stream was cut")
}

func check(err error) {
	if err != nil {
		_ = log.Output(2, err.Error())
		os.Exit(1)
	}
}

func equal[T comparable](got, want T) {
	if got != want {
		_ = log.Output(2, fmt.Sprintf("got %v, want %v", got, want))
		os.Exit(1)
	}
}
