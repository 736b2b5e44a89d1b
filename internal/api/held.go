package api

// freeObject is how much of a body that is taken apart is not counted, in bytes.
const freeObject = 4 << 10

// Memory in bytes. The garbage that comes with it is in them.
const (
	heldValue  = 200 // of a value in JSON: {"mounts":[{},{},…]} has one in 3 bytes, and each is copied
	heldListed = 8   // of a byte in the table of contents of a zip archive
	heldEntry  = 512 // of an entry of a zip archive that is written, beside its name
)

// values is how many values JSON has, or somewhat more.
func values(data []byte) int64 {
	n := int64(1)
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case ',', '[', '{':
			n++
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}
