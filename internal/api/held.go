package api

// freeObject is how much of a body that is taken apart is not counted, in bytes.
const freeObject = 4 << 10

// heldValue is how much memory a value in JSON takes, garbage included, in bytes.
// {"mounts":[{},{},…]} has a value in every 3 bytes, and each is copied.
const heldValue = 200

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
