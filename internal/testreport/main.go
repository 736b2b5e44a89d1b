// Testreport runs go test and reports what it proves. It prints packages as they end,
// the output of tests that fail, every skipped test with its reason, and a total.
// It fails if go test fails, if a test is skipped that the list of skips does not
// have, and with -documents if a test that a document names did not pass. It runs every
// test, also one with a cached result.
//
//	go run ./internal/testreport [-v] [-events FILE] [-documents FILE,...] -- ARGUMENTS OF GO TEST
//
// It is run from the root of the module.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Printf("FAIL: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	verbose := flag.Bool("v", false, "print the output of tests that pass, too")
	events := flag.String("events", "", "a `file` of outcomes: those of earlier runs count, those of this run are added")
	documents := flag.String("documents", "", "documents whose tests must have passed, in this run or an earlier one; the run is then taken for a whole one")
	skips := flag.String("skips", "internal/testreport/skips.txt", "the list of tests that may be skipped")
	flag.Parse()
	list, err := os.ReadFile(*skips)
	if err != nil {
		return err
	}
	r := newReport(os.Stdout, *verbose)
	if r.listed, err = parseSkips(string(list)); err != nil {
		return fmt.Errorf("reading %s: %w", *skips, err)
	}
	if *events != "" {
		file, err := os.Open(*events)
		if err == nil {
			err = r.earlier(file)
			file.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("reading %s: %w", *events, err)
		}
	}

	// An interrupt of the terminal goes to go test as well, and ends it.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	start := time.Now()
	cmd := exec.Command("go", append([]string{"test", "-json", "-count=1"}, flag.Args()...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	read := r.read(out)
	ended := cmd.Wait()

	if *events != "" {
		if err := r.write(*events); err != nil {
			return err
		}
	}
	var texts []document
	for name := range strings.SplitSeq(*documents, ",") {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		texts = append(texts, document{name, string(text)})
	}
	problems := r.summary(texts, time.Since(start))
	for _, err := range []error{read, ended} {
		if err != nil {
			problems = append(problems, fmt.Sprintf("go test: %v", err))
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n      "))
	}
	return nil
}
