package file

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/yamldoc"
)

// Warm describes sandboxes that are held ready in full, with an interpreter.
type Warm struct {
	Image      string   // in a form of Spec.Image
	Policy     string   // the name of the policy of the creates that they are for
	RootInside bool     // as Spec.RootInside
	Language   string   // of the interpreter
	Modules    []string // that it has imported
	Size       int      // how many
}

// Bounds of what is held.
const (
	maxWarm     = 100 // kinds of sandboxes
	maxWarmSize = 100 // of one kind
	maxModules  = 100
)

// readPool reads the number of blanks, or a mapping that has it with what is held in full.
func (s *Set) readPool(v yamldoc.Value) error {
	blanks := yamldoc.Parse(&s.Pool, yamldoc.Int(0, maxPool))
	if !v.IsMapping() {
		return blanks(v)
	}
	return yamldoc.Mapping(map[string]func(yamldoc.Value) error{"blanks": blanks, "warm": s.readWarm})(v)
}

func (s *Set) readWarm(v yamldoc.Value) error {
	items, err := v.Items()
	if err == nil && len(items) > maxWarm {
		err = v.Fail(fmt.Errorf("there are more than %d entries", maxWarm))
	}
	for i := 0; i < len(items) && err == nil; i++ {
		w := Warm{Policy: Default, Language: sandpit.Python}
		err = yamldoc.Mapping(map[string]func(yamldoc.Value) error{
			"image":       yamldoc.Parse(&w.Image, imageName),
			"policy":      yamldoc.Parse(&w.Policy, yamldoc.String),
			"root-inside": yamldoc.Parse(&w.RootInside, yamldoc.Bool),
			"language":    yamldoc.Parse(&w.Language, parseLanguage),
			"modules":     yamldoc.List(&w.Modules, parseModule),
			"size":        yamldoc.Parse(&w.Size, yamldoc.Int(1, maxWarmSize)),
		})(items[i])
		same := func(o Warm) bool { return o.Image == w.Image && o.Policy == w.Policy && o.RootInside == w.RootInside }
		switch {
		case err != nil:
		case w.Image == "":
			err = items[i].Fail(errors.New("it has no image"))
		case len(w.Modules) > 0 && w.Language != sandpit.Python:
			err = items[i].Fail(errors.New("modules are only imported ahead for " + sandpit.Python))
		case len(w.Modules) > maxModules:
			err = items[i].Fail(fmt.Errorf("there are more than %d modules", maxModules))
		case slices.ContainsFunc(s.Warm, same):
			err = items[i].Fail(sandpit.WithHint(errors.New("an entry above has the same image and policy, so a create could not tell them apart"), "write one of them, or use another policy"))
		}
		w.Size = cmp.Or(w.Size, 1)
		s.Warm, s.warmAt = append(s.Warm, w), append(s.warmAt, items[i])
	}
	return err
}

// checkWarm refuses policies that don't exist, once all are known.
func (s *Set) checkWarm() error {
	for i, w := range s.Warm {
		if _, err := s.Policy(w.Policy); err != nil {
			return s.warmAt[i].Fail(sandpit.WithHint(fmt.Errorf("there is no policy %.80q", w.Policy), "use one of: "+strings.Join(s.Names(), ", ")))
		}
	}
	return nil
}

func parseLanguage(text string) (string, error) {
	if warm := []string{sandpit.Python, sandpit.JavaScript, sandpit.TypeScript}; !slices.Contains(warm, text) {
		return "", errors.New("it must be one of: " + strings.Join(warm, ", "))
	}
	return text, nil
}

// parseModule reads names with dots between them.
func parseModule(text string) (string, error) {
	for part := range strings.SplitSeq(text, ".") {
		if len(text) > maxAlias || part == "" || '0' <= part[0] && part[0] <= '9' || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
			return "", fmt.Errorf("%.80q is not the name of a module", text)
		}
	}
	return text, nil
}
