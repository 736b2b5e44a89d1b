package wire

import (
	"encoding/binary"
	"errors"
	"sync"
)

// Flow control. A frame of content costs its payload and its header. What a
// receiver lets the sender have under way is its window: it is the initial
// credit of every stream and is announced in HELLO; CREDIT frames give back
// what has been consumed.
const (
	// HostWindow is the window of the host: large enough that a fast process does not wait
	// for a reader on another core.
	HostWindow = 1 << 20
	// GuestWindow is the window of the guest: its buffers are in the sandbox's own memory,
	// which may be small.
	GuestWindow = 256 << 10
	// UploadWindow is the window of the guest for the content of a large file, which it
	// consumes as fast as it arrives.
	UploadWindow = 1 << 20
	// SendBuffer is the size that both ends request for the kernel's send buffer, for all
	// streams together: with less, the two ends take more turns. The kernel may grant less
	// (net.core.wmem_max). It is not part of the protocol.
	SendBuffer = 512 << 10
	// PassWindow is what a process that was started with StartWindows may write to each of its
	// outputs before the host has passed it on. The guest may exceed it by one read, PassExcess.
	PassWindow = 512 << 10
	PassExcess = 4 * MaxData
	// PassAll in a PASSED frame ends the window of that output.
	PassAll = 1<<32 - 1
	// MinWindow is the smallest window that may be announced.
	MinWindow = 2 * (MaxData + HeaderSize)
	// MaxWindow is the largest window that may be announced, and the largest credit of a
	// stream.
	MaxWindow = 64 << 20
)

// Cost returns the credit that a frame of content with n bytes of payload takes.
func Cost(n int) int { return n + HeaderSize }

// Window is the credit that a sender holds for one stream.
type Window struct {
	mu    sync.Mutex
	more  sync.Cond
	avail int
	woken bool
	err   error
}

// ErrWoken is the error of waiting calls after Wake.
var ErrWoken = errors.New("the wait was canceled")

// NewWindow returns a window with n bytes of credit.
func NewWindow(n int) *Window {
	w := &Window{avail: n}
	w.more.L = &w.mu
	return w
}

// Take waits until there is credit for some of n bytes of payload, takes it, and returns
// the number of bytes: at least 1, at most n and MaxData. The error is that of Fail.
func (w *Window) Take(n int) (int, error) {
	n = min(n, MaxData)
	// Small pieces of a large whole would cost more than waiting does.
	least := Cost(min(n, 4<<10))
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && w.avail < least {
		if w.woken {
			return 0, ErrWoken
		}
		w.more.Wait()
	}
	if w.err != nil {
		return 0, w.err
	}
	n = min(n, w.avail-HeaderSize)
	w.avail -= Cost(n)
	return n, nil
}

// TryTake takes the credit for n bytes of payload, at most MaxData, if there is
// credit for all of them.
func (w *Window) TryTake(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || w.avail < Cost(n) {
		return false
	}
	w.avail -= Cost(n)
	return true
}

// Spend waits until there is any credit, and takes n bytes, even if there are fewer. The
// error is that of Fail.
func (w *Window) Spend(n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && w.avail <= 0 {
		w.more.Wait()
	}
	w.avail -= n
	return w.err
}

// Add adds n bytes of credit and reports whether the sum is within MaxWindow.
func (w *Window) Add(n uint32) bool {
	w.mu.Lock()
	ok := int64(w.avail)+int64(n) <= MaxWindow
	if ok {
		w.avail += int(n)
	}
	w.mu.Unlock()
	w.more.Broadcast()
	return ok
}

// Wake makes Take return ErrWoken instead of waiting, until it is called with false.
func (w *Window) Wake(on bool) {
	w.mu.Lock()
	w.woken = on
	w.mu.Unlock()
	w.more.Broadcast()
}

// Fail makes every present and later Take return err. Only the first call has an effect.
func (w *Window) Fail(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.more.Broadcast()
}

// AppendCredit appends the payload of CREDIT: four bytes, little-endian.
func AppendCredit(b []byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// DecodeCredit decodes the payload of CREDIT.
func DecodeCredit(b []byte) (uint32, error) {
	if len(b) != 4 {
		return 0, ErrMessage
	}
	return binary.LittleEndian.Uint32(b), nil
}

// AppendPassed appends the payload of PASSED: the type of the output, Data or Data2, and
// four bytes, little-endian.
func AppendPassed(b []byte, output Type, n int) []byte {
	return binary.LittleEndian.AppendUint32(append(b, byte(output)), uint32(n))
}

// DecodePassed decodes the payload of PASSED.
func DecodePassed(b []byte) (output Type, n uint32, err error) {
	if len(b) != 5 || Type(b[0]) != Data && Type(b[0]) != Data2 {
		return 0, 0, ErrMessage
	}
	return Type(b[0]), binary.LittleEndian.Uint32(b[1:]), nil
}
