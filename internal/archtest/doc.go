// Package archtest holds the shape of the module: which package may know which,
// what the guest consists of, and that nothing happens before main. Its tests
// read the source; they fail the build when a new arrow appears.
package archtest
