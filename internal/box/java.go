package box

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the format's own checksum; it guards nothing here
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"strconv"
)

// javaPassword is the checksum's key in a JKS file, by custom this one. The
// store holds public certificates only.
const javaPassword = "changeit"

// JavaTrustStore returns the certificates of a PEM bundle as a JKS trust store,
// which every JVM since 1.2 reads. What is no certificate is left out: one
// would make Java refuse all.
func JavaTrustStore(bundle []byte) []byte {
	var entries bytes.Buffer
	n := uint32(0)
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			continue
		}
		n++
		entries.Write(be32(2)) // trusted certificate
		writeUTF(&entries, "root"+strconv.FormatUint(uint64(n), 10))
		entries.Write(make([]byte, 8)) // created: the epoch, so that equal bundles give equal files
		writeUTF(&entries, "X.509")
		entries.Write(be32(uint32(len(block.Bytes))))
		entries.Write(block.Bytes)
	}
	var out bytes.Buffer
	out.Write(be32(0xfeedfeed))
	out.Write(be32(2)) // version
	out.Write(be32(n))
	out.Write(entries.Bytes())

	sum := sha1.New() //nolint:gosec // as above
	for _, c := range []byte(javaPassword) {
		sum.Write([]byte{0, c}) // UTF-16
	}
	sum.Write([]byte("Mighty Aphrodite"))
	sum.Write(out.Bytes())
	return sum.Sum(out.Bytes())
}

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func writeUTF(b *bytes.Buffer, s string) {
	b.Write(binary.BigEndian.AppendUint16(nil, uint16(len(s))))
	b.WriteString(s)
}
