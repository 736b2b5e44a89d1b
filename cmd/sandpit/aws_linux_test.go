package main

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/sigv4"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// awsClient is what a program inside does with the SDK of AWS for Python: an S3 server verifies each
// signature. The SDK doesn't sign chunks, so that is done by hand.
const awsClient = `
import boto3, hashlib, hmac, io, os, sys, urllib.request
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
s3url, dburl = sys.argv[1:]
style = Config(signature_version="s3v4", s3={"addressing_style": "path"})
s3 = boto3.client("s3", endpoint_url=s3url, region_name="eu-west-1", config=style)
s3.create_bucket(Bucket="box")
key = "a/b c+ü.txt"
s3.put_object(Bucket="box", Key=key, Body=b"hello")
print("got", s3.get_object(Bucket="box", Key=key)["Body"].read())
print("range", s3.get_object(Bucket="box", Key=key, Range="bytes=1-2")["Body"].read())
print("list", [o["Key"] for o in s3.list_objects_v2(Bucket="box", Prefix="a/")["Contents"]])
s3.upload_fileobj(io.BytesIO(b"x" * (9 << 20)), "box", "big")
print("parts", s3.head_object(Bucket="box", Key="big")["ContentLength"])
url = s3.generate_presigned_url("get_object", Params={"Bucket": "box", "Key": key})
print("presigned", urllib.request.urlopen(url).read())

class Chunked(S3SigV4Auth):
    def payload(self, request):
        return "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    def _inject_signature_to_request(self, request, signature):
        self.seed = signature
        return super()._inject_signature_to_request(request, signature)
auth = Chunked(boto3.Session().get_credentials().get_frozen_credentials(), "s3", "eu-west-1")
parts = [b"a" * 70000, b"b" * 100, b""]
size = sum(len("%x" % len(p)) + 17 + 64 + 4 + len(p) for p in parts)
request = AWSRequest("PUT", s3url + "/box/chunks", headers={"Content-Encoding": "aws-chunked", "X-Amz-Decoded-Content-Length": "70100", "X-Amz-Content-SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"})
auth.add_auth(request)
secret, date = os.environ["AWS_SECRET_ACCESS_KEY"], request.context["timestamp"]
scope = date[:8] + "/eu-west-1/s3/aws4_request"
k = ("AWS4" + secret).encode()
for part in scope.split("/"):
    k = hmac.new(k, part.encode(), hashlib.sha256).digest()
body, last = b"", auth.seed
for p in parts:
    text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", date, scope, last, hashlib.sha256(b"").hexdigest(), hashlib.sha256(p).hexdigest()])
    last = hmac.new(k, text.encode(), hashlib.sha256).hexdigest()
    body += b"%x;chunk-signature=%s\r\n%s\r\n" % (len(p), last.encode(), p)
assert len(body) == size
answer = urllib.request.urlopen(urllib.request.Request(request.url, body, dict(request.headers.items()), method="PUT"))
print("chunks", answer.status, s3.head_object(Bucket="box", Key="chunks")["ContentLength"])
print("tables", boto3.client("dynamodb", endpoint_url=dburl, region_name="eu-west-1").list_tables()["TableNames"])
`

