package engine

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // both formats are made with it, neither for security
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"hash"
	"strings"
	"unicode/utf16"
)

// pemCertificate is the type of blocks in PEM that are certificates.
const pemCertificate = "CERTIFICATE"

// certificatesIn returns the certificates of a text in PEM, in DER.
func certificatesIn(text []byte) (all [][]byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == pemCertificate {
			all = append(all, block.Bytes)
		}
	}
	return all
}

// javaHeader begins a store of certificates of Java, in the format JKS: a magic number and the
// version. It has no specification but its implementation, sun.security.provider.JavaKeyStore;
// every Java reads it, whatever its default format is.
var javaHeader = []byte{0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2}

// javaDigest is the size of what ends a store: a digest, which programs without a password skip.
const javaDigest = sha1.Size

// javaStore is a store of certificates of Java that lacks its last entries and its digest.
type javaStore struct {
	begin  []byte    // the header, for all entries, and the first of them
	digest hash.Hash // of begin; never changed
}

// newJavaStore returns a store with the certificates of an old store and others; if the old one does
// not have the format, with all of a bundle in PEM. last is the number of entries that it lacks.
func newJavaStore(old []byte, certificates [][]byte, bundle []byte, last int) javaStore {
	count, entries := 0, []byte(nil)
	if bytes.HasPrefix(old, javaHeader) && len(old) >= len(javaHeader)+4+javaDigest {
		count = int(binary.BigEndian.Uint32(old[len(javaHeader):]))
		entries = old[len(javaHeader)+4 : len(old)-javaDigest]
	} else {
		certificates = certificatesIn(bundle)
	}
	begin := binary.BigEndian.AppendUint32(bytes.Clone(javaHeader), uint32(count+len(certificates)+last)) //nolint:gosec // a file has few
	begin = appendJavaEntries(append(begin, entries...), "sandpit", certificates)
	digest := sha1.New() //nolint:gosec // the format's
	for _, c := range utf16.Encode([]rune("changeit")) {
		digest.Write(binary.BigEndian.AppendUint16(nil, c))
	}
	digest.Write([]byte("Mighty Aphrodite"))
	digest.Write(begin)
	return javaStore{begin, digest}
}

// rest returns what follows begin: the last entries, and the digest, of which the password is the usual
// one, "changeit".
func (s javaStore) rest(last [][]byte) ([]byte, error) {
	digest, err := s.digest.(hash.Cloner).Clone()
	if err != nil {
		return nil, err
	}
	entries := appendJavaEntries(nil, "sandpit-own", last)
	digest.Write(entries)
	return digest.Sum(entries), nil
}

func appendJavaEntries(store []byte, alias string, certificates [][]byte) []byte {
	for i, der := range certificates {
		store = binary.BigEndian.AppendUint32(store, 2) // a trusted certificate
		store = appendJavaString(store, fmt.Sprintf("%s-%d", alias, i))
		store = binary.BigEndian.AppendUint64(store, 0) // when it was added
		store = appendJavaString(store, "X.509")
		store = binary.BigEndian.AppendUint32(store, uint32(len(der))) //nolint:gosec // part of a small file
		store = append(store, der...)
	}
	return store
}

func appendJavaString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) //nolint:gosec // a short constant
}

// subjectHash returns the name, without its number, by which OpenSSL looks up a certificate in a
// directory: see openssl-rehash(1). It is the beginning of a digest of the subject, of which all
// strings are in UTF-8, in lower case, and without needless spaces. A certificate with a subject
// of other than strings has none.
func subjectHash(der []byte) (string, bool) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return "", false
	}
	var subject pkix.RDNSequence
	if _, err := asn1.Unmarshal(c.RawSubject, &subject); err != nil {
		return "", false
	}
	digest := sha1.New() //nolint:gosec // the format's
	for _, part := range subject {
		for i := range part {
			s, ok := part[i].Value.(string)
			if !ok {
				return "", false
			}
			words := strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) })
			part[i].Value = asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(lowerASCII(strings.Join(words, " ")))}
		}
		text, err := asn1.Marshal(part)
		if err != nil {
			return "", false
		}
		digest.Write(text)
	}
	return fmt.Sprintf("%08x", binary.LittleEndian.Uint32(digest.Sum(nil))), true
}

// lowerASCII changes letters of ASCII only.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}
