package authority_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
)

// What an authority issues is valid for one name, for those who trust it only, and issued once.
func TestAuthority(t *testing.T) {
	text, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	public := authority.Certificate(text)
	if bytes.Contains(public, []byte("PRIVATE")) || authority.Certificate(nil) != nil {
		t.Errorf("the certificate is %s", public)
	}
	a, err := authority.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(public)
	first, err := a.Issue("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: "a.example.com", Roots: roots}); err != nil {
		t.Error(err)
	}
	if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: "b.example.com", Roots: roots}); err == nil {
		t.Error("it is valid for another name")
	}
	if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: "a.example.com", Roots: x509.NewCertPool()}); err == nil {
		t.Error("everybody trusts it")
	}
	if again, err := a.Issue("a.example.com"); err != nil || again != first {
		t.Errorf("it was issued again: %v", err)
	}
	for i := range 300 { // those that are kept are bounded
		if _, err := a.Issue(fmt.Sprintf("%d.example.com", i)); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := a.Issue("a.example.com"); err != nil || again == first {
		t.Errorf("the oldest was kept: %v", err)
	}
	for _, bad := range [][]byte{nil, []byte("x"), public, text[:len(text)-60]} {
		if _, err := authority.Read(bad); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
}
