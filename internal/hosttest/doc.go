// Package hosttest runs the suites of this module on the kinds of machine that
// users have, and prints one table, host by suite.
//
// The words:
//
//   - A [Suite] is a Go test binary, or a part of one.
//   - A [Host] is one way to stand on a machine: an account, a login, what is
//     open and closed to it. It says what its suites may count on.
//   - A [Place] carries one or more hosts and knows how to start them: this
//     machine with accounts made for the test, a whole Debian machine under
//     QEMU without KVM, a container of a Docker daemon started for the test.
//
// All places are given the same bundle, a folder with the suites' binaries and
// the script run.sh, which becomes each host in turn and runs the suites there.
// What it prints is read back by [Parse].
//
// A place that can't be had here (no QEMU, no network for Debian's packages,
// not root) is not an error: its hosts are "not run", and the reason is in the
// table. A suite that fails, or that never ends, is one.
//
// `make test-hosts` runs everything, and `make test` the quick boot:
// [TestHosts] reads SANDPIT_TEST_HOSTS, which is "all", "quick", or names of
// hosts and places with commas between them; SANDPIT_TEST_SUITES narrows it to
// some suites, and SANDPIT_TEST_FORM=quick to the quick form of each. Root file
// systems are kept in the user's cache folder under sandpit-test.
//
// A suite is told where it runs:
//
//	SANDPIT_TEST_HOST    the name of the host
//	SANDPIT_TEST_EXPECT  "works" or "refused": whether a sandbox must be
//	                     possible here, or be refused with a reason. A suite
//	                     that finds the opposite fails; it must not skip.
//	SANDPIT_TEST_TRAITS  what package probe checks, such as "cgroup=v2 uid=user"
//	SANDPIT_TEST_BINARY  the sandpit program, with its guest embedded
package hosttest
