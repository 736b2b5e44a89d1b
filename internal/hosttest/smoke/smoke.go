// Package smoke asks a host the first question of all: does `sandpit run` work
// here, or is it refused as it should be? Its suite needs nothing but the
// sandpit program, and is the one that runs where no sandbox can be made.
package smoke
