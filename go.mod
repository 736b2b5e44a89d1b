module github.com/sandpit-dev/sandpit

go 1.26.0

require golang.org/x/sys v0.49.0 // indirect
