package cli

import (
	"errors"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// A Value is the value of a flag, variable or file.
type Value interface {
	String() string
	Set(string) error
	Type() string // what help calls it: "SIZE"; "bool" for a switch

	// add gives it a text from somewhere. Every text is checked, also that of
	// a level which a stronger one replaces.
	add(text string, from config.Origin) error

	kind() config.Kind

	// Origin is where the value comes from; its level is config.BuiltIn if it is not set.
	Origin() config.Origin
}

// atFlag is the origin of values on the command line.
func atFlag() config.Origin { return config.Origin{Level: config.Flag} }

// scalar is a single value: of the strongest level that has it, the last.
type scalar[T any] struct {
	is    T // the value; T's zero value when it is not set
	set   bool
	from  config.Origin
	text  string
	parse func(string) (T, error)
	shown string // what help calls it: "SIZE"
}

func (s *scalar[T]) add(text string, from config.Origin) error {
	v, err := s.parse(text)
	if err != nil {
		return err
	}
	if !s.set || from.Level >= s.from.Level {
		s.is, s.set, s.from, s.text = v, true, from, text
	}
	return nil
}

func (s *scalar[T]) Set(text string) error { return s.add(text, atFlag()) }
func (s *scalar[T]) String() string        { return s.text }
func (s *scalar[T]) Type() string          { return s.shown }
func (s *scalar[T]) kind() config.Kind     { return config.Scalar }
func (s *scalar[T]) Origin() config.Origin { return s.from }

// list is any number of values.
type list[T any] struct {
	items []item[T]
	parse func(string) (T, error)
	shown string
	adds  bool // levels add up; otherwise the strongest that has any replaces the others
}

type item[T any] struct {
	is   T
	from config.Origin
	text string
}

func (l *list[T]) add(text string, from config.Origin) error {
	v, err := l.parse(text)
	if err != nil {
		return err
	}
	l.items = append(l.items, item[T]{v, from, text})
	return nil
}

// chosen returns the items that count, the weakest level first, and the order
// within a level kept.
func (l *list[T]) chosen() []item[T] {
	sort.SliceStable(l.items, func(i, j int) bool { return l.items[i].from.Level < l.items[j].from.Level })
	if l.adds || len(l.items) == 0 {
		return l.items
	}
	strongest := l.items[len(l.items)-1].from.Level
	first := sort.Search(len(l.items), func(i int) bool { return l.items[i].from.Level >= strongest })
	return l.items[first:]
}

// keep leaves out the items of levels below the least.
func (l *list[T]) keep(least config.Level) {
	l.items = slices.DeleteFunc(l.items, func(i item[T]) bool { return i.from.Level < least })
}

// values returns what chosen does, without the origins.
func (l *list[T]) values() []T {
	chosen := l.chosen()
	if len(chosen) == 0 {
		return nil
	}
	values := make([]T, len(chosen))
	for i, item := range chosen {
		values[i] = item.is
	}
	return values
}

func (l *list[T]) Set(text string) error { return l.add(text, atFlag()) }
func (l *list[T]) String() string        { return "" }
func (l *list[T]) Type() string          { return l.shown }

func (l *list[T]) Origin() config.Origin {
	var strongest config.Origin
	for _, item := range l.items {
		if item.from.Level >= strongest.Level {
			strongest = item.from
		}
	}
	return strongest
}

func (l *list[T]) kind() config.Kind {
	if l.adds {
		return config.Map
	}
	return config.List
}

// volumes are mounts in the form of --volume, which adds to those of --mount.
type volumes struct{ *list[sandpit.Mount] }

func (v volumes) add(text string, from config.Origin) error {
	m, err := notation.ParseVolume(text)
	if err == nil {
		v.items = append(v.items, item[sandpit.Mount]{m, from, text})
	}
	return err
}

func (v volumes) Set(text string) error { return v.add(text, atFlag()) }
func (v volumes) Type() string          { return "SRC:DST[:ro]" }

// flag is a switch.
type flag struct{ scalar[bool] }

func newFlag() flag {
	return flag{scalar[bool]{parse: parseBool}}
}

func parseBool(text string) (bool, error) {
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.New(strconv.Quote(text) + " is not true or false")
	}
	return v, nil
}

// Type is what pflag knows a switch by.
func (f *flag) Type() string { return "bool" }

// words parses a text that must not be empty.
func words(text string) (string, error) {
	if strings.TrimSpace(text) == "" {
		return "", sandpit.WithHint(errors.New("the value is blank"), "give it a value, or omit it")
	}
	return text, nil
}

// anyText parses every text.
func anyText(text string) (string, error) { return text, nil }
