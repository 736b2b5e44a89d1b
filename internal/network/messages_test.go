package network

import (
	"crypto/tls"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
)

// Messages of WebSockets get values where that is asked for, never bring one back, and end with the
// placeholder of another secret.
func TestSecretsInMessages(t *testing.T) {
	got := make(chan string, 8)
	o := newOrigin(t, false, websocket.Handler(func(c *websocket.Conn) {
		var text string
		for websocket.Message.Receive(c, &text) == nil {
			got <- text
			_ = websocket.Message.Send(c, "echo "+text)
		}
		close(got)
	}))
	b := newSandboxed(t, o.terms(t, o.twoSecrets(false, true), "good.test:PORT"))
	conn, err := b.dial(t.Context(), "good.test", o.port)
	if err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(conn, &tls.Config{ServerName: "good.test", RootCAs: b.trusted})
	config, _ := websocket.NewConfig(strings.Replace(o.url("/"), "https", "wss", 1), o.url("/"))
	config.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
	ws, err := websocket.NewClient(config, secure)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	var text string
	for range 2 {
		if err := websocket.Message.Send(ws, "key "+placeholder); err != nil {
			t.Fatal(err)
		}
		if text := <-got; text != "key "+value {
			t.Errorf("the origin got %q", text)
		}
		if err := websocket.Message.Receive(ws, &text); err != nil || strings.Contains(text, value) || len(text) != len("echo key "+value) {
			t.Errorf("%q, %v", text, err)
		}
	}
	_ = websocket.Message.Send(ws, "key "+otherHolder)
	if err := websocket.Message.Receive(ws, &text); err == nil {
		t.Errorf("after another placeholder: %q", text)
	}
	if text, ok := <-got; ok {
		t.Errorf("the origin got %q", text)
	}
	if l := b.Log(); len(l.Denials) != 1 || !strings.Contains(l.Denials[0].Why, `secret "its"`) {
		t.Errorf("denials: %+v", l.Denials)
	}
}
