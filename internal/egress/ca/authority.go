// Package ca holds this computer's certificate authority, the leaves that it
// mints for intercepted hosts, and the trust bundles of a box. The key leaves
// this package only as a file of mode 0600 in the operator's own directory;
// leaves live in memory only. It dials nothing and knows no policy.
package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// CertFile and KeyFile are the names in the authority's directory. KeyFile
	// holds the certificate too: it is the one commit point of a creation, and
	// CertFile is written again from it when missing.
	CertFile = "ca.pem"
	KeyFile  = "ca-key.pem"

	backdate = 24 * time.Hour // for clocks that run behind
	caYears  = 5
	maxFile  = 64 << 10 // bytes of either file
)

// Authority is a certificate and its key. It is immutable.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	leaf *ecdsa.PrivateKey // shared by all leaves, never stored
	pem  []byte
}

// PEM returns the public certificate.
func (a *Authority) PEM() []byte { return bytes.Clone(a.pem) }

// Certificate returns the public certificate, which the caller must not change.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// LoadOrCreate loads the authority of dir or makes one if there is none. Any
// number of processes may do so at once: all get the same. Damaged or exposed
// files are an error that names the file, never replaced.
func LoadOrCreate(dir string, now time.Time) (*Authority, error) {
	a, err := Load(dir, now)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if _, err := os.Lstat(filepath.Join(dir, CertFile)); err == nil {
		if a, err := Load(dir, now); !errors.Is(err, fs.ErrNotExist) { // someone created both just now
			return a, err
		}
		return nil, fmt.Errorf("%s is there but its key %s is missing: restore it, or make a new authority with `fy ca rotate`",
			filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the CA directory: %w", err)
	}
	key, _, err := generate(now)
	if err != nil {
		return nil, err
	}
	tmp, err := writeTemp(dir, key, 0o600)
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp)
	// Link, unlike Rename, leaves the file of whoever came first.
	if err := os.Link(tmp, filepath.Join(dir, KeyFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create %s: %w", filepath.Join(dir, KeyFile), err)
	}
	if err := syncDir(dir); err != nil {
		return nil, err
	}
	return Load(dir, now)
}

// Load loads the authority of dir; the error is fs.ErrNotExist when there is
// no key file.
func Load(dir string, now time.Time) (*Authority, error) {
	keyPath, certPath := filepath.Join(dir, KeyFile), filepath.Join(dir, CertFile)
	b, err := readFile(keyPath, true)
	if err != nil {
		return nil, err
	}
	key, inner, err := parseKeyFile(b)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", keyPath, err)
	}
	b, err = readFile(certPath, false)
	if errors.Is(err, fs.ErrNotExist) && inner != nil {
		if b, err = inner, replace(certPath, inner, 0o644); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	cert, err := parseCert(b)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", certPath, err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s does not belong to the key in %s", certPath, keyPath)
	}
	if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return nil, fmt.Errorf("%s is valid from %s to %s and now it is %s: see to the clock or run `fy ca rotate`", certPath,
			cert.NotBefore.Format(time.DateOnly), cert.NotAfter.Format(time.DateOnly), now.Format(time.DateOnly))
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of leaves: %w", err)
	}
	return &Authority{cert: cert, key: key, leaf: leaf, pem: encodeCert(cert.Raw)}, nil
}

// Rotate makes a new authority in dir in place of what is there, whole or
// damaged. Boxes trust it from their next start.
func Rotate(dir string, now time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the CA directory: %w", err)
	}
	key, _, err := generate(now)
	if err != nil {
		return nil, err
	}
	// Without CertFile either key file stands for itself, so that a crash at
	// any point leaves the old authority or the new one.
	if err := os.Remove(filepath.Join(dir, CertFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("rotate the CA: %w", err)
	}
	if err := replace(filepath.Join(dir, KeyFile), key, 0o600); err != nil {
		return nil, err
	}
	return Load(dir, now)
}

// generate returns the content of a new key file and its certificate.
func generate(now time.Time) (keyFile, cert []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the CA key: %w", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the CA key: %w", err)
	}
	id := sha256.Sum256(pub)
	t := &x509.Certificate{
		// The name tells authorities apart: clients look issuers up by name.
		Subject:               pkix.Name{Organization: []string{"foldyard"}, CommonName: "foldyard CA " + hex.EncodeToString(id[:4])},
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.AddDate(caYears, 0, 0).UTC(),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		SubjectKeyId:          id[:20],
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the CA certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the CA key: %w", err)
	}
	cert = encodeCert(der)
	keyFile = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	return append(keyFile, cert...), cert, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// parseKeyFile returns the key and, if it is there, the certificate after it.
func parseKeyFile(b []byte) (*ecdsa.PrivateKey, []byte, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, nil, errors.New("it does not begin with a private key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, errors.New("the private key cannot be parsed") // the cause may quote key bytes
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, nil, errors.New("the private key is not on P-256")
	}
	if len(bytes.TrimSpace(rest)) == 0 {
		return key, nil, nil
	}
	cert, err := parseCert(rest)
	if err != nil {
		return nil, nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("the certificate in it belongs to another key")
	}
	return key, encodeCert(cert.Raw), nil
}

func parseCert(b []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) != 0 {
		return nil, errors.New("it does not hold exactly one certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate: %w", err)
	}
	if !cert.IsCA || !cert.BasicConstraintsValid || cert.KeyUsage&x509.KeyUsageCertSign == 0 || len(cert.SubjectKeyId) == 0 {
		return nil, errors.New("the certificate is not that of an authority")
	}
	return cert, nil
}

// readFile reads a small regular file; a secret one must be for its owner only.
func readFile(path string, secret bool) ([]byte, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	switch {
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case secret && fi.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s is open to others (mode %04o): the key may be known to them; run `fy ca rotate`", path, fi.Mode().Perm())
	case fi.Size() > maxFile:
		return nil, fmt.Errorf("%s is damaged: too large", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	return b, nil
}

func replace(path string, b []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	tmp, err := writeTemp(dir, b, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write the CA: %w", err)
	}
	return syncDir(dir)
}

// writeTemp writes and syncs a temporary file in dir and returns its path.
func writeTemp(dir string, b []byte, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(dir, ".ca-*") // mode 0600
	if err != nil {
		return "", fmt.Errorf("write the CA: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("write the CA: %w", err)
	}
	return f.Name(), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write the CA: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("write the CA: %w", err)
	}
	return nil
}
