package interpreter

import (
	"context"
	"encoding/json"
	"io"

	"github.com/sandpit-dev/sandpit"
)

// lines describes the protocol of interpreters that can't listen on a socket. They read lines that say what to run. They
// report everything else in texts that follow the nonces of their marks.
type lines struct {
	start func(setup) (string, error)                          // what it is told at its start
	greet func(nonce string) string                            // the line that has it greet with a mark
	run   func(begin, nonce string, code sandpit.Code) string  // the line that has it run code
	check func(sandpit.Code) error                             // that a line can have the code
	done  func(r *run, ctx context.Context, text []byte) error // sets r.done, by the text after the mark of the end
}

// talkLines has an interpreter without a channel run the code, until that is done.
func (r *run) talkLines(ctx context.Context) error {
	l := r.c.language.lines
	nonce := random()
	greeting := newLane(nil, "", nonce, true, r.moved)
	all, leave, err := r.c.m.place.Follow(r.is.process.ID(), greeting, nil)
	if err != nil {
		return err
	}
	if _, err = io.WriteString(r.is.process.Stdin(), l.greet(nonce)); err == nil {
		err = r.awaitMark(ctx, greeting.marked, all)
	}
	leave()
	if err != nil {
		return err
	}
	<-all // so that nothing writes the text
	var hello message
	if json.Unmarshal(greeting.text, &hello) == nil {
		r.greeted(&hello)
	}
	begin := random()
	if err := r.open(begin, true); err != nil {
		return err
	}
	if r.stopping.Load() {
		return errNotBegun
	}
	if _, err := io.WriteString(r.is.process.Stdin(), l.run(begin, r.nonce, r.code)); err != nil {
		return err
	}
	if err := r.awaitMark(ctx, r.lanes[0].marked, r.all); err != nil {
		return err
	}
	return l.done(r, ctx, r.lanes[0].text)
}

// awaitMark waits for a mark. If the output reaches its limit, the mark never comes, and the interpreter
// is killed.
func (r *run) awaitMark(ctx context.Context, marked, all <-chan struct{}) error {
	for {
		if r.c.m.place.Full(r.is.process.ID()) {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
			defer cancel()
			if err := r.is.kill(undo, "the interpreter was killed because its output has reached its limit, which hides the end of runs"); err != nil {
				return err
			}
			return io.EOF
		}
		select {
		case <-marked:
			return nil
		case <-r.moved:
		case <-all:
			return io.EOF
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
