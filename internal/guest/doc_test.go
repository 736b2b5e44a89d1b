// Package guest_test tests both ends of the guest protocol against each other:
// a real guest, run as a process of its own, and its client.
package guest_test
