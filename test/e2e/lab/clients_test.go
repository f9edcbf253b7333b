//go:build e2e

package lab

import (
	"os"
	"strings"
	"testing"

	"foldyard/internal/testkit"
)

func TestCurl(t *testing.T) {
	need(t, "curl")
	each(t, func(t *testing.T, o *testkit.Operator) {
		out, granted := o.Run(t, shell(`
			for v in --http1.1 --http2; do curl -fsS $v https://web.test/hello; done
			curl -fsS http://web.test/hello
			env -i curl -fsS https://web.test/hello && echo trusted without variables
			curl -fsS --http2-prior-knowledge http://web.test/hello
			head -c 3000000 /dev/zero >big
			curl -fsS -H 'Expect: 100-continue' --data-binary @big https://web.test/echo | cmp - big && echo upload whole
			curl -sS -N --max-time 3 https://web.test/events | head -n 5 | tail -n 1`)...)
		want(t, out, "hello over HTTP/1.1", "hello over HTTP/2.0", "upload whole", "trusted without variables", "data: event 2")
		only(t, granted, "web.test")
		want(t, o.Must(t, "log", "--json"), `"proto":"h2"`, `"via":"redirect"`, `"mode":"decrypted"`, `"host":"web.test"`)
	})
}

// However fast a box goes on its refusal, the summary names the fix.
func TestSummaryMissesNothing(t *testing.T) {
	need(t, "curl")
	each(t, func(t *testing.T, o *testkit.Operator) {
		for i := range 20 {
			r := o.FY(t.Context(), "run", "--", "curl", "-s", "-o", "/dev/null", "http://web.test/hello")
			if !strings.Contains(r.Stderr, "fy allow web.test") {
				t.Fatalf("run %d: the summary does not name the fix: %v", i, r)
			}
		}
	})
}

func TestPython(t *testing.T) {
	need(t, "python3")
	each(t, func(t *testing.T, o *testkit.Operator) {
		out, _ := o.Run(t, "python3", "-c", `
import urllib.request
print(urllib.request.urlopen("https://web.test/hello").read().decode())
print(len(urllib.request.urlopen("https://web.test/echo", data=b"x" * 1000000).read()), "bytes back")`)
		want(t, out, "hello over HTTP/1.1", "1000000 bytes back")
	})
}

func TestNode(t *testing.T) {
	need(t, "node")
	each(t, func(t *testing.T, o *testkit.Operator) {
		o.Write(t, "repo/client.mjs", 0o644, []byte(`
async function get(url, more) {
  const r = await fetch(url, more);
  if (!r.ok) throw new Error(await r.text());
  return r.text();
}
console.log(await get("https://web.test/hello"));
console.log((await get("https://web.test/echo", {method: "POST", body: "x".repeat(1000000)})).length, "characters back");
if (globalThis.WebSocket) {
  const s = new WebSocket("wss://web.test/ws");
  await new Promise((ok, no) => {
    s.onopen = () => s.send("ping");
    s.onmessage = m => { console.log("socket", m.data); s.close(); ok() };
    s.onerror = e => no(new Error("socket: " + e.message));
  });
} else console.log("no WebSocket");
`))
		out, _ := o.Run(t, shell(`
			flag=--experimental-websocket
			node $flag -e 0 2>/dev/null || flag=
			node $flag client.mjs`)...)
		want(t, out, "hello over HTTP/1.1", "1000000 characters back")
		if strings.Contains(out, "no WebSocket") {
			skips.Skip(t, "the rest passed, but this Node has no WebSocket")
		}
		want(t, out, "socket ping")
	})
}

func TestJava(t *testing.T) {
	need(t, "java", "javac")
	each(t, func(t *testing.T, o *testkit.Operator) {
		o.Write(t, "repo/Client.java", 0o644, []byte(`
import java.net.URI;
import java.net.http.*;
public class Client {
  public static void main(String[] args) throws Exception {
    for (HttpClient.Version v : HttpClient.Version.values()) {
      HttpResponse<String> r = HttpClient.newBuilder().version(v).build().send(
        HttpRequest.newBuilder(URI.create("https://web.test/hello")).build(), HttpResponse.BodyHandlers.ofString());
      System.out.println(r.version() + " " + r.statusCode() + " " + r.body());
      if (r.statusCode() != 200) System.exit(1);
    }
  }
}
`))
		out, _ := o.Run(t, "java", "Client.java")
		want(t, out, "HTTP_1_1 200 hello", "HTTP_2 200 hello over HTTP/2.0")
	})
}

// A real gRPC client: unary, and a stream in which each message waits for the
// echo of the one before.
func TestGRPC(t *testing.T) {
	client, err := os.ReadFile(os.Getenv("FY_GRPC_CLIENT"))
	if err != nil {
		skips.Skip(t, "no gRPC client was built: its modules could not be had")
	}
	each(t, func(t *testing.T, o *testkit.Operator) {
		o.Write(t, "repo/grpcclient", 0o755, client)
		out, granted := o.Run(t, "./grpcclient", "grpc.test:443")
		want(t, out, "unary ok", "stream ok: 20 messages")
		only(t, granted, "grpc.test")
		want(t, o.Must(t, "log", "--json"), `"proto":"grpc"`)
	})
}

func TestBrowser(t *testing.T) {
	need(t, "chromium", "certutil", "curl") // chromium itself is a script that wants more of /etc
	each(t, func(t *testing.T, o *testkit.Operator) {
		// A browser asks for a sandbox of its own, and trusts what its user's
		// database trusts.
		o.Write(t, "repo/foldyard.toml", 0o644, []byte("[project]\nname = \"browser\"\n[box]\nnested = true\n"))
		o.Must(t, "config", "adopt")
		out, granted := o.Run(t, shell(`
			curl -fsS https://web.test/hello
			mkdir -p ~/.pki/nssdb
			certutil -d sql:$HOME/.pki/nssdb -N --empty-password
			certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n box -i /etc/foldyard/ca.pem
			/usr/lib/chromium/chromium --headless=new --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync \
			  --remote-debugging-port=0 https://web.test/page#$FY_BOX >browser.log 2>&1 &
			for i in $(seq 60); do
			  curl -fs https://web.test/result/$FY_BOX && exit
			  sleep 0.5
			done
			tail -n 20 browser.log
			exit 1`)...)
		want(t, out, "h2, event 2, socket ping")
		only(t, granted, "web.test")
	})
}
