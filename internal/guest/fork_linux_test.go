package guest_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A process that has got the status socket of a fork is not taken for the fork, unless the helper is its parent: the
// program is started without the zygote, and what the zygote has made ends.
func TestForkIsTheHelpersChild(t *testing.T) {
	testkit.NeedProgram(t, "python3")
	const program = `
import array, os, socket, sys, time
if sys.argv[1] == "fork": sys.exit(7)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind("\0sandpit-zygote-%d" % os.getpid())
server.listen(1)
_, control, _, _ = server.accept()[0].recvmsg(8192, socket.CMSG_SPACE(16))
fds = array.array("i")
for _, _, data in control: fds.frombytes(data)
def orphan():
    "Returns in a process whose parent is the guest."
    if os.fork() == 0:
        parent = os.getpid()
        if os.fork(): os._exit(0)
        while os.getppid() == parent: time.sleep(0.001)
        return True
if orphan(): # the helper
    os.write(fds[3], b"helper")
    os.read(fds[3], 1)
    if orphan(): os.write(fds[3], b"0")
time.sleep(1000)
`
	c := start(t)
	ctx := within(t, time.Minute)
	m := marker(t)
	command := func(tag string) sandpit.Command {
		return sandpit.Command{Argv: []string{"python3", "-c", program, tag}, Env: []string{"MARK=" + m}}
	}
	zygote, err := c.StartDetached(ctx, command(m), client.Detach{Zygote: true})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the zygote listens", func() bool {
		sockets, err := os.ReadFile("/proc/net/unix")
		return err == nil && strings.Contains(string(sockets), "@sandpit-zygote-"+strconv.Itoa(zygote.PID())+"\n")
	})
	p, err := c.StartDetached(ctx, command("fork"), client.Detach{Fork: true})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(ctx); err != nil || res.ExitCode != 7 {
		t.Errorf("got %+v, %v; want exit code 7 of the program itself", res, err)
	}
	if err := zygote.Kill(ctx); err != nil {
		t.Error(err)
	}
	gone(t, m)
}
