//go:build guestembed

package embedded

import _ "embed"

//go:embed sandpit-guest-amd64.bin
var program string
