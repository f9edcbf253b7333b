package inject

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"foldyard/internal/egress/http1"
	"foldyard/internal/egress/policy"
)

// The examples of AWS's own documentation: keys, requests and signatures.
const (
	exampleID     = "AKIAIOSFODNN7EXAMPLE"
	exampleSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	iamSecret     = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	boxID         = "AKIADUMMYDUMMYDUMMY0"
)

func awsBench(t *testing.T, secret string, at string, change ...func(*Rule)) *bench {
	t.Helper()
	r := Rule{Name: "aws", Kind: "aws-sigv4", Hosts: hosts("*.amazonaws.com", "*.aws.test"), Dummies: []string{boxID, "dummy-secret-access-key"}}
	r.UseAWS(fixed(secret), "", "")
	for _, f := range change {
		f(&r)
	}
	b := newBench(t, r)
	b.now = must(time.Parse(sigTime, at))
	return b
}

// signedAs is how a box signs with the dummy.
func signedAs(day, region, service, fields string) string {
	return "Authorization: AWS4-HMAC-SHA256 Credential=" + boxID + "/" + day + "/" + region + "/" + service + "/aws4_request,SignedHeaders=" + fields + ",Signature=" + strings.Repeat("0", 64)
}

func TestSigV4Examples(t *testing.T) {
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, c := range []struct{ name, secret, at, in, signature string }{
		{
			"s3 GET object", exampleID + ":" + exampleSecret, "20130524T000000Z",
			"GET https://examplebucket.s3.amazonaws.com/test.txt\nRange: bytes=0-9\nx-amz-content-sha256: " + empty + "\nx-amz-date: 20130524T000000Z\n" +
				signedAs("20130524", "us-east-1", "s3", "host;range;x-amz-content-sha256;x-amz-date"),
			"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
		},
		{
			"s3 PUT object", exampleID + ":" + exampleSecret, "20130524T000000Z",
			"PUT https://examplebucket.s3.amazonaws.com/test%24file.text\nDate: Fri, 24 May 2013 00:00:00 GMT\nx-amz-date: 20130524T000000Z\nx-amz-storage-class: REDUCED_REDUNDANCY\n" +
				"x-amz-content-sha256: 44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072\n" +
				signedAs("20130524", "us-east-1", "s3", "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class"),
			"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
		},
		{
			"s3 GET lifecycle", exampleID + ":" + exampleSecret, "20130524T000000Z",
			"GET https://examplebucket.s3.amazonaws.com/?lifecycle\nx-amz-date: 20130524T000000Z\nx-amz-content-sha256: " + empty + "\n" +
				signedAs("20130524", "us-east-1", "s3", "host;x-amz-content-sha256;x-amz-date"),
			"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
		},
		{
			"s3 list objects", exampleID + ":" + exampleSecret, "20130524T000000Z",
			"GET https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J\nx-amz-date: 20130524T000000Z\nx-amz-content-sha256: " + empty + "\n" +
				signedAs("20130524", "us-east-1", "s3", "host;x-amz-content-sha256;x-amz-date"),
			"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
		},
		{
			"iam ListUsers", `{"access_key_id":"AKIDEXAMPLE","secret_access_key":"` + iamSecret + `"}`, "20150830T123600Z",
			"GET https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08\nContent-Type: application/x-www-form-urlencoded; charset=utf-8\nX-Amz-Date: 20150830T123600Z\n" +
				signedAs("20150830", "us-east-1", "iam", "content-type;host;x-amz-date"),
			"5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
		},
	} {
		b := awsBench(t, c.secret, c.at)
		q := ask(c.in)
		g, r := b.Head(t.Context(), q)
		if r != nil {
			t.Errorf("%s: %+v", c.name, r)
			continue
		}
		auth := q.Header.Get("Authorization")
		if !strings.HasSuffix(auth, "Signature="+c.signature) {
			t.Errorf("%s: %s, want signature %s", c.name, auth, c.signature)
		}
		if strings.Contains(fields(q.Header), boxID) || g.Rule != "aws" {
			t.Errorf("%s: the dummy is still there: %s", c.name, fields(q.Header))
		}
	}
}

