module github.com/sandpit-dev/sandpit

go 1.26
