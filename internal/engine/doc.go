// Package engine creates, keeps and removes sandboxes. It resolves a Spec against the policy and
// the driver's capabilities, leases the image, has the driver make an instance, and talks to the
// guest in it.
//
// An engine is used in two ways. Without a Store it is the sandpit.Client of a program whose
// sandboxes end with it. With a Store it is the core of a server: its sandboxes have records,
// outlive the program, and are taken over by Adopt.
//
// Locks are taken in this order: Engine.mu, Sandbox.mu, endedBroadcasters.mu, broadcaster.mu. None
// is held during calls of the driver, the guest or the store.
//
// # From a Spec to a Plan
//
// A Spec is what a caller asks for. A policy is what the platform gives by default and
// allows at most. Capabilities are what the driver can enforce on this machine for this
// user. The engine resolves the three to a driver.Plan, which leaves nothing open, or
// refuses and names the part. A default that nobody asked for and that can't be enforced
// does not prevent a sandbox. It is listed in Info.NotEnforced.
//
// # Sandboxes that outlive their maker
//
// A server's sandboxes must survive its death, whatever the cause. So the server's memory
// has nothing that only it knows:
//
//   - Socket: the guest listens on run/ID.sock in the data directory. It gets the listening
//     descriptor over its bootstrap socket, as the last step of Create. Until then it ends
//     with its maker.
//   - Note: run/ID.json, written before that step, has what the driver needs to recover the
//     instance: pid, start time, the machine's boot, socket, range of ids, cgroups. The
//     server may be killed before the record has it.
//   - Record: the Store has the Spec, the name of the policy, the guest's configuration,
//     the driver, and up to 64 KiB for each dialect. What never changes is encoded once
//     (Made). The environment is sealed.
//   - Ids: the lock on a range of ids ends with its maker. A file in /run/sandpit/ids then
//     says whose the range is.
//   - Lifetime: the guest enforces life and idle time itself, slightly later than the
//     server, so that a dead server leaves no immortal sandbox.
//
// Adopt goes through the records. The driver finds the first process, which must have the
// recorded start time and boot, and dials the guest. The engine continues the output of
// each process at the position up to which the log has it. Sandboxes whose creation or
// removal was interrupted are destroyed; a removal first leaves an empty file,
// sandboxes/ID.removed. Sandboxes that no longer exist become failed ones, with the
// reason. The server listens only after that.
//
// A record is written before its sandbox is created, and deleted after it is gone. So a
// sandbox that runs without a record is an orphan: the database was lost, or replaced by
// an older one. The namespace of an orphan is unknown, so nobody gets it, and removing it
// on a guess could destroy work. The server refuses to start and names the orphans. The
// operator restores the database, or starts the server once with --remove-orphans.
//
// # What may hang
//
// A system call can block for ever, and a goroutine in one can't be interrupted. So the
// engine creates, removes, adopts, measures and closes in tasks (task.go). A task is one
// goroutine, which owns what it makes, and one timer. Past its limit, its context ends.
// Past a second limit it is stuck: callers get an error, and the task goes on alone,
// charged for everything it holds. The driver notes each step in a driver.Progress, so
// that the error says where it hangs. No lock is held over a call that may hang. A sandbox
// has at most one measurement in progress. Marks (mark.go), which tell the next server
// what a record may not say, are made in tasks too, and nothing waits for one longer than
// a second.
//
// # Output
//
// The guest keeps some output of a background process, with positions. The engine has one
// broadcaster per process. It takes the output, keeps the latest in a ring of up to 1 MiB,
// appends it to the sandbox's log, and lets every attached client read the ring from a
// goroutine of its own. A client that is too slow is told how many bytes it lost. Only the
// owner of a foreground process, who asked for all of the output, is waited for. Its two
// outputs wait each for its own reader, if there are two (apart.go).
//
// # Tenants and capacity
//
// As returns a sandpit.Client for one namespace and policy. It can't name anything of
// another namespace, and the API has no other way to the engine. Names, events and
// creates per second belong to a namespace, so that one tenant neither slows another down
// nor learns anything about it.
//
// Past capacity, a Create waits in the queue of its namespace, and the queues take turns.
// Capacity bounds the sum of memory limits, by default twice the machine's memory.
//
// # The pool
//
// A driver that is a driver.Preparer makes blanks: isolated places with a waiting guest,
// which belong to nobody. Create resolves and decides as always. If a blank fits the plan,
// Bind gives it the rest, and the sandbox takes the blank's id. Plans that fit no blank,
// and those whose blank failed, get a new instance.
//
// Blanks are made while no sandbox is being created: four by default, replaced after ten
// minutes or when they die, and reduced to one after five minutes without a Create. They
// count 16 MiB each, of memory that is promised to nobody, and are fewer when there is
// less. They die with the server, and the next server sweeps what is left.
//
// A blank has no root, so it can't hold an interpreter. A second pool (held.go) holds complete
// sandboxes with warm ones. Each is made by what a create without wishes would resolve to, with
// Plan.KeepLater, and is handed out to a create whose Plan and configuration are equal to its own in
// all that can't be changed afterwards. Its guest is then configured again, the driver makes
// it persistent, and the interpreters are found as Adopt finds processes. One is, by its command line, the default
// context from its first run on; for Python there is also a zygote, from which the guest forks contexts.
package engine
