#!/usr/bin/env bash
# fuzz.sh TIME: every fuzz target of the module, one after the other. What a
# target finds is kept in its testdata folder, where `make test` replays it.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
git grep -lE '^func Fuzz[A-Z]' -- '*_test.go' | xargs -r -n1 dirname | sort -u | while read -r dir; do
  for target in $(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' "$dir"/*_test.go); do
    echo "fuzz: ./$dir $target for $time"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$dir"
  done
done
