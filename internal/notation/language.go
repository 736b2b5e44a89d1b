package notation

import (
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// LanguageName returns the name of a language of code, which may be given in another way that is common.
func LanguageName(name string) string {
	switch name = strings.ToLower(name); name {
	case "py", "python3":
		return sandpit.Python
	case "js", "node", "nodejs":
		return sandpit.JavaScript
	case "ts":
		return sandpit.TypeScript
	case "sh", "shell":
		return sandpit.Bash
	case "golang":
		return "go"
	}
	return name
}

// UnknownLanguage returns the error that there is no language of that name.
func UnknownLanguage(name string) error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "unknown language %.40q", name),
		"use one of: "+strings.Join(sandpit.Languages(), ", ")+"; or, without state: "+strings.Join(sandpit.StatelessLanguages(), ", "))
}
