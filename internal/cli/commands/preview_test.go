package commands

import "testing"

// Browsers refuse certificates for names below localhost, and for no others.
func TestCertificatesThatBrowsersRefuse(t *testing.T) {
	for text, want := range map[string]bool{
		"https://3000-x.localhost:8443/?sandpit-preview=pv_y": true,
		"https://3000-x.example.com/?sandpit-preview=pv_y":    false,
		"http://3000-x.localhost:7878/?sandpit-preview=pv_y":  false,
	} {
		if got := refusedByBrowsers(text); got != want {
			t.Errorf("%s: got %v", text, got)
		}
	}
}
