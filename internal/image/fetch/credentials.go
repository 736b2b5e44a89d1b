package fetch

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// A credential is what a registry is shown. The zero value is nobody.
type credential struct {
	username, password string
	identityToken      string // an OAuth2 refresh token, instead of both
}

func (c credential) anonymous() bool { return c == credential{} }

// authFile is the part of Docker's config.json that is about credentials;
// Podman's auth.json has the same form (containers-auth.json(5)).
type authFile struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

const (
	maxAuthFile   = 4 << 20 // bytes
	maxHelperSays = 1 << 20 // bytes
	helperTimeout = 30 * time.Second

	// dockerHubKey is what Docker stores Docker Hub's credentials under.
	dockerHubKey = "https://index.docker.io/v1/"
)

// authFiles returns the files in which credentials are looked up, in their
// order: $REGISTRY_AUTH_FILE alone if it is set, else Podman's, then Docker's.
func (f *Fetcher) authFiles() []string {
	get := f.opt.Getenv
	if f := get("REGISTRY_AUTH_FILE"); f != "" {
		return []string{f}
	}
	var files []string
	if dir := get("XDG_RUNTIME_DIR"); dir != "" {
		files = append(files, filepath.Join(dir, "containers", "auth.json"))
	}
	home := get("HOME")
	if dir := get("XDG_CONFIG_HOME"); dir != "" {
		files = append(files, filepath.Join(dir, "containers", "auth.json"))
	} else if home != "" {
		files = append(files, filepath.Join(home, ".config", "containers", "auth.json"))
	}
	if dir := get("DOCKER_CONFIG"); dir != "" {
		files = append(files, filepath.Join(dir, "config.json"))
	} else if home != "" {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	return files
}

// credentials finds what to show to a registry for a repository.
func (f *Fetcher) credentials(ctx context.Context, registry, repository string) (credential, error) {
	for _, path := range f.authFiles() {
		c, ok, err := f.credentialsIn(ctx, path, registry, repository)
		if err != nil {
			return c, sandpit.WithHint(fmt.Errorf("reading credentials for %s from %s: %w", registry, path, err),
				"correct that file, or log in to the registry again")
		}
		if ok {
			return c, nil
		}
	}
	return credential{}, nil
}

func (f *Fetcher) credentialsIn(ctx context.Context, path, registry, repository string) (credential, bool, error) {
	in, err := os.Open(path)
	if err != nil {
		if os.IsNotExist(err) || errors.Is(err, os.ErrPermission) {
			return credential{}, false, nil
		}
		return credential{}, false, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxAuthFile+1))
	if err != nil {
		return credential{}, false, err
	}
	var file authFile
	if len(data) > maxAuthFile {
		return credential{}, false, errors.New("it is too large")
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return credential{}, false, nil
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return credential{}, false, errors.New("it is not valid JSON") // its text may be secret
	}

	server := registry
	if registry == "docker.io" {
		server = dockerHubKey
	}
	if helper, ok := file.CredHelpers[registry]; ok && helper != "" {
		return f.askHelper(ctx, helper, registry)
	}
	if helper, ok := file.CredHelpers[server]; ok && helper != "" {
		return f.askHelper(ctx, helper, server)
	}
	// The most specific entry wins: "host/org/repo", "host/org", "host".
	for _, key := range authKeys(registry, repository) {
		a, ok := file.Auths[key]
		if !ok {
			continue
		}
		c := credential{username: a.Username, password: a.Password, identityToken: a.IdentityToken}
		if a.Auth != "" {
			user, pass, err := decodeAuth(a.Auth)
			if err != nil {
				return c, false, fmt.Errorf("entry %q: %w", key, err)
			}
			c.username, c.password = user, pass
		}
		if !c.anonymous() {
			return c, true, nil
		}
	}
	if file.CredsStore != "" {
		return f.askHelper(ctx, file.CredsStore, server)
	}
	return credential{}, false, nil
}

func authKeys(registry, repository string) []string {
	var keys []string
	for p := registry + "/" + repository; ; {
		keys = append(keys, p)
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	if registry == "docker.io" {
		keys = append(keys, dockerHubKey, "index.docker.io", "https://index.docker.io", "registry-1.docker.io")
	}
	return append(keys, "https://"+registry, "https://"+registry+"/", "https://"+registry+"/v1/", "https://"+registry+"/v2/",
		"http://"+registry, "http://"+registry+"/")
}

func decodeAuth(s string) (user, pass string, err error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", "", errors.New("its auth is not base64")
	}
	user, pass, ok := strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
	if !ok {
		return "", "", errors.New("its auth is not USER:PASSWORD")
	}
	return user, pass, nil
}

// askHelper runs a credential helper: "docker-credential-NAME get", with the
// server on its input (docker/docker-credential-helpers, README).
func (f *Fetcher) askHelper(ctx context.Context, name, server string) (credential, bool, error) {
	program := "docker-credential-" + name
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return credential{}, false, fmt.Errorf("helper %q has an invalid name", fault.Clip(name))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	var out limitedBuffer
	cmd.Stdout = &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	text := strings.TrimSpace(out.String())
	if err != nil {
		if strings.Contains(text, "credentials not found") || strings.Contains(text, "no credentials") {
			return credential{}, false, nil
		}
		if errors.Is(err, exec.ErrNotFound) {
			return credential{}, false, fmt.Errorf("%s is not installed", program)
		}
		return credential{}, false, fmt.Errorf("%s: %w", program, err)
	}
	var reply struct{ Username, Secret string }
	if err := json.Unmarshal([]byte(text), &reply); err != nil {
		return credential{}, false, fmt.Errorf("%s: its output is not valid JSON", program)
	}
	if reply.Username == "<token>" {
		return credential{identityToken: reply.Secret}, reply.Secret != "", nil
	}
	c := credential{username: reply.Username, password: reply.Secret}
	return c, !c.anonymous(), nil
}

// limitedBuffer keeps the first maxHelperSays bytes.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := maxHelperSays - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
