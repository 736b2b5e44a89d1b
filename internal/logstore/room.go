package logstore

import (
	"cmp"
	"sync"
	"time"
)

// Bounds of all logs on one disk.
type Bounds struct {
	Total int64 // bytes of all logs; default 4 GiB
	Each  int64 // bytes of the logs of one Share; default 1 GiB
}

const (
	defaultTotal = 4 << 30
	defaultEach  = 1 << 30

	// maxFloor is how many bytes of the disk logs leave free, for what matters more.
	// On a small disk they leave a tenth of it.
	maxFloor = 64 << 20

	// roomAgain is the least time between two looks at the free space.
	roomAgain = time.Second
)

// Room bounds the disk space of all logs below one directory. Its methods and those of its
// Shares are safe for concurrent use.
type Room struct {
	dir    string
	bounds Bounds

	mu    sync.Mutex
	used  int64     // guarded by mu, as all below
	spare int64     // bytes above the floor when it was looked at, less what was taken since
	asked time.Time // when that was
}

// NewRoom returns the room for the logs below a directory.
func NewRoom(dir string, b Bounds) *Room {
	b.Total, b.Each = cmp.Or(b.Total, defaultTotal), cmp.Or(b.Each, defaultEach)
	return &Room{dir: dir, bounds: b}
}

// Share bounds the disk space of the logs of one owner. A nil Share has no bound.
type Share struct {
	room *Room
	used int64 // guarded by room.mu
}

// Share returns a new share of the room.
func (r *Room) Share() *Share { return &Share{room: r} }

// take reports whether a log may grow by so many bytes.
func (s *Share) take(n int64) bool {
	if s == nil {
		return true
	}
	r := s.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.used+n > r.bounds.Each || r.used+n > r.bounds.Total || !r.has(n) {
		return false
	}
	r.spare -= n
	s.used += n
	r.used += n
	return true
}

// has reports whether the disk has room above the floor. Precondition: r.mu is held.
func (r *Room) has(n int64) bool {
	if now := time.Now(); r.spare < n || now.Sub(r.asked) > roomAgain {
		free, size, ok := space(r.dir)
		if !ok {
			return true // writing will tell
		}
		r.spare, r.asked = free-min(maxFloor, size/10), now
	}
	return r.spare >= n
}

// charge counts what is on the disk already; less than 0 is given back.
func (s *Share) charge(n int64) {
	if s == nil {
		return
	}
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.used += n
	s.room.used += n
}
