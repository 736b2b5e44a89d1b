package client

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/sandpit-dev/sandpit"
)

// Events returns events. See sandpit.Watcher. If the server is unavailable, for example
// during an upgrade, or asks to try again later, Events continues where it stopped. If
// that takes too long, and when another error ends a stream that has begun, the error is an
// *InterruptedError, which has the position.
func (c *Client) Events(ctx context.Context, q sandpit.EventQuery) iter.Seq2[sandpit.Event, error] {
	return func(yield func(sandpit.Event, error) bool) {
		left := false // the caller wants no more
		back := newBackoff(away)
		for {
			query, err := eventQuery(q)
			if err != nil {
				yield(sandpit.Event{}, err)
				return
			}
			r := request{method: http.MethodGet, path: "/v1/events", query: query}
			err = c.events(ctx, r, &q.After, func(e event) (bool, error) {
				back = newBackoff(away)
				var v sandpit.Event
				if err := json.Unmarshal(e.data, &v); err != nil {
					return false, badAnswer("unreadable event: " + err.Error())
				}
				if v.Seq > 0 {
					q.After = v.Seq
				}
				if e.name == "begin" {
					return true, nil
				}
				left = !yield(v, nil)
				return !left, nil
			})
			if left || ctx.Err() != nil || err == io.EOF {
				return
			}
			if !passing(err) || !back.wait(ctx, err) {
				if ctx.Err() == nil {
					yield(sandpit.Event{}, interrupted(err, q.After))
				}
				return
			}
		}
	}
}

func eventQuery(q sandpit.EventQuery) (url.Values, error) {
	v, err := labelQuery(q.Labels, q.HasLabels)
	if err != nil {
		return nil, err
	}
	for _, k := range q.Kinds {
		v.Add("kind", string(k))
	}
	if q.Sandbox != "" {
		v.Set("sandbox", q.Sandbox)
	}
	if q.After > 0 {
		v.Set("after", strconv.FormatUint(q.After, 10))
	}
	return v, nil
}

// Logs returns the output of processes. See sandpit.ProcessKeeper. Like Events,
// it continues where it stopped, or ends with an *InterruptedError.
func (s *sandbox) Logs(ctx context.Context, q sandpit.LogQuery) iter.Seq2[sandpit.LogEntry, error] {
	return func(yield func(sandpit.LogEntry, error) bool) {
		if err := s.open(); err != nil {
			yield(sandpit.LogEntry{}, err)
			return
		}
		left := false
		back := newBackoff(away)
		for {
			err := s.c.events(ctx, request{method: http.MethodGet, path: s.path + "/logs", query: logQuery(q)}, nil, func(e event) (bool, error) {
				back = newBackoff(away)
				var v sandpit.LogEntry
				if err := json.Unmarshal(e.data, &v); err != nil {
					return false, badAnswer("unreadable entry: " + err.Error())
				}
				// What follows on a new connection comes behind this one.
				q.After, q.Tail = v.Seq, 0
				left = !yield(v, nil)
				return !left, nil
			})
			if left || ctx.Err() != nil || err == io.EOF {
				return
			}
			if !passing(err) || !back.wait(ctx, err) {
				if ctx.Err() == nil {
					yield(sandpit.LogEntry{}, s.explain(ctx, interrupted(err, q.After)))
				}
				return
			}
		}
	}
}

func logQuery(q sandpit.LogQuery) url.Values {
	v := url.Values{}
	if q.Process != "" {
		v.Set("process", q.Process)
	}
	if q.Stream != "" {
		v.Set("stream", q.Stream)
	}
	setTime(v, "since", q.Since)
	setTime(v, "until", q.Until)
	if q.After > 0 {
		v.Set("after", strconv.FormatUint(q.After, 10))
	}
	if q.Tail != 0 {
		v.Set("tail", strconv.Itoa(q.Tail))
	}
	if q.Follow {
		v.Set("follow", "true")
	}
	return v
}
