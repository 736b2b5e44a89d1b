#!/usr/bin/env bash
# Tidy modules, format, lint and known vulnerabilities, with the tools of tools/go.mod, which
# is a module of its own so that they are not dependencies of ours.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.cache/tools
mkdir -p "$tools"

# The tools are fetched through the Go module proxy. Where that can't be reached, lint is
# not run and says so. In continuous integration it then fails. What is not run is noted in
# a file, which make test prints at its end.
rm -f .cache/not-run
not_run() {
  echo "$1" >>.cache/not-run
  echo "lint: not run: $1" >&2
}
if ! go -C tools build -o "../$tools/" tool 2>"$tools/log"; then
  tail -3 "$tools/log" >&2
  not_run "golangci-lint, gofumpt and govulncheck, as they could not be built. Run 'make lint' where the Go module proxy can be reached"
  [ -z "${CI:-}" ]
  exit
fi

# The diff is on stdout. Without the modules that only the tests of dependencies need, and without a
# proxy, there is none and an error on stderr.
if ! untidy=$(go mod tidy -diff 2>"$tools/log"); then
  if [ -n "$untidy" ]; then
    printf 'lint: run "go mod tidy":\n%s\n' "$untidy" >&2
    exit 1
  fi
  tail -3 "$tools/log" >&2
  not_run "go mod tidy -diff, as the Go module proxy can't be reached"
fi

unformatted=$(git ls-files -z '*.go' | xargs -0 -r "$tools/gofumpt" -l)
if [ -n "$unformatted" ]; then
  printf 'lint: not formatted (make fmt):\n%s\n' "$unformatted" >&2
  exit 1
fi
"$tools/golangci-lint" run --timeout 20m ./...

# govulncheck exits 3 for a finding, 1 when the database can't be read. Many machines of
# continuous integration can't reach it, so that is not a failure.
status=0
out=$("$tools/govulncheck" ./... 2>&1) || status=$?
case $status in
  0) ;;
  1) grep -q 'fetching vulnerabilities' <<<"$out" || { printf '%s\n' "$out" >&2; exit 1; }
     not_run "govulncheck, as https://vuln.go.dev can't be reached. Run 'make lint' where it can, before each release" ;;
  *) printf '%s\n' "$out" >&2; exit "$status" ;;
esac
[ -e .cache/not-run ] || echo "lint: clean"
