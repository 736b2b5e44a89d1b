package commands

import (
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// parsed is a flag's value in a notation of ours. It implements pflag.Value.
type parsed[T any] struct {
	is    T // T's zero value when it is not set
	set   bool
	text  string
	parse func(string) (T, error)
	shown string // what help calls it: "DURATION"
}

func (p *parsed[T]) Set(text string) error {
	v, err := p.parse(text)
	if err != nil {
		return err
	}
	p.is, p.set, p.text = v, true, text
	return nil
}

func (p *parsed[T]) String() string { return p.text }
func (p *parsed[T]) Type() string   { return p.shown }

// parsedList is a flag that may be given several times.
type parsedList[T any] struct {
	are   []T
	parse func(string) (T, error)
	shown string
}

func (l *parsedList[T]) Set(text string) error {
	v, err := l.parse(text)
	if err != nil {
		return err
	}
	l.are = append(l.are, v)
	return nil
}

func (l *parsedList[T]) String() string { return "" }
func (l *parsedList[T]) Type() string   { return l.shown }

// durationFlag is a flag of a duration.
func durationFlag() parsed[time.Duration] {
	return parsed[time.Duration]{parse: notation.ParseDuration, shown: "DURATION"}
}

// textFlag is a flag of a text that is not empty, as an unset variable of a shell would be.
func textFlag(shown string) parsed[string] { return parsed[string]{parse: notEmpty, shown: shown} }

func notEmpty(text string) (string, error) {
	if text == "" {
		return "", sandpit.WithHint(errors.New("the value is empty"), "give it a value, or omit the flag")
	}
	return text, nil
}
