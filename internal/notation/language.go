package notation

import (
	"strings"

	"github.com/sandpit-dev/sandpit"
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
