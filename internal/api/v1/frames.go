package v1

// The stream of a process, over a chunked response of media type
// StreamType or in the binary messages of a WebSocket: frames of a type byte,
// four bytes of length, most significant first, and so many bytes of payload,
// at most MaxFrame. A WebSocket message holds one frame.
const (
	StreamType = "application/vnd.sandpit.stream"
	MaxFrame   = 1 << 20 // bytes of payload
)

// Frame types. S: from the server, C: from the client (WebSocket only).
const (
	FrameStarted byte = 1  // S: Process as JSON; always the first
	FrameStdout  byte = 2  // S: bytes
	FrameStderr  byte = 3  // S: bytes
	FrameLost    byte = 4  // S: 8 bytes, most significant first: output that is not kept any more
	FrameResult  byte = 5  // S: Result as JSON; the last
	FrameError   byte = 6  // S: Error as JSON; the last
	FramePing    byte = 7  // S: empty, at least every 20 s of silence
	FrameDeaf    byte = 8  // S: empty: the process reads no input any more; what is sent of it is dropped
	FrameStdin   byte = 16 // C: bytes
	FrameEOF     byte = 17 // C: standard input ends
	FrameResize  byte = 18 // C: Size as JSON
	FrameSignal  byte = 19 // C: {"signal": 15, "group": false} as JSON
)
