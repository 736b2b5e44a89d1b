//go:build !guestembed || !linux || !(amd64 || arm64)

package embedded

const program = ""
