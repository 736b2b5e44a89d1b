package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

var _ sandpit.Coder = (*sandbox)(nil)

// RunCode runs code. See sandpit.Coder.
func (s *sandbox) RunCode(ctx context.Context, code sandpit.Code) (res sandpit.CodeResult, err error) {
	if err := s.open(); err != nil {
		return res, err
	}
	var body []byte
	if err = isText("code", code.Source); err == nil {
		if err = isText("variable", code.Env...); err == nil {
			body, err = encode(v1.FromCode(code))
		}
	}
	if err != nil {
		return res, fmt.Errorf("running code: %w", err)
	}
	ended := false
	r := request{method: http.MethodPost, path: s.path + "/code", body: body, maxEvent: maxCodeEvent}
	err = s.c.events(ctx, r, nil, func(e event) (bool, error) {
		var err error
		switch e.name {
		case "stdout", "stderr":
			to := code.Stdout
			if e.name == "stderr" {
				to = code.Stderr
			}
			var v v1.Output
			if err = json.Unmarshal(e.data, &v); err == nil && to != nil {
				_, _ = to.Write(v.Data) // what nobody wants is discarded
			}
		case "waiting":
			var v v1.CodeWaiting
			if err = json.Unmarshal(e.data, &v); err == nil && code.Waits != nil {
				code.Waits(v.Runs)
			}
		case "output":
			var v v1.CodeOutput
			if err = json.Unmarshal(e.data, &v); err == nil && code.Output != nil {
				code.Output(v.Sandpit())
			}
		case "result":
			var v v1.CodeResult
			err = json.Unmarshal(e.data, &v)
			res, ended = v.Sandpit(), true
		}
		if err != nil {
			return false, badAnswer("unreadable event: " + err.Error())
		}
		return true, nil
	})
	switch {
	case err == io.EOF && ended:
		return res, nil
	case err == io.EOF:
		return res, badAnswer("a run without a result")
	}
	return sandpit.CodeResult{}, s.explain(ctx, err)
}

// CreateContext starts an interpreter. See sandpit.Coder.
func (s *sandbox) CreateContext(ctx context.Context, spec sandpit.NewContext) (sandpit.CodeContext, error) {
	if err := s.open(); err != nil {
		return sandpit.CodeContext{}, err
	}
	var body []byte
	err := isText("directory", spec.Dir)
	if err == nil {
		if err = isText("variable", spec.Env...); err == nil {
			body, err = encode(v1.FromNewContext(spec))
		}
	}
	if err != nil {
		return sandpit.CodeContext{}, fmt.Errorf("creating a context: %w", err)
	}
	var v v1.CodeContext
	if err := s.c.call(ctx, request{method: http.MethodPost, path: s.path + "/contexts", body: body}, &v); err != nil {
		return sandpit.CodeContext{}, s.explain(ctx, err)
	}
	return sandpit.CodeContext(v), nil
}

// Contexts lists the contexts, oldest first. See sandpit.Coder.
func (s *sandbox) Contexts(ctx context.Context) ([]sandpit.CodeContext, error) {
	all := []sandpit.CodeContext{}
	err := pages(ctx, s, "/contexts", url.Values{}, func(list v1.ContextList) (string, error) {
		for _, c := range list.Contexts {
			all = append(all, sandpit.CodeContext(c))
		}
		return list.Next, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// RestartContext kills the interpreter of a context. See sandpit.Coder.
func (s *sandbox) RestartContext(ctx context.Context, id string) error {
	return s.onContext(ctx, http.MethodPost, id, "/restart")
}

// InterruptContext interrupts a run. See sandpit.Coder.
func (s *sandbox) InterruptContext(ctx context.Context, id string) error {
	return s.onContext(ctx, http.MethodPost, id, "/interrupt")
}

// RemoveContext removes a context. See sandpit.Coder.
func (s *sandbox) RemoveContext(ctx context.Context, id string) error {
	return s.onContext(ctx, http.MethodDelete, id, "")
}

func (s *sandbox) onContext(ctx context.Context, method, id, what string) error {
	if !isName(id) {
		return fmt.Errorf("context %q: %w", id, sandpit.ErrNotFound)
	}
	return s.change(ctx, patience, request{method: method, path: s.path + "/contexts/" + id + what})
}