// TestSignedRequests lets the SDK of AWS, and curl, work inside with a placeholder, against a real S3 server
// and a service that signs bodies.
func TestSignedRequests(t *testing.T) {
	needSandboxes(t)
	testkit.NeedTUN(t)
	gateway, err := filepath.Abs("../../.cache/tools/versitygw")
	if err == nil {
		_, err = os.Stat(gateway)
	}
	testkit.Need(t, "versitygw: make setup", err)
	python := testkit.NeedProgram(t, "python3")
	credentials := sigv4.Credentials{KeyID: "AKIAREALREALREALREAL", Secret: "the/real+secret/of/the/test", Token: "the-token-of-the-session"}

	dir := readableDir(t)
	tables, tablesPort, roots := originOverTLS(t, dir, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		signed, ferr := sigv4.Find(r, credentials, credentials)
		if err != nil || ferr != nil || signed == nil || r.Header.Get("X-Amz-Security-Token") != credentials.Token {
			http.Error(w, "{}", http.StatusForbidden)
			return
		}
		if _, err := signed.Sign(body); err != nil {
			http.Error(w, "{}", http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"TableNames": ["one"]}`)
	})
	key, err := x509.MarshalPKCS8PrivateKey(tables.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := writePEM(t, filepath.Join(dir, "key.pem"), "PRIVATE KEY", key)
	if out, err := exec.CommandContext(t.Context(), python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1", "--target", filepath.Join(dir, "sdk"), "boto3==1.44.5").CombinedOutput(); err != nil {
		testkit.Lacks(t, "boto3 from PyPI: "+string(out))
	}
	if err := os.WriteFile(filepath.Join(dir, "client.py"), []byte(awsClient), 0o644); err != nil {
		t.Fatal(err)
	}

	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, s3Port, _ := net.SplitHostPort(free.Addr().String())
	free.Close()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	server := exec.CommandContext(t.Context(), gateway, "--access", credentials.KeyID, "--secret", credentials.Secret, "--region", "eu-west-1", "--port", "127.0.0.1:"+s3Port, "--cert", roots, "--key", keyFile, "posix", data)
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	for up := false; !up; time.Sleep(20 * time.Millisecond) {
		if conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:"+s3Port); err == nil {
			conn.Close()
			up = true
		} else if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}

	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	sandpit := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(binDir(t), "sandpit"), args...)
		cmd.Env = append(os.Environ(), "SANDPIT_HOME="+home, "SSL_CERT_FILE="+roots)
		cmd.Stdin = strings.NewReader(stdin)
		out, _ := cmd.CombinedOutput() // the caller looks at it
		for _, part := range []string{credentials.KeyID, credentials.Secret, credentials.Token} {
			if strings.Contains(string(out), part) && !strings.Contains(strings.Join(args, " "), "--secret-env") {
				t.Errorf("sandpit %q writes %s: %s", args, part, out)
			}
		}
		return string(out)
	}
	hosts := []string{"--host", "example.com:" + s3Port, "--host", "example.com:" + tablesPort}
	if out := sandpit("not credentials\n", append([]string{"secret", "set", "aws", "--service", "aws"}, hosts...)...); !strings.Contains(out, "KEYID:SECRET") {
		t.Errorf("a value that is none: %s", out)
	}
	// The S3 server knows no session.
	long := credentials.KeyID + ":" + credentials.Secret
	sandpit(long+"\n", append([]string{"secret", "set", "aws", "--service", "aws"}, hosts...)...)
	run := []string{"run", "--secret", "aws", "--resolve", "example.com:127.0.0.1", "--mount", dir + ":/aws:ro", "--env", "PYTHONPATH=/aws/sdk"}
	s3URL, tablesURL := "https://example.com:"+s3Port, "https://example.com:"+tablesPort
	out := sandpit("", append(run, "--", "python3", "/aws/client.py", s3URL, tablesURL)...)
	for _, want := range []string{
		"got b'hello'", "range b'el'", "list ['a/b c+ü.txt']", "parts 9437184", "presigned b'hello'", "chunks 200 70100",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "tables [") {
		t.Errorf("a service that wants a session has got one: %s", out)
	}
	curl := `curl -sS --max-time 20 -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" --aws-sigv4 aws:amz:eu-west-1:s3 --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" `
	if out := sandpit("", append(run, "--", "sh", "-c", curl+s3URL+"/box/a/b%20c%2B%C3%BC.txt")...); !strings.Contains(out, "hello") {
		t.Errorf("curl: %s", out)
	}
	if out := sandpit("", append(run, "--", "sh", "-c", strings.Replace(curl, "$AWS_SECRET_ACCESS_KEY", "guess", 1)+s3URL+"/box/big")...); !strings.Contains(out, "its signature is not that of its credentials") {
		t.Errorf("another secret: %s", out)
	}
	sandpit(fmt.Sprintf(`{"Version": 1, "AccessKeyId": %q, "SecretAccessKey": %q, "SessionToken": %q}`, credentials.KeyID, credentials.Secret, credentials.Token), "secret", "rotate", "aws")
	script := `import boto3, sys; print("tables", boto3.client("dynamodb", endpoint_url=sys.argv[1], region_name="eu-west-1").list_tables()["TableNames"])`
	if out := sandpit("", append(run, "--", "python3", "-c", script, tablesURL)...); !strings.Contains(out, "tables ['one']") {
		t.Errorf("with a session: %s", out)
	}
	if out := sandpit("", "run", "--secret-env", "aws", "--", "sh", "-c", "echo $AWS_ACCESS_KEY_ID $AWS_SECRET_ACCESS_KEY $AWS_SESSION_TOKEN"); !strings.Contains(out, credentials.KeyID+" "+credentials.Secret+" "+credentials.Token) {
		t.Errorf("as env: %s", out)
	}
}
