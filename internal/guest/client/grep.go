package client

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxPattern bounds a pattern: a longer one is not what a person looks for.
const maxPattern = 4 << 10

// compileGrep makes the guest's message of a query. The regular expression is
// compiled here, so that the guest needs neither the syntax nor the tables.
func compileGrep(root string, q sandpit.GrepQuery) (*wire.Grep, error) {
	if q.Context < 0 || q.Limit < 0 {
		return nil, fmt.Errorf("%w: a negative number", sandpit.ErrInvalid)
	}
	if len(q.Pattern) > maxPattern || strings.ContainsAny(q.Pattern, "\n\x00") && q.Fixed {
		return nil, fmt.Errorf("%w: the pattern is longer than %d bytes or than a line", sandpit.ErrInvalid, maxPattern)
	}
	m := &wire.Grep{Root: root, Glob: q.Glob, Context: uint64(min(q.Context, 20)), Limit: uint64(min(q.Limit, wire.MaxEntries))}
	if q.Limit == 0 {
		m.Limit = 1000
	}
	if q.Fixed && !q.IgnoreCase {
		m.Literal = q.Pattern
		return m, nil
	}
	pattern, flags := q.Pattern, syntax.Perl
	if q.Fixed {
		pattern = regexp.QuoteMeta(pattern)
	}
	if q.IgnoreCase {
		flags |= syntax.FoldCase
	}
	re, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandpit.ErrInvalid, err)
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandpit.ErrInvalid, err)
	}
	if len(prog.Inst) > wire.MaxInsts {
		return nil, fmt.Errorf("%w: the pattern is too large when compiled", sandpit.ErrInvalid)
	}
	complete := false
	if m.Literal, complete = prog.Prefix(); complete {
		return m, nil
	}
	m.Start = uint64(prog.Start)
	m.Prog = make([]wire.Inst, len(prog.Inst))
	for i := range prog.Inst {
		m.Prog[i] = compileInst(&prog.Inst[i])
		if len(m.Prog[i].Ranges) > wire.MaxRanges {
			return nil, fmt.Errorf("%w: a class of the pattern is too large", sandpit.ErrInvalid)
		}
	}
	return m, nil
}

func compileInst(in *syntax.Inst) wire.Inst {
	out := wire.Inst{Out: uint64(in.Out)}
	switch in.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		out.Op, out.Arg = wire.InstAlt, uint64(in.Arg)
	case syntax.InstCapture, syntax.InstNop:
		out.Op = wire.InstGo
	case syntax.InstEmptyWidth:
		out.Op = wire.InstEmpty
		// What is searched is one line, so both kinds of ends are its own.
		for _, f := range []struct {
			from syntax.EmptyOp
			to   uint64
		}{
			{syntax.EmptyBeginLine | syntax.EmptyBeginText, wire.EmptyBegin},
			{syntax.EmptyEndLine | syntax.EmptyEndText, wire.EmptyEnd},
			{syntax.EmptyWordBoundary, wire.EmptyWord},
			{syntax.EmptyNoWordBoundary, wire.EmptyNoWord},
		} {
			if syntax.EmptyOp(in.Arg)&f.from != 0 {
				out.Arg |= f.to
			}
		}
	case syntax.InstMatch:
		out.Op, out.Out = wire.InstMatch, 0
	case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
		out.Op = wire.InstAny
	case syntax.InstRune, syntax.InstRune1:
		out.Op = wire.InstRune
		if len(in.Rune) != 1 {
			out.Ranges = in.Rune
			break
		}
		r := in.Rune[0]
		out.Ranges = []int32{r, r}
		if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
			for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
				out.Ranges = append(out.Ranges, f, f)
			}
		}
	default:
		out.Op, out.Out = wire.InstFail, 0
	}
	return out
}
