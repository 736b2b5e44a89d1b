package hosttest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// self runs the jobs as whoever runs the test, on this machine.
func self(ctx context.Context, b *Bundle, jobs string, opt Options, out io.Writer) error {
	return script(ctx, b, jobs, opt.env(), out)
}

// docker says why no Docker daemon can be started here, or "".
func docker() string {
	if os.Getuid() != 0 {
		return "not root: the test starts a Docker daemon of its own"
	}
	return missingPrograms("dockerd", "docker")
}

// account runs the jobs on this machine as an ordinary user made for it.
type account struct{ subuids bool }

func (account) missing() string {
	if os.Getuid() != 0 {
		return "not root: the test makes an account"
	}
	return missingPrograms("useradd", "userdel", "setpriv")
}

func (a account) run(ctx context.Context, b *Bundle, jobs string, opt Options, out io.Writer) (err error) {
	name := fmt.Sprintf("sandpit-test-%d", os.Getpid())
	args := []string{"--create-home", "--shell", "/bin/sh"}
	if !a.subuids {
		args = append(args, "-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0")
	}
	if err := run(ctx, lookPath("useradd"), append(args, name)...); err != nil {
		return err
	}
	defer func() {
		// A suite that leaves a process behind has failed, whatever it said.
		if left := processesOf(name); len(left) > 0 && err == nil {
			err = fmt.Errorf("the suites left processes behind: %s", strings.Join(left, ", "))
		}
		if delErr := run(context.WithoutCancel(ctx), lookPath("userdel"), "--force", "--remove", name); delErr != nil && err == nil {
			// userdel ends with 12 when there was no mail spool to remove.
			if !strings.Contains(delErr.Error(), "exit status 12") {
				err = delErr
			}
		}
	}()
	return script(ctx, b, jobs, append(opt.env(), "HOSTTEST_ACCOUNT="+name), out)
}

// script runs run.sh of the bundle with its output to out.
func script(ctx context.Context, b *Bundle, jobs string, env []string, out io.Writer) error {
	path := filepath.Join(b.Dir, "jobs")
	if err := os.WriteFile(path, []byte(jobs), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", filepath.Join(b.Dir, "run.sh"), path)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.Run()
}

// processesOf ends the processes of an account and returns what they were.
func processesOf(name string) []string {
	out, err := exec.Command("ps", "-u", name, "-o", "stat=,pid=,args=").Output()
	if err != nil {
		return nil // ps fails when there are none
	}
	var left []string
	for line := range strings.Lines(string(out)) {
		var stat string
		var pid int
		if n, err := fmt.Sscan(line, &stat, &pid); err != nil || n != 2 || strings.HasPrefix(stat, "Z") {
			continue // dead, and its adopter's to reap
		}
		left = append(left, strings.TrimSpace(line))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return left
}
