package engine_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// withEnv returns an archive of Debian's image with other variables in its
// config.
func withEnv(t *testing.T, env ...string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-xf", imagetest.Debian(t)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	must(err)
	manifest, err := index.IndexManifest()
	must(err)
	img, err := index.Image(manifest.Manifests[0].Digest)
	must(err)
	config, err := img.ConfigFile()
	must(err)
	config = config.DeepCopy()
	config.Config.Env = append(config.Config.Env, env...)
	img, err = mutate.ConfigFile(img, config)
	must(err)
	tag, err := name.NewTag("example.org/env:1")
	must(err)
	archive := filepath.Join(dir, "image.tar")
	must(tarball.WriteToFile(archive, tag, img))
	return archive
}

// The variables of an image are its programs' alone: what helps to run them
// starts without them, so that no loader or interpreter can be led astray by
// them. (The catalogue's A12.)
func TestHelpersHaveNoneOfAnImagesVariables(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	needGuest(t)
	testkit.NeedRoot(t, "to read the variables of the guest")
	evil := []string{
		"GCONV_PATH=/opt/evil", "GODEBUG=inittrace=1", "LD_AUDIT=/opt/evil.so", "LD_LIBRARY_PATH=/opt/evil",
		"LD_PRELOAD=/opt/evil.so", "PYTHONSTARTUP=/opt/evil.py",
	}
	// The word is in the environment of nothing else on this machine.
	const word = "sandpit-test-a12"
	sb := create(t, newEngine(t), sandpit.Spec{
		Image: "docker-archive:" + withEnv(t, append(evil, "WORD="+word)...), User: "root",
	})
	// With a terminal and without one, as the child of a program or not.
	for _, cmd := range []sandpit.Command{
		{Script: "sleep 86612 & wait"},
		{Argv: []string{"sleep", "86612"}, Terminal: &sandpit.TerminalSize{Rows: 24, Cols: 80}},
	} {
		if _, err := sb.Start(t.Context(), cmd); err != nil {
			t.Fatal(err)
		}
	}
	// A child is its parent's copy until it executes.
	out, _ := shell(t, sb, `n=0
until [ $n = 2 ]; do
	n=0
	for p in /proc/[0-9]*; do
		[ "$(tr '\0' ' ' <$p/cmdline)" = 'sleep 86612 ' ] && n=$((n+1))
	done
done 2>/dev/null
env`)
	for _, variable := range evil {
		if !strings.Contains(out, variable+"\n") {
			t.Errorf("%s means nothing to the programs of the image", variable)
		}
	}

	var space string // of the sandbox's processes
	having := map[string]int{}
	for _, p := range processDirs(t) {
		if env, err := os.ReadFile(p + "/environ"); err == nil && bytes.Contains(env, []byte(word)) {
			args, _ := os.ReadFile(p + "/cmdline")
			having[strings.ReplaceAll(strings.Trim(string(args), "\x00"), "\x00", " ")]++
			space, _ = os.Readlink(p + "/ns/pid")
		}
	}
	want := map[string]int{"/bin/sh -c sleep 86612 & wait": 1, "sleep 86612": 2}
	if diff := cmp.Diff(want, having); diff != "" {
		t.Errorf("processes with the image's variables (-want +got):\n%s", diff)
	}
	helpers := slices.DeleteFunc(processDirs(t), func(p string) bool {
		args, _ := os.ReadFile(p + "/cmdline")
		is, _ := os.Readlink(p + "/ns/pid")
		return space == "" || is != space || bytes.Contains(args, []byte("86612"))
	})
	if len(helpers) < 2 {
		t.Errorf("only %d processes are the guest and its helpers", len(helpers))
	}
	for _, p := range helpers {
		// Its one variable is given by the driver.
		if env, err := os.ReadFile(p + "/environ"); err == nil && len(env) > 0 && string(env) != "GOMAXPROCS=1\x00" {
			args, _ := os.ReadFile(p + "/cmdline")
			t.Errorf("%q has the variables %q", args, env)
		}
	}
}

// processDirs lists the processes of this machine.
func processDirs(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}
