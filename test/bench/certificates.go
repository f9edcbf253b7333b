package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"time"
)

// certificates are a CA of the measurement's own and its origin's leaf, in DER.
type certificates struct {
	CA, CAKey, Leaf, LeafKey []byte
}

// issuer is the CA, with one key for all its leaves.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	own  *ecdsa.PrivateKey
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func template(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
	}, nil
}

func newCertificates(names ...string) (certificates, error) {
	var c certificates
	key, err := newKey()
	if err != nil {
		return c, err
	}
	t, err := template("bench")
	if err != nil {
		return c, err
	}
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	if c.CA, err = x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key); err != nil {
		return c, err
	}
	if c.CAKey, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return c, err
	}
	i, err := c.authority()
	if err != nil {
		return c, err
	}
	leaf, err := i.leaf(names...)
	if err != nil {
		return c, err
	}
	c.Leaf = leaf.Certificate[0]
	c.LeafKey, err = x509.MarshalPKCS8PrivateKey(i.own)
	return c, err
}

func (c certificates) authority() (*issuer, error) {
	cert, err := x509.ParseCertificate(c.CA)
	if err != nil {
		return nil, err
	}
	key, err := privateKey(c.CAKey)
	if err != nil {
		return nil, err
	}
	own, err := newKey()
	return &issuer{cert, key, own}, err
}

func privateKey(der []byte) (*ecdsa.PrivateKey, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("not an ECDSA key")
	}
	return key, nil
}

func (i *issuer) leaf(names ...string) (*tls.Certificate, error) {
	t, err := template(names[0])
	if err != nil {
		return nil, err
	}
	t.DNSNames, t.KeyUsage, t.ExtKeyUsage = names, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, i.cert, &i.own.PublicKey, i.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: i.own}, nil
}

func (c certificates) pair() (tls.Certificate, error) {
	key, err := privateKey(c.LeafKey)
	return tls.Certificate{Certificate: [][]byte{c.Leaf}, PrivateKey: key}, err
}

func (c certificates) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.CA})
}
