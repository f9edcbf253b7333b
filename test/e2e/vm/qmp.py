# qmp.py SOCKET COMMAND: tells QEMU.
import json, socket, sys

s = socket.socket(socket.AF_UNIX)
s.settimeout(30)
s.connect(sys.argv[1])
f = s.makefile("rw")
f.readline()
for command in ("qmp_capabilities", sys.argv[2]):
    f.write(json.dumps({"execute": command}) + "\n")
    f.flush()
    while True:
        answer = json.loads(f.readline())
        if "error" in answer:
            sys.exit("%s: %s" % (command, answer["error"]))
        if "return" in answer:
            break
print("ok")
