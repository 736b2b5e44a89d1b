//go:build guestembed

package embedded

import _ "embed"

//go:embed sandpit-guest-arm64.bin
var program string
