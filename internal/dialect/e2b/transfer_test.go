package e2b

import "testing"

// The file name of a part is read in every form in which clients write it.
func TestFileName(t *testing.T) {
	for header, want := range map[string]string{
		`form-data; name="file"; filename="/tmp/a b"`:            "/tmp/a b",
		`form-data; name="file"; filename="a%22b%0Ac%0D"`:        "a\"b\nc\r",
		`form-data; name="file"; filename="ends\"`:               `ends\`,
		`form-data; name="file"; filename="in\side"`:             `in\side`,
		`form-data; name="file"; filename="escaped\\"`:           `escaped\`,
		`form-data; name="file"; filename*=utf-8''%E2%98%83.txt`: "☃.txt",
		`form-data; filename=x; name=file`:                       "x",
		`form-data; name="file"`:                                 "",
	} {
		if got, ok := fileName(header); got != want || !ok {
			t.Errorf("%s is %q, %v", header, got, ok)
		}
	}
	for _, header := range []string{"", `form-data; name="other"; filename="x"`, `form-data; name="other"; filename="x\"`, `form-data; name="file`} {
		if got, ok := fileName(header); ok {
			t.Errorf("%s is the file %q", header, got)
		}
	}
}
