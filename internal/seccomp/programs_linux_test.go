package seccomp

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestPrograms runs what people use every day under the filter.
func TestPrograms(t *testing.T) {
	write := func(t *testing.T, dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		needs []string
		files map[string]string
		run   string // a script of sh
		want  string
	}{
		{
			needs: []string{"python3"},
			files: map[string]string{"t.py": pythonProgram},
			run:   "python3 t.py",
			want:  "python ok\n",
		},
		{
			needs: []string{"node"},
			files: map[string]string{"t.js": nodeProgram},
			run:   "node t.js",
			want:  "node ok\n",
		},
		{
			needs: []string{"git"},
			run: `git init -q r && cd r && echo x >f && git add f &&
				git -c user.name=n -c user.email=e@example.org commit -qm one && git clone -q . ../s && git -C ../s log --format=%s`,
			want: "one\n",
		},
		{
			needs: []string{"gcc", "make"},
			files: map[string]string{"t.c": cProgram, "Makefile": "t: t.c\n\tgcc -pthread -o t t.c\n"},
			run:   "make -s && ./t",
			want:  "c ok\n",
		},
		{
			// LeakSanitizer stops the process by clone and ptrace.
			needs: []string{"gcc"},
			files: map[string]string{"t.c": "#include <stdlib.h>\nint main(void) { return malloc(1) == 0; }\n"},
			run:   "gcc -fsanitize=address -o t t.c && { ./t 2>err; grep -o 'detected memory leaks' err; }",
			want:  "detected memory leaks\n",
		},
		{
			needs: []string{"java", "javac"},
			files: map[string]string{"T.java": javaProgram},
			run:   "javac T.java && java T",
			want:  "java ok\n",
		},
		{
			needs: []string{"gdb", "gcc"},
			files: map[string]string{"t.c": "int main(void) { return 7; }\n"},
			run:   "gcc -g -o t t.c && gdb -q -batch -ex run ./t 2>&1 | grep -o 'exited with code 07'",
			want:  "exited with code 07\n",
		},
		{
			needs: []string{"strace"},
			run:   "strace -f -o log sh -c 'true; echo traced' && grep -o 'exited with 0' log | head -1",
			want:  "traced\nexited with 0\n",
		},
		{
			needs: []string{"ps", "tar", "find"},
			run: `mkdir a && echo 1 >a/f && ln a/f a/g && mkfifo a/p && tar cf - a | (mkdir b && cd b && tar xf -) &&
				find b -type p && ps -o args= -p $$ | grep -c sh && touch -d yesterday a/f && cp -a a c && sync && nice true && timeout 60 true`,
			want: "b/a/p\n1\n",
		},
		{
			// Sandboxes itself by seccomp where it can, and goes on where it can't.
			needs: []string{"man", "groff"},
			run:   `printf '.TH X 1\n.SH NAME\nx\n' >x.1 && man -P cat -l x.1 | grep -c NAME`,
			want:  "1\n",
		},
		{
			needs: []string{"file", "xz"},
			run:   `echo text >f && file -b f && xz -k f && xz -dc f.xz`,
			want:  "ASCII text\ntext\n",
		},
		{
			needs: []string{"chrt"},
			run:   `chrt --batch 0 echo batch && chrt --idle 0 echo idle; chrt --rr 1 echo real time || echo refused`,
			want:  "batch\nidle\nrefused\n",
		},
		{
			// What must be durable can be had; a whole file system can't.
			needs: []string{"sync"},
			run:   `echo x >f && sync && sync f && sync -d f && { sync -f f || echo refused; }`,
			want:  "refused\n",
		},
		{
			needs: []string{"sqlite3"},
			run:   `sqlite3 d 'pragma journal_mode=wal; create table t(x); insert into t values(42); select x from t'`,
			want:  "wal\n42\n",
		},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.needs, " "), func(t *testing.T) {
			for _, name := range tt.needs {
				testkit.NeedProgram(t, name)
			}
			dir := t.TempDir()
			for name, text := range tt.files {
				write(t, dir, name, text)
			}
			cmd := command(t, "exec", "sh", "-c", tt.run)
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, "HOME="+dir, "TMPDIR="+dir)
			if got := output(t, cmd); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestGo runs a Go program that was built without cgo, as the guest is. This
// test binary itself may have been built with it.
func TestGo(t *testing.T) {
	testkit.NeedProgram(t, "go")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "t.go"), []byte(goProgram), 0o644); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "t")
	build := exec.Command("go", "build", "-o", bin, filepath.Join(dir, "t.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	cmd := command(t, "exec", bin)
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	if got := output(t, cmd); got != "go ok\n" {
		t.Errorf("got %q", got)
	}
}

const pythonProgram = `
import asyncio, ctypes, mmap, multiprocessing, os, selectors, shutil, socket, subprocess, sys, tempfile, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import shared_memory

def square(x): return x * x

async def serve():
    async def handle(r, w):
        w.write(await r.readline()); await w.drain(); w.close()
    s = await asyncio.start_server(handle, "127.0.0.1", 0)
    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())
    w.write(b"hello\n")
    assert await r.readline() == b"hello\n"
    w.close(); s.close()
    p = await asyncio.create_subprocess_exec("echo", "x", stdout=asyncio.subprocess.PIPE)
    assert (await p.communicate())[0] == b"x\n"

if __name__ == "__main__":
    with multiprocessing.Pool(2) as p: assert p.map(square, [1, 2]) == [1, 4]
    multiprocessing.set_start_method("spawn", force=True)
    with ProcessPoolExecutor(1) as e: assert e.submit(square, 3).result() == 9
    with ThreadPoolExecutor(2) as e: assert list(e.map(square, [4])) == [16]
    m = shared_memory.SharedMemory(create=True, size=4096); m.close(); m.unlink()
    asyncio.run(serve())
    assert subprocess.run(["sh", "-c", "exit 3"], start_new_session=True, cwd="/").returncode == 3
    with tempfile.TemporaryDirectory() as d:
        f = os.path.join(d, "f"); open(f, "wb").write(b"x" * 9000); shutil.copy2(f, f + "2"); os.mkfifo(f + "3")
        with open(f, "r+b") as h, mmap.mmap(h.fileno(), 0) as v: v.flush()
    socket.getaddrinfo("localhost", 80); socket.if_nameindex()
    a, b = socket.socketpair(); a.sendmsg([b"x"]); b.recv(1)
    pid, fd = os.forkpty()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    os.sched_getaffinity(0); os.getrandom(8); os.memfd_create("x"); os.sync(); os.nice(1)
    print("python ok")
`

const nodeProgram = `
const { execFileSync } = require("child_process"), { Worker } = require("worker_threads"), fs = require("fs"),
  net = require("net"), os = require("os"), crypto = require("crypto"), cluster = require("cluster");
(async () => {
  if (execFileSync("echo", ["x"]).toString() !== "x\n") throw 1;
  await new Promise((ok, no) => new Worker("require('worker_threads').parentPort.postMessage(1)", { eval: true }).on("message", ok).on("error", no));
  await fs.promises.writeFile("f", "x".repeat(100000)); await fs.promises.copyFile("f", "g"); await fs.promises.readdir(".");
  const w = fs.watch("."); w.close();
  await new Promise((ok, no) => { const s = net.createServer(c => c.end("hi")).listen(0, "127.0.0.1", () =>
    net.connect(s.address().port, "127.0.0.1").on("data", () => { s.close(); ok() }).on("error", no)) });
  os.networkInterfaces(); os.cpus(); os.userInfo(); crypto.randomBytes(16);
  const m = new WebAssembly.Memory({ initial: 1, maximum: 100, shared: true }); m.grow(1);
  console.log("node ok");
})();
`

const javaProgram = `
import java.nio.file.*; import java.net.*; import java.util.concurrent.*; import java.util.stream.*;
public class T {
  public static void main(String[] a) throws Exception {
    if (IntStream.range(0, 1000).parallel().sum() != 499500) throw new Error();
    Process p = new ProcessBuilder("echo", "x").start(); p.waitFor();
    ServerSocket s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
    Thread t = new Thread(() -> { try { s.accept().close(); } catch (Exception e) {} }); t.start();
    new Socket(s.getInetAddress(), s.getLocalPort()).close(); t.join();
    Files.writeString(Path.of("f"), "x"); Files.copy(Path.of("f"), Path.of("g"));
    for (NetworkInterface n : java.util.Collections.list(NetworkInterface.getNetworkInterfaces())) n.getName();
    System.gc();
    System.out.println("java ok");
  }
}
`

const cProgram = `
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <mqueue.h>
#include <unistd.h>
extern char **environ;
static void *run(void *p) { return p; }
int main(void) {
	pthread_t t; pid_t pid; int st; char *argv[] = {"true", 0};
	if (pthread_create(&t, 0, run, 0) || pthread_join(t, 0)) return 1;
	if (posix_spawnp(&pid, "true", 0, 0, argv, environ) || waitpid(pid, &st, 0) != pid || st) return 2;
	if (system("exit 0") || pclose(popen("cat >/dev/null", "w"))) return 3;
	int id = shmget(IPC_PRIVATE, 4096, 0600); if (id < 0 || shmctl(id, IPC_RMID, 0)) return 4;
	id = semget(IPC_PRIVATE, 1, 0600); if (id < 0 || semctl(id, 0, IPC_RMID)) return 5;
	if (mmap(0, 1 << 20, PROT_READ|PROT_WRITE|PROT_EXEC, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) == MAP_FAILED) return 6;
	puts("c ok");
	return 0;
}
`

const goProgram = `package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	must(exec.Command("true").Run())
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	must(syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	<-c
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	sleep := exec.CommandContext(ctx, "sleep", "100") // killed by pidfd
	sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if sleep.Run() == nil {
		panic("sleep was not killed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // tries MPTCP
	must(err)
	conn, err := net.Dial("tcp", l.Addr().String())
	must(err)
	must(conn.Close())
	_, err = net.Interfaces()
	must(err)
	r, w, err := os.Pipe()
	must(err)
	go func() { time.Sleep(time.Millisecond); w.Close() }()
	r.Read(make([]byte, 1))
	dir, err := os.MkdirTemp("", "")
	must(err)
	root, err := os.OpenRoot(dir)
	must(err)
	must(root.WriteFile("f", []byte("x"), 0o600))
	must(root.Chmod("f", 0o644))
	must(os.CopyFS(dir+"-copy", os.DirFS(dir)))
	must(os.RemoveAll(dir + "-copy"))
	must(os.RemoveAll(dir))
	fmt.Println("go ok")
}
`