func TestSigV4Presigned(t *testing.T) {
	b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z")
	q := ask("GET https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + boxID +
		"%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=" + strings.Repeat("a", 64))
	g, r := b.Head(t.Context(), q)
	if r != nil {
		t.Fatalf("%+v", r)
	}
	_, query, _ := strings.Cut(g.Path, "?")
	v := must(url.ParseQuery(query))
	if strings.Contains(g.Path, boxID) || v.Get("X-Amz-Credential") != exampleID+"/20130524/us-east-1/s3/aws4_request" || len(v["X-Amz-Signature"]) != 1 {
		t.Errorf("path %s", g.Path)
	}
	if v.Get("X-Amz-Expires") != "300" {
		t.Errorf("lives %s s: what an echo shows would last", v.Get("X-Amz-Expires"))
	}
	// With the life of the documentation's example the signature is its.
	s := g.signing
	s.expires = 86400
	s.sign()
	if !strings.HasSuffix(g.Path, "X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404") {
		t.Errorf("path %s", g.Path)
	}
}

const (
	chunkBody = "10000;chunk-signature=%s\r\n%s\r\n400;chunk-signature=%s\r\n%s\r\n0;chunk-signature=%s\r\n\r\n"
)

func TestSigV4StreamingExample(t *testing.T) {
	b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z")
	q := ask("PUT https://s3.amazonaws.com/examplebucket/chunkObject.txt\nx-amz-date: 20130524T000000Z\nx-amz-storage-class: REDUCED_REDUNDANCY\n" +
		"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\nContent-Encoding: aws-chunked\nx-amz-decoded-content-length: 66560\n" +
		signedAs("20130524", "us-east-1", "s3", "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class"))
	q.Body, q.Length = true, 66824
	g, r := b.Head(t.Context(), q)
	if r != nil {
		t.Fatalf("%+v", r)
	}
	if !strings.HasSuffix(q.Header.Get("Authorization"), "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9") {
		t.Errorf("seed: %s", q.Header.Get("Authorization"))
	}
	big, small := strings.Repeat("a", 65536), strings.Repeat("a", 1024)
	boxSig := strings.Repeat("0", 64)
	in := fmt.Sprintf(chunkBody, boxSig, big, boxSig, small, boxSig)
	want := fmt.Sprintf(chunkBody,
		"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648", big,
		"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497", small,
		"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9")
	if !g.Reads() {
		t.Fatal("the body is not read")
	}
	got, err := io.ReadAll(g.Request(iotest.HalfReader(strings.NewReader(in))))
	if err != nil || string(got) != want {
		t.Errorf("signed chunks are wrong (%d bytes, want %d): %v", len(got), len(want), err)
	}
}

// The trailer of a stream is signed after its last chunk.
func TestSigV4StreamingTrailer(t *testing.T) {
	b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z")
	q := ask("PUT https://s3.amazonaws.com/examplebucket/chunkObject.txt\nx-amz-date: 20130524T000000Z\nx-amz-storage-class: REDUCED_REDUNDANCY\n" +
		"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\nContent-Encoding: aws-chunked\nx-amz-decoded-content-length: 66560\nx-amz-trailer: x-amz-checksum-crc32c\n" +
		signedAs("20130524", "us-east-1", "s3", "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer"))
	q.Body, q.Length = true, -1
	g, r := b.Head(t.Context(), q)
	if r != nil {
		t.Fatalf("%+v", r)
	}
	if !strings.HasSuffix(q.Header.Get("Authorization"), "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e") {
		t.Errorf("seed: %s", q.Header.Get("Authorization"))
	}
	big, small, boxSig := strings.Repeat("a", 65536), strings.Repeat("a", 1024), strings.Repeat("0", 64)
	body := "10000;chunk-signature=%s\r\n%s\r\n400;chunk-signature=%s\r\n%s\r\n0;chunk-signature=%s\r\nx-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:%s\r\n\r\n"
	want := fmt.Sprintf(body,
		"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2", big,
		"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7", small,
		"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
		"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435")
	got, err := io.ReadAll(g.Request(strings.NewReader(fmt.Sprintf(body, boxSig, big, boxSig, small, boxSig, boxSig))))
	if err != nil || string(got) != want {
		t.Errorf("%v: ends with %q", err, got[max(0, len(got)-300):])
	}
}

