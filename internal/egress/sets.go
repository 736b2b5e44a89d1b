package egress

import (
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// A Set is a named list of destinations that belong together.
type Set struct {
	Name    string
	Meaning string // one line
	Hosts   []string
	Ports   []uint16
}

// Sets returns the named sets, in the order in which they are shown. The hosts are those
// that the clients' default settings name, and those that they redirect to.
func Sets() []Set {
	return []Set{
		{"package-registries", "packages of pip, npm, Yarn, Go, Debian, Ubuntu, Cargo and Maven", []string{
			"pypi.org", "files.pythonhosted.org",
			"registry.npmjs.org", "registry.yarnpkg.com", "repo.yarnpkg.com", // the last has Yarn itself
			"proxy.golang.org", "sum.golang.org",
			"deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com",
			"index.crates.io", "static.crates.io", "crates.io",
			"repo.maven.apache.org", "repo1.maven.org",
		}, []uint16{443, 80}}, // apt uses plain HTTP, and verifies signatures
		{"git-hosts", "repositories on GitHub, GitLab, Bitbucket and Codeberg, over HTTPS and SSH", []string{
			"github.com", "api.github.com", "codeload.github.com", "raw.githubusercontent.com", "objects.githubusercontent.com",
			"release-assets.githubusercontent.com", "github-cloud.githubusercontent.com", "media.githubusercontent.com", "ssh.github.com",
			"gitlab.com", "altssh.gitlab.com", "bitbucket.org", "altssh.bitbucket.org", "codeberg.org",
		}, []uint16{443, 22}},
		{"llm-apis", "APIs of language models", []string{
			"api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com", "api.groq.com", "api.mistral.ai",
			"openrouter.ai", "api.x.ai", "api.studio.nebius.com", "api.tokenfactory.nebius.com",
		}, []uint16{443}},
	}
}

// SetNames returns the names of the sets, in their order.
func SetNames() (names []string) {
	for _, s := range Sets() {
		names = append(names, s.Name)
	}
	return names
}

// setMembers returns the rules of a set, or nil if there is no such set.
func setMembers(name string) (rules []Rule) {
	i := slices.IndexFunc(Sets(), func(s Set) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	set := Sets()[i]
	for _, host := range set.Hosts {
		for _, port := range set.Ports {
			rules = append(rules, Rule{Text: name, Protocol: TCP, Host: host, Port: port})
		}
	}
	return rules
}

// preset is what a preset allows: sets, or addresses of a kind.
type preset struct {
	sets    []string
	public  bool // any public address
	private bool // any address but the host's own, its links' and metadata services'
}

func presetOf(p sandpit.EgressPreset) (preset, bool) {
	switch p {
	case "", sandpit.EgressNone:
		return preset{}, true
	case sandpit.EgressRegistries:
		return preset{sets: []string{"package-registries", "git-hosts"}}, true
	case sandpit.EgressPublic, sandpit.EgressLearn:
		return preset{public: true}, true
	case sandpit.EgressAll:
		return preset{public: true, private: true}, true
	}
	return preset{}, false
}
