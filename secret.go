package sandpit

// Secret is a credential that a sandbox may use. The server stores its value under a name, or it is
// the sandbox's own.
//
// The sandbox does not get the value. Its environment has a placeholder, and the value replaces
// the placeholder in requests to the hosts of the secret. These hosts may be reached over HTTPS
// without a rule of Egress.
type Secret struct {
	// Name is the name of the secret. Without a Value it is that of a stored one, of which a namespace's own secret is preferred to one of
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

	// Value is the value of a secret that is the sandbox's own: no stored one has to do with it, and
	// it goes with the sandbox. Its hosts are Hosts, or else those of the service that has its Name;
	// without both it is ErrInvalid, unless Env is set. A value is text of up to 64 KiB. Nothing
	// that describes the sandbox contains it.
	Value string `json:"-"`
}

// SecretUse describes a secret that a sandbox uses, without its value.
type SecretUse struct {
	Name string

	// Hosts are rules, as of Egress, of the hosts to which the value goes now. There are none if the
	// stored secret was removed, or with Env.
	Hosts []string

	Env bool // the sandbox has the value itself
}
