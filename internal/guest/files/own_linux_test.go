package files

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRefuseOwn: files of /proc are refused that may show the process that opens them.
func TestRefuseOwn(t *testing.T) {
	t.Run("a thread that has ended", func(t *testing.T) {
		type opened struct {
			tid int
			fds map[string]int
		}
		ch := make(chan opened)
		done := make(chan bool)
		defer close(done)
		var open func()
		open = func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if unix.Gettid() == unix.Getpid() {
				go open() // the first thread does not end
				<-done
				return
			}
			o := opened{unix.Gettid(), map[string]int{}}
			task := "/proc/self/task/" + strconv.Itoa(o.tid)
			for _, path := range []string{"/proc/thread-self/mem", task + "/mem", task + "/maps", "/proc/" + strconv.Itoa(o.tid) + "/environ", "/proc/" + strconv.Itoa(o.tid) + "/comm"} {
				fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					continue
				}
				o.fds[path] = fd
			}
			ch <- o
		}
		go open()
		o := <-ch
		for unix.Tgkill(unix.Getpid(), o.tid, 0) == nil {
			time.Sleep(time.Millisecond)
		}
		for path, fd := range o.fds {
			if err := refuseOwn(fd); err != unix.EACCES {
				t.Errorf("%s: got %v, want %v", path, err, unix.EACCES)
			}
			unix.Close(fd)
		}
	})
	t.Run("another process", func(t *testing.T) {
		// A child may share memory with this process, but not a child of a child that runs a program of its own.
		cmd := exec.Command("sh", "-c", "exec 3<&0; cat >/dev/null <&3 & echo $!; wait")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			in.Close()
			_ = cmd.Wait()
		}()
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		proc := filepath.Join("/proc", strings.TrimSpace(line))
		for name, want := range map[string]error{"status": nil, "maps": nil, "fdinfo/0": nil, "fdinfo/1": nil, "mem": unix.EACCES} {
			fd, _, err := openRegular(filepath.Join(proc, name), unix.O_RDONLY, 0)
			if err == nil {
				unix.Close(fd)
			}
			if err != want { //nolint:errorlint // as the kernel returns it
				t.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		if fd, _, err := openRegular(filepath.Join(proc, "mem"), unix.O_WRONLY, 0); err != unix.EACCES {
			unix.Close(fd)
			t.Errorf("writing its memory: got %v, want %v", err, unix.EACCES)
		}
		if fd, _, err := openRegular("/proc/"+strconv.Itoa(cmd.Process.Pid)+"/maps", unix.O_RDONLY, 0); err != unix.EACCES {
			unix.Close(fd)
			t.Errorf("a child: got %v, want %v", err, unix.EACCES)
		}
	})
	t.Run("no process", func(t *testing.T) {
		fd, _, err := openRegular("/proc/meminfo", unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	})
}

// Only directories of processes are those: numbers that stand for something else, such as interrupts, are not.
func TestProcessesOn(t *testing.T) {
	for dir, want := range map[string][]int{
		"/proc":                    nil,
		"/proc/7":                  {7},
		"/proc/7/net":              {7},
		"/proc/7/fdinfo/5":         {7},
		"/proc/7/task/8":           {7, 8},
		"/proc/7/task/8/fdinfo/5":  {7, 8},
		"/proc/7/attr/8":           {7},
		"/proc/irq/5":              nil,
		"/proc/irq/5/6/task/7":     nil,
		"/proc/sys/net/1":          nil,
		"/process/7":               {7},
		"/mnt/proc/irq/5":          {5},
		"/mnt/proc/7/task/8/net/9": {7, 8, 9},
		"/7":                       {7},
		"":                         nil,
	} {
		if got := processesOn(dir); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", dir, got, want)
		}
	}
	for _, path := range []string{"/proc/sys/kernel/ostype", "/proc/meminfo"} {
		fd, _, err := openRegular(path, unix.O_RDONLY, 0)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		unix.Close(fd)
	}
	interrupts, err := filepath.Glob("/proc/irq/[1-9]*/smp_affinity")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range interrupts {
		fd, _, err := openRegular(path, unix.O_RDONLY, 0)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		unix.Close(fd)
	}
}
