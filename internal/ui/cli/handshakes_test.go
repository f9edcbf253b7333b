package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"foldyard/internal/proof/doctor"
)

// A client family that would fail is named, and what a box says besides makes no row.
func TestClientRows(t *testing.T) {
	got := clientRows("decrypted ok openssl\ndecrypted fail node: self-signed certificate in certificate chain\nok clock\ndecrypted ok curl\ntunnelled ok curl\nhost fail x\n")
	want := []doctor.Row{
		{Name: "clients in a box", State: doctor.Fail, Detail: "node: self-signed certificate in certificate chain"},
		{Name: "clients in a box", State: doctor.OK, Detail: "verified by openssl, curl"},
		{Name: "tunnelled handshake", State: doctor.OK, Detail: "verified by curl"},
	}
	for i := range got {
		if (got[i].Fix == "") == (got[i].State == doctor.Fail) {
			t.Errorf("%+v: a fix is for what failed", got[i])
		}
		got[i].Fix = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := clientRows("sh: 1: nothing here\n"); len(got) != 1 || got[0].State != doctor.Warn {
		t.Errorf("no client: %+v, want a warning", got)
	}
}
