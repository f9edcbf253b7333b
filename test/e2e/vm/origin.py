# origin.py CERT KEY SEEN: the world. It answers DNS (every name is 93.184.216.34), HTTP and TLS at every address, and
# appends what reached it to SEEN.
# origin.py loop SEEN: a service of the host's own, on port 4999 of its loopback. It appends "loop" to SEEN when something connects.
import os, socket, ssl, struct, sys, threading

seen = sys.argv[-1]
lock = threading.Lock()

def note(what):
    with lock, open(seen, "a") as f:
        f.write(what + "\n")

def udp(port, at="::"):
    s = socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if ":" in at:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind((at, port))
    while True:
        b, peer = s.recvfrom(2048)
        note("udp %d" % port)
        if port != 53 or len(b) < 17:
            s.sendto(b"here", peer)
            continue
        q = b[12:b.index(b"\0", 12) + 5]
        kind = struct.unpack("!H", q[-4:-2])[0]
        head = b[:2] + b"\x81\x80\0\1" + (b"\0\1" if kind == 1 else b"\0\0") + b"\0\0\0\0"
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes([93, 184, 216, 34]) if kind == 1 else b""
        s.sendto(head + q + answer, peer)

def serve(c, port):
    try:
        c.settimeout(20)
        at = c.getsockname()[0]
        note("tcp %d %s" % (port, at))
        if port == 443:
            ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ctx.load_cert_chain(cert, key)
            c = ctx.wrap_socket(c, server_side=True)
        b = b""
        while b"\r\n\r\n" not in b:
            more = c.recv(4096)
            if not more:
                return
            b += more
        line = b.split(b"\r\n")[0].decode("latin-1")
        note("http %s %s" % (port, line))
        if line.startswith("GET /big "):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (64 << 20))
            for _ in range(256):
                c.sendall(bytes(256 << 10))
            return
        headers = b"proxy headers leaked\n" if b"proxy-auth" in b.lower() else b""
        body = b"origin speaks\n" + headers
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
    except OSError:
        pass
    finally:
        c.close()

def tcp(port):
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("::", port))
    s.listen(64)
    while True:
        c, _ = s.accept()
        threading.Thread(target=serve, args=(c, port), daemon=True).start()

def loop(at):
    s = socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((at, 4999))
    s.listen(64)
    while True:
        c, _ = s.accept()
        note("loop " + at)
        c.close()

open(seen, "a").close()
os.chmod(seen, 0o666)
if sys.argv[1] == "loop":
    threading.Thread(target=loop, args=("::1",)).start()
    loop("127.0.0.1")
cert, key = sys.argv[1:3]
threads = [threading.Thread(target=udp, args=a) for a in ((53, "93.184.216.34"), (53,), (443,))] + [threading.Thread(target=tcp, args=(p,)) for p in (22, 53, 80, 443, 853)]
for t in threads:
    t.start()
