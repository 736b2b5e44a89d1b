package notation

import (
	"strconv"

	"github.com/sandpit-dev/sandpit"
)

// TrafficBound is one of the bounds of traffic, as people read and write it.
type TrafficBound struct {
	Name    string // in policies
	Flag    string // of the command line, without dashes
	Noun    string
	Usage   string // of the flag, without the default
	Shown   string // what the value of the flag is called
	Value   *int64 // 0: Default
	Default int64  // 0: unlimited
	Bytes   bool   // it is a size, and not a number of connections
	Parse   func(string) (int64, error)
	Format  func(int64) string
}

// TrafficBounds returns all fields of b, in the order in which they are shown.
func TrafficBounds(b *sandpit.EgressBounds) []TrafficBound {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []TrafficBound{
		{"connections", "max-connections", "number of connections", "open connections to the outside", "N", &b.Connections, sandpit.DefaultConnections, false, ParseCount, count},
		{"new-connections", "max-new-connections", "rate of new connections", "new ones per second", "N", &b.NewConnections, sandpit.DefaultNewConnections, false, ParseCount, count},
		{"sent", "max-sent", "traffic sent", "bytes sent in all", "SIZE", &b.Sent, 0, true, ParseSize, FormatSize},
		{"received", "max-received", "traffic received", "bytes received in all", "SIZE", &b.Received, 0, true, ParseSize, FormatSize},
		{"bandwidth", "bandwidth", "bandwidth", "bytes per second, each way", "SIZE", &b.Bandwidth, 0, true, ParseSize, FormatSize},
	}
}
