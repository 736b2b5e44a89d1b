package sandpit

// Secret is a credential that a sandbox may use. The server stores its value under a name.
//
// The sandbox does not get the value. Its environment has a placeholder, and the value replaces
// the placeholder in requests to the hosts of the secret. These hosts may be reached over HTTPS
// without a rule of Egress.
type Secret struct {
	// Name is the name of the stored secret. A namespace's own secret is preferred to one of
	// the server with the same name.
	Name string

	// Variable is the environment variable that has the placeholder. Default: those of the
	// stored secret, or else of its service, or else the name in capital letters.
	Variable string

	// Hosts restrict the hosts of the stored secret. If that has none, they are the hosts: HOST,
	// HOST:PORT or *.HOST. A bound secret without hosts is ErrInvalid.
	Hosts []string

	// Env gives the sandbox the value itself, in place of a placeholder, for programs that
	// use it for something else than HTTP. Everything in the sandbox can then read, keep and send
	// it, and Info.NotEnforced says so. Hosts must be empty. Changing the stored value does not
	// change the sandbox's.
	Env bool
}
