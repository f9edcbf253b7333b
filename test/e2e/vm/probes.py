# probes.py plan PROXY: tries for fy's probe verb, from a place in the machine that `fy verify` does not start from.
# probes.py judge WANT: reads what the verb wrote. WANT is "held": the control arrived and nothing else did; or "open": the
# control arrived, and so did the world and the host's loopback, over IPv6 too.
import json, sys

HOST, PORT = "192.168.5.2", 4999  # a listener of the lab's own, on the loopback of the host

def plan(proxy):
    tries = [{"id": "control", "kind": "proxied", "target": proxy, "name": "control.foldyard.internal", "nonce": "e2e"}]
    for id, kind, target in [
        ("world-443", "tcp", "1.1.1.1:443"), ("world-80", "tcp", "1.1.1.1:80"), ("world-22", "tcp", "1.1.1.1:22"),
        ("world-v6", "tcp", "[2606:4700:4700::1111]:443"), ("world-quic", "udp", "1.1.1.1:443"), ("world-ping", "icmp", "1.1.1.1"),
        ("host-loopback", "tcp", "%s:%d" % (HOST, PORT)), ("resolver-443", "tcp", "192.168.5.3:443"), ("host-dhcp", "udp", HOST + ":67"),
        ("link-local-host", "tcp", "[fe80::2%%eth0]:%d" % PORT), ("link-local-resolver", "udp", "[fe80::3%eth0]:53"),
        ("link-local-all", "udp", "[ff02::1%eth0]:5353"), ("site-local-host", "tcp", "[fec0::2]:%d" % PORT), ("metadata", "tcp", "169.254.169.254:80"),
    ]:
        tries.append({"id": id, "kind": kind, "target": target, "nonce": "e2e"})
    for id, argv in [
        ("arp", ["ip", "neigh", "replace", HOST, "lladdr", "02:00:00:00:00:01", "dev", "eth0"]),
        ("address", ["ip", "address", "add", "192.168.5.77/24", "dev", "eth0"]), ("route", ["ip", "route", "add", "192.0.2.0/24", "via", HOST]),
        ("rules", ["/usr/sbin/nft", "flush", "ruleset"]), ("own-unit", ["systemctl", "stop", "foldyard-firewall.service"]),
        ("sudo-nft", ["sudo", "-n", "/usr/sbin/nft", "flush", "ruleset"]), ("reboot", ["sudo", "-n", "/sbin/shutdown", "-r", "now"]),
    ]:
        tries.append({"id": id, "kind": "run", "argv": argv})
    return tries

def judge(want, text):
    start = text.find('[{"id"')
    got = {o["id"]: o for o in json.JSONDecoder().raw_decode(text[start:])[0]} if start >= 0 else {}
    reached = [i for i, o in got.items() if o["outcome"] == "reached"]
    untried = [i for i, o in got.items() if o["outcome"] == "failed"]
    print("reached: %s; refused or silent: %d; could not be tried: %s" % (", ".join(reached), len(got) - len(reached) - len(untried), ", ".join(untried) or "none"))
    control = got.get("control", {})
    if control.get("outcome") != "reached" or " 404 " not in control.get("detail", ""):
        print("the control did not arrive: %s" % control.get("detail", text[-300:]))
        return False
    if len(got) != len(plan("")) or untried:
        return False
    if want == "held":
        return reached == ["control"]
    return {"world-443", "world-80", "world-v6", "host-loopback", "site-local-host"} <= set(reached)

if sys.argv[1] == "plan":
    json.dump(plan(sys.argv[2]), sys.stdout)
else:
    sys.exit(0 if judge(sys.argv[2], sys.stdin.read()) else 1)
