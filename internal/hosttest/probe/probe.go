// Package probe says what kind of host a test runs on. Its suite is the first
// on every host: it checks that the host is what its name says, so that no
// other suite vouches for a host that it never saw.
package probe
