package cli

import "strings"

// parse reads the flags at the start of args, and returns what follows them:
// what pflag makes of the same flags, if they are not interspersed. It reports
// false for anything that is wrong or asks for help, of which package commands
// says more.
func parse(sections []Section, args []string) (rest []string, ok bool) {
	for len(args) > 0 {
		arg := args[0]
		if len(arg) < 2 || arg[0] != '-' {
			return args, true
		}
		args = args[1:]
		if arg == "--" {
			return args, true
		}
		if name, long := strings.CutPrefix(arg, "--"); long {
			name, text, given := strings.Cut(name, "=")
			e, found := entryOf(sections, func(e Entry) bool { return e.Name == name })
			if !found {
				return nil, false
			}
			switch {
			case given:
			case e.Switch():
				text = "true"
			case len(args) == 0:
				return nil, false
			default:
				text, args = args[0], args[1:]
			}
			if e.Value.Set(text) != nil {
				return nil, false
			}
			continue
		}
		if args, ok = parseShort(sections, arg[1:], args); !ok {
			return nil, false
		}
	}
	return nil, true
}

// parseShort reads flags of one letter: -it, -m1g, -m=1g, -m 1g.
func parseShort(sections []Section, letters string, args []string) (rest []string, ok bool) {
	for letters != "" {
		e, found := entryOf(sections, func(e Entry) bool { return e.Shorthand == letters[:1] })
		if !found {
			return nil, false
		}
		var text string
		switch after := letters[1:]; {
		case len(after) > 1 && after[0] == '=':
			text, letters = after[1:], ""
		case e.Switch():
			text, letters = "true", after
		case after != "":
			text, letters = after, ""
		case len(args) == 0:
			return nil, false
		default:
			text, args, letters = args[0], args[1:], ""
		}
		if e.Value.Set(text) != nil {
			return nil, false
		}
	}
	return args, true
}

// entryOf finds a flag.
func entryOf(sections []Section, is func(Entry) bool) (Entry, bool) {
	for _, section := range sections {
		for _, e := range section.Entries {
			if is(e) {
				return e, true
			}
		}
	}
	return Entry{}, false
}
