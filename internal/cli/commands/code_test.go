package commands

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestUnfinishedCode(t *testing.T) {
	for _, c := range []struct {
		language, code string
		want           bool
	}{
		{"python", "x = 1", false},
		{"python", "", false},
		{"python", "if x:", true},
		{"python", "if x: # why", true},
		{"python", "if x:\n  y = 1", true},
		{"python", "if x:\n  y = 1\n", false},
		{"python", "x = [1,\n", true},
		{"python", "x = \"\"\"a\n", true},
		{"python", "s = 'abc\\", true},
		{"python", "if x: y = {1: 2}", false},
		{"python", "f = {", true},
		{"python", "f = {\n  1: 2,\n}", false},
		{"python", "f = {\n  1:\n2}", false},
		{"python", "x = '('", false},
		{"python", "x = '\\'('", false},
		{"python", "x = 1 # (", false},
		{"python", "x = '''a", true},
		{"python", "x = '''a\n(''' + ''", false},
		{"python", "x = 1 + \\", true},
		{"python", "x = 'a\\\nb'", false},
		{"python", "x = 'a\n", false},
		{"python", "@cached", true},
		{"python", "@cached\ndef f(): return 1", false},
		{"python", "x[1:", true},
		{"python", "x)", false},
		{"bash", "echo http://a 'b'", false},
		{"bash", "if true; then", true},
		{"bash", "if true; then\n  echo; fi", false},
		{"bash", "for i in 1 2", true},
		{"bash", "for i in 1 2\ndo echo $i; done", false},
		{"bash", "f() {", true},
		{"bash", "f() {\necho\n}", false},
		{"bash", "echo 'a", true},
		{"bash", "echo 'a\n\n", true},
		{"bash", "echo 'a\\", true},
		{"bash", "echo 'a\\'", false},
		{"bash", "echo \"wait for me\"", false},
		{"bash", "# don't", false},
		{"bash", "echo don\\'t", false},
		{"bash", "echo a#'b", true},
		{"bash", "echo a \\", true},
		{"bash", "cat <<E", true},
		{"bash", "cat <<'E'\nif it's\n", true},
		{"bash", "cat <<E\nline\nE", false},
		{"bash", "cat <<<E", false},
		{"bash", "case $x in\na) echo;;", true},
		{"bash", "case $x in\na) echo;;\nesac", false},
		{"bash", "x=(1 2", true},
		{"r", "x <- c(1,", true},
		{"r", "f <- function(x) {", true},
		{"r", "f <- function(x) {\n  x\n}", false},
		{"r", "x <-", true},
		{"r", "x |> # why", true},
		{"r", "'a", true},
		{"r", "x # (", false},
		{"r", "library(stats)", false},
		{"javascript", "function f() {", true},
		{"javascript", "function f() { return '}' // {\n}", false},
		{"javascript", "x = `a", true},
		{"javascript", "x = `a\n${1}`", false},
		{"go", "package main", true},
		{"go", "package main\nfunc main() {\n", true},
		{"go", "package main\nfunc main() {\n\n\tprintln('{')\n}", true},
		{"go", "package main\nfunc main() {\n\n\tprintln('{')\n}\n", false},
		{"java", "class A {\n  // {\n}\n  ", false},
		{"perl", "print 1;", true},
		{"ruby", "def f # (don't", true},
		{"ruby", "def f # (don't\n", false},
	} {
		if got := unfinished(c.language, c.code); got != c.want {
			t.Errorf("%s %q: %t", c.language, c.code, got)
		}
	}
}

func TestDisplayed(t *testing.T) {
	for want, o := range map[string]sandpit.CodeOutput{
		"42":   {Text: "42", HTML: "<b>42</b>"},
		"*42*": {Markdown: "*42*"},
		"[application/x-\\x1b, 2 bytes; image/png, 3 bytes; text/html, 1 bytes]": {HTML: "x", PNG: []byte("abc"), Extra: map[string]string{"application/x-\x1b": "{}"}},
		"": {},
	} {
		if got := displayed(o); got != want {
			t.Errorf("%+v is shown as %q, want %q", o, got, want)
		}
	}
}

func TestPromptHistory(t *testing.T) {
	h := new(history)
	for _, line := range []string{"a", "", "a", "b"} {
		h.Add(line)
	}
	if h.Len() != 2 || h.At(0) != "b" || h.At(1) != "a" {
		t.Errorf("it has %q", h.lines)
	}
	for i := range 2 * maxHistory {
		h.Add(strings.Repeat("c", i+1))
	}
	if h.Len() != maxHistory || len(h.At(0)) != 2*maxHistory {
		t.Errorf("it has %d lines, the last of %d bytes", h.Len(), len(h.At(0)))
	}
}

func TestLanguageOfProgram(t *testing.T) {
	for source, want := range map[string][2]string{
		"":                              {"", ""},
		"print(1)":                      {"", ""},
		"#!":                            {"", ""},
		"# !/bin/sh":                    {"", ""},
		"\n#!/bin/sh":                   {"", ""},
		"#!/bin/sh":                     {"bash", "sh"},
		"#! /bin/bash -e\necho":         {"bash", "bash"},
		"#!/usr/bin/env node\n":         {"javascript", "node"},
		"#!/usr/bin/env -S A=1 node -r": {"javascript", "node"},
		"#!/opt/x/python3.12 -u\r\n":    {"python", "python3.12"},
		"#!/usr/bin/env python":         {"python", "python"},
		"#!/usr/bin/Rscript --vanilla":  {"r", "Rscript"},
		"#!/usr/bin/perl5":              {"perl", "perl5"},
		"#!/usr/bin/env":                {"", "env"},
		"#!/usr/bin/awk -f":             {"", "awk"},
	} {
		if language, program := languageOfProgram(source); language != want[0] || program != want[1] {
			t.Errorf("%q: %q, %q, want %q", source, language, program, want)
		}
	}
}
