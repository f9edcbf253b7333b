package ca

import (
	"bytes"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const maxBundle = 8 << 20 // bytes of a system bundle

// systemFiles are where systems keep their roots as one PEM file.
func systemFiles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Arch, Gentoo
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
		"/etc/pki/tls/certs/ca-bundle.crt",                  // older Fedora, RHEL
		"/etc/ssl/ca-bundle.pem",                            // openSUSE
		"/etc/ssl/cert.pem",                                 // Alpine, macOS
	}
}

// SystemBundle returns this host's roots as PEM and the file they came from.
func SystemBundle() ([]byte, string, error) {
	return firstBundle(systemFiles())
}

func firstBundle(files []string) ([]byte, string, error) {
	for _, f := range files {
		fi, err := os.Stat(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, f, fmt.Errorf("read the system's roots: %w", err)
		}
		if fi.Size() > maxBundle {
			return nil, f, fmt.Errorf("read the system's roots: %s is too large", f)
		}
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, f, fmt.Errorf("read the system's roots: %w", err)
		}
		if len(Bundle(b)) > 0 {
			return b, f, nil
		}
	}
	return nil, "", errors.New("read the system's roots: no bundle found; install the system's ca-certificates")
}

// Bundle joins PEM texts into one that holds their certificates, each once,
// and nothing else: a key that stands beside a certificate stays out.
func Bundle(system []byte, extra ...[]byte) []byte {
	var out bytes.Buffer
	seen := make(map[[sha256.Size]byte]bool)
	for _, rest := range append([][]byte{system}, extra...) {
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			sum := sha256.Sum256(block.Bytes)
			if block.Type != "CERTIFICATE" || seen[sum] {
				continue
			}
			seen[sum] = true
			out.Write(encodeCert(block.Bytes))
		}
	}
	return out.Bytes()
}
