package server

// For tests: what a server finds out about who is connected.
var (
	BesideUs = besideUs
	SameMaps = sameMaps
)
