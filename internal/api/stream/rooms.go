package stream

import (
	"encoding/binary"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// rooms are those for standard output and error, of a connection with windows.
type rooms [2]*lanes.Room

func newRooms() *rooms { return &rooms{lanes.NewRoom(v1.Window), lanes.NewRoom(v1.Window)} }

// send sends output as fast as the client passes it on, in parts of at most limit bytes.
func (r *rooms) send(kind byte, payload []byte, limit int, send func(part []byte) error) error {
	for len(payload) > 0 {
		n, err := r[kind-v1.FrameStdout].Take(min(len(payload), limit))
		if err != nil {
			return err
		}
		if err := send(payload[:n]); err != nil {
			return err
		}
		payload = payload[n:]
	}
	return nil
}

// passed reads the payload of a v1.FramePassed.
func (r *rooms) passed(payload []byte) error {
	if len(payload) != 5 || !isOutput(payload[0]) {
		return errMessage("it names no output, or its length is not 5 bytes")
	}
	r[payload[0]-v1.FrameStdout].Give(binary.BigEndian.Uint32(payload[1:]))
	return nil
}

// close ends every send with an error.
func (r *rooms) close(err error) {
	for _, room := range r {
		room.Close(err)
	}
}
