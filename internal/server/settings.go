package server

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/yamldoc"
)

// SettingsFile is the default file of settings.
const SettingsFile = "/etc/sandpit/server.yaml"

// Settings are the operator's settings of a server. The zero Settings listen only on the
// data directory's socket.
type Settings struct {
	Listen []Listen // addresses in addition to the data directory's socket
	Cert   string   // PEM file of the certificate chain
	Key    string   // PEM file of its key

	// PlainHTTP allows addresses beyond loopback without TLS.
	PlainHTTP bool

	// Domain is the domain of the ports of sandboxes: <port>-<id>.Domain. Empty: ports are
	// reached only by headers.
	Domain string

	// Hosts are host names that clients may use, in addition to the server's addresses.
	Hosts []string

	// Origins are the origins of web pages that may use the server. None by default.
	Origins []string

	// PolicyFile has the policies. Empty: policy.yaml in the data directory if it exists,
	// or the built-in policies.
	PolicyFile string

	// Memory (in bytes), CPUs and Sandboxes bound the capacity of all sandboxes together:
	// the sum of their limits, and their number. 0 means twice the machine's memory, any
	// number of CPUs, which are shared fairly, and 1,000. Few sandboxes use up their
	// limits. If memory runs out, the kernel kills processes of sandboxes before others.
	Memory    int64
	CPUs      float64
	Sandboxes int

	// Connections bounds connections: a quarter without a valid key, half with one (a
	// quarter of that for one namespace), and a quarter at unix sockets. 0: 8,192, or a
	// quarter of the descriptors that the server may have, if that is less.
	Connections int

	// ConnectionsPerAddress bounds connections without a valid key from one IPv4 address
	// or one IPv6 network of 64 bits. 0: half of all such connections.
	ConnectionsPerAddress int

	// KeptMemory bounds, in bytes, what requests leave behind in the server's memory: data
	// about sandboxes, processes (also ended ones) and events, and the latest output. A
	// namespace may have a quarter of it. 0: an eighth of the machine's memory, from 512
	// MiB to 16 GiB.
	KeptMemory int64

	// Logs and LogsPerNamespace bound the logs of sandboxes on the disk, in bytes.
	// 0: 4 GiB and 1 GiB.
	Logs, LogsPerNamespace int64

	// IdleExit is the time without sandboxes, connections and requests after which the
	// server exits. 0: not set, which means never unless a command starts the server;
	// negative: never.
	IdleExit time.Duration

	// SyncAudit syncs each audit entry to disk before its request proceeds. Otherwise an
	// entry is in the file, which outlives the server, and on the disk within a second: a
	// power cut may lose the latest.
	SyncAudit bool

	// AuditSize is the approximate size of the audit in bytes, and AuditTime the least
	// time in which one key can fill it. 0: 4 GiB, 7 days.
	AuditSize int64
	AuditTime time.Duration

	// Upstream is how connections of sandboxes, and pulls of images, leave this machine.
	Upstream Upstream

	// DNS are name servers for sandboxes that name none. None: this machine's.
	DNS []netip.AddrPort

	// PrivateWebhooks allows webhooks to addresses that are not public.
	PrivateWebhooks bool

	// SecretKey says where the key is with which secrets are encrypted in the state: in a file of the data
	// directory, or in the keyring of the server's user. "": KeyInFile.
	SecretKey string

	// Services are services for secrets, in addition to the built-in ones, or in place of those
	// of the same name.
	Services []secret.Service

	// Secrets are secrets of the server whose values are elsewhere. They are read when the server
	// starts, and not stored.
	Secrets []ConfiguredSecret
}

// Upstream is how connections leave this machine. See package upstream.
type Upstream struct {
	Proxy, NoProxy string
	CABundle       string // file
}

// Values of Settings.SecretKey.
const (
	KeyInFile    = "file"
	KeyInKeyring = "keyring"
)

// ConfiguredSecret is a secret of the server that stands in its settings.
type ConfiguredSecret struct {
	Name      string
	Service   string // default: the service with the name, if there are neither hosts nor variables
	Hosts     []string
	Variables []string
	From      string // env:NAME, file:PATH or cmd:COMMAND
}

// maxSettings bounds the file, in bytes.
const maxSettings = 1 << 20

// maxCount bounds the numbers in it.
const maxCount = 1_000_000

