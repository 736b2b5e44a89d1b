package commands

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// flagError puts the errors of pflag into our words.
func flagError(cmd *cobra.Command, err error) error {
	see := "see '" + cmd.CommandPath() + " --help'"
	var (
		unknown *pflag.NotExistError
		missing *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
	)
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		short := unknown.GetSpecifiedShortnames() != ""
		known := habitHint(cmd.Name(), name)
		if !cmd.HasParent() {
			see = "write flags behind the command: 'sandpit COMMAND [flags]'"
		}
		if known != "" {
			see = known
		}
		if text := unknown.GetSpecifiedShortnames(); short && cmd.Name() == "signal" {
			if _, err := parseSignal(text); err == nil { // as of kill(1)
				see = "write 'sandpit signal -s " + text + " NAME PROCESS'"
			}
		}
		if short {
			return sandpit.WithHint(cli.Usagef("unknown flag -%s", name), see)
		}
		if like := similarFlag(cmd.Flags(), name); like != "" && known == "" {
			see = "did you mean --" + like + "?"
		}
		return sandpit.WithHint(cli.Usagef("unknown flag --%s", name), see)
	case errors.As(err, &missing):
		return sandpit.WithHint(cli.Usagef("the flag --%s needs a value", missing.GetFlag().Name), see)
	case errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "bool" && isNumError(invalid.Unwrap()):
		name := invalid.GetFlag().Name
		return sandpit.WithHint(cli.Usagef("--%s takes no value, but got %q", name, fault.Clip(invalid.GetValue())), "write --"+name+" alone")
	case errors.As(err, &invalid) && isNumError(invalid.Unwrap()):
		return sandpit.WithHint(cli.Usagef("--%s: %q is not a number, is negative or is too large", invalid.GetFlag().Name, invalid.GetValue()), see)
	case errors.As(err, &invalid) && errors.Is(err, notation.ErrNotPositive):
		return sandpit.WithHint(cli.Usagef("--%s: %q is not greater than 0", invalid.GetFlag().Name, invalid.GetValue()), "give a greater value, or omit the flag")
	case errors.As(err, &invalid):
		return cli.WithHintOf(cli.Usagef("--%s: %v", invalid.GetFlag().Name, invalid.Unwrap()), err)
	case errors.Is(err, pflag.ErrHelp):
		return err
	}
	return sandpit.WithHint(cli.Usagef("%v", err), see)
}

// isNumError reports whether err is one of package strconv, whose words are for
// programmers.
func isNumError(err error) bool {
	var num *strconv.NumError
	return errors.As(err, &num)
}

// similarFlag returns the flag whose name is nearest to name, if one is near.
func similarFlag(flags *pflag.FlagSet, name string) string {
	best, at := "", 3
	flags.VisitAll(func(f *pflag.Flag) {
		if d := distance(f.Name, name, at); d < at {
			best, at = f.Name, d
		}
	})
	return best
}

// distance returns the edit distance of two short words, or limit if it is not
// less than that.
func distance(a, b string, limit int) int {
	if len(b) > 64 || len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit)
}