func TestChunkedBodiesThatAreNone(t *testing.T) {
	boxSig := strings.Repeat("0", 64)
	for name, body := range map[string]string{
		"no signature":         "5\r\nhello\r\n0\r\n\r\n",
		"size is no number":    "zz;chunk-signature=" + boxSig + "\r\n",
		"size is huge":         "ffffffff;chunk-signature=" + boxSig + "\r\n",
		"data does not end":    "5;chunk-signature=" + boxSig + "\r\nhelloX\r\n",
		"cut short":            "5;chunk-signature=" + boxSig + "\r\nhel",
		"bytes after":          "0;chunk-signature=" + boxSig + "\r\n\r\nmore",
		"trailer where none":   "0;chunk-signature=" + boxSig + "\r\nx-amz-a: b\r\n\r\n",
		"a line without end":   strings.Repeat("5", 70_000),
		"signature is no hash": "5;chunk-signature=" + strings.Repeat("x", 64) + "\r\nhello\r\n",
	} {
		b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z")
		q := ask("PUT https://s3.amazonaws.com/b/k\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\n" + signedAs("20130524", "us-east-1", "s3", "host;x-amz-content-sha256"))
		q.Body = true
		g, r := b.Head(t.Context(), q)
		if r != nil {
			t.Fatalf("%+v", r)
		}
		if _, err := io.ReadAll(g.Request(strings.NewReader(body))); err == nil {
			t.Errorf("%s: passed", name)
		}
	}
}

func TestSigV4HoldsABodyWhoseHashIsNotGiven(t *testing.T) {
	b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z")
	in := "POST https://dynamodb.us-east-1.amazonaws.com/\nContent-Type: application/x-amz-json-1.0\nX-Amz-Target: DynamoDB_20120810.ListTables\nX-Amz-Date: 20130524T000000Z\n" +
		signedAs("20130524", "us-east-1", "dynamodb", "content-type;host;x-amz-date;x-amz-target")
	sign := func(body string) string {
		q := ask(in)
		q.Body, q.Length = true, int64(len(body))
		g, r := b.Head(t.Context(), q)
		if r != nil {
			t.Fatalf("%+v", r)
		}
		if g.Holds() != MaxHeld || strings.Contains(q.Header.Get("Authorization"), "AWS4") {
			t.Errorf("holds %d; Authorization %q before the body", g.Holds(), q.Header.Get("Authorization"))
		}
		if r := g.Hold([]byte(body)); r != nil {
			t.Fatalf("%+v", r)
		}
		return q.Header.Get("Authorization")
	}
	one, two := sign(`{"Limit":1}`), sign(`{"Limit":2}`)
	if one == two || !strings.HasPrefix(one, "AWS4-HMAC-SHA256 Credential="+exampleID) {
		t.Errorf("%s\n%s", one, two)
	}
}

// The form of the query protocol may ask for a credential.
func TestSigV4FormsAreRead(t *testing.T) {
	b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z")
	for body, refused := range map[string]bool{
		"Action=GetCallerIdentity&Version=2011-06-15": false,
		"Action=AssumeRole&Version=2011-06-15":        true,
		"Version=2011-06-15&Act%69on=AssumeRole":      true,
		"action=assumerole":                           true,
	} {
		for _, hash := range []string{"", "\nX-Amz-Content-Sha256: " + hexSum([]byte(body))} {
			q := ask("POST https://sts.amazonaws.com/\nContent-Type: application/x-www-form-urlencoded" + hash + "\n" + signedAs("20130524", "us-east-1", "sts", "host"))
			q.Body, q.Length = true, int64(len(body))
			g, r := b.Head(t.Context(), q)
			if r != nil {
				t.Fatalf("%+v", r)
			}
			r = g.Hold([]byte(body))
			if (r != nil) != refused || r != nil && r.Reason != policy.ReasonCredentialIssuing {
				t.Errorf("%s: %+v", body, r)
			}
		}
	}
}

func TestSigV4SessionToken(t *testing.T) {
	b := awsBench(t, `{"Version":1,"AccessKeyId":"`+exampleID+`","SecretAccessKey":"`+exampleSecret+`","SessionToken":"session-token-0123456789","Expiration":"2013-05-24T01:00:00Z"}`, "20130524T000000Z")
	q := ask("GET https://s3.amazonaws.com/b/k\nx-amz-security-token: dummy-session\n" + signedAs("20130524", "us-east-1", "s3", "host;x-amz-security-token"))
	g, r := b.Head(t.Context(), q)
	if r != nil {
		t.Fatalf("%+v", r)
	}
	if got := q.Header.Get("X-Amz-Security-Token"); got != "session-token-0123456789" || !strings.Contains(q.Header.Get("Authorization"), "x-amz-security-token") {
		t.Errorf("token %q, %s", got, q.Header.Get("Authorization"))
	}
	h := &http1.Header{{Name: "Echo", Value: "session-token-0123456789 " + exampleSecret}}
	g.Header(H1{h})
	if strings.Trim(h.Get("Echo"), "* ") != "" {
		t.Errorf("shown: %q", h.Get("Echo"))
	}
}