// ReadSettings reads a file of settings. Unless asked is set, the file may be missing. The
// error names the file and line, and matches sandpit.ErrInvalid.
func ReadSettings(file string, asked bool) (Settings, error) {
	s, err := readSettings(file)
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, fs.ErrNotExist) && !asked:
		return Settings{}, nil
	case errors.Is(err, fs.ErrNotExist):
		err = sandpit.WithHint(err, "create it, or correct --config")
	case sandpit.Hint(err) == "":
		err = sandpit.WithHint(err, "see 'sandpit help serve'")
	}
	return Settings{}, fmt.Errorf("reading the server's settings: %w", err)
}

func readSettings(file string) (s Settings, err error) {
	f, err := os.Open(file)
	if err != nil {
		return s, err
	}
	defer f.Close()
	// A relative path starts at the directory of the file.
	path := func(name string) (string, error) {
		if name == "" || filepath.IsAbs(name) {
			return name, nil
		}
		return filepath.Join(filepath.Dir(file), name), nil
	}
	err = yamldoc.Decode(file, f, maxSettings, yamldoc.Mapping(map[string]func(yamldoc.Value) error{
		"listen":                  s.readListen,
		"tls-cert":                yamldoc.Parse(&s.Cert, path),
		"tls-key":                 yamldoc.Parse(&s.Key, path),
		"plain-http":              yamldoc.Parse(&s.PlainHTTP, yamldoc.Bool),
		"domain":                  yamldoc.Parse(&s.Domain, hostName),
		"hosts":                   yamldoc.List(&s.Hosts, hostOrAddress),
		"origins":                 yamldoc.List(&s.Origins, origin),
		"policy":                  yamldoc.Parse(&s.PolicyFile, path),
		"memory":                  yamldoc.Parse(&s.Memory, notation.ParseSize),
		"kept-memory":             yamldoc.Parse(&s.KeptMemory, notation.ParseSize),
		"cpus":                    yamldoc.Parse(&s.CPUs, notation.ParseCPUs),
		"sandboxes":               yamldoc.Parse(&s.Sandboxes, yamldoc.Int(1, maxCount)),
		"connections":             yamldoc.Parse(&s.Connections, yamldoc.Int(minConnections, maxCount)),
		"connections-per-address": yamldoc.Parse(&s.ConnectionsPerAddress, yamldoc.Int(1, maxCount)),
		"logs":                    yamldoc.Parse(&s.Logs, notation.ParseSize),
		"logs-per-namespace":      yamldoc.Parse(&s.LogsPerNamespace, notation.ParseSize),
		"idle-exit":               yamldoc.Parse(&s.IdleExit, idleExit),
		"secret-key":              yamldoc.Parse(&s.SecretKey, keyPlace),
		"sync-audit":              yamldoc.Parse(&s.SyncAudit, yamldoc.Bool),
		"audit-size":              yamldoc.Parse(&s.AuditSize, notation.ParseSize),
		"audit-time":              yamldoc.Parse(&s.AuditTime, notation.ParseDuration),
		"upstream-proxy":          yamldoc.Parse(&s.Upstream.Proxy, yamldoc.String),
		"no-proxy":                s.readNoProxy,
		"ca-bundle":               yamldoc.Parse(&s.Upstream.CABundle, path),
		"dns":                     yamldoc.List(&s.DNS, nameServer),
		"private-webhooks":        yamldoc.Parse(&s.PrivateWebhooks, yamldoc.Bool),
		"services":                s.readServices,
		"secrets":                 s.readSecrets,
	}))
	if err != nil {
		return s, err
	}
	if err := s.check(); err != nil {
		return s, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

func idleExit(text string) (time.Duration, error) {
	if text == "never" {
		return -1, nil
	}
	return notation.ParseDuration(text)
}

// hostName reads a domain name.
func hostName(s string) (string, error) {
	if !domainName().MatchString(s) || len(s) > 253 {
		return "", sandpit.WithHint(fmt.Errorf("%.100q is not a domain name", s), "write it as sandpit.example, without a port")
	}
	return s, nil
}

// domainName has the form of names in the DNS. Some in use have underscores.
var domainName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.?$`)
})

// hostOrAddress reads a domain name or an IP address, with or without a port.
func hostOrAddress(s string) (string, error) {
	name := gate.HostName(s)
	if _, err := netip.ParseAddr(name); err == nil {
		return s, nil
	}
	_, err := hostName(name)
	return s, err
}

// origin reads the origin of a web page and returns it as browsers send it: in lower case,
// without the default port, with the shortest form of addresses and ports (URL Standard,
// 3.5 and 4.7). Origins of schemes other than http and https are returned unchanged.
func origin(s string) (string, error) {
	bad := sandpit.WithHint(fmt.Errorf("%.100q is not an origin", s), "write it as https://sandpit.example or http://localhost:3000; names that are not ASCII begin with xn--")
	scheme, rest, _ := strings.Cut(s, "://")
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Host != rest || u.Scheme != strings.ToLower(scheme) {
		return "", bad
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return s, nil
	}
	host := strings.ToLower(u.Hostname())
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" {
		host = ip.String()
		if ip.Is6() {
			host = "[" + host + "]"
		}
	} else if _, err := hostName(host); err != nil {
		return "", bad
	}
	text := u.Port()
	if text == "" {
		return u.Scheme + "://" + host, nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil:
		return "", bad
	case port == 80 && u.Scheme == "http" || port == 443 && u.Scheme == "https":
		return u.Scheme + "://" + host, nil
	}
	return fmt.Sprintf("%s://%s:%d", u.Scheme, host, port), nil
}

// readListen reads a list of addresses. Each is a text, or a mapping that names the
// service, too.
func (s *Settings) readListen(v yamldoc.Value) error {
	items, err := v.Items()
	if err != nil {
		return err
	}
	for _, item := range items {
		var l Listen
		read := yamldoc.Parse(&l.Address, ParseAddress)
		if item.IsMapping() {
			read = yamldoc.Mapping(map[string]func(yamldoc.Value) error{"address": read, "service": yamldoc.Parse(&l.Service, yamldoc.String)})
		}
		if err := read(item); err != nil {
			return err
		}
		if l.Network == "" {
			return item.Fail(errors.New("it has no address"))
		}
		s.Listen = append(s.Listen, l)
	}
	return nil
}

// readNoProxy reads a list of hosts, or a text in which commas separate them.
func (s *Settings) readNoProxy(v yamldoc.Value) error {
	if !v.IsList() {
		return yamldoc.Parse(&s.Upstream.NoProxy, yamldoc.String)(v)
	}
	var hosts []string
	err := yamldoc.List(&hosts, yamldoc.String)(v)
	s.Upstream.NoProxy = strings.Join(hosts, ",")
	return err
}

// nameServer reads ADDRESS or ADDRESS:PORT.
func nameServer(text string) (netip.AddrPort, error) {
	servers, err := egress.Servers([]string{text})
	if err != nil {
		return netip.AddrPort{}, err
	}
	return servers[0], nil
}

// keyPlace checks a value of secret-key.
func keyPlace(text string) (string, error) {
	if text != KeyInFile && text != KeyInKeyring {
		return "", errors.New("it must be " + KeyInFile + " or " + KeyInKeyring)
	}
	return text, nil
}

// readServices reads a list of services for secrets.
func (s *Settings) readServices(v yamldoc.Value) error {
	items, err := v.Items()
	if err != nil {
		return err
	}
	for _, item := range items {
		var x secret.Service
		err := yamldoc.Mapping(map[string]func(yamldoc.Value) error{
			"name":      yamldoc.Parse(&x.Name, yamldoc.String),
			"variables": yamldoc.List(&x.Variables, yamldoc.String),
			"hosts":     yamldoc.List(&x.Hosts, yamldoc.String),
			"header":    yamldoc.Parse(&x.Header, yamldoc.String),
			"prefix":    yamldoc.Parse(&x.Prefix, yamldoc.String),
			"query":     yamldoc.Parse(&x.Query, yamldoc.Bool),
			"oauth": func(v yamldoc.Value) error {
				x.OAuth = &secret.OAuth{}
				return yamldoc.Mapping(map[string]func(yamldoc.Value) error{
					"authorize": yamldoc.Parse(&x.OAuth.Authorize, yamldoc.String),
					"token":     yamldoc.Parse(&x.OAuth.Token, yamldoc.String),
					"device":    yamldoc.Parse(&x.OAuth.Device, yamldoc.String),
					"client_id": yamldoc.Parse(&x.OAuth.ClientID, yamldoc.String),
					"scopes":    yamldoc.List(&x.OAuth.Scopes, yamldoc.String),
				})(v)
			},
		})(item)
		if err != nil {
			return err
		}
		if _, err := secret.BuiltIn().With(x); err != nil {
			return item.Fail(err)
		}
		s.Services = append(s.Services, x)
	}
	return nil
}

// readSecrets reads a list of secrets, without their values.
func (s *Settings) readSecrets(v yamldoc.Value) error {
	items, err := v.Items()
	if err != nil {
		return err
	}
	for _, item := range items {
		var x ConfiguredSecret
		err := yamldoc.Mapping(map[string]func(yamldoc.Value) error{
			"name":      yamldoc.Parse(&x.Name, yamldoc.String),
			"service":   yamldoc.Parse(&x.Service, yamldoc.String),
			"hosts":     yamldoc.List(&x.Hosts, yamldoc.String),
			"variables": yamldoc.List(&x.Variables, yamldoc.String),
			"from":      yamldoc.Parse(&x.From, yamldoc.String),
		})(item)
		if err != nil {
			return err
		}
		s.Secrets = append(s.Secrets, x)
	}
	return nil
}

// check refuses settings that contradict each other.
func (s Settings) check() error {
	if (s.Cert == "") != (s.Key == "") {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "tls-cert or tls-key is missing"), "set both tls-cert and tls-key")
	}
	if s.Logs != 0 && s.LogsPerNamespace > s.Logs {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "logs-per-namespace: %s is more than logs, %s", notation.FormatSize(s.LogsPerNamespace), notation.FormatSize(s.Logs)), "set more for logs, or less for logs-per-namespace")
	}
	if s.AuditSize != 0 && s.AuditSize < minAudit {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "audit-size: %s is too small", notation.FormatSize(s.AuditSize)), "set at least "+notation.FormatSize(minAudit))
	}
	if s.KeptMemory != 0 && s.KeptMemory < minKept {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "kept-memory: %s is less than a server needs", notation.FormatSize(s.KeptMemory)), "set at least "+notation.FormatSize(minKept))
	}
	for i, a := range s.Listen {
		same := func(b Listen) bool { return a.Address == b.Address && !strings.HasSuffix(a.Host, ":0") }
		if j := slices.IndexFunc(s.Listen[:i], same); j >= 0 {
			first, second := s.Listen[j].service(), a.service()
			if first == second {
				return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "listening on %s is asked for twice", a), "omit one of them")
			}
			return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "%s and %s can't be served on the same address, %s", first, second, a), "give each an address of its own, such as another port")
		}
		if a.Network == "tcp" && s.Cert == "" && !a.Loopback() && !s.PlainHTTP {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "listening on %s without TLS would send keys unencrypted", a),
				"set tls-cert and tls-key, or plain-http behind a proxy that provides TLS")
		}
	}
	return nil
}

// defaultMemory is the default memory capacity as a multiple of the machine's memory.
const defaultMemory = 2

// defaultSandboxes is the default maximum number of sandboxes.
const defaultSandboxes = 1000

// minAudit is the least size of the audit, in bytes.
const minAudit = audit.Files << 20

// auditOptions returns the options of the audit.
func (s *Settings) auditOptions() audit.Options {
	opt := audit.Sized(cmp.Or(s.AuditSize, audit.DefaultSize))
	opt.Relaxed = !s.SyncAudit
	return opt
}

// limits returns the bounds of the API.
func (s *Settings) limits() gate.Limits {
	var l gate.Limits
	l.Audit, l.Strangers = gate.AuditShares(cmp.Or(s.AuditSize, audit.DefaultSize), cmp.Or(s.AuditTime, gate.DefaultAuditTime))
	return l
}

// filesOfSandbox is the number of descriptors that the server needs for a sandbox, with
// some to spare.
const filesOfSandbox = 8

// Bounds of Settings.KeptMemory, in bytes: what may be set, and between which the
// default is.
const (
	minKept        = 64 << 20
	minDefaultKept = 512 << 20
	maxDefaultKept = 16 << 30
)

// fillCapacity sets the defaults for a machine with the given memory and a server with the
// given number of descriptors.
func (s *Settings) fillCapacity(machineMemory int64, files int) {
	if s.Connections == 0 {
		s.Connections = max(minConnections, min(maxConnections, files/4))
	}
	if s.ConnectionsPerAddress == 0 {
		s.ConnectionsPerAddress = s.Connections / 8
	}
	if s.KeptMemory == 0 {
		s.KeptMemory = min(max(machineMemory/8, minDefaultKept), maxDefaultKept)
	}
	if s.Memory == 0 {
		s.Memory = defaultMemory * machineMemory
	}
	if s.Sandboxes == 0 {
		s.Sandboxes = max(1, min(defaultSandboxes, (files-s.Connections-reservedFiles(files))/filesOfSandbox))
	}
}
