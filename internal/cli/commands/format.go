package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// format is how a command prints objects: --format and --json.
type format struct {
	json     bool
	template *template.Template // nil: as a table, or as JSON
	fields   string             // that a template may use, for hints
	example  any                // an object; a template with an unknown field is refused
}

// register adds the flags. example is one of the objects that the command prints.
func (f *format) register(cmd *cobra.Command, example any) {
	f.example = example
	t := reflect.TypeOf(example)
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Name
	}
	f.fields = strings.Join(names, ", ")
	short := ""
	if cmd.Name() == "inspect" { // which always prints JSON, and follows nothing
		short = "f"
	} else {
		cmd.Flags().BoolVar(&f.json, "json", false, "print a JSON list")
	}
	cmd.Flags().VarP(f, "format", short, "json, or a Go template for each line: '{{."+names[0]+"}}'")
	long := cmd.Long
	if long == "" {
		long = upperFirst(cmd.Short) + "."
	}
	cmd.Long = long + "\n\nFields of --format: " + wrapped(f.fields, len("Fields of --format: "), 96) +
		".\nFunctions: json, join, lower, upper. \\t and \\n are a tab and a new line."
}

// wrapped breaks a text at spaces into lines of a width; the first begins at column at.
func wrapped(text string, at, width int) string {
	var b strings.Builder
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case at+1+len(word) > width:
			b.WriteByte('\n')
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}

func (f *format) String() string { return "" }
func (f *format) Type() string   { return "FORMAT" }

// Set reads "json", "table" or a template.
func (f *format) Set(text string) error {
	switch {
	case text == "json":
		f.json = true
		return nil
	case text == "table":
		return nil
	case strings.HasPrefix(text, "table "):
		return sandpit.WithHint(fmt.Errorf("a table has its own columns"), `give the template alone: '`+strings.TrimPrefix(text, "table ")+`'`)
	case !strings.Contains(text, "{{"):
		return sandpit.WithHint(fmt.Errorf("%q is not a format", text), "use json, or a Go template such as '{{.Name}}'")
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"join": strings.Join, "lower": strings.ToLower, "upper": strings.ToUpper,
		"json": func(v any) (string, error) {
			var b strings.Builder
			encoder := json.NewEncoder(&b)
			encoder.SetEscapeHTML(false)
			err := encoder.Encode(v)
			return strings.TrimSuffix(b.String(), "\n"), err
		},
	}).Parse(strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text))
	if err != nil {
		return fmt.Errorf("the template is not valid: %s", strings.TrimPrefix(err.Error(), "template: :"))
	}
	if err := t.Execute(io.Discard, f.example); err != nil {
		if _, unknown, found := strings.Cut(err.Error(), "can't evaluate field "); found {
			name, _, _ := strings.Cut(unknown, " ")
			return sandpit.WithHint(fmt.Errorf("there is no field %q", name), "use "+f.fields)
		}
	}
	f.template = t
	return nil
}

// given reports whether the objects are not printed as a table.
func (f *format) given() bool { return f.json || f.template != nil }

// printObjects prints objects as JSON, or each by the template.
func printObjects[T any](a *tree, f *format, objects []T) error {
	if f.template == nil {
		if objects == nil {
			objects = []T{}
		}
		return a.PrintJSON(objects)
	}
	var b strings.Builder
	for _, o := range objects {
		if err := f.template.Execute(&b, o); err != nil {
			return fmt.Errorf("--format: %w", err)
		}
		b.WriteByte('\n')
	}
	text := b.String()
	if cli.IsTerminal(a.Stdout) { // which obeys control characters of labels and commands
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			cells := strings.Split(line, "\t")
			for j, cell := range cells {
				cells[j] = cli.Harmless(cell)
			}
			lines[i] = strings.Join(cells, "\t")
		}
		text = strings.Join(lines, "\n")
	}
	_, err := a.Stdout.WriteString(text)
	return err
}