func TestSigV4ShapesThatAreRefused(t *testing.T) {
	ok256 := strings.Repeat("0", 64)
	for name, line := range map[string]string{
		"another algorithm":   "Authorization: AWS4-ECDSA-P256-SHA256 Credential=" + boxID + "/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=" + ok256,
		"bearer":              "Authorization: Bearer abc",
		"no signature":        "Authorization: AWS4-HMAC-SHA256 Credential=" + boxID + "/20130524/us-east-1/s3/aws4_request, SignedHeaders=host",
		"short signature":     "Authorization: AWS4-HMAC-SHA256 Credential=" + boxID + "/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00",
		"another key":         "Authorization: AWS4-HMAC-SHA256 Credential=AKIAOTHER/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=" + ok256,
		"scope is none":       "Authorization: AWS4-HMAC-SHA256 Credential=" + boxID + "/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=" + ok256,
		"scope with a break":  "Authorization: AWS4-HMAC-SHA256 Credential=" + boxID + "/20130524/us-east-1/s3\\naws4/aws4_request, SignedHeaders=host, Signature=" + ok256,
		"host is not signed":  signedAs("20130524", "us-east-1", "s3", "x-amz-date"),
		"capitals":            signedAs("20130524", "us-east-1", "s3", "Host"),
		"unknown part":        signedAs("20130524", "us-east-1", "s3", "host") + ",Extra=1",
		"another region":      signedAs("20130524", "eu-west-1", "s3", "host"),
		"another service":     signedAs("20130524", "us-east-1", "ec2", "host"),
		"unknown body hash":   signedAs("20130524", "us-east-1", "s3", "host") + "\nX-Amz-Content-Sha256: STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
		"stream without body": signedAs("20130524", "us-east-1", "s3", "host") + "\nX-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
	} {
		b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z", func(r *Rule) { r.UseAWS(fixed(exampleID+":"+exampleSecret), "us-east-1", "s3") })
		if g, r := b.Head(t.Context(), ask("GET https://s3.amazonaws.com/b/k\n"+line)); r == nil || r.Reason != policy.ReasonCredentialOff {
			t.Errorf("%s: %+v, %+v", name, r, g)
		}
	}
	b := awsBench(t, exampleID+":"+exampleSecret, "20130524T000000Z")
	q := ask("GET https://s3.amazonaws.com/public/object")
	if g, r := b.Head(t.Context(), q); r != nil || g.Rule != "" || q.Header.Get("Authorization") != "" {
		t.Errorf("an unsigned request: %+v", r)
	}
}

func TestAWSKeysThatAreNone(t *testing.T) {
	for _, s := range []string{"", "x", ":x", "x:", "{", `{"access_key_id":"x"}`, `{"access_key_id":"x y","secret_access_key":"z"}`, `{"AccessKeyId":"x","SecretAccessKey":"y","Expiration":"soon"}`, "id:secret:tok en"} {
		if k, _, err := parseKeys(NewSecret([]byte(s))); err == nil {
			t.Errorf("%q: %v", s, k.id)
		} else if len(s) > 3 && strings.Contains(err.Error(), s) {
			t.Errorf("%q: the error holds it", s)
		}
	}
}

func FuzzChunkSignerKeepsTheData(f *testing.F) {
	f.Add([]byte("hello"), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		var in bytes.Buffer
		size := int(step)%64 + 1
		for rest := data; len(rest) > 0; {
			n := min(size, len(rest))
			fmt.Fprintf(&in, "%x;chunk-signature=%s\r\n%s\r\n", n, strings.Repeat("0", 64), rest[:n])
			rest = rest[n:]
		}
		fmt.Fprintf(&in, "0;chunk-signature=%s\r\n\r\n", strings.Repeat("0", 64))
		c := &chunkSigner{key: []byte("k"), stamp: "s", scope: "c", previous: "p", fail: func(why string) error { return fmt.Errorf("%s", why) }}
		want := in.Len()
		got, err := io.ReadAll(c.over(&in))
		if err != nil || len(got) != want {
			t.Fatalf("%d bytes, want %d: %v", len(got), want, err)
		}
		var back []byte
		for rest := got; ; {
			line, after, _ := bytes.Cut(rest, []byte("\r\n"))
			var n int
			_, _ = fmt.Sscanf(string(line), "%x;", &n)
			if n == 0 {
				break
			}
			back, rest = append(back, after[:n]...), after[n+2:]
		}
		if !bytes.Equal(back, data) {
			t.Fatalf("data changed")
		}
	})
}
